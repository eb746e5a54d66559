//! `Content-Range`: where the bytes of a partial answer lie.

/// First byte, the one behind the last, and the whole length when the peer tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContentRange {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) total: Option<u64>,
}

impl ContentRange {
    /// Reads `bytes <start>-<end>/<total or *>`; `None` for anything else.
    pub(super) fn parse(header: &str) -> Option<Self> {
        let (unit, range) = header.trim().split_once(' ')?;
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        let (span, total) = range.trim().split_once('/')?;
        let (start, end) = span.split_once('-')?;
        let (start, end) = (start.trim().parse().ok()?, end.trim().parse::<u64>().ok()?);
        let total = match total.trim() {
            "*" => None,
            total => Some(total.parse::<u64>().ok()?),
        };
        (start <= end && total.is_none_or(|total| end < total)).then(|| Self {
            start,
            end: end.saturating_add(1),
            total,
        })
    }

    /// Whether the bytes from `offset` of a blob of `size` bytes are what follows.
    pub(super) fn continues(self, offset: u64, size: u64) -> bool {
        self.start == offset && self.total.is_none_or(|total| total == size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_are_read_and_nonsense_is_not() {
        let range = |start, end, total| Some(ContentRange { start, end, total });
        for (header, expected) in [
            ("bytes 5-9/10", range(5, 10, Some(10))),
            ("Bytes 0-0/*", range(0, 1, None)),
            ("bytes 5-9/9", None),
            ("bytes 9-5/10", None),
            ("bytes */10", None),
            ("items 5-9/10", None),
            ("bytes=5-9/10", None),
            ("bytes 5-/10", None),
            ("bytes -5-9/10", None),
            ("bytes 99999999999999999999-1/2", None),
            ("", None),
        ] {
            assert_eq!(ContentRange::parse(header), expected, "{header}");
        }
    }

    #[test]
    fn only_the_wanted_bytes_continue_a_blob() {
        let continues = |header| ContentRange::parse(header).is_some_and(|range| range.continues(5, 10));
        assert!(continues("bytes 5-9/10"));
        assert!(continues("bytes 5-9/*"));
        for header in ["bytes 0-9/10", "bytes 6-9/10", "bytes 5-10/11"] {
            assert!(!continues(header), "{header}");
        }
    }
}
