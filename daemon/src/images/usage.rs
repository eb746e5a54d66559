//! How much space a snapshotter's committed snapshots take. A committed snapshot never changes, so each is measured
//! once; what running containers write is not counted here.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use futures_util::StreamExt as _;

use crate::containerd::Error;
use crate::containerd::snapshots::{Snapshots, Usage};

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
    /// By snapshot name. Guards the map only; never held across an await.
    known: Mutex<HashMap<String, Usage>>,
}

impl UsageCache {
    pub(super) async fn total(&self, snapshots: &Snapshots) -> Result<Usage, Error> {
        let names = snapshots.committed().await?;
        let known = std::mem::take(&mut *self.known.lock().unwrap_or_else(PoisonError::into_inner));
        let (old, new): (Vec<String>, Vec<String>) =
            names.into_iter().partition(|name| known.contains_key(name));
        let measured = futures_util::stream::iter(new).map(|name| async {
            let usage = snapshots.usage(&name).await?;
            Ok::<_, Error>(usage.map(|usage| (name, usage)))
        });
        let measured: Vec<_> = measured.buffer_unordered(AT_ONCE).collect().await;
        let mut current: HashMap<String, Usage> =
            old.into_iter().filter_map(|name| known.get(&name).map(|usage| (name.clone(), *usage))).collect();
        let mut failed = None;
        for measurement in measured {
            match measurement {
                Ok(found) => current.extend(found),
                Err(error) => failed = Some(error),
            }
        }
        let total = current.values().fold(Usage::default(), |sum, usage| Usage {
            bytes: sum.bytes + usage.bytes,
            inodes: sum.inodes + usage.inodes,
        });
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = current;
        failed.map_or(Ok(total), Err)
    }
}
