//! Names in containerd's own grammar, so that one which containerd would refuse is refused at the start.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::written::{self, Written};

/// containerd's limit (`pkg/identifiers`).
const MAX_LENGTH: usize = 76;

/// The name of a namespace or a snapshotter: letters and digits, with single `-`, `_` or `.` between them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
#[schemars(transparent)]
pub struct Identifier(String);

impl Identifier {
    /// For names that stand in the source, which are known to be good.
    pub(super) fn constant(name: &'static str) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Written for Identifier {
    const FORM: &'static str = "a name of letters and digits with single `-`, `_` or `.` between them";

    fn read(text: &str) -> Option<Self> {
        let good = text.len() <= MAX_LENGTH
            && text
                .split(['-', '_', '.'])
                .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric()));
        good.then(|| Self(text.into()))
    }

    fn write(&self) -> String {
        self.0.clone()
    }
}

/// The empty text is none.
impl Written for Option<Identifier> {
    const FORM: &'static str =
        "a name of letters and digits with single `-`, `_` or `.` between them, or nothing";

    fn read(text: &str) -> Option<Self> {
        if text.is_empty() { Some(None) } else { Identifier::read(text).map(Some) }
    }

    fn write(&self) -> String {
        self.as_ref().map(Identifier::write).unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for Identifier {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        written::deserialize(deserializer)
    }
}

impl Serialize for Identifier {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        written::serialize(self, serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_containerds() {
        for good in ["k8s.io", "overlayfs", "a", "my-snapshotter_2"] {
            assert_eq!(Identifier::read(good).map(|name| name.0), Some(good.into()));
        }
        let long = "a".repeat(77);
        for bad in ["", ".", "-a", "a-", "a..b", "a b", "a/b", "ä", &long] {
            assert_eq!(Identifier::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_in_the_source_are_good() {
        let namespace = crate::config::Containerd::default().namespace;
        assert_eq!(Identifier::read(namespace.as_str()), Some(namespace));
    }
}
