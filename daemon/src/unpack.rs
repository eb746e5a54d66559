//! Turns the layers of a plan into committed snapshots, bottom-up. It leads: a layer's blob is asked of `fetch` only
//! when the snapshotter does not already have, or take over, that layer. Nothing is committed before its diff ID is
//! proved.

mod ahead;
mod bring;
mod clear;
pub mod decompress;
pub mod direct;
pub mod fuzz;
mod prefetch;
mod snapshot_key;
mod staging;
mod step;
pub mod tar;
pub mod tree;

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::available_parallelism;

use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::containerd::introspection::LoadedSnapshotter;
use crate::containerd::{self, Containerd, Kind, Snapshotter};
use crate::fetch::{self, Fetched, Fetcher, Place, Source, Turns, Wanted};
use crate::metrics::Metrics;
use crate::oci::{ChainId, Descriptor, DiffId};
use crate::priority::Priority;
use crate::progress::{self, Progress, State};
use crate::trace;
use ahead::Ahead;
use snapshot_key::SnapshotKeys;
use step::{Found, Step};

/// Layers written ahead from the content store at once, on a machine of few processors: one is inflated while another
/// is written.
const READERS: usize = 2;
/// And on one of many: each takes memory, and all write to one disk.
const MOST_READERS: usize = 8;

/// Who writes the files of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// containerd's diff service.
    Differ,
    /// drayd itself, wherever it can; else containerd's diff service.
    Direct,
}

/// How the files of layers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writing {
    /// Who does it.
    pub engine: Engine,
    /// Whether they are on the disk before their snapshot is committed.
    pub sync: bool,
}

/// One layer, ready to be unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The blob.
    pub blob: Descriptor,
    /// Digest that the uncompressed blob must have.
    pub diff_id: DiffId,
    /// Name of the snapshot it becomes.
    pub chain_id: ChainId,
    /// Name of the snapshot below it.
    pub parent: Option<ChainId>,
    /// Labels for prepare and commit.
    pub labels: HashMap<String, String>,
}

/// What became of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerOutcome {
    /// The snapshotter had it, or took it over.
    Exists,
    /// Its blob was unpacked.
    Applied(Fetched),
}

/// Why a layer is not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its blob could not be had.
    #[error(transparent)]
    Fetch(#[from] fetch::Error),
    /// containerd refused a step.
    #[error("layer {layer} into {snapshotter}")]
    Containerd {
        /// Digest of the layer's blob.
        layer: String,
        /// The snapshotter.
        snapshotter: Snapshotter,
        /// What containerd said.
        source: containerd::Error,
    },
    /// drayd could not write its files.
    #[error("layer {layer} into {snapshotter}")]
    Direct {
        /// Digest of the layer's blob.
        layer: String,
        /// The snapshotter.
        snapshotter: Snapshotter,
        /// What failed.
        source: direct::Error,
    },
    /// The unpacked bytes are not those that the image config promises.
    #[error("layer {layer} unpacks to {actual}, but the image config says {stated}: the image is broken")]
    DiffId {
        /// Digest of the layer's blob.
        layer: String,
        /// Diff ID by the config.
        stated: DiffId,
        /// Digest of what was unpacked.
        actual: DiffId,
        /// Whether the content store has the blob, and may have something else under its digest.
        from_store: bool,
    },
    /// The layer is to be left to the guest, and is on the host.
    #[error(
        "snapshotter {snapshotter} is in [snapshotter] guest_pull, but has snapshot {chain_id} unpacked on the host, \
         and {used_by} stands on it: delete the pods and images that use it, and pull again"
    )]
    OnTheHost {
        /// The snapshotter.
        snapshotter: Snapshotter,
        /// The snapshot's name.
        chain_id: ChainId,
        /// Key of a snapshot that stands on it.
        used_by: String,
    },
    /// The layer is to be left to the guest, and the snapshotter wants it on the host.
    #[error(
        "snapshotter {snapshotter} is in [snapshotter] guest_pull, but wants layer {layer} unpacked on the host: check \
         that its fs_driver is \"proxy\", or take it off that list"
    )]
    NotGuestPull {
        /// Digest of the layer's blob.
        layer: String,
        /// The snapshotter.
        snapshotter: Snapshotter,
    },
    /// The snapshotter says that the snapshot exists, and does not have it.
    #[error(
        "containerd has a record of snapshot {chain_id}, but snapshotter {snapshotter} has lost it, and something else \
         needs it: delete the pods and images of that snapshotter, and the leases of pulls that crashed (`ctr -n k8s.io \
         leases list`), and pull again"
    )]
    Vanished {
        /// The snapshotter.
        snapshotter: Snapshotter,
        /// The snapshot's name.
        chain_id: ChainId,
    },
}

/// Unpacks for all pulls of this node.
pub struct Unpacker {
    /// Brings the blobs.
    fetcher: Arc<Fetcher>,
    /// Layers at once that are written ahead from the content store, over all pulls.
    readers: Arc<Semaphore>,
    /// One unpack per snapshot at a time; whoever comes second finds it committed.
    turns: Turns<(Snapshotter, ChainId)>,
    /// Names what is being filled.
    keys: SnapshotKeys,
    /// Owns clearances that outlive their pull, so that a drain can wait for them.
    clearances: TaskTracker,
    /// Snapshotters that leave all layers to the guest.
    guest_pull: BTreeSet<Snapshotter>,
    /// By the configuration.
    writing: Writing,
    /// Counts how long snapshotters take.
    metrics: Arc<Metrics>,
}

/// What all layers of one pull share.
#[derive(Clone, Debug)]
pub struct Context {
    /// containerd, under the pull's lease.
    pub containerd: Containerd,
    /// Where blobs come from.
    pub source: Source,
    /// Told of what is done; its wire is watched for stalls.
    pub progress: Arc<Progress>,
    /// How urgent it is.
    pub priority: Priority,
    /// Whether layer blobs stay in the content store once they are unpacked.
    pub keep_layers: bool,
}

