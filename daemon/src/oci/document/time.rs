//! Times in documents, which are read only to know that containerd can read them.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// A time as Go's `time.Time` reads it from JSON, that is, by RFC 3339 to the letter.
pub(super) struct Time;

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TimeVisitor)
    }
}

struct TimeVisitor;

impl Visitor<'_> for TimeVisitor {
    type Value = Time;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time by RFC 3339")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Time, E> {
        is_time(text).map(|()| Time).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// `YYYY-MM-DDThh:mm:ss`, a fraction if need be, and `Z` or `±hh:mm`.
fn is_time(text: &str) -> Option<()> {
    let number = |from: usize, to: usize| {
        let digits = text.get(from..to)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u32>().ok())?
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let separators = [(4, "-"), (7, "-"), (10, "T"), (13, ":"), (16, ":")];
    let separated = separators.iter().all(|&(at, separator)| text.get(at..=at) == Some(separator));
    let in_range = (1..=days(year, month)?).contains(&day) && hour < 24 && minute < 60 && second < 60;
    let rest = text.get(19..)?;
    let zone = match rest.strip_prefix(['.', ',']) {
        Some(fraction) => {
            let zone = fraction.trim_start_matches(|character: char| character.is_ascii_digit());
            (zone.len() < fraction.len()).then_some(zone)?
        }
        None => rest,
    };
    (separated && in_range && is_zone(zone)).then_some(())
}

fn is_zone(zone: &str) -> bool {
    let Some((hours, minutes)) = zone.strip_prefix(['+', '-']).and_then(|offset| offset.split_once(':'))
    else {
        return zone == "Z";
    };
    let within = |text: &str, end: u32| {
        text.len() == 2
            && text.bytes().all(|byte| byte.is_ascii_digit())
            && text.parse::<u32>().is_ok_and(|number| number < end)
    };
    within(hours, 24) && within(minutes, 60)
}

/// Days of a month.
fn days(year: u32, month: u32) -> Option<u32> {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => Some(31),
        4 | 6 | 9 | 11 => Some(30),
        2 if leap => Some(29),
        2 => Some(28),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_rfc_3339() {
        for text in [
            "0001-01-01T00:00:00Z",
            "2024-02-29T23:59:59.123456789Z",
            "2015-10-31T22:22:56.015925234+02:00",
            "1970-01-01T00:00:00-23:59",
            "2000-02-29T00:00:00.0Z",
        ] {
            assert!(is_time(text).is_some(), "{text}");
        }
        for text in [
            "",
            "garbage",
            "2024-01-01",
            "2024-01-01T00:00:00",
            "2024-01-01 00:00:00Z",
            "2024-01-01t00:00:00z",
            "2024-1-01T00:00:00Z",
            "2024-13-01T00:00:00Z",
            "2024-04-31T00:00:00Z",
            "2023-02-29T00:00:00Z",
            "1900-02-29T00:00:00Z",
            "2024-01-00T00:00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:60:00Z",
            "2024-01-01T00:00:60Z",
            "2024-01-01T00:00:00.Z",
            "2024-01-01T00:00:00+1:00",
            "2024-01-01T00:00:00+01:60",
            "2024-01-01T00:00:00+0100",
            "2024-01-01T00:00:00ZZ",
            "+024-01-01T00:00:00Z",
            "2024-01-01T00:00:é",
        ] {
            assert!(is_time(text).is_none(), "{text}");
        }
    }
}
