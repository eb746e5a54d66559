//! Durations as Go writes them, which is what containerd's own configuration uses: `5m`, `1h30m`, `500ms`, `0`.
//! Own code, because the crates for this either take words and months too (`humantime`) or read one unit only.
//! Fractions, signs and units below a millisecond are left out: no setting needs them.

use std::time::Duration;

use super::written::Written;

const HOUR: u64 = 60 * MINUTE;
const MINUTE: u64 = 60 * SECOND;
const SECOND: u64 = 1000;

/// `ms` stands before the units that it starts with.
const UNITS: [(&str, u64); 4] = [("ms", 1), ("h", HOUR), ("m", MINUTE), ("s", SECOND)];

/// `0` is none: a wait without end.
impl Written for Option<Duration> {
    const FORM: &'static str = "a duration such as \"5m\", \"1h30m\" or \"500ms\", or \"0\" for none";

    fn read(text: &str) -> Option<Self> {
        let duration = if text == "0" { Duration::ZERO } else { read(text)? };
        Some(Some(duration).filter(|duration| !duration.is_zero()))
    }

    fn write(&self) -> String {
        self.map_or_else(|| "0".into(), write)
    }
}

/// A wait that must end.
impl Written for Duration {
    const FORM: &'static str = "a duration above zero such as \"10s\", \"1m30s\" or \"500ms\"";

    fn read(text: &str) -> Option<Self> {
        read(text).filter(|duration| !duration.is_zero())
    }

    fn write(&self) -> String {
        write(*self)
    }
}

fn read(text: &str) -> Option<Duration> {
    let mut total: u64 = 0;
    let mut rest = text;
    loop {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, after) = rest.split_at(digits);
        let (unit, millis) = UNITS.into_iter().find(|(unit, _)| after.starts_with(unit))?;
        let number: u64 = number.parse().ok()?;
        total = total.checked_add(number.checked_mul(millis)?)?;
        rest = &after[unit.len()..];
        if rest.is_empty() {
            return Some(Duration::from_millis(total));
        }
    }
}

fn write(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (unit, millis) in [("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", 1)] {
        if rest >= millis {
            text += &(rest / millis).to_string();
            text += unit;
            rest %= millis;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_mean_what_go_means_by_them() {
        for (text, millis) in [
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("500ms", 500),
            ("10s", 10_000),
            ("1m500ms", 60_500),
            ("90m", 5_400_000),
            ("1m1h", 3_660_000),
        ] {
            assert_eq!(Option::<Duration>::read(text), Some(Some(Duration::from_millis(millis))), "{text}");
        }
    }

    #[test]
    fn zero_in_any_unit_is_none() {
        for text in ["0", "0s", "0h0m"] {
            assert_eq!(Option::<Duration>::read(text), Some(None), "{text}");
        }
    }

    #[test]
    fn a_wait_that_must_end_is_never_zero() {
        assert_eq!(<Duration as Written>::read("10s"), Some(Duration::from_secs(10)));
        for text in ["0", "0s", "0h0m", "10"] {
            assert_eq!(<Duration as Written>::read(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_not_a_duration_is_refused() {
        let overflow = format!("{}h", u64::MAX);
        for text in
            ["", "5", "m", "5 m", " 5m", "5m ", "-5m", "1.5h", "5min", "5d", "5m3", "00", "５m", &overflow]
        {
            assert_eq!(Option::<Duration>::read(text), None, "{text}");
        }
    }

    #[test]
    fn the_written_form_reads_back() {
        for text in ["5m", "1h30m", "500ms", "10s", "0", "1h1m1s1ms"] {
            assert_eq!(Option::<Duration>::read(text).map(|duration| duration.write()), Some(text.into()));
        }
    }
}
