//! Snapshots: prepare, commit, remove and look at the filesystems that a snapshotter holds.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::snapshots::{
    CommitSnapshotRequest, Info, Kind as WireKind, ListSnapshotsRequest, PrepareSnapshotRequest,
    RemoveSnapshotRequest, StatSnapshotRequest, UsageRequest,
};
use containerd_client::types::Mount;
use tonic::transport::Channel;

use super::{Containerd, Error, Kind, MAX_MESSAGE};
use crate::oci::ChainId;

/// The name of a snapshotter plugin: `overlayfs`, `nydus`, …
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Snapshotter(String);

/// A text that no plugin can be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a snapshotter name: use letters, digits, `-`, `_` and `.`, as in `overlayfs`")]
pub struct SnapshotterNameError(String);

impl Snapshotter {
    /// The plugin's name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Snapshotter {
    type Err = SnapshotterNameError;

    fn from_str(text: &str) -> Result<Self, SnapshotterNameError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if text.is_empty() || text.len() > 76 || !text.chars().all(legal) {
            return Err(SnapshotterNameError(text.escape_default().to_string()));
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for Snapshotter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a prepare ended in.
#[derive(Debug)]
pub enum Prepared {
    /// An active snapshot, to be filled through these mounts and committed.
    Active(Vec<Mount>),
    /// The snapshot that the `containerd.io/snapshot.ref` label names is there already.
    Exists,
}

/// What a commit ended in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// The active snapshot is now the committed one.
    Now,
    /// Somebody else has committed that name before; the active snapshot is still there, and theirs is not under this
    /// lease.
    Before,
}

/// A snapshot and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its key: a chain ID for a layer of an image.
    pub name: String,
    /// What it stands on; empty for the lowest.
    pub parent: String,
    /// Whether it can be stood on. Others are being filled, or are what a container writes to.
    pub committed: bool,
}

/// Space that a committed snapshot takes by itself, without its parents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes on disk.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// A prepare may reach out to a registry (soci, stargz: up to 30 s by their own limits, several times per layer).
pub(super) const PREPARE_DEADLINE: Duration = Duration::from_secs(300);
/// Some snapshotters move or convert the data when they commit (native copies, erofs runs mkfs).
pub(super) const COMMIT_DEADLINE: Duration = Duration::from_secs(600);

/// The snapshots of one snapshotter.
#[derive(Clone, Debug)]
pub struct Snapshots {
    containerd: Containerd,
    snapshotter: Snapshotter,
}

impl Containerd {
    /// The snapshots of `snapshotter`.
    pub fn snapshots(&self, snapshotter: &Snapshotter) -> Snapshots {
        Snapshots { containerd: self.clone(), snapshotter: snapshotter.clone() }
    }
}

impl Snapshots {
    /// Opens an active snapshot `key` on top of `parent`. The labels must hold `containerd.io/snapshot.ref`.
    pub async fn prepare(
        &self,
        key: &str,
        parent: Option<&ChainId>,
        labels: HashMap<String, String>,
    ) -> Result<Prepared, Error> {
        let message = PrepareSnapshotRequest {
            snapshotter: self.snapshotter.0.clone(),
            key: key.into(),
            parent: parent.map(ToString::to_string).unwrap_or_default(),
            labels,
        };
        let request = self.containerd.request_within(PREPARE_DEADLINE, message);
        let answer = self.client().prepare(request).await;
        match answer.map_err(|status| self.error("prepare snapshot", key, &status)) {
            Ok(response) => Ok(Prepared::Active(response.into_inner().mounts)),
            Err(error) if error.kind() == Kind::AlreadyExists => Ok(Prepared::Exists),
            Err(error) => Err(error),
        }
    }

    /// Closes the active snapshot `key` under the name of its chain ID.
    pub async fn commit(
        &self,
        key: &str,
        name: &ChainId,
        labels: HashMap<String, String>,
    ) -> Result<Committed, Error> {
        let message = CommitSnapshotRequest {
            snapshotter: self.snapshotter.0.clone(),
            name: name.to_string(),
            key: key.into(),
            labels,
        };
        let request = self.containerd.request_within(COMMIT_DEADLINE, message);
        let answer = self.client().commit(request).await;
        match answer.map_err(|status| self.error("commit snapshot", name.0.as_str(), &status)) {
            Ok(_) => Ok(Committed::Now),
            Err(error) if error.kind() == Kind::AlreadyExists => Ok(Committed::Before),
            Err(error) => Err(error),
        }
    }

