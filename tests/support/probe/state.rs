//! A snapshot of containerd's store as values, and the difference of two.

use std::collections::BTreeMap;

use crate::difference::difference;

/// Labels, ordered so that they print the same every time.
pub type Labels = BTreeMap<String, String>;

/// One snapshot of a snapshotter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// What it stands on; empty for the lowest.
    pub parent: String,
    /// `committed`, `active` or `view`.
    pub kind: String,
    /// Its labels.
    pub labels: Labels,
}

/// Everything that containerd stores in the namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Image records: target digest and labels by name.
    pub images: BTreeMap<String, (String, Labels)>,
    /// Labels of each blob by digest.
    pub content: BTreeMap<String, Labels>,
    /// Bytes written by ingest ref.
    pub ingests: BTreeMap<String, i64>,
    /// Labels of each lease by id.
    pub leases: BTreeMap<String, Labels>,
    /// Snapshots by name, by snapshotter.
    pub snapshots: BTreeMap<String, BTreeMap<String, Snapshot>>,
}

impl State {
    /// A snapshot by snapshotter and name.
    pub fn snapshot(&self, snapshotter: &str, name: &str) -> Option<&Snapshot> {
        self.snapshots.get(snapshotter)?.get(name)
    }

    /// What `self` lacks or has otherwise than `before`, one line each, for a failing check's message.
    pub fn difference_from(&self, before: &Self) -> Vec<String> {
        difference(&before.listing(), &self.listing())
    }

    fn listing(&self) -> BTreeMap<String, String> {
        let images = self.images.iter().map(|(name, (target, labels))| {
            (format!("image {name}"), format!("→ {target} {}", shown(labels)))
        });
        let content =
            self.content.iter().map(|(digest, labels)| (format!("content {digest}"), shown(labels)));
        let ingests =
            self.ingests.iter().map(|(name, offset)| (format!("ingest {name}"), format!("at {offset}")));
        let leases = self.leases.iter().map(|(id, labels)| (format!("lease {id}"), shown(labels)));
        let snapshots = self.snapshots.iter().flat_map(|(snapshotter, snapshots)| {
            snapshots.iter().map(move |(name, snapshot)| {
                let text = format!("{} on [{}] {}", snapshot.kind, snapshot.parent, shown(&snapshot.labels));
                (format!("snapshot {snapshotter} {name}"), text)
            })
        });
        images.chain(content).chain(ingests).chain(leases).chain(snapshots).collect()
    }
}

fn shown(labels: &Labels) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}
