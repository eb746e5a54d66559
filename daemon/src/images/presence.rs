//! Whether an image is there where its pod will run: unpacked in the snapshotter of the pod's runtime handler. Asked of
//! the snapshotter itself each time, since nobody tells of snapshots that go.

use futures_util::future::join_all;

use crate::containerd::{Containerd, Error, Snapshotter};
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

/// Whether the chain is in `snapshotter`. An image without layers needs none.
pub(super) async fn is_in(
    containerd: &Containerd,
    snapshotter: &Snapshotter,
    top: Option<&ChainId>,
) -> Result<bool, Error> {
    match top {
        Some(top) => containerd.snapshots(snapshotter).exists(top).await,
        None => Ok(true),
    }
}

/// Whether the chain is in any snapshotter of the node.
pub(super) async fn is_anywhere(
    containerd: &Containerd,
    table: &Table,
    top: Option<&ChainId>,
) -> Result<bool, Error> {
    // Nearly all images are in the default one.
    let in_default = is_in(containerd, &table.default, top).await;
    if matches!(in_default, Ok(true)) {
        return in_default;
    }
    let others = table.loaded.iter().filter(|loaded| loaded.name != table.default);
    let found = join_all(others.map(|loaded| is_in(containerd, &loaded.name, top))).await;
    if found.iter().any(|found| matches!(found, Ok(true))) {
        return Ok(true);
    }
    // Only who was asked can say that it is nowhere.
    found.into_iter().chain([in_default]).find(Result::is_err).unwrap_or(Ok(false))
}

/// The snapshotters that have the chain. One that does not answer does not have it.
pub(super) async fn snapshotters(
    containerd: &Containerd,
    table: &Table,
    top: Option<&ChainId>,
) -> Vec<Snapshotter> {
    let asked = table.loaded.iter().map(async |loaded| {
        let found = is_in(containerd, &loaded.name, top).await;
        if let Err(error) = &found {
            tracing::debug!(snapshotter = %loaded.name, %error, "cannot ask a snapshotter for an image");
        }
        found.unwrap_or_default().then(|| loaded.name.clone())
    });
    join_all(asked).await.into_iter().flatten().collect()
}
