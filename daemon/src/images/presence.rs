//! Whether an image is there where its pod will run: unpacked in the snapshotter of the pod's runtime handler. Asked of
//! the snapshotter itself each time, since nobody tells of snapshots that go.

use std::collections::BTreeSet;

use futures_util::future::join_all;

use crate::containerd::{Containerd, Error, Snapshotter, labels};
use crate::node::snapshotter::{Table, WantedHandler};
use crate::oci::ChainId;

/// Where an image is to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a pod with this runtime handler.
    Pod(WantedHandler),
    /// Nobody says: kubelet asks so for an image's user, when the image is there, and people ask so.
    Anywhere,
}

/// Asks the snapshotters of one containerd.
#[derive(Debug)]
pub(super) struct Presence {
    containerd: Containerd,
    /// Snapshotters that must have left an image's layers to the guest: what is unpacked there on the host is of no use.
    guest_pull: BTreeSet<Snapshotter>,
}

impl Presence {
    pub(super) fn new(containerd: Containerd, guest_pull: BTreeSet<Snapshotter>) -> Self {
        Self { containerd, guest_pull }
    }

    /// Whether the chain is in `snapshotter`, as it should be there. An image without layers needs none.
    pub(super) async fn is_in(
        &self,
        snapshotter: &Snapshotter,
        top: Option<&ChainId>,
    ) -> Result<bool, Error> {
        let Some(top) = top else { return Ok(true) };
        let labels = self.containerd.snapshots(snapshotter).labels(top).await?;
        let guest_pull = self.guest_pull.contains(snapshotter);
        Ok(labels.is_some_and(|labels| !guest_pull || labels::is_guest_pull(&labels)))
    }

    /// Whether the chain is in any snapshotter of the node.
    pub(super) async fn is_anywhere(&self, table: &Table, top: Option<&ChainId>) -> Result<bool, Error> {
        // Nearly all images are in the default one.
        let in_default = self.is_in(&table.default, top).await;
        if matches!(in_default, Ok(true)) {
            return in_default;
        }
        let others = table.loaded.iter().filter(|loaded| loaded.name != table.default);
        let found = join_all(others.map(|loaded| self.is_in(&loaded.name, top))).await;
        if found.iter().any(|found| matches!(found, Ok(true))) {
            return Ok(true);
        }
        // Only who was asked can say that it is nowhere.
        found.into_iter().chain([in_default]).find(Result::is_err).unwrap_or(Ok(false))
    }

    /// The snapshotters that have the chain. One that does not answer does not have it.
    pub(super) async fn snapshotters(&self, table: &Table, top: Option<&ChainId>) -> Vec<Snapshotter> {
        let asked = table.loaded.iter().map(async |loaded| {
            let found = self.is_in(&loaded.name, top).await;
            if let Err(error) = &found {
                tracing::debug!(snapshotter = %loaded.name, %error, "cannot ask a snapshotter for an image");
            }
            found.unwrap_or_default().then(|| loaded.name.clone())
        });
        join_all(asked).await.into_iter().flatten().collect()
    }
}
