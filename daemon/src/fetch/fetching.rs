//! Blobs on their way and the pulls that bring them, so that whoever waits for a blob lifts the pull that has it: it would
//! else wait as long as the least urgent one.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::oci::Digest;
use crate::priority::{Level, Priority};

#[derive(Debug, Default)]
pub(super) struct Fetching(
    /// Guards who brings what; never held across an await.
    Mutex<HashMap<Digest, Priority>>,
);

/// A blob on its way; not any more when dropped.
pub(super) struct Entry<'a> {
    fetching: &'a Fetching,
    digest: &'a Digest,
}

impl Fetching {
    /// Notes who brings a blob. There is one at a time.
    pub(super) fn enter<'a>(&'a self, digest: &'a Digest, priority: &Priority) -> Entry<'a> {
        self.all().insert(digest.clone(), priority.clone());
        Entry { fetching: self, digest }
    }

    /// Lifts whoever brings the blob.
    pub(super) fn raise(&self, digest: &Digest, level: Level) {
        if let Some(priority) = self.all().get(digest) {
            priority.raise(level);
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Digest, Priority>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.fetching.all().remove(self.digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_brings_a_blob_is_as_urgent_as_those_that_wait_for_it() {
        let (fetching, digest, low) = (Fetching::default(), Digest::of(b"blob"), Priority::new(Level::Low));
        fetching.raise(&digest, Level::High);
        let entry = fetching.enter(&digest, &low);
        fetching.raise(&Digest::of(b"other"), Level::High);
        assert_eq!(low.level(), Level::Low);
        fetching.raise(&digest, Level::Normal);
        assert_eq!(low.level(), Level::Normal);
        drop(entry);
        fetching.raise(&digest, Level::High);
        assert_eq!(low.level(), Level::Normal);
    }
}
