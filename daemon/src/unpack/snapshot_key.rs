//! Keys of active snapshots during an unpack.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::oci::ChainId;

/// Makes keys, no two of them equal: over processes by time and process, within one by a count.
#[derive(Debug, Default)]
pub(super) struct SnapshotKeys {
    /// Keys made so far.
    count: AtomicU64,
}

impl SnapshotKeys {
    /// A key in the form that containerd's unpacker uses, `extract-<unique> <chain ID>`: snapshotters and tools know an
    /// unpack in progress by it.
    pub(super) fn next(&self, chain_id: &ChainId) -> String {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        format!("extract-{nanos}-{}.{count} {chain_id}", std::process::id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::Digest;

    #[test]
    fn no_two_keys_of_a_chain_are_equal() {
        let (keys, chain_id) = (SnapshotKeys::default(), ChainId(Digest::of(b"x")));
        let (a, b) = (keys.next(&chain_id), keys.next(&chain_id));
        assert_ne!(a, b);
        assert!(a.starts_with("extract-") && a.ends_with(&format!(" {chain_id}")), "{a}");
    }
}
