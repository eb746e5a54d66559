//! Which plugins this containerd has loaded, and what they say of themselves.

use std::path::PathBuf;

use containerd_client::services::v1::introspection_client::IntrospectionClient;
use containerd_client::services::v1::{Plugin, PluginsRequest};

use super::{Containerd, Error, MAX_MESSAGE, Snapshotter};

/// A snapshotter plugin that started without an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedSnapshotter {
    /// Its name.
    pub name: Snapshotter,
    /// Where it keeps its snapshots, if it says so (export `root`).
    pub root: Option<PathBuf>,
    /// Whether it is a proxy to a process of its own (export `address`), which may answer a prepare with "exists"
    /// and so take over a layer.
    pub remote_capable: bool,
}

impl Containerd {
    /// The snapshotters that are loaded, in containerd's order.
    pub async fn loaded_snapshotters(&self) -> Result<Vec<LoadedSnapshotter>, Error> {
        let loaded = self.loaded_plugins("io.containerd.snapshotter.v1").await?;
        Ok(loaded
            .into_iter()
            .filter_map(|plugin| {
                Some(LoadedSnapshotter {
                    name: plugin.id.parse().ok()?,
                    root: plugin.exports.get("root").map(PathBuf::from),
                    remote_capable: plugin.exports.contains_key("address"),
                })
            })
            .collect())
    }

    /// The directory of the content store, if it says so (export `root`).
    pub async fn content_root(&self) -> Result<Option<PathBuf>, Error> {
        let loaded = self.loaded_plugins("io.containerd.content.v1").await?;
        Ok(loaded.iter().find_map(|plugin| plugin.exports.get("root")).map(PathBuf::from))
    }

    /// The plugins of a type that started without an error.
    async fn loaded_plugins(&self, of_type: &str) -> Result<Vec<Plugin>, Error> {
        let filters = vec![format!("type=={of_type}")];
        let mut client = IntrospectionClient::new(self.channel()).max_decoding_message_size(MAX_MESSAGE);
        let response = client
            .plugins(self.request(PluginsRequest { filters }))
            .await
            .map_err(|status| Error::new("list plugins", "", &status))?;
        Ok(response.into_inner().plugins.into_iter().filter(|plugin| plugin.init_err.is_none()).collect())
    }
}
