//! Turns the layers of a plan into committed snapshots, bottom-up. It leads: a layer's blob is asked of `fetch` only
//! when the snapshotter does not already have, or take over, that layer. Nothing is committed before its diff ID is
//! proved.

mod clear;
pub mod decompress;
pub mod direct;
pub mod fuzz;
mod prefetch;
mod snapshot_key;
pub mod tar;
pub mod tree;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tokio_util::task::TaskTracker;

use crate::containerd::introspection::LoadedSnapshotter;
use crate::containerd::snapshots::{Committed, Prepared, Snapshots};
use crate::containerd::{self, Containerd, Kind, Mount, Snapshotter, labels};
use crate::fetch::{self, Fetched, Fetcher, Meter, Source, Turns};
use crate::oci::{ChainId, Descriptor, DiffId};
use clear::Clearance;
use direct::{Failure, Place, Unfit};
use prefetch::Prefetch;
use snapshot_key::SnapshotKeys;

/// How often a prepare may answer "exists" while the snapshot cannot be found (containerd's own bound).
const PREPARE_ATTEMPTS: u32 = 3;

/// Who writes the files of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// containerd's diff service.
    Differ,
    /// drayd itself, wherever it can; else containerd's diff service.
    Direct,
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
    /// One unpack per snapshot at a time; whoever comes second finds it committed.
    turns: Turns<(Snapshotter, ChainId)>,
    /// Names what is being filled.
    keys: SnapshotKeys,
    /// Owns clearances that outlive their pull, so that a drain can wait for them.
    clearances: TaskTracker,
    /// Snapshotters that leave all layers to the guest.
    guest_pull: BTreeSet<Snapshotter>,
    /// By the configuration.
    engine: Engine,
}

/// What all layers of one pull share.
#[derive(Clone, Debug)]
pub struct Context {
    /// containerd, under the pull's lease.
    pub containerd: Containerd,
    /// Where blobs come from.
    pub source: Source,
    /// Watched for stalls.
    pub meter: Arc<Meter>,
    /// Whether layer blobs stay in the content store once they are unpacked.
    pub keep_layers: bool,
}

impl Unpacker {
    /// An unpacker that gets its blobs from `fetcher` and has `engine` write their files. On the snapshotters of `guest_pull` it unpacks nothing.
    pub fn new(fetcher: Arc<Fetcher>, guest_pull: BTreeSet<Snapshotter>, engine: Engine) -> Self {
        Self {
            fetcher,
            turns: Turns::default(),
            keys: SnapshotKeys::default(),
            clearances: TaskTracker::new(),
            guest_pull,
            engine,
        }
    }

    /// Waits for what must be done to its end although its pull has ended.
    pub async fn drain(&self) {
        self.clearances.close();
        self.clearances.wait().await;
    }

    /// Unpacks the stack and says what became of each layer, lowest first. Committed layers stay whatever comes, since
    /// they are whole. On an error the active snapshot is removed if containerd still answers; if it does not, or if
    /// this is dropped (the pull stalled, or every caller left), the snapshot goes when the lease is collected.
    pub async fn unpack(
        &self,
        context: &Context,
        snapshotter: &LoadedSnapshotter,
        layers: &[Layer],
    ) -> Result<Vec<LayerOutcome>, Error> {
        let mut prefetch = Prefetch::new(&self.fetcher, context, layers);
        let mut outcomes = Vec::with_capacity(layers.len());
        for (index, layer) in layers.iter().enumerate() {
            let turn = self.turns.take((snapshotter.name.clone(), layer.chain_id.clone()));
            let _turn = prefetch.beside(async { Ok(turn.await) }).await?;
            let step = Step::new(self, context, snapshotter, layer);
            let active = match step.prepare().await? {
                Found::Nothing(active) => Some(active),
                Found::Layer => None,
                // Boxed, as it is rare and large.
                unusable => Box::pin(step.instead_of(unusable, &layers[index..])).await?,
            };
            let outcome = match active {
                None => {
                    prefetch.unneeded(index);
                    LayerOutcome::Exists
                }
                Some(active) => {
                    // A local snapshotter that lacks this layer lacks all above it: they can come at once. A remote
                    // one must be asked about each first, or it would never load anything lazily.
                    let ahead = if snapshotter.remote_capable { index + 1 } else { layers.len() };
                    prefetch.start(index..ahead);
                    let fetched = prefetch.answer(index);
                    match prefetch.beside(step.fill(active, fetched)).await {
                        Err(error) if error.may_lie_in_the_store() && self.mend(context, layer).await? => {
                            prefetch.beside(Box::pin(step.once_more())).await?
                        }
                        filled => filled?,
                    }
                }
            };
            outcomes.push(outcome);
        }
        prefetch.finish().await?;
        Ok(outcomes)
    }

