//! Takes away snapshots that stand in the way of a pull: records of a snapshotter that has lost what they are of, and
//! layers that were unpacked on the host where they are to be left to the guest. Nothing that can be used goes, and
//! nothing that something else stands on.

use std::collections::HashMap;

use crate::containerd::snapshots::Snapshots;
use crate::containerd::{Containerd, Error, Kind, Snapshotter, labels};
use crate::oci::document::MAX_CONFIG;
use crate::oci::{ChainId, Config, Digest};

use super::Layer;

/// The work on the lowest of some layers, and what stands on it.
pub(super) struct Clearance<'a> {
    containerd: &'a Containerd,
    snapshotter: &'a Snapshotter,
    snapshots: Snapshots,
    /// The lowest layer first, and those of the same image above it.
    layers: &'a [Layer],
    bottom: &'a ChainId,
}

/// The layers of an image from the lowest that is to go upwards.
struct Stack {
    config: Digest,
    chain_ids: Vec<ChainId>,
}

impl<'a> Clearance<'a> {
    /// `None` without layers.
    pub(super) fn new(
        containerd: &'a Containerd,
        snapshotter: &'a Snapshotter,
        layers: &'a [Layer],
    ) -> Option<Self> {
        let bottom = &layers.first()?.chain_id;
        let snapshots = containerd.snapshots(snapshotter);
        Some(Self { containerd, snapshotter, snapshots, layers, bottom })
    }

    /// Removes the record of the lowest layer, whose snapshot is gone, and of all that stand on it: those of the same
    /// image, and those of others that share the layer. containerd lists no snapshot that its snapshotter does not
    /// have; the image configs say which records there must be.
    pub(super) async fn the_dead(&self) -> Result<(), Error> {
        tracing::warn!(
            snapshotter = %self.snapshotter,
            chain_id = %self.bottom,
            "the snapshotter has lost what containerd has records of: they are removed, and the layers unpacked anew"
        );
        let stacks = self.stacks().await?;
        for chain_ids in stacks.iter().map(|stack| &stack.chain_ids).chain([&self.own()]) {
            for chain_id in chain_ids.iter().rev() {
                if !self.snapshots.exists(chain_id).await? {
                    // Refused, it has another image's layer on it, which comes later.
                    self.remove(chain_id).await?;
                }
            }
        }
        if self.remove(self.bottom).await? { Ok(()) } else { self.leave_to_collection(&stacks).await }
    }

    /// Removes the layers; or else returns the key of a snapshot that stands on one of them and is none of them.
    pub(super) async fn the_unwanted(&self) -> Result<Option<String>, Error> {
        let own = self.own();
        let is_own = |name: &str| own.iter().any(|chain_id| chain_id.0.as_str() == name);
        let all = self.snapshots.all().await?;
        if let Some(stranger) = all.into_iter().find(|found| is_own(&found.parent) && !is_own(&found.name)) {
            return Ok(Some(stranger.name));
        }
        tracing::warn!(
            snapshotter = %self.snapshotter,
            chain_id = %self.bottom,
            "layers are unpacked on the host where the guest is to pull them: they are removed"
        );
        let mut removed = true;
        for chain_id in own.iter().rev() {
            removed = self.remove(chain_id).await?;
        }
        if !removed {
            self.leave_to_collection(&self.stacks().await?).await?;
        }
        Ok(None)
    }

    fn own(&self) -> Vec<ChainId> {
        self.layers.iter().map(|layer| layer.chain_id.clone()).collect()
    }

    /// Those of all images that are recorded as unpacked in this snapshotter and have the lowest layer.
    async fn stacks(&self) -> Result<Vec<Stack>, Error> {
        let mut stacks = Vec::new();
        for config in self.containerd.labelled_blobs(&self.label()).await? {
            // What is no config, or cannot be read, is no image that could be run.
            let Ok(bytes) = self.containerd.read_blob(&config, MAX_CONFIG).await else { continue };
            let Ok(parsed) = Config::parse(&bytes) else { continue };
            let mut chain_ids = ChainId::of_stack(&parsed.diff_ids);
            if let Some(at) = chain_ids.iter().position(|chain_id| chain_id == self.bottom) {
                stacks.push(Stack { config, chain_ids: chain_ids.split_off(at) });
            }
        }
        Ok(stacks)
    }

    /// `false` if containerd has something down as standing on it.
    async fn remove(&self, chain_id: &ChainId) -> Result<bool, Error> {
        match self.snapshots.remove(chain_id.0.as_str()).await {
            Err(error) if error.kind() == Kind::Refused => Ok(false),
            removed => removed.map(|()| true),
        }
    }

    /// A collection removes a snapshot without taking it off the children of its parent, which containerd then refuses
    /// to remove for ever (`metadata/gc.go` against `metadata/snapshot.go`, 1.6 to 2.1). But another collection takes
    /// the parent, too, if nothing refers to it. What containers use it leaves. Layers below the lowest are under the
    /// lease of the pull, which has come past them.
    async fn leave_to_collection(&self, stacks: &[Stack]) -> Result<(), Error> {
        for Stack { config, .. } in stacks {
            self.containerd.unlabel_blob(config, &self.label()).await?;
        }
        for chain_id in self.own() {
            self.snapshots.release(&chain_id).await?;
        }
        let collected = self.containerd.collect(&self.bottom.0).await;
        // A reference to nothing is harmless, and what the pull makes anew may be all that another image lacks.
        for Stack { config, chain_ids } in stacks {
            let top = chain_ids.last().map(ToString::to_string).unwrap_or_default();
            self.containerd.label_blob(config, HashMap::from([(self.label(), top)])).await?;
        }
        collected
    }

    /// What keeps an image's snapshots alive, on its config.
    fn label(&self) -> String {
        format!("{}.{}", labels::GC_REF_SNAPSHOT, self.snapshotter)
    }
}
