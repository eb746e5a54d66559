//! What containerd's CRI says of its own configuration (`Status(verbose)`, `info["config"]`): a JSON text whose shape
//! differs between releases. Pure.
//!
//! | | 1.6 | 1.7 | 2.x |
//! |---|---|---|---|
//! | `containerd.snapshotter` | yes | yes | no: it moved to the images plugin, which does not show it |
//! | `containerd.runtimes.<name>.snapshotter` | no such field | yes | yes |
//! | `sandboxImage` | yes | yes | no: it moved to the images plugin, too |

use std::collections::HashMap;

use serde::Deserialize;

use crate::containerd::Snapshotter;
use crate::oci::Reference;

/// The part of the configuration that decides about snapshotters and pins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CriConfig {
    /// The global snapshotter, where the release shows it.
    pub snapshotter: Option<Snapshotter>,
    /// The runtime of pods that name none.
    pub default_runtime: String,
    /// All runtimes, each with its own snapshotter if it has one.
    pub runtimes: HashMap<String, Option<Snapshotter>>,
    /// The image of pod sandboxes, where the release shows it.
    pub sandbox_image: Option<Reference>,
}

/// The text is not the JSON object that every containerd sends.
#[derive(Debug, thiserror::Error)]
#[error("containerd's CRI configuration cannot be read")]
pub struct CriConfigError(#[from] serde_json::Error);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    containerd: WrittenContainerd,
    #[serde(default)]
    sandbox_image: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenContainerd {
    #[serde(default)]
    snapshotter: String,
    #[serde(default)]
    default_runtime_name: String,
    #[serde(default)]
    runtimes: Option<HashMap<String, WrittenRuntime>>,
}

#[derive(Deserialize)]
struct WrittenRuntime {
    #[serde(default)]
    snapshotter: String,
}

impl CriConfig {
    /// Reads the JSON text.
    pub fn parse(json: &str) -> Result<Self, CriConfigError> {
        let Written { containerd, sandbox_image } = serde_json::from_str(json)?;
        let runtimes = containerd.runtimes.unwrap_or_default().into_iter();
        Ok(Self {
            snapshotter: containerd.snapshotter.parse().ok(),
            default_runtime: containerd.default_runtime_name,
            runtimes: runtimes.map(|(name, runtime)| (name, runtime.snapshotter.parse().ok())).collect(),
            sandbox_image: Reference::parse(&sandbox_image).ok(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshotter(name: &str) -> Snapshotter {
        name.parse().expect("a snapshotter name")
    }

    #[test]
    fn release_1_6_shows_the_global_snapshotter_and_runtimes_without() {
        let json = r#"{"containerd": {"snapshotter": "overlayfs", "defaultRuntimeName": "runc",
            "runtimes": {"runc": {"runtimeType": "io.containerd.runc.v2", "options": null}}}, "sandboxImage": "registry.k8s.io/pause:3.6"}"#;
        let config = CriConfig::parse(json).expect("a config");
        assert_eq!(config.snapshotter, Some(snapshotter("overlayfs")));
        assert_eq!(config.default_runtime, "runc");
        assert_eq!(config.runtimes, HashMap::from([("runc".into(), None)]));
        let pause = Reference::parse("registry.k8s.io/pause:3.6").expect("a reference");
        assert_eq!(config.sandbox_image, Some(pause));
    }

    #[test]
    fn release_1_7_shows_both() {
        let json = r#"{"containerd": {"snapshotter": "overlayfs", "defaultRuntimeName": "runc",
            "runtimes": {"runc": {"snapshotter": ""}, "kata": {"snapshotter": "nydus"}}}}"#;
        let config = CriConfig::parse(json).expect("a config");
        let expected = HashMap::from([("runc".into(), None), ("kata".into(), Some(snapshotter("nydus")))]);
        assert_eq!(config.runtimes, expected);
    }

    #[test]
    fn release_2_1_shows_runtimes_only() {
        let json = r#"{"containerd": {"defaultRuntimeName": "runc",
            "runtimes": {"kata": {"snapshotter": "nydus", "io_type": ""}}}, "cni": {}}"#;
        let config = CriConfig::parse(json).expect("a config");
        assert_eq!(config.snapshotter, None);
        assert_eq!(config.runtimes, HashMap::from([("kata".into(), Some(snapshotter("nydus")))]));
    }

    #[test]
    fn null_runtimes_are_none_and_other_texts_an_error() {
        let config = CriConfig::parse(r#"{"containerd": {"runtimes": null}}"#).expect("a config");
        assert_eq!(config, CriConfig::default());
        for text in ["", "[]", "{}", "null", r#"{"containerd": 1}"#] {
            assert!(CriConfig::parse(text).is_err(), "{text}");
        }
    }
}
