//! The images of this node as CRI speaks of them: containerd's records, grouped by image ID. They are answered from
//! memory, which follows containerd; what memory does not have is asked of containerd before it is said to be absent,
//! and whether an image is unpacked where it will run is asked each time.

mod catalogue;
mod inspect;
mod name;
mod presence;
mod store;
mod usage;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;

use crate::containerd::introspection::LoadedSnapshotter;
use crate::containerd::leases::Collect;
use crate::containerd::snapshots::Usage;
use crate::containerd::{self, Containerd, Snapshotter};
use crate::node::snapshotter::{ChoiceError, Table};
use crate::node::{Node, NodeError};
use crate::oci::Digest;
use crate::oci::document::MAX_CONFIG;
use catalogue::Catalogue;
pub use catalogue::Image;
pub use inspect::Inspected;
pub use name::ImageName;
pub use presence::Place;
use presence::Presence;
pub use store::Keeper;
use store::Store;
pub use usage::{FilesystemUse, Sample};
use usage::{Sampler, UsageCache};

/// containerd's CRI drops an image when the event of its deletion comes; this long it is waited for.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(2);
/// For a connection that is up to be followed by a first reading of all images: three small documents for each.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// For the records of a pull to be looked at; whoever asks for images waits for their events anyway.
const PULLED_WITHIN: Duration = Duration::from_secs(5);
/// Images at a time whose snapshotters are asked for.
const LOOKS: usize = 8;
/// For a snapshotter that is not the default one. What it was measured until then is known the next time.
const MEASURED_WITHIN: Duration = Duration::from_secs(1);

/// Why images cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// containerd is not there.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// containerd failed.
    #[error(transparent)]
    Containerd(#[from] containerd::Error),
    /// containerd is there, and its images are not known.
    #[error("containerd's images could not be read in time: {0}; look at its log")]
    Unread(String),
    /// There is no telling where the image would run.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// Nobody says where the default snapshotter keeps its data.
    #[error(
        "neither snapshotter {0} nor containerd's CRI says where its snapshots are; set `root` in the exports of its \
         proxy_plugins section"
    )]
    NoRoot(Snapshotter),
    /// The content store has other bytes than those that an image was read from, or none.
    #[error("the image config {0} in containerd's content store is damaged or gone: pull the image again")]
    Damaged(Digest),
    /// A caller gave the first digits of an image ID, and too few.
    #[error("`{given}` is the start of {count} image IDs: give more of its digits")]
    Ambiguous {
        /// What the caller gave.
        given: String,
        /// How many IDs start so.
        count: usize,
    },
}

/// Settings of the images.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether an image is there only if it is unpacked where it will run.
    pub verify_unpacked: bool,
    /// Snapshotters whose images must be pulled in the guest.
    pub guest_pull: BTreeSet<Snapshotter>,
}

/// What is told of an image to those who want to know more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    /// The image config as it is in the content store.
    pub config: Vec<u8>,
    /// The snapshotters that it is unpacked in.
    pub snapshotters: Vec<Snapshotter>,
}

/// The images of one containerd.
#[derive(Debug)]
pub struct Images {
    /// As in [`Config`].
    verify_unpacked: bool,
    containerd: Containerd,
    node: Node,
    store: Arc<Store>,
    presence: Presence,
    usage: UsageCache,
    sampler: Sampler,
}

impl Images {
    /// The images of `containerd`, and the keeper that has to run for them to be known.
    pub fn new(config: Config, containerd: Containerd, node: Node) -> (Self, Keeper) {
        let (store, keeper) = Store::new(containerd.clone());
        let Config { verify_unpacked, guest_pull } = config;
        let presence = Presence::new(containerd.clone(), guest_pull);
        let (usage, sampler) = (UsageCache::default(), Sampler::default());
        (Self { verify_unpacked, containerd, node, store, presence, usage, sampler }, keeper)
    }

