//! The images of this node as CRI speaks of them: containerd's records, grouped by image ID. containerd is asked each
//! time; only what can never change, the documents behind a digest, is remembered.

mod inspect;
mod usage;

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use crate::containerd::images::ImageRecord;
use crate::containerd::leases::Collect;
use crate::containerd::{self, Containerd, Kind, Snapshotter, labels};
use crate::node::{Node, NodeError};
use crate::oci::Reference;
pub use inspect::Inspected;
use inspect::{InspectError, Inspector};
pub use usage::FilesystemUse;
use usage::UsageCache;

/// containerd's CRI drops an image when the event of its deletion comes; this long it is waited for.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(2);

/// An image with all its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// What its documents say.
    pub inspected: Inspected,
    /// Names with a tag.
    pub repo_tags: Vec<String>,
    /// Names with a digest.
    pub repo_digests: Vec<String>,
    /// Whether kubelet must not collect it.
    pub pinned: bool,
    /// Names of all its records, the image ID among them.
    records: Vec<String>,
}

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
}

/// The images of one containerd.
#[derive(Debug)]
pub struct Images {
    containerd: Containerd,
    node: Node,
    inspector: Inspector,
    usage: UsageCache,
}

/// What a caller calls an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageName {
    /// An image ID, or the first digits of one.
    Id(String),
    /// A normalised reference.
    Reference(Reference),
    /// A reference that might also be the first digits of an ID; the reference is tried first.
    Either(Reference, String),
}

impl Images {
    /// The images of `containerd`.
    pub fn new(containerd: Containerd, node: Node) -> Self {
        let inspector = Inspector::new(containerd.clone());
        Self { containerd, node, inspector, usage: UsageCache::default() }
    }

    /// All images whose documents can be read, by image ID.
    pub async fn list(&self) -> Result<Vec<Image>, Error> {
        let (records, odd) = self.containerd.list_images().await?;
        if !odd.is_empty() {
            tracing::debug!(names = odd.join(","), "image records without a readable target are left out");
        }
        let targets: HashSet<_> = records.iter().map(|record| record.target.digest.clone()).collect();
        let mut images = BTreeMap::new();
        for record in records {
            match self.inspector.inspect(&record.target).await {
                Ok(inspected) => add(&mut images, inspected, record),
                Err(InspectError::Containerd(error)) if is_away(&error) => return Err(error.into()),
                Err(error) => {
                    let name = &record.name;
                    tracing::debug!(name, %error, "an image record whose documents cannot be read is left out");
                }
            }
        }
        self.inspector.retain(&targets);
        Ok(images.into_values().collect())
    }

    /// The image that the caller means.
    pub async fn find(&self, name: &ImageName) -> Result<Option<Image>, Error> {
        Ok(self.list().await?.into_iter().find(|image| image.is(name)))
    }

    /// Removes all names of the image, and returns when what only they kept is collected. An image that is not there
    /// counts as removed.
    pub async fn remove(&self, name: &ImageName) -> Result<(), Error> {
        let Some(image) = self.find(name).await? else { return Ok(()) };
        if let Some((last, others)) = image.records.split_last() {
            for record in others {
                self.containerd.delete_image(record, Collect::Later).await?;
            }
            self.containerd.delete_image(last, Collect::Now).await?;
        }
        self.forgotten(image.inspected.id.as_str()).await;
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
        let usage = self.usage.total(&self.containerd.snapshots(&table.default)).await?;
        Ok(FilesystemUse { mountpoint: root, usage })
    }

    /// So that a caller who looks next, here or at containerd, does not see the image any more. Best effort: the
    /// removal itself is done.
    async fn forgotten(&self, id: &str) {
        let gone = async {
            while let Ok(Some(_)) = self.containerd.cri_image_id(id).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = tokio::time::timeout(FORGOTTEN_WITHIN, gone).await;
    }
}

impl Image {
    fn is(&self, name: &ImageName) -> bool {
        match name {
            ImageName::Id(id) => self.has_id(id),
            ImageName::Reference(reference) => self.has_name(reference),
            ImageName::Either(reference, id) => self.has_name(reference) || self.has_id(id),
        }
    }

    fn has_name(&self, reference: &Reference) -> bool {
        let name = reference.to_string();
        self.repo_tags.contains(&name) || self.repo_digests.contains(&name)
    }

    fn has_id(&self, id: &str) -> bool {
        let own = self.inspected.id.as_str();
        let given = id.strip_prefix("sha256:").unwrap_or(id);
        !given.is_empty() && own.strip_prefix("sha256:").is_some_and(|hex| hex.starts_with(given))
    }
}

impl ImageName {
    /// Reads what a caller calls an image: an ID as PullImage returns it, its hex digits or the first of them, or a
    /// reference. The error is the reference's.
    pub fn parse(text: &str) -> Result<Self, crate::oci::reference::ReferenceError> {
        let hex = text.strip_prefix("sha256:").unwrap_or(text);
        let digits = !hex.is_empty() && hex.len() <= 64 && hex.bytes().all(|b| b.is_ascii_hexdigit());
        if digits && (text.starts_with("sha256:") || hex.len() == 64) {
            return Ok(Self::Id(text.into()));
        }
        let reference = Reference::parse(text)?;
        Ok(if digits { Self::Either(reference, text.into()) } else { Self::Reference(reference) })
    }
}

/// Whether containerd itself is not there, as opposed to one image being broken.
fn is_away(error: &containerd::Error) -> bool {
    matches!(error.kind(), Kind::Unavailable | Kind::Deadline)
}

/// Adds a record to its image.
fn add(images: &mut BTreeMap<String, Image>, inspected: Inspected, record: ImageRecord) {
    let image = images.entry(inspected.id.to_string()).or_insert_with(|| Image {
        inspected,
        repo_tags: Vec::new(),
        repo_digests: Vec::new(),
        pinned: false,
        records: Vec::new(),
    });
    let (key, value) = labels::CRI_PINNED;
    image.pinned |= record.labels.get(key).is_some_and(|label| label == value);
    // A record is a name only in the form that the reference grammar gives it: others made by hand are not shown.
    match Reference::parse(&record.name) {
        Ok(reference) if reference.to_string() != record.name => {}
        Ok(reference) if reference.digest().is_some() => image.repo_digests.push(record.name.clone()),
        Ok(_) => image.repo_tags.push(record.name.clone()),
        Err(_) => {}
    }
    image.records.push(record.name);
}

#[cfg(test)]
mod tests;