impl Context {
    /// The blob of a layer, to be fetched.
    fn wanted<'a>(&'a self, layer: &'a Layer, told: &'a progress::Layer, place: &'a Place) -> Wanted<'a> {
        Wanted { source: &self.source, blob: &layer.blob, meter: self.progress.meter(), told, place }
    }
}

impl Unpacker {
    /// An unpacker that gets its blobs from `fetcher`. On the snapshotters of `guest_pull` it unpacks nothing.
    pub fn new(
        fetcher: Arc<Fetcher>,
        guest_pull: BTreeSet<Snapshotter>,
        writing: Writing,
        metrics: Arc<Metrics>,
    ) -> Self {
        let processors = available_parallelism().map_or(READERS, NonZeroUsize::get);
        let readers = Arc::new(Semaphore::new(processors.clamp(READERS, MOST_READERS)));
        Self {
            fetcher,
            readers,
            turns: Turns::default(),
            keys: SnapshotKeys::default(),
            clearances: TaskTracker::new(),
            guest_pull,
            writing,
            metrics,
        }
    }

    /// Waits for what must be done to its end although its pull has ended.
    pub async fn drain(&self) {
        self.clearances.close();
        self.clearances.wait().await;
    }

    /// Unpacks the stack and says what became of each layer, lowest first. Committed layers stay whatever comes, since
    /// they are whole. On an error the active snapshots are removed if containerd still answers; if it does not, or if
    /// this is dropped (the pull stalled, or every caller left), they go when the lease is collected.
    pub async fn unpack(
        &self,
        context: &Context,
        snapshotter: &LoadedSnapshotter,
        layers: &[Layer],
    ) -> Result<Vec<LayerOutcome>, Error> {
        let mut ahead = Ahead::new(self, context, snapshotter, layers);
        // Boxed: it is large, and every future around it would hold it.
        let unpacked = Box::pin(self.climb(context, snapshotter, layers, &mut ahead)).await;
        let away = unpacked.as_ref().is_err_and(Error::containerd_is_away);
        ahead.close(away).await;
        unpacked
    }

    /// Layer by layer, from below.
    async fn climb(
        &self,
        context: &Context,
        snapshotter: &LoadedSnapshotter,
        layers: &[Layer],
        ahead: &mut Ahead<'_>,
    ) -> Result<Vec<LayerOutcome>, Error> {
        let mut outcomes = Vec::with_capacity(layers.len());
        for (index, layer) in layers.iter().enumerate() {
            let _turn = ahead.turn(index).await?;
            let told = context.progress.layer(index);
            let step = Step::new(self, context, snapshotter, layer, &told);
            let span = trace::layer("layer", layer.blob.digest.as_str(), layer.blob.size);
            let active = match step.prepare().instrument(span.clone()).await? {
                Found::Nothing(active) => Some(active),
                Found::Layer => None,
                // Boxed, as it is rare and large.
                unusable => Box::pin(step.instead_of(unusable, &layers[index..])).await?,
            };
            let outcome = match active {
                None => {
                    ahead.prefetch.unneeded(index);
                    told.end(if snapshotter.remote_capable { State::Remote } else { State::Present });
                    LayerOutcome::Exists
                }
                Some(active) => {
                    ahead.active = Some(active.key.clone());
                    ahead.start(index, &active).await?;
                    let brought = ahead.prefetch.answer(index);
                    match ahead.prefetch.beside(step.fill(active, brought).instrument(span)).await {
                        Err(error)
                            if error.may_lie_in_the_store() && self.mend(context, layer, &told).await? =>
                        {
                            ahead.prefetch.beside(Box::pin(step.once_more())).await?
                        }
                        filled => filled?,
                    }
                }
            };
            ahead.active = None;
            outcomes.push(outcome);
        }
        ahead.prefetch.finish().await?;
        Ok(outcomes)
    }

    /// Fetches the layer's blob anew if what the content store has is not it. Boxed, as it is rare and large.
    async fn mend(&self, context: &Context, layer: &Layer, told: &progress::Layer) -> Result<bool, Error> {
        let place = self.fetcher.line(&context.priority).place();
        let wanted = context.wanted(layer, told, &place);
        Ok(Box::pin(self.fetcher.mend(&context.containerd, wanted)).await?)
    }
}

impl Error {
    fn containerd(layer: &Layer, snapshotter: &Snapshotter, source: containerd::Error) -> Self {
        Self::Containerd { layer: layer.blob.digest.to_string(), snapshotter: snapshotter.clone(), source }
    }

    /// Whether a blob of the content store that is not what its records say would fail like this.
    fn may_lie_in_the_store(&self) -> bool {
        match self {
            Self::DiffId { from_store, .. } => *from_store,
            Self::Direct { source, .. } => !source.is_full_disk(),
            Self::Containerd { source, .. } => matches!(source.kind(), Kind::Failed | Kind::NotFound),
            Self::Fetch(_) | Self::Vanished { .. } | Self::OnTheHost { .. } | Self::NotGuestPull { .. } => {
                false
            }
        }
    }

    /// Whether containerd did not answer, so that there is no point in asking it more.
    pub(crate) fn containerd_is_away(&self) -> bool {
        match self {
            Self::Containerd { source, .. } | Self::Fetch(fetch::Error::Containerd(source)) => {
                source.is_away()
            }
            Self::Fetch(_)
            | Self::Direct { .. }
            | Self::DiffId { .. }
            | Self::Vanished { .. }
            | Self::OnTheHost { .. }
            | Self::NotGuestPull { .. } => false,
        }
    }
}
