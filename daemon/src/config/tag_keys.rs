//! Keys of tags that become labels, each another one.

use std::collections::BTreeSet;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::metrics::label_of;

/// Keys whose labels differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct TagKeys(pub Vec<String>);

impl<'de> Deserialize<'de> for TagKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let keys = Vec::<String>::deserialize(deserializer)?;
        let mut labels = BTreeSet::new();
        for key in &keys {
            if key.is_empty() {
                return Err(D::Error::custom("a key is empty"));
            }
            if !labels.insert(label_of(key)) {
                let label = label_of(key);
                let message = format!(
                    "more than one key becomes the label `{label}`: only letters and digits tell keys apart"
                );
                return Err(D::Error::custom(message));
            }
        }
        Ok(Self(keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<TagKeys, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn keys_must_become_different_labels() {
        assert_eq!(read(r#"["app", "k8s.io/team"]"#), Ok(TagKeys(vec!["app".into(), "k8s.io/team".into()])));
        for (keys, expected) in [
            (r#"["a.b", "a-b"]"#, "the label `tag_a_b`"),
            (r#"["app", "app"]"#, "the label `tag_app`"),
            (r#"[""]"#, "a key is empty"),
            ("[1]", "expected a string"),
        ] {
            let error = read(keys).unwrap_err();
            assert!(error.contains(expected), "{keys}: {error}");
        }
    }
}
