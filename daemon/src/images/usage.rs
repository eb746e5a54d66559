//! How much space images take: the committed snapshots of each snapshotter, and the content store. What running
//! containers write is not counted here. It is sampled, since clients ask every few seconds: a sample serves until the
//! images change, and a committed snapshot, which never changes, is measured once.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures_util::{StreamExt as _, TryStreamExt as _};

use crate::containerd::snapshots::{Snapshots, Usage};
use crate::containerd::{Containerd, Error, Snapshotter};

/// Measurements at a time when a node with many snapshots is seen for the first time.
const AT_ONCE: usize = 8;
/// How long a sample serves when it was taken soon after a change: containerd's collection comes some time after what
/// makes things collectable.
const UNSETTLED: Duration = Duration::from_secs(2);
/// How long a change is soon after.
const SETTLING: Duration = Duration::from_secs(10);
/// How long a sample serves at most. Others may write blobs and snapshots without an image.
const OLDEST: Duration = Duration::from_secs(60);

/// Space taken on one filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesystemUse {
    /// A directory on it.
    pub mountpoint: String,
    /// Bytes and inodes of all committed snapshots of a snapshotter, or of all blobs.
    pub usage: Usage,
}

/// What images take, at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When it was measured.
    pub taken: SystemTime,
    /// The default snapshotter, then the others that have images, then the content store.
    pub filesystems: Vec<FilesystemUse>,
}

/// The last sample.
#[derive(Debug, Default)]
pub(super) struct Sampler {
    /// Held while a sample is taken, so that those who ask meanwhile get that one.
    last: tokio::sync::Mutex<Option<Last>>,
}

#[derive(Debug)]
struct Last {
    sample: Sample,
    taken: Instant,
    /// The number of changes that the images had seen.
    changes: u64,
    /// When that number was seen first.
    since: Instant,
}

impl Sampler {
    /// The last sample if it still serves, else a new one. `changes` says how often the images have changed.
    pub(super) async fn sample<E>(
        &self,
        changes: u64,
        take: impl Future<Output = Result<Vec<FilesystemUse>, E>>,
    ) -> Result<Sample, E> {
        let mut last = self.last.lock().await;
        let now = Instant::now();
        if let Some(last) = last.as_ref().filter(|last| last.serves(changes, now)) {
            return Ok(last.sample.clone());
        }
        let sample = Sample { taken: SystemTime::now(), filesystems: take.await? };
        let since = last.as_ref().filter(|last| last.changes == changes).map_or(now, |last| last.since);
        *last = Some(Last { sample: sample.clone(), taken: now, changes, since });
        Ok(sample)
    }
}

impl Last {
    fn serves(&self, changes: u64, now: Instant) -> bool {
        let settled = self.taken.duration_since(self.since) >= SETTLING;
        let age = now.duration_since(self.taken);
        self.changes == changes && age < if settled { OLDEST } else { UNSETTLED }
    }
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

    #[test]
    fn a_sample_serves_until_images_change_and_not_for_long_after_that() {
        let since = Instant::now();
        let at = |seconds| since + Duration::from_secs(seconds);
        let last = |taken| Last {
            sample: Sample { taken: SystemTime::now(), filesystems: Vec::new() },
            taken: at(taken),
            changes: 7,
            since,
        };
        for (taken, changes, asked, expected) in [
            (0, 7, 1, true),
            (0, 7, 2, false),
            (0, 8, 1, false),
            (9, 7, 11, false),
            (10, 7, 69, true),
            (10, 7, 70, false),
            (10, 8, 11, false),
        ] {
            assert_eq!(last(taken).serves(changes, at(asked)), expected, "{taken} {changes} {asked}");
        }
    }

    #[tokio::test]
    async fn calls_in_a_row_share_a_sample_until_images_change() {
        let (sampler, taken) = (Sampler::default(), std::cell::Cell::new(0));
        let take = async || {
            taken.set(taken.get() + 1);
            Ok::<_, std::convert::Infallible>(Vec::new())
        };
        for (changes, expected) in [(0, 1), (0, 1), (0, 1), (1, 2), (1, 2), (7, 3)] {
            let Ok(_) = sampler.sample(changes, take()).await;
            assert_eq!(taken.get(), expected, "after {changes} changes");
        }
        let (first, second) = tokio::join!(sampler.sample(8, take()), sampler.sample(8, take()));
        assert_eq!((first, taken.get()), (second, 4), "who asks meanwhile gets the same");
    }

    #[tokio::test]
    async fn a_sample_that_fails_or_is_dropped_is_taken_by_the_next_call() {
        let sampler = Sampler::default();
        assert_eq!(sampler.sample(0, async { Err("away") }).await, Err("away"));
        let dropped = sampler.sample(0, std::future::pending::<Result<_, &str>>());
        assert!(tokio::time::timeout(Duration::ZERO, dropped).await.is_err());
        assert!(sampler.sample(0, async { Ok::<_, &str>(Vec::new()) }).await.is_ok());
    }

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
