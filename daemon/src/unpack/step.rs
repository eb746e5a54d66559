//! The work on one layer: asked of the snapshotter, filled, proved and committed.

use std::collections::HashMap;
use std::time::Instant;

use tokio_util::task::TaskTracker;

use super::bring::{Brought, Files};
use super::clear::Clearance;
use super::direct::{self, Failure, Place, Unfit};
use super::snapshot_key::SnapshotKeys;
use super::staging::Staged;
use super::{Context, Engine, Error, Layer, LayerOutcome, Unpacker, Writing};
use crate::containerd::introspection::LoadedSnapshotter;
use crate::containerd::snapshots::{Committed, Prepared, Snapshots};
use crate::containerd::{self, Mount, labels};
use crate::fetch::{Fetched, Fetcher};
use crate::metrics::Metrics;
use crate::oci::DiffId;
use crate::progress::{self, State};

/// How often a prepare may answer "exists" while the snapshot cannot be found (containerd's own bound).
const PREPARE_ATTEMPTS: u32 = 3;

/// An active snapshot that waits to be filled.
pub(super) struct Active {
    pub(super) key: String,
    pub(super) mounts: Vec<Mount>,
}

/// What an active snapshot has of its layer.
enum Have {
    /// All files, whose uncompressed bytes hash to this.
    Written(DiffId),
    /// None.
    Nothing,
    /// It is not needed any more: somebody else has committed the layer.
    Theirs,
}

/// What a snapshotter has of a layer.
pub(super) enum Found {
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
pub(super) struct Step<'a> {
    context: &'a Context,
    snapshotter: &'a LoadedSnapshotter,
    /// Whether it leaves all layers to the guest: none must be unpacked on the host then.
    guest_pull: bool,
    layer: &'a Layer,
    /// Told of what is done.
    told: &'a progress::Layer,
    keys: &'a SnapshotKeys,
    writing: Writing,
    fetcher: &'a Fetcher,
    clearances: &'a TaskTracker,
    metrics: &'a Metrics,
    snapshots: Snapshots,
}

impl<'a> Step<'a> {
    pub(super) fn new(
        unpacker: &'a Unpacker,
        context: &'a Context,
        snapshotter: &'a LoadedSnapshotter,
        layer: &'a Layer,
        told: &'a progress::Layer,
    ) -> Self {
        let snapshots = context.containerd.snapshots(&snapshotter.name);
        let guest_pull = unpacker.guest_pull.contains(&snapshotter.name);
        let Unpacker { keys, clearances, writing, fetcher, metrics, .. } = unpacker;
        let writing = *writing;
        Self {
            context,
            snapshotter,
            guest_pull,
            layer,
            told,
            keys,
            writing,
            fetcher,
            clearances,
            metrics,
            snapshots,
        }
    }

