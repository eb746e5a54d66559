//! The sections and keys that exist, as plain values: read from the schema that is derived from the types, so that
//! the reference and the hints cannot differ from what is accepted.

use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Config;

/// A section of the file.
pub(super) struct Section {
    pub(super) name: String,
    /// Its reference text, on one line.
    pub(super) text: String,
    pub(super) keys: Vec<Key>,
}

/// A key of a section.
pub(super) struct Key {
    pub(super) name: String,
    /// Its reference text, on one line.
    pub(super) text: String,
    pub(super) default: Value,
    /// The values it can have, with their reference texts, if they are a closed set.
    pub(super) choices: Vec<(String, String)>,
    /// An entry, if the key is a table of names that the user chooses.
    pub(super) entry: Option<(String, Value)>,
}

/// What is read of each node of the schema.
#[derive(Deserialize)]
struct Node {
    #[serde(default)]
    description: String,
    /// In the order of the source (schemars' feature `preserve_order`).
    #[serde(default)]
    properties: Map<String, Value>,
    #[serde(default)]
    default: Value,
    #[serde(default, rename = "oneOf")]
    choices: Vec<Choice>,
    #[serde(default)]
    examples: Vec<BTreeMap<String, Value>>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(rename = "const")]
    value: String,
    description: String,
}

/// All sections in the order of the source.
pub(super) fn sections() -> Vec<Section> {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<Config>();
    node(schema.to_value()).properties.into_iter().map(|(name, value)| section(name, value)).collect()
}

fn section(name: String, value: Value) -> Section {
    let section = node(value);
    let keys = section.properties.into_iter().map(|(name, value)| key(name, value)).collect();
    Section { name, text: one_line(&section.description), keys }
}

fn key(name: String, value: Value) -> Key {
    let key = node(value);
    Key {
        name,
        text: one_line(&key.description),
        default: key.default,
        choices: key
            .choices
            .into_iter()
            .map(|choice| (choice.value, one_line(&choice.description)))
            .collect(),
        entry: key.examples.into_iter().flatten().next(),
    }
}

fn node(value: Value) -> Node {
    serde_json::from_value(value).expect("the schema of `Config` has this shape: a test reads all of it")
}

/// The source breaks lines where it likes.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_section_key_and_choice_has_a_reference_text() {
        for section in sections() {
            assert!(!section.text.is_empty() && !section.keys.is_empty(), "[{}]", section.name);
            for key in section.keys {
                assert!(!key.text.is_empty(), "{}.{}", section.name, key.name);
                assert!(!key.default.is_null(), "{}.{}", section.name, key.name);
                assert!(key.choices.iter().all(|(_, text)| !text.is_empty()), "{}", key.name);
            }
        }
    }

    #[test]
    fn the_keys_are_the_contract() {
        let names: Vec<_> = sections()
            .iter()
            .flat_map(|section| section.keys.iter().map(|key| format!("{}.{}", section.name, key.name)))
            .collect();
        assert_eq!(
            names,
            [
                "containerd.address",
                "containerd.namespace",
                "cri.socket",
                "cri.socket_mode",
                "cri.socket_group",
                "cri.verify_unpacked",
                "cri.kubelet_reasons",
                "api.socket",
                "api.socket_mode",
                "api.socket_group",
                "snapshotter.default",
                "snapshotter.unknown_handler",
                "snapshotter.guest_pull",
                "snapshotter.handlers",
                "registry.config_path",
                "registry.credentials_file",
                "registry.trusted_mirrors",
                "registry.anonymous_fallback",
                "registry.response_timeout",
                "registry.parallel_ranges",
                "registry.range_size",
                "registry.download_rate",
                "pull.max_concurrent_downloads",
                "pull.max_concurrent_pulls",
                "pull.max_pulls_per_image",
                "pull.check_disk",
                "pull.rules",
                "pull.progress_timeout",
                "pull.always_verify_credentials",
                "pull.lease_lifetime",
                "unpack.engine",
                "unpack.keep_layers",
                "unpack.sync",
                "metrics.address",
                "metrics.tag_keys",
                "metrics.tag_values",
                "traces.endpoint",
                "log.level",
                "log.format",
            ]
        );
    }
}
