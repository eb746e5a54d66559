//! How much space a snapshotter's committed snapshots take. A committed snapshot never changes, so each is measured
//! once; what running containers write is not counted here.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::{StreamExt as _, TryStreamExt as _};

use crate::containerd::snapshots::{Snapshots, Usage};
use crate::containerd::{Containerd, Error, Snapshotter};

/// Measurements at a time when a node with many snapshots is seen for the first time.
const AT_ONCE: usize = 8;

/// Space taken on one filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesystemUse {
    /// A directory on it.
    pub mountpoint: String,
    /// Bytes and inodes of all committed snapshots.
    pub usage: Usage,
}

#[derive(Debug, Default)]
pub(super) struct UsageCache {
    /// By snapshotter and snapshot name: all snapshotters name a snapshot by its chain ID, and each measures its own.
    /// Guards the map only; never held across an await.
    known: Mutex<HashMap<(Snapshotter, String), Usage>>,
}

impl UsageCache {
    /// The space that the committed snapshots of `snapshotter` take. What was measured stays known if this is dropped
    /// or fails half way, so that the next one goes on from there.
    pub(super) async fn total(
        &self,
        containerd: &Containerd,
        snapshotter: &Snapshotter,
    ) -> Result<Usage, Error> {
        let snapshots = containerd.snapshots(snapshotter);
        let names = snapshots.committed().await?;
        let (measured, unknown) = self.recall(snapshotter, &names);
        let total = futures_util::stream::iter(unknown)
            .map(|name| self.measure(snapshotter, &snapshots, name))
            .buffer_unordered(AT_ONCE)
            .try_fold(measured, async |sum, usage| Ok(added(sum, usage)))
            .await?;
        self.retain(snapshotter, names);
        Ok(total)
    }

    /// Measures one snapshot, which may be gone by now.
    async fn measure(
        &self,
        snapshotter: &Snapshotter,
        snapshots: &Snapshots,
        name: String,
    ) -> Result<Usage, Error> {
        let Some(usage) = snapshots.usage(&name).await? else { return Ok(Usage::default()) };
        self.insert(snapshotter, name, usage);
        Ok(usage)
    }

    fn insert(&self, snapshotter: &Snapshotter, name: String, usage: Usage) {
        self.known().insert((snapshotter.clone(), name), usage);
    }

    /// What the snapshots take that were measured, and which were not.
    fn recall(&self, snapshotter: &Snapshotter, names: &[String]) -> (Usage, Vec<String>) {
        let known = self.known();
        let (mut sum, mut unknown) = (Usage::default(), Vec::new());
        for name in names {
            match known.get(&(snapshotter.clone(), name.clone())) {
                Some(usage) => sum = added(sum, *usage),
                None => unknown.push(name.clone()),
            }
        }
        (sum, unknown)
    }

    /// Forgets all of the snapshotter's snapshots but these.
    fn retain(&self, snapshotter: &Snapshotter, names: Vec<String>) {
        let names: HashSet<String> = names.into_iter().collect();
        self.known().retain(|(of, name), _| of != snapshotter || names.contains(name));
    }

    fn known(&self) -> MutexGuard<'_, HashMap<(Snapshotter, String), Usage>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn added(one: Usage, other: Usage) -> Usage {
    Usage { bytes: one.bytes + other.bytes, inodes: one.inodes + other.inodes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn snapshotters() -> [Snapshotter; 2] {
        ["overlayfs", "native"].map(|name| name.parse().expect("a name"))
    }

    #[test]
    fn each_snapshotter_has_its_own_measure_of_a_snapshot() {
        let cache = UsageCache::default();
        let [overlayfs, native] = snapshotters();
        cache.insert(&overlayfs, "low".into(), Usage { bytes: 10, inodes: 1 });
        cache.insert(&overlayfs, "high".into(), Usage { bytes: 5, inodes: 2 });
        let both = names(&["low", "high"]);
        assert_eq!(cache.recall(&native, &both), (Usage::default(), both.clone()));
        cache.insert(&native, "low".into(), Usage { bytes: 100, inodes: 1 });
        assert_eq!(cache.recall(&native, &both), (Usage { bytes: 100, inodes: 1 }, names(&["high"])));
        assert_eq!(cache.recall(&overlayfs, &both), (Usage { bytes: 15, inodes: 3 }, names(&[])));
        assert_eq!(
            cache.recall(&overlayfs, &names(&["low", "new"])),
            (Usage { bytes: 10, inodes: 1 }, names(&["new"])),
        );
    }

    #[test]
    fn what_is_gone_is_forgotten_for_its_snapshotter_alone() {
        let cache = UsageCache::default();
        let [overlayfs, native] = snapshotters();
        let usage = Usage { bytes: 10, inodes: 1 };
        for (snapshotter, name) in [(&overlayfs, "low"), (&overlayfs, "high"), (&native, "low")] {
            cache.insert(snapshotter, name.into(), usage);
        }
        cache.retain(&overlayfs, names(&["high"]));
        let both = names(&["low", "high"]);
        assert_eq!(cache.recall(&overlayfs, &both), (usage, names(&["low"])));
        assert_eq!(cache.recall(&native, &both), (usage, names(&["high"])));
    }
}
