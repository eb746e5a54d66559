//! Takes away snapshots that stand in the way of a pull: records of a snapshotter that has lost what they are of, and
//! layers that were unpacked on the host where they are to be left to the guest. Nothing that can be used goes, and
//! nothing that something else stands on.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

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
    /// Owns what must not stop halfway.
    tasks: &'a TaskTracker,
}

/// The layers of an image from the lowest that is to go upwards.
struct Stack {
    config: Digest,
    chain_ids: Vec<ChainId>,
}

/// A collection during which nothing keeps the layers. Once begun it is done to the end, whoever leaves: it takes labels
/// off that keep snapshots of other images, and they must be there again.
struct Release {
    containerd: Containerd,
    snapshots: Snapshots,
    /// What keeps an image's snapshots, on its config.
    label: String,
    layers: Vec<ChainId>,
    bottom: ChainId,
    stacks: Vec<Stack>,
}

/// How long labels are put back for while containerd is away, and the pause between two tries: it restarts in seconds.
const PUT_BACK: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(1));

impl<'a> Clearance<'a> {
    /// `None` without layers.
    pub(super) fn new(
        containerd: &'a Containerd,
        snapshotter: &'a Snapshotter,
        layers: &'a [Layer],
        tasks: &'a TaskTracker,
    ) -> Option<Self> {
        let bottom = &layers.first()?.chain_id;
        let snapshots = containerd.snapshots(snapshotter);
        Some(Self { containerd, snapshotter, snapshots, layers, bottom, tasks })
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
        if self.remove(self.bottom).await? { Ok(()) } else { self.leave_to_collection(stacks).await }
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
            self.leave_to_collection(self.stacks().await?).await?;
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
    async fn leave_to_collection(&self, stacks: Vec<Stack>) -> Result<(), Error> {
        let release = Release {
            containerd: self.containerd.clone(),
            snapshots: self.snapshots.clone(),
            label: self.label(),
            layers: self.own(),
            bottom: self.bottom.clone(),
            stacks,
        };
        let released = self.tasks.spawn(release.and_collect());
        released.await.expect("the task is never aborted, and nothing in it panics")
    }

    /// What keeps an image's snapshots alive, on its config.
    fn label(&self) -> String {
        format!("{}.{}", labels::GC_REF_SNAPSHOT, self.snapshotter)
    }
}

impl Release {
    async fn and_collect(self) -> Result<(), Error> {
        let mut result = self.collect().await;
        // All of them, whatever failed. A reference to nothing is harmless, and what the pull makes anew may be all that
        // another image lacks.
        let until = Instant::now() + PUT_BACK.0;
        for stack in &self.stacks {
            let put_back = self.put_back(stack, until).await;
            if let Err(error) = &put_back {
                tracing::error!(
                    config = %stack.config,
                    label = self.label,
                    %error,
                    "the label that keeps an image's snapshots cannot be put back: pull that image again"
                );
            }
            result = result.and(put_back);
        }
        result
    }

    async fn collect(&self) -> Result<(), Error> {
        for Stack { config, .. } in &self.stacks {
            unless_gone(self.containerd.unlabel_blob(config, &self.label).await)?;
        }
        for chain_id in &self.layers {
            self.snapshots.release(chain_id).await?;
        }
        self.containerd.collect(&self.bottom.0).await
    }

    async fn put_back(&self, Stack { config, chain_ids }: &Stack, until: Instant) -> Result<(), Error> {
        let Some(top) = chain_ids.last() else { return Ok(()) };
        loop {
            let label = HashMap::from([(self.label.clone(), top.to_string())]);
            match unless_gone(self.containerd.label_blob(config, label).await) {
                Err(error) if error.is_away() && Instant::now() < until => sleep(PUT_BACK.1).await,
                put_back => return put_back,
            }
        }
    }
}

/// A config that somebody has removed keeps nothing.
fn unless_gone(labelled: Result<(), Error>) -> Result<(), Error> {
    match labelled {
        Err(error) if error.kind() == Kind::NotFound => Ok(()),
        labelled => labelled,
    }
}