    /// All images whose documents can be read, by image ID. kubelet's status loop asks for them, and is not to hang while
    /// containerd is away.
    pub async fn list(&self) -> Result<Vec<Arc<Image>>, Error> {
        self.node.table_soon().await?;
        self.settle().await?;
        self.read(READ_WITHIN, Catalogue::images).await
    }

    /// How many there are, as far as that is known without asking anybody.
    pub async fn count(&self) -> Option<usize> {
        self.store.with(Duration::ZERO, |catalogue| catalogue.images().len()).await
    }

    /// The same as [`Self::list`], each with the snapshotters that it is unpacked in.
    pub async fn list_with_snapshotters(&self) -> Result<Vec<(Arc<Image>, Vec<Snapshotter>)>, Error> {
        let images = self.list().await?;
        let table = self.node.table().await?;
        let look = async |image: Arc<Image>| {
            let top = image.inspected.chain.clone();
            let snapshotters = self.presence.snapshotters(&table, top.as_ref()).await;
            (image, snapshotters)
        };
        Ok(futures_util::stream::iter(images).map(look).buffered(LOOKS).collect().await)
    }

    /// The image that the caller means, wherever it is unpacked.
    pub async fn find(&self, name: &ImageName) -> Result<Option<Arc<Image>>, Error> {
        self.node.table().await?;
        self.settle().await?;
        let exact = self.read(READ_WITHIN, |catalogue| catalogue.find_exact(name)).await;
        if let Some(image) = exact? {
            return Ok(Some(image));
        }
        // Documents come back without an event.
        if let Some(record) = name.exact() {
            self.store.look_again(vec![record]).await?;
        }
        self.read(READ_WITHIN, |catalogue| catalogue.find(name)).await?
    }

    /// The image that the caller means, if it is there where it is to be used.
    pub async fn status(&self, name: &ImageName, place: &Place) -> Result<Option<Arc<Image>>, Error> {
        if !self.verify_unpacked {
            return self.find(name).await;
        }
        let table = self.node.table().await?;
        // What memory has is nearly always right: snapshots are asked for while that is being made sure of.
        let known = self.store.with(Duration::ZERO, |catalogue| catalogue.find_exact(name)).await.flatten();
        let asked = async {
            match &known {
                Some(image) => Some(self.is_there(&table, image, place).await),
                None => None,
            }
        };
        let (found, asked) = tokio::join!(self.find(name), asked);
        let Some(image) = found? else { return Ok(None) };
        let same = known.as_ref().is_some_and(|known| known.inspected.chain == image.inspected.chain);
        let there = match asked {
            Some(there) if same => there?,
            _ => self.is_there(&table, &image, place).await?,
        };
        Ok(there.then_some(image))
    }

    async fn is_there(&self, table: &Table, image: &Image, place: &Place) -> Result<bool, Error> {
        let top = image.inspected.chain.as_ref();
        Ok(match place {
            Place::Pod(handler) => {
                let choice = table.choose(handler)?;
                self.presence.is_in(&choice.snapshotter.name, top).await?
            }
            Place::Anywhere => self.presence.is_anywhere(table, top).await?,
        })
    }

    async fn settle(&self) -> Result<(), Error> {
        let settled = self.store.settle().await?;
        settled.then_some(()).ok_or_else(|| Error::Unread("its events do not come".into()))
    }

    async fn read<T>(&self, patience: Duration, read: impl Fn(&Catalogue) -> T) -> Result<T, Error> {
        let known = self.store.with(patience, read).await;
        known.ok_or_else(|| {
            let unsaid = || "it is slow, or comes and goes".to_owned();
            Error::Unread(self.store.trouble().unwrap_or_else(unsaid))
        })
    }

    /// More of an image.
    pub async fn details(&self, image: &Image) -> Result<Details, Error> {
        let table = self.node.table().await?;
        let top = image.inspected.chain.as_ref();
        let config = match self.containerd.read_blob(&image.inspected.id, MAX_CONFIG).await {
            Err(error) if error.kind() == containerd::Kind::NotFound => {
                return Err(Error::Damaged(image.inspected.id.clone()));
            }
            config => config?,
        };
        if !image.inspected.id.matches(&config) {
            return Err(Error::Damaged(image.inspected.id.clone()));
        }
        let snapshotters = self.presence.snapshotters(&table, top).await;
        Ok(Details { config, snapshotters })
    }

