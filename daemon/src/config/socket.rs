//! The written forms of what a listening socket needs: its path, mode, group or address.

use std::net::SocketAddr;

use super::written::Written;
use crate::socket::{Group, Mode};

impl Written for Mode {
    const FORM: &'static str = "permission bits in octal, such as \"0660\"";

    fn read(text: &str) -> Option<Self> {
        let octal = (3..=4).contains(&text.len()) && text.bytes().all(|b| matches!(b, b'0'..=b'7'));
        if !octal {
            return None;
        }
        Self::new(u32::from_str_radix(text, 8).ok()?)
    }

    fn write(&self) -> String {
        format!("{:04o}", self.bits())
    }
}

/// Empty is none. Whether the group exists is only known when the socket is bound.
impl Written for Option<Group> {
    const FORM: &'static str = "the name or number of a group, or nothing";

    fn read(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(None);
        }
        if text.bytes().all(|b| b.is_ascii_digit()) {
            // The highest number means "leave it" to chown(2).
            return text.parse().ok().filter(|id| *id != u32::MAX).map(|id| Some(Group::Id(id)));
        }
        let good = text.chars().all(|c| !c.is_control() && !c.is_whitespace() && c != ':');
        good.then(|| Some(Group::Name(text.into())))
    }

    fn write(&self) -> String {
        match self {
            None => String::new(),
            Some(Group::Name(name)) => name.clone(),
            Some(Group::Id(id)) => id.to_string(),
        }
    }
}

/// Empty is none.
impl Written for Option<SocketAddr> {
    const FORM: &'static str = "IP:PORT, such as \"127.0.0.1:9095\" or \"[::1]:9095\", or nothing";

    fn read(text: &str) -> Option<Self> {
        if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) }
    }

    fn write(&self) -> String {
        self.map(|address| address.to_string()).unwrap_or_default()
    }
}

/// Paths that a socket will be bound to: absolute, and short enough for a socket address.
pub(super) mod listening {
    use std::path::PathBuf;

    use serde::{Deserializer, Serializer};

    use crate::config::written::{self, Written};
    use crate::socket::MAX_PATH;

    struct Listening(PathBuf);

    impl Written for Listening {
        const FORM: &'static str = "an absolute path of at most 107 bytes";

        fn read(text: &str) -> Option<Self> {
            PathBuf::read(text).filter(|_| text.len() <= MAX_PATH).map(Self)
        }

        fn write(&self) -> String {
            self.0.write()
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<PathBuf, D::Error> {
        written::deserialize(deserializer).map(|Listening(path)| path)
    }

    pub(in super::super) fn serialize<S: Serializer>(
        path: &PathBuf,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        written::serialize(path, serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal_permission_bits() {
        for (text, bits) in [("0660", 0o660), ("660", 0o660), ("0777", 0o777), ("0000", 0)] {
            assert_eq!(Mode::read(text).map(Mode::bits), Some(bits), "{text}");
        }
        for text in ["", "66", "0o660", "0668", "rw-rw----", "1777", "00660", "+660"] {
            assert_eq!(Mode::read(text), None, "{text}");
        }
        assert_eq!(Mode::read("660").map(|mode| mode.write()), Some("0660".into()));
    }

    #[test]
    fn groups_are_names_or_numbers() {
        assert_eq!(Option::<Group>::read(""), Some(None));
        assert_eq!(Option::read("999"), Some(Some(Group::Id(999))));
        assert_eq!(Option::read("drayd"), Some(Some(Group::Name("drayd".into()))));
        for text in ["4294967295", "99999999999", "a b", "a:b", "a\n"] {
            assert_eq!(Option::<Group>::read(text), None, "{text}");
        }
    }

    #[test]
    fn addresses_have_a_number_and_a_port() {
        assert_eq!(Option::<SocketAddr>::read(""), Some(None));
        assert_eq!(
            Option::read("[::1]:9095"),
            Some(Some(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 9095))))
        );
        for text in ["9095", ":9095", "localhost:9095", "127.0.0.1", "127.0.0.1:99999"] {
            assert_eq!(Option::<SocketAddr>::read(text), None, "{text}");
        }
    }
}
