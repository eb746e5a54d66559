//! Turns the layers of a plan into committed snapshots, bottom-up. It leads: a layer's blob is asked of `fetch` only
//! when the snapshotter does not already have, or take over, that layer. Nothing is committed before its diff ID is
//! proved.

mod prefetch;
mod snapshot_key;

use std::collections::HashMap;
use std::sync::Arc;

use crate::containerd::introspection::LoadedSnapshotter;
use crate::containerd::snapshots::{Prepared, Snapshots};
use crate::containerd::{self, Containerd, Mount, Snapshotter, labels};
use crate::fetch::{self, Fetched, Fetcher, Meter, Source, Turns};
use crate::oci::{ChainId, Descriptor, DiffId};
use prefetch::Prefetch;

/// How often a prepare may answer "exists" while the snapshot cannot be found (containerd's own bound).
const PREPARE_ATTEMPTS: u32 = 3;

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
    /// Its blob was applied by containerd's differ.
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
    /// The snapshotter says that the snapshot exists, and does not have it.
    #[error(
        "snapshotter {snapshotter} says that snapshot {chain_id} exists, but does not have it: its records and its \
         disk differ; remove the image with `crictl rmi` and pull again"
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
}

impl Unpacker {
    /// An unpacker that gets its blobs from `fetcher`.
    pub fn new(fetcher: Arc<Fetcher>) -> Self {
        Self { fetcher, turns: Turns::default() }
    }

    /// Unpacks the stack and says what became of each layer, lowest first. On an error no active snapshot of it is
    /// left; committed layers stay, since they are whole.
    pub async fn unpack(
        &self,
        context: &Context,
        snapshotter: &LoadedSnapshotter,
        layers: &[Layer],
    ) -> Result<Vec<LayerOutcome>, Error> {
        let mut prefetch = Prefetch::new(&self.fetcher, context, layers);
        let mut outcomes = Vec::with_capacity(layers.len());
        for (index, layer) in layers.iter().enumerate() {
            let _turn = self.turns.take((snapshotter.name.clone(), layer.chain_id.clone())).await;
            let step = Step::new(context, snapshotter, layer);
            let outcome = match step.prepare().await? {
                None => LayerOutcome::Exists,
                Some(active) => {
                    // A local snapshotter that lacks this layer lacks all above it: they can come at once. A remote
                    // one must be asked about each first, or it would never load anything lazily.
                    let ahead = if snapshotter.remote_capable { index + 1 } else { layers.len() };
                    prefetch.start(index..ahead);
                    step.fill(active, prefetch.take(index)).await?
                }
            };
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }
}

/// An active snapshot that waits to be filled.
struct Active {
    key: String,
    mounts: Vec<Mount>,
}

/// The work on one layer.
struct Step<'a> {
    context: &'a Context,
    snapshotter: &'a LoadedSnapshotter,
    layer: &'a Layer,
    snapshots: Snapshots,
}

impl<'a> Step<'a> {
    fn new(context: &'a Context, snapshotter: &'a LoadedSnapshotter, layer: &'a Layer) -> Self {
        let snapshots = context.containerd.snapshots(&snapshotter.name);
        Self { context, snapshotter, layer, snapshots }
    }

    /// Asks the snapshotter for the layer; `None` if it has it. Always a prepare, never a stat alone: only a prepare
    /// puts a snapshot that exists under the lease.
    async fn prepare(&self) -> Result<Option<Active>, Error> {
        for _ in 0..PREPARE_ATTEMPTS {
            let key = snapshot_key::unique(&self.layer.chain_id);
            let prepared =
                self.snapshots.prepare(&key, self.layer.parent.as_ref(), self.layer.labels.clone()).await;
            match prepared.map_err(|source| self.failed(source))? {
                Prepared::Active(mounts) => return Ok(Some(Active { key, mounts })),
                Prepared::Exists => {
                    if self.snapshots.exists(&self.layer.chain_id).await.map_err(|e| self.failed(e))? {
                        return Ok(None);
                    }
                }
            }
        }
        Err(Error::Vanished {
            snapshotter: self.snapshotter.name.clone(),
            chain_id: self.layer.chain_id.clone(),
        })
    }

    /// Fills the active snapshot and commits it; removes it if that fails.
    async fn fill(
        &self,
        active: Active,
        fetched: impl Future<Output = Result<Fetched, fetch::Error>>,
    ) -> Result<LayerOutcome, Error> {
        let filled = self.apply_and_commit(&active, fetched).await;
        if filled.is_err() {
            // The lease is the second line: what cannot be removed now goes when it is deleted or expires.
            if let Err(error) = self.snapshots.remove(&active.key).await {
                tracing::debug!(key = active.key, %error, "an active snapshot is left to the lease");
            }
        }
        filled.map(LayerOutcome::Applied)
    }

    async fn apply_and_commit(
        &self,
        active: &Active,
        fetched: impl Future<Output = Result<Fetched, fetch::Error>>,
    ) -> Result<Fetched, Error> {
        let fetched = fetched.await?;
        let containerd = &self.context.containerd;
        let applied = containerd.apply(&self.layer.blob, active.mounts.clone()).await;
        let actual = applied.map_err(|source| self.failed(source))?;
        if actual != self.layer.diff_id {
            let (layer, stated) = (self.layer.blob.digest.to_string(), self.layer.diff_id.clone());
            return Err(Error::DiffId { layer, stated, actual });
        }
        let committed =
            self.snapshots.commit(&active.key, &self.layer.chain_id, self.layer.labels.clone()).await;
        if !committed.map_err(|source| self.failed(source))? {
            // Somebody else committed the same chain meanwhile: theirs is as good, ours goes.
            self.snapshots.remove(&active.key).await.map_err(|source| self.failed(source))?;
        }
        let uncompressed = (labels::UNCOMPRESSED.to_owned(), self.layer.diff_id.to_string());
        let labelled = containerd.label_blob(&self.layer.blob.digest, HashMap::from([uncompressed])).await;
        labelled.map_err(|source| self.failed(source))?;
        Ok(fetched)
    }

    fn failed(&self, source: containerd::Error) -> Error {
        let (layer, snapshotter) = (self.layer.blob.digest.to_string(), self.snapshotter.name.clone());
        Error::Containerd { layer, snapshotter, source }
    }
}