    /// Takes in what a pull has recorded, so that whoever has seen it end finds its image. Best effort: the events of
    /// the records come, too.
    pub async fn pulled(&self, records: &[String]) {
        let looked = tokio::time::timeout(PULLED_WITHIN, self.store.look_again(records.to_vec())).await;
        if !matches!(looked, Ok(Ok(()))) {
            tracing::debug!(?looked, "the records of a pull are left to their events");
        }
    }

    /// Removes all names of the image, and returns when what only they kept is collected. An image that is not there
    /// counts as removed; one whose documents cannot be read has names all the same.
    pub async fn remove(&self, name: &ImageName) -> Result<(), Error> {
        self.node.table().await?;
        let catalogue = self.store.read().await?;
        let records = catalogue.records(name)?;
        let Some((last, others)) = records.split_last() else { return Ok(()) };
        for record in others {
            self.containerd.delete_image(record, Collect::Later).await?;
        }
        self.containerd.delete_image(last, Collect::Now).await?;
        let found = catalogue.find(name)?;
        let forgotten = self.forgotten(found.as_ref().map_or(last, |image| image.inspected.id.as_str()));
        let (looked, ()) = tokio::join!(self.store.look_again(records.clone()), forgotten);
        Ok(looked?)
    }

    /// The space that images take. Before containerd is there for the first time it is waited for as long as kubelet
    /// waits for its first answer, without which it would end.
    pub async fn filesystems(&self) -> Result<Sample, Error> {
        let table = self.node.first_table().await?;
        self.sampler.sample(self.store.changes(), self.measure(&table)).await
    }

    async fn measure(&self, table: &Table) -> Result<Vec<FilesystemUse>, Error> {
        let mut filesystems = vec![FilesystemUse {
            mountpoint: self.default_root(table).await?,
            usage: self.usage.total(&self.containerd, &table.default).await?,
        }];
        let others = table.loaded.iter().filter(|loaded| loaded.name != table.default);
        let others = join_all(others.map(|loaded| self.measure_beside(loaded))).await;
        filesystems.extend(others.into_iter().flatten());
        if let Some(root) = &table.content_root {
            let usage = self.containerd.content_usage().await?;
            filesystems.push(FilesystemUse { mountpoint: root.display().to_string(), usage });
        }
        Ok(filesystems)
    }

    /// A snapshotter that is not the default one, if it has images. One that does not say where it is, or does not answer
    /// at once, takes nothing from those that do.
    async fn measure_beside(&self, loaded: &LoadedSnapshotter) -> Option<FilesystemUse> {
        let root = loaded.root.as_ref()?;
        let usage = self.usage.total(&self.containerd, &loaded.name);
        match tokio::time::timeout(MEASURED_WITHIN, usage).await {
            Ok(Ok(Usage { bytes: 0, inodes: 0 })) => None,
            Ok(Ok(usage)) => Some(FilesystemUse { mountpoint: root.display().to_string(), usage }),
            failed => {
                tracing::debug!(snapshotter = %loaded.name, ?failed, "a snapshotter cannot be measured");
                None
            }
        }
    }

    async fn default_root(&self, table: &Table) -> Result<String, Error> {
        let exported = table.loaded.iter().find(|loaded| loaded.name == table.default);
        if let Some(root) = exported.and_then(|loaded| loaded.root.as_ref()) {
            return Ok(root.display().to_string());
        }
        match self.containerd.cri_image_root().await {
            Ok(Some(root)) => Ok(root),
            Err(error) if error.kind() != containerd::Kind::Unimplemented => Err(error.into()),
            _ => Err(Error::NoRoot(table.default.clone())),
        }
    }

    /// So that a caller who looks next at containerd does not see the image any more. Best effort: the removal itself
    /// is done.
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