    /// Puts the committed snapshot of that name under the lease, whether it exists or not.
    pub async fn hold(&self, name: &ChainId) -> Result<(), Error> {
        self.containerd.add_to_lease(format!("snapshots/{}", self.snapshotter), name.0.as_str()).await
    }

    /// Takes the snapshot of that name from under the lease.
    pub async fn release(&self, name: &ChainId) -> Result<(), Error> {
        let kind = format!("snapshots/{}", self.snapshotter);
        self.containerd.remove_from_lease(kind, name.0.as_str()).await
    }

    /// Whether a committed snapshot of that name exists, in containerd's records and in the snapshotter.
    pub async fn exists(&self, name: &ChainId) -> Result<bool, Error> {
        Ok(self.labels(name).await?.is_some())
    }

    /// The labels of the committed snapshot of that name, those that the snapshotter itself has set included; `None` if
    /// containerd's records or the snapshotter do not have it.
    pub async fn labels(&self, name: &ChainId) -> Result<Option<HashMap<String, String>>, Error> {
        let message = StatSnapshotRequest { snapshotter: self.snapshotter.0.clone(), key: name.to_string() };
        let answer = self.client().stat(self.containerd.request(message)).await;
        match answer.map_err(|status| self.error("stat snapshot", name.0.as_str(), &status)) {
            Ok(response) => {
                let info = response.into_inner().info;
                Ok(info.filter(|info| info.kind() == WireKind::Committed).map(|info| info.labels))
            }
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a snapshot; one that is gone already counts as removed.
    pub async fn remove(&self, key: &str) -> Result<(), Error> {
        let message = RemoveSnapshotRequest { snapshotter: self.snapshotter.0.clone(), key: key.into() };
        let answer = self.client().remove(self.containerd.request(message)).await;
        match answer.map_err(|status| self.error("remove snapshot", key, &status)) {
            Err(error) if error.kind() != Kind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Names of all committed snapshots.
    pub async fn committed(&self) -> Result<Vec<String>, Error> {
        let all = self.all().await?.into_iter();
        Ok(all.filter(|snapshot| snapshot.committed).map(|snapshot| snapshot.name).collect())
    }

    /// All snapshots of the namespace that the snapshotter has. Those that only containerd's records have are not
    /// listed.
    pub async fn all(&self) -> Result<Vec<Snapshot>, Error> {
        const OPERATION: &str = "list snapshots";
        let message = ListSnapshotsRequest { snapshotter: self.snapshotter.0.clone(), filters: Vec::new() };
        let answer = self.client().list(self.containerd.request(message)).await;
        let mut stream = answer.map_err(|status| self.error(OPERATION, "", &status))?.into_inner();
        let mut all = Vec::new();
        while let Some(page) = stream.message().await.map_err(|status| self.error(OPERATION, "", &status))? {
            all.extend(page.info.into_iter().map(|info: Info| Snapshot {
                committed: info.kind() == WireKind::Committed,
                name: info.name,
                parent: info.parent,
            }));
        }
        Ok(all)
    }

    /// The space that the committed snapshot `name` takes; `None` if it is gone.
    pub async fn usage(&self, name: &str) -> Result<Option<Usage>, Error> {
        let message = UsageRequest { snapshotter: self.snapshotter.0.clone(), key: name.into() };
        let answer = self.client().usage(self.containerd.request(message)).await;
        match answer.map_err(|status| self.error("usage of snapshot", name, &status)) {
            Ok(response) => {
                let usage = response.into_inner();
                let positive = |n: i64| u64::try_from(n).unwrap_or(0);
                Ok(Some(Usage { bytes: positive(usage.size), inodes: positive(usage.inodes) }))
            }
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn client(&self) -> SnapshotsClient<Channel> {
        SnapshotsClient::new(self.containerd.channel()).max_decoding_message_size(MAX_MESSAGE)
    }

    fn error(&self, operation: &'static str, subject: &str, status: &tonic::Status) -> Error {
        Error::new(operation, format!("{subject} in {}", self.snapshotter).trim_start(), status)
    }
}
