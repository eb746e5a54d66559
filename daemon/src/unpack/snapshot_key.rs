//! Keys of active snapshots during an unpack.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::oci::ChainId;

/// A key in the form that containerd's unpacker uses, `extract-<unique> <chain ID>`: snapshotters and tools know an
/// unpack in progress by it. Unique over processes by time and process, within one by a count.
pub(super) fn unique(chain_id: &ChainId) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("extract-{nanos}-{}.{count} {chain_id}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::Digest;

    #[test]
    fn no_two_keys_of_a_chain_are_equal() {
        let chain_id = ChainId(Digest::of(b"x"));
        let (a, b) = (unique(&chain_id), unique(&chain_id));
        assert_ne!(a, b);
        assert!(a.starts_with("extract-") && a.ends_with(&format!(" {chain_id}")), "{a}");
    }
}
