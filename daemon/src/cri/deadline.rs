//! The caller's deadline: the `grpc-timeout` header (gRPC over HTTP/2, "Timeout").

use std::time::Duration;

use http::HeaderMap;

/// The time that the caller gives the call; `None` if it sets none or the header cannot be read.
pub(super) fn of(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // At most eight digits, by the specification.
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(value * 3600),
        "M" => Duration::from_secs(value * 60),
        "S" => Duration::from_secs(value),
        "m" => Duration::from_millis(value),
        "u" => Duration::from_micros(value),
        "n" => Duration::from_nanos(value),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_read_in_every_unit_and_ignored_when_malformed() {
        for (text, expected) in [
            ("2H", Some(Duration::from_secs(7200))),
            ("3M", Some(Duration::from_secs(180))),
            ("120S", Some(Duration::from_secs(120))),
            ("99999999m", Some(Duration::from_millis(99_999_999))),
            ("5u", Some(Duration::from_micros(5))),
            ("7n", Some(Duration::from_nanos(7))),
            ("", None),
            ("S", None),
            ("5", None),
            ("-5S", None),
            ("5s", None),
            ("123456789S", None),
            ("5ü", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", http::HeaderValue::from_bytes(text.as_bytes()).expect("a header"));
            assert_eq!(of(&headers), expected, "{text:?}");
        }
        assert_eq!(of(&HeaderMap::new()), None);
    }
}
