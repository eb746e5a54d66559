//! What of an image is on the node already, layer by layer. Reads only.

use futures_util::{StreamExt as _, TryStreamExt as _};

use super::Error;
use super::plan::Plan;
use crate::containerd::{self, Containerd, Snapshotter};
use crate::fetch::ingest_reference;
use crate::unpack::Layer;

/// Questions at a time.
const AT_ONCE: usize = 8;

/// What there is of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Have {
    /// The snapshotter has it.
    pub unpacked: bool,
    /// The content store has its blob.
    pub stored: bool,
    /// Bytes of its blob that an unfinished ingest has.
    pub begun: u64,
}

impl Have {
    /// Whether its blob would be fetched.
    pub fn is_missing(&self) -> bool {
        !self.unpacked && !self.stored
    }
}

/// Whether nothing of the image has to be unpacked: the snapshot that containers are made on stands on all others.
pub(super) async fn is_unpacked(
    containerd: &Containerd,
    snapshotter: &Snapshotter,
    plan: &Plan,
) -> Result<bool, Error> {
    match plan.top() {
        Some(top) => containerd.snapshots(snapshotter).exists(top).await.map_err(unseen),
        None => Ok(true),
    }
}

/// What there is of each layer, lowest first.
pub(super) async fn survey(
    containerd: &Containerd,
    snapshotter: &Snapshotter,
    plan: &Plan,
) -> Result<Vec<Have>, Error> {
    let snapshots = containerd.snapshots(snapshotter);
    let look = async |layer: &Layer| {
        let unpacked = snapshots.exists(&layer.chain_id).await?;
        let stored = containerd.blob_info(&layer.blob.digest).await?.is_some();
        let begun =
            if unpacked || stored { 0 } else { containerd.ingested(&ingest_reference(&layer.blob)).await? };
        Ok(Have { unpacked, stored, begun })
    };
    futures_util::stream::iter(&plan.layers).map(look).buffered(AT_ONCE).try_collect().await.map_err(unseen)
}

fn unseen(source: containerd::Error) -> Error {
    Error::Containerd { step: "look what of the image is there", source }
}
