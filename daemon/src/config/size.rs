//! Numbers of bytes with a unit: `8MiB`, `512KiB`. Own code, because the crates for this take decimal units too, in
//! which a letter's difference is five percent.

use super::written::Written;

const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// A number of bytes above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl Written for Size {
    const FORM: &'static str = "a number of bytes above zero such as \"8MiB\" or \"512KiB\"";

    fn read(text: &str) -> Option<Self> {
        let (digits, unit) =
            UNITS.into_iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)))?;
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let bytes = digits.parse::<u64>().ok()?.checked_mul(unit)?;
        (bytes > 0).then_some(Self(bytes))
    }

    fn write(&self) -> String {
        let exact = UNITS.into_iter().find(|(_, bytes)| self.0.is_multiple_of(*bytes));
        exact.map_or_else(|| self.0.to_string(), |(unit, bytes)| format!("{}{unit}", self.0 / bytes))
    }
}

/// `0` is none: no limit.
impl Written for Option<Size> {
    const FORM: &'static str = "a number of bytes such as \"50MiB\" or \"512KiB\", or \"0\" for no limit";

    fn read(text: &str) -> Option<Self> {
        if matches!(text, "0" | "") { Some(None) } else { Size::read(text).map(Some) }
    }

    fn write(&self) -> String {
        self.map_or_else(|| "0".into(), |size| size.write())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_binary_unit_and_read_back() {
        for (text, bytes) in [("8MiB", 8 << 20), ("512KiB", 512 << 10), ("3GiB", 3 << 30)] {
            assert_eq!(Size::read(text), Some(Size(bytes)), "{text}");
            assert_eq!(Size(bytes).write(), text);
        }
        for text in ["", "8", "MiB", "8MB", "8 MiB", "-8MiB", "+8MiB", "0MiB", "1.5MiB", "99999999999GiB"] {
            assert_eq!(Size::read(text), None, "{text}");
        }
    }
}