    /// Fetches the layer's blob anew if what the content store has is not it. Boxed, as it is rare and large.
    async fn mend(&self, context: &Context, layer: &Layer) -> Result<bool, Error> {
        let Context { containerd, source, meter, .. } = context;
        Ok(Box::pin(self.fetcher.mend(containerd, source, &layer.blob, meter)).await?)
    }
}

impl Error {
    /// Whether a blob of the content store that is not what its records say would fail like this.
    fn may_lie_in_the_store(&self) -> bool {
        match self {
            Self::DiffId { .. } => true,
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

/// An active snapshot that waits to be filled.
struct Active {
    key: String,
    mounts: Vec<Mount>,
}

/// What a snapshotter has of a layer.
enum Found {
    /// Nothing: the layer is to be unpacked here.
    Nothing(Active),
    /// The layer, or it has taken it over.
    Layer,
    /// containerd's record of it, and not the layer.
    Record,
    /// The layer's files, which are to be in the guest alone.
    OnTheHost,
}

/// The work on one layer.
struct Step<'a> {
    context: &'a Context,
    snapshotter: &'a LoadedSnapshotter,
    /// Whether it leaves all layers to the guest: none must be unpacked on the host then.
    guest_pull: bool,
    layer: &'a Layer,
    keys: &'a SnapshotKeys,
    engine: Engine,
    clearances: &'a TaskTracker,
    snapshots: Snapshots,
}

impl<'a> Step<'a> {
    fn new(
        unpacker: &'a Unpacker,
        context: &'a Context,
        snapshotter: &'a LoadedSnapshotter,
        layer: &'a Layer,
    ) -> Self {
        let snapshots = context.containerd.snapshots(&snapshotter.name);
        let guest_pull = unpacker.guest_pull.contains(&snapshotter.name);
        let Unpacker { keys, clearances, engine, .. } = unpacker;
        Self { context, snapshotter, guest_pull, layer, keys, engine: *engine, clearances, snapshots }
    }

    /// Asks the snapshotter for the layer. Always a prepare, never a stat alone: a remote snapshotter takes a layer over
    /// only when it is asked for it.
    async fn prepare(&self) -> Result<Found, Error> {
        for _ in 0..PREPARE_ATTEMPTS {
            let key = self.keys.next(&self.layer.chain_id);
            let prepared =
                self.snapshots.prepare(&key, self.layer.parent.as_ref(), self.layer.labels.clone()).await;
            match prepared.map_err(|source| self.failed(source))? {
                Prepared::Active(_) if self.guest_pull => {
                    self.abandon(&key).await;
                    return Err(self.not_guest_pull());
                }
                Prepared::Active(mounts) => return Ok(Found::Nothing(Active { key, mounts })),
                Prepared::Exists => {
                    // Held first and looked at second, so that no collection can come between. containerd 1.6 does
                    // not hold by itself what a prepare finds.
                    self.snapshots.hold(&self.layer.chain_id).await.map_err(|e| self.failed(e))?;
                    let labels = self.snapshots.labels(&self.layer.chain_id).await;
                    if let Some(labels) = labels.map_err(|e| self.failed(e))? {
                        let right = !self.guest_pull || labels::is_guest_pull(&labels);
                        return Ok(if right { Found::Layer } else { Found::OnTheHost });
                    }
                }
            }
        }
        Ok(Found::Record)
    }

    /// Clears away what cannot be used, and asks once more. `stack` is the layer and all above it.
    async fn instead_of(&self, unusable: Found, stack: &[Layer]) -> Result<Option<Active>, Error> {
        let (containerd, snapshotter) = (&self.context.containerd, &self.snapshotter.name);
        let Some(clearance) = Clearance::new(containerd, snapshotter, stack, self.clearances) else {
            return self.prepare_anew().await;
        };
        if matches!(unusable, Found::OnTheHost) {
            let used_by = clearance.the_unwanted().await.map_err(|source| self.failed(source))?;
            if let Some(used_by) = used_by {
                let (snapshotter, chain_id) = (snapshotter.clone(), self.layer.chain_id.clone());
                return Err(Error::OnTheHost { snapshotter, chain_id, used_by });
            }
        } else {
            clearance.the_dead().await.map_err(|source| self.failed(source))?;
        }
        self.prepare_anew().await
    }

    /// Asks for the layer where nothing unusable is left; `None` if the snapshotter has it.
    async fn prepare_anew(&self) -> Result<Option<Active>, Error> {
        match self.prepare().await? {
            Found::Nothing(active) => Ok(Some(active)),
            Found::Layer => Ok(None),
            Found::Record => Err(self.vanished()),
            Found::OnTheHost => Err(self.not_guest_pull()),
        }
    }

    fn not_guest_pull(&self) -> Error {
        let (layer, snapshotter) = (self.layer.blob.digest.to_string(), self.snapshotter.name.clone());
        Error::NotGuestPull { layer, snapshotter }
    }

    /// Fills the active snapshot and commits it; removes it if that fails.
    async fn fill(
        &self,
        mut active: Active,
        fetched: impl Future<Output = Fetched>,
    ) -> Result<LayerOutcome, Error> {
        let filled = self.apply_and_commit(&mut active, fetched).await;
        if filled.as_ref().is_err_and(|error| !error.containerd_is_away()) {
            self.abandon(&active.key).await;
        }
        filled.map(LayerOutcome::Applied)
    }

    /// Removes an active snapshot. The lease is the second line: what cannot be removed now goes when it is deleted or
    /// expires.
    async fn abandon(&self, key: &str) {
        if let Err(error) = self.snapshots.remove(key).await {
            tracing::debug!(key, %error, "an active snapshot is left to the lease");
        }
    }

    /// Does all of it again, with a blob that was fetched anew.
    async fn once_more(&self) -> Result<LayerOutcome, Error> {
        match self.prepare_anew().await? {
            None => Ok(LayerOutcome::Exists),
            Some(active) => self.fill(active, async { Fetched::Transferred { continued: 0 } }).await,
        }
    }

    async fn apply_and_commit(
        &self,
        active: &mut Active,
        fetched: impl Future<Output = Fetched>,
    ) -> Result<Fetched, Error> {
        let fetched = fetched.await;
        let containerd = &self.context.containerd;
        let Some(actual) = self.apply(active).await? else { return Ok(fetched) };
        if actual != self.layer.diff_id {
            let (layer, stated) = (self.layer.blob.digest.to_string(), self.layer.diff_id.clone());
            return Err(Error::DiffId { layer, stated, actual });
        }
        let committed =
            self.snapshots.commit(&active.key, &self.layer.chain_id, self.layer.labels.clone()).await;
        match committed.map_err(|source| self.failed(source))? {
            Committed::Now => {}
            Committed::Before => self.take_theirs(active).await?,
        }
        let uncompressed = (labels::UNCOMPRESSED.to_owned(), self.layer.diff_id.to_string());
        let labelled = containerd.label_blob(&self.layer.blob.digest, HashMap::from([uncompressed])).await;
        labelled.map_err(|source| self.failed(source))?;
        Ok(fetched)
    }

    /// Writes the layer's files; the digest of what was written. `None` if somebody else has committed the layer
    /// meanwhile.
    async fn apply(&self, active: &mut Active) -> Result<Option<DiffId>, Error> {
        if self.engine == Engine::Direct {
            let reason = match self.write(active).await? {
                Ok(diff_id) => return Ok(Some(diff_id)),
                Err(reason) => reason,
            };
            let digest = &self.layer.blob.digest;
            tracing::info!(%digest, "a layer is left to containerd's differ: {reason}");
            if let Unfit::Rights(_) = reason {
                // Something may have been written before it failed.
                self.snapshots.remove(&active.key).await.map_err(|source| self.failed(source))?;
                let Some(fresh) = self.prepare_anew().await? else { return Ok(None) };
                *active = fresh;
            }
        }
        let applied = self.context.containerd.apply(&self.layer.blob, active.mounts.clone()).await;
        applied.map(Some).map_err(|source| self.failed(source))
    }

    /// By the direct engine, unless it cannot.
    async fn write(&self, active: &Active) -> Result<Result<DiffId, Unfit>, Error> {
        let place = match Place::of(&self.layer.blob, &active.mounts) {
            Ok(place) => place,
            Err(unfit) => return Ok(Err(unfit)),
        };
        match direct::write(&self.context.containerd, &self.layer.blob, place).await {
            Ok(diff_id) => Ok(Ok(diff_id)),
            Err(Failure::Unfit(unfit)) => Ok(Err(unfit)),
            Err(Failure::Containerd(source)) => Err(self.failed(source)),
            Err(Failure::Layer(source)) => {
                let (layer, snapshotter) =
                    (self.layer.blob.digest.to_string(), self.snapshotter.name.clone());
                Err(Error::Direct { layer, snapshotter, source })
            }
        }
    }

    /// Somebody else committed the same chain meanwhile: theirs is as good, ours goes. It is prepared once more, which
    /// puts theirs under our lease.
    async fn take_theirs(&self, active: &Active) -> Result<(), Error> {
        self.snapshots.remove(&active.key).await.map_err(|source| self.failed(source))?;
        let Some(again) = self.prepare_anew().await? else { return Ok(()) };
        self.snapshots.remove(&again.key).await.map_err(|source| self.failed(source))?;
        Err(self.vanished())
    }

    fn vanished(&self) -> Error {
        let (snapshotter, chain_id) = (self.snapshotter.name.clone(), self.layer.chain_id.clone());
        Error::Vanished { snapshotter, chain_id }
    }

    fn failed(&self, source: containerd::Error) -> Error {
        let (layer, snapshotter) = (self.layer.blob.digest.to_string(), self.snapshotter.name.clone());
        Error::Containerd { layer, snapshotter, source }
    }
}
