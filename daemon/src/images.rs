//! The images of this node as CRI speaks of them: containerd's records, grouped by image ID. containerd is asked each
//! time; only what can never change, the documents behind a digest, is remembered.

mod catalogue;
mod inspect;
mod name;
mod usage;

use std::collections::HashSet;
use std::time::Duration;

use crate::containerd::images::ImageRecord;
use crate::containerd::leases::Collect;
use crate::containerd::{self, Containerd, Snapshotter};
use crate::node::{Node, NodeError};
use catalogue::Catalogue;
pub use catalogue::Image;
pub use inspect::Inspected;
use inspect::{InspectError, Inspector};
pub use name::ImageName;
pub use usage::FilesystemUse;
use usage::UsageCache;

/// containerd's CRI drops an image when the event of its deletion comes; this long it is waited for.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(2);

/// Why images cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// containerd is not there.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// containerd failed.
    #[error(transparent)]
    Containerd(#[from] containerd::Error),
    /// Nobody says where the default snapshotter keeps its data.
    #[error(
        "neither snapshotter {0} nor containerd's CRI says where its snapshots are; set `root` in the exports of its \
         proxy_plugins section"
    )]
    NoRoot(Snapshotter),
    /// A caller gave the first digits of an image ID, and too few.
    #[error("`{given}` is the start of {count} image IDs: give more of its digits")]
    Ambiguous {
        /// What the caller gave.
        given: String,
        /// How many IDs start so.
        count: usize,
    },
}

/// The images of one containerd.
#[derive(Debug)]
pub struct Images {
    containerd: Containerd,
    node: Node,
    inspector: Inspector,
    usage: UsageCache,
}

impl Images {
    /// The images of `containerd`.
    pub fn new(containerd: Containerd, node: Node) -> Self {
        let inspector = Inspector::new(containerd.clone());
        Self { containerd, node, inspector, usage: UsageCache::default() }
    }

    /// All images whose documents can be read, by image ID.
    pub async fn list(&self) -> Result<Vec<Image>, Error> {
        Ok(self.catalogue().await?.into_images())
    }

    /// The image that the caller means.
    pub async fn find(&self, name: &ImageName) -> Result<Option<Image>, Error> {
        Ok(self.catalogue().await?.find(name)?.cloned())
    }

    /// Removes all names of the image, and returns when what only they kept is collected. An image that is not there
    /// counts as removed; one whose documents cannot be read has names all the same.
    pub async fn remove(&self, name: &ImageName) -> Result<(), Error> {
        let catalogue = self.catalogue().await?;
        let records = catalogue.records(name)?;
        let Some((last, others)) = records.split_last() else { return Ok(()) };
        for record in others {
            self.containerd.delete_image(record, Collect::Later).await?;
        }
        self.containerd.delete_image(last, Collect::Now).await?;
        let found = catalogue.find(name)?;
        self.forgotten(found.map_or(last.as_str(), |image| image.inspected.id.as_str())).await;
        Ok(())
    }

    /// Where the default snapshotter keeps images, and how much is there.
    pub async fn filesystem(&self) -> Result<FilesystemUse, Error> {
        let table = self.node.table().await?;
        let exported = table.loaded.iter().find(|loaded| loaded.name == table.default);
        let root = if let Some(root) = exported.and_then(|loaded| loaded.root.clone()) {
            root.display().to_string()
        } else {
            let known = self.containerd.cri_image_root().await.ok().flatten();
            known.ok_or_else(|| Error::NoRoot(table.default.clone()))?
        };
        let usage = self.usage.total(&self.containerd, &table.default).await?;
        Ok(FilesystemUse { mountpoint: root, usage })
    }

    async fn catalogue(&self) -> Result<Catalogue, Error> {
        let (records, odd) = self.containerd.list_images().await?;
        let targets: HashSet<_> = records.iter().map(|record| record.target.digest.clone()).collect();
        let mut catalogue = Catalogue::default();
        for name in odd {
            tracing::debug!(name, "an image record without a readable target is left out");
            catalogue.add_unreadable(name, None);
        }
        for record in records {
            match self.inspector.inspect(&record.target).await {
                Ok(inspected) => catalogue.add(inspected, record),
                Err(InspectError::Containerd(error)) if error.is_away() => return Err(error.into()),
                Err(error) => {
                    let ImageRecord { name, target, .. } = record;
                    tracing::debug!(name, %error, "an image record whose documents cannot be read is left out");
                    catalogue.add_unreadable(name, Some(&target.digest));
                }
            }
        }
        self.inspector.retain(&targets);
        Ok(catalogue)
    }

    /// So that a caller who looks next, here or at containerd, does not see the image any more. Best effort: the
    /// removal itself is done.
    async fn forgotten(&self, id: &str) {
        if !self.containerd.has_cri() {
            return;
        }
        let gone = async {
            while let Ok(Some(_)) = self.containerd.cri_image_id(id).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = tokio::time::timeout(FORGOTTEN_WITHIN, gone).await;
    }
}
