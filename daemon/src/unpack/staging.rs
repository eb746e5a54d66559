//! Where the layers of one pull are written before the layers below them are committed: one active snapshot without a
//! parent, with a directory for each layer. Under the pull's lease, so that a crash leaves nothing. From there a layer's
//! files are moved into its own snapshot when that can be prepared.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::direct::Place;
use super::tree::{self, Removals, Unfinished};
use crate::containerd::snapshots::{Prepared, Snapshots};
use crate::containerd::{Error, Snapshotter};
use crate::oci::DiffId;

/// The snapshotter of containerd's own whose layers lie beside each other as they were written. Others of its own
/// (`native`, `btrfs`, `devmapper`) begin each with the files of the one below.
const OVERLAYFS: &str = "overlayfs";

/// How removals are written ahead: as on an overlay without `userxattr`, which a containerd of root's makes.
pub(super) const REMOVALS: Removals = Removals::Overlay { user_attributes: false };

/// The staging of one pull.
#[derive(Debug)]
pub(super) struct Staging {
    key: String,
    root: PathBuf,
    /// Directories made so far.
    count: AtomicUsize,
}

/// A layer that waits for its snapshot.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) root: PathBuf,
    pub(super) unfinished: Unfinished,
    pub(super) diff_id: DiffId,
}

/// Why what was written ahead is of no use.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unsettled {
    /// The snapshotter writes removals in another way.
    #[error("its snapshot is mounted in another way than was expected")]
    Removals,
    /// It cannot be moved or finished.
    #[error(transparent)]
    Tree(#[from] tree::Error),
}

impl Staging {
    /// Whether layers of this snapshotter can be written ahead.
    pub(super) fn is_possible(snapshotter: &Snapshotter) -> bool {
        snapshotter.as_str() == OVERLAYFS
    }

    /// Prepares the snapshot. `None` if it is no directory that this process can write into.
    pub(super) async fn open(snapshots: Snapshots, key: String) -> Result<Option<Self>, Error> {
        let Prepared::Active(mounts) = snapshots.prepare(&key, None, HashMap::new()).await? else {
            return Ok(None);
        };
        // The first directory is the trial, and no layer's.
        let usable = Place::of_mounts(&mounts).filter(|place| fs::create_dir(place.root.join("0")).is_ok());
        let Some(place) = usable else {
            snapshots.remove(&key).await?;
            return Ok(None);
        };
        Ok(Some(Self { key, root: place.root, count: AtomicUsize::new(1) }))
    }

    /// A directory for one layer, as yet unmade.
    pub(super) fn directory(&self) -> PathBuf {
        self.root.join(self.count.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// Of the snapshot, which is to be removed with all that was not moved.
    pub(super) fn key(&self) -> &str {
        &self.key
    }
}

impl Staged {
    /// Moves the files into their own snapshot. On an error it may have some of them. Blocks.
    pub(super) fn settle(&self, place: &Place) -> Result<(), Unsettled> {
        if place.removals != REMOVALS {
            return Err(Unsettled::Removals);
        }
        Ok(tree::settle(&self.root, &place.root, &place.lowers, &self.unfinished)?)
    }
}