    /// Asks the snapshotter for the layer. Always a prepare, never a stat alone: a remote snapshotter takes a layer over
    /// only when it is asked for it.
    pub(super) async fn prepare(&self) -> Result<Found, Error> {
        for _ in 0..PREPARE_ATTEMPTS {
            let key = self.keys.next(&self.layer.chain_id);
            let began = Instant::now();
            let prepared =
                self.snapshots.prepare(&key, self.layer.parent.as_ref(), self.layer.labels.clone()).await;
            self.metrics.prepared(self.snapshotter.name.as_str(), began.elapsed());
            match prepared.map_err(|source| self.failed(source))? {
                Prepared::Active(_) if self.guest_pull => {
                    abandon(&self.snapshots, &key).await;
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
    pub(super) async fn instead_of(&self, unusable: Found, stack: &[Layer]) -> Result<Option<Active>, Error> {
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
    pub(super) async fn fill(
        &self,
        mut active: Active,
        brought: impl Future<Output = Brought>,
    ) -> Result<LayerOutcome, Error> {
        let filled = self.apply_and_commit(&mut active, brought).await;
        match &filled {
            Ok(_) => self.told.end(State::Done),
            Err(error) if !error.containerd_is_away() => abandon(&self.snapshots, &active.key).await,
            Err(_) => {}
        }
        filled.map(LayerOutcome::Applied)
    }

    /// Does all of it again, with a blob that was fetched anew.
    pub(super) async fn once_more(&self) -> Result<LayerOutcome, Error> {
        match self.prepare_anew().await? {
            None => Ok(LayerOutcome::Exists),
            Some(active) => {
                let fetched = Fetched::Transferred { continued: 0 };
                let brought = Brought { fetched, stored: true, files: Files::Unwritten };
                self.fill(active, async { brought }).await
            }
        }
    }

    async fn apply_and_commit(
        &self,
        active: &mut Active,
        brought: impl Future<Output = Brought>,
    ) -> Result<Fetched, Error> {
        let Brought { fetched, stored, files } = brought.await;
        self.told.unpacking();
        let (actual, labelled, from_store) = match self.written(active, files).await? {
            // Whoever writes while the blob comes labels it, too.
            Have::Written(actual) => (actual, true, stored),
            Have::Theirs => return Ok(fetched),
            Have::Nothing => {
                if !stored {
                    // Boxed, as it is rare and large.
                    Box::pin(self.store()).await?;
                }
                let Some(actual) = self.apply(active).await? else { return Ok(fetched) };
                (actual, false, true)
            }
        };
        if actual != self.layer.diff_id {
            let (layer, stated) = (self.layer.blob.digest.to_string(), self.layer.diff_id.clone());
            return Err(Error::DiffId { layer, stated, actual, from_store });
        }
        if let Some(place) = Place::of_mounts(&active.mounts).filter(|_| self.writing.sync) {
            direct::sync(place).await.map_err(|source| self.unwritten(source))?;
        }
        let committed =
            self.snapshots.commit(&active.key, &self.layer.chain_id, self.layer.labels.clone()).await;
        match committed.map_err(|source| self.failed(source))? {
            Committed::Now => {
                tracing::debug!(digest = %self.layer.blob.digest, chain_id = %self.layer.chain_id, "a layer is committed");
            }
            Committed::Before => self.take_theirs(active).await?,
        }
        if !labelled {
            let uncompressed = (labels::UNCOMPRESSED.to_owned(), self.layer.diff_id.to_string());
            let labels = HashMap::from([uncompressed]);
            let labelled = self.context.containerd.label_blob(&self.layer.blob.digest, labels).await;
            labelled.map_err(|source| self.failed(source))?;
        }
        Ok(fetched)
    }

    /// Takes the files that were written while the blob came.
    async fn written(&self, active: &mut Active, files: Files) -> Result<Have, Error> {
        match files {
            Files::Unwritten | Files::InItsTurn => return Ok(Have::Nothing),
            Files::InPlace(diff_id) => return Ok(Have::Written(diff_id)),
            Files::NoRoom(source) => return Err(self.unwritten(source)),
            Files::Staged(staged) => {
                if let Some(diff_id) = self.settle(active, staged).await {
                    return Ok(Have::Written(diff_id));
                }
            }
            Files::Spoilt => {}
        }
        Ok(if self.renew(active).await? { Have::Nothing } else { Have::Theirs })
    }

    /// Puts an empty snapshot in the place of one that has some files; `false` if somebody else has committed the layer
    /// meanwhile.
    async fn renew(&self, active: &mut Active) -> Result<bool, Error> {
        self.snapshots.remove(&active.key).await.map_err(|source| self.failed(source))?;
        let Some(fresh) = self.prepare_anew().await? else { return Ok(false) };
        *active = fresh;
        Ok(true)
    }

    /// Moves files that were written ahead into the active snapshot.
    async fn settle(&self, active: &Active, staged: Staged) -> Option<DiffId> {
        let diff_id = staged.diff_id.clone();
        let place = Place::of_mounts(&active.mounts)?;
        let settled = tokio::task::spawn_blocking(move || staged.settle(&place)).await;
        match direct::ended(settled) {
            Ok(()) => Some(diff_id),
            Err(error) => {
                let digest = &self.layer.blob.digest;
                tracing::info!(%digest, %error, "a layer that was written ahead is written anew");
                None
            }
        }
    }

    /// Brings the blob into the content store, where only its files were wanted at first.
    async fn store(&self) -> Result<(), Error> {
        let place = self.fetcher.line(&self.context.priority).place();
        let wanted = self.context.wanted(self.layer, self.told, &place);
        self.fetcher.blob(&self.context.containerd, wanted, None).await?;
        self.told.unpacking();
        Ok(())
    }

    /// Writes the layer's files; the digest of what was written. `None` if somebody else has committed the layer
    /// meanwhile.
    async fn apply(&self, active: &mut Active) -> Result<Option<DiffId>, Error> {
        if self.writing.engine == Engine::Direct {
            self.told.written_by(progress::Engine::Direct, &"");
            let reason = match self.write(active).await? {
                Ok(diff_id) => return Ok(Some(diff_id)),
                Err(reason) => reason,
            };
            self.told.written_by(progress::Engine::Differ, &reason);
            let digest = &self.layer.blob.digest;
            tracing::info!(%digest, "a layer is left to containerd's differ: {reason}");
            // Something may have been written before it failed.
            if matches!(reason, Unfit::Rights(_) | Unfit::Window) && !self.renew(active).await? {
                return Ok(None);
            }
        } else {
            self.told.written_by(progress::Engine::Differ, &"");
        }
        let applied =
            self.context.containerd.apply(&self.layer.blob, active.mounts.clone(), self.writing.sync).await;
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
            Err(Failure::Layer(source)) => Err(self.unwritten(source)),
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

    fn unwritten(&self, source: direct::Error) -> Error {
        let (layer, snapshotter) = (self.layer.blob.digest.to_string(), self.snapshotter.name.clone());
        Error::Direct { layer, snapshotter, source }
    }

    fn failed(&self, source: containerd::Error) -> Error {
        Error::containerd(self.layer, &self.snapshotter.name, source)
    }
}

/// Removes an active snapshot. The lease is the second line: what cannot be removed now goes when it is deleted or
/// expires.
pub(super) async fn abandon(snapshots: &Snapshots, key: &str) {
    if let Err(error) = snapshots.remove(key).await {
        tracing::debug!(key, %error, "an active snapshot is left to the lease");
    }
}
