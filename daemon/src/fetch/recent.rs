//! Documents that were downloaded a moment ago and are not in the content store yet: a pull of the same image for
//! another runtime handler takes them from here instead of asking the registry again.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::oci::Digest;

/// A pull keeps its documents as soon as it has read them all; this is a slow registry's time for three of them.
const LIFETIME: Duration = Duration::from_secs(30);
/// Bytes of all documents together. Manifests and configs have a few KiB each.
const CAPACITY: usize = 4 << 20;

/// The documents, oldest first.
#[derive(Debug, Default)]
pub(super) struct Recent(
    /// Guards the list only; never held across an await.
    Mutex<VecDeque<(Instant, Digest, Vec<u8>)>>,
);

impl Recent {
    /// The bytes of a document that was put here within [`LIFETIME`].
    pub(super) fn get(&self, digest: &Digest) -> Option<Vec<u8>> {
        let documents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let young = |since: &Instant| since.elapsed() <= LIFETIME;
        documents
            .iter()
            .find(|(since, of, _)| of == digest && young(since))
            .map(|(_, _, bytes)| bytes.clone())
    }

    /// Remembers a document whose digest is proved; forgets what is old or too much.
    pub(super) fn put(&self, digest: Digest, bytes: Vec<u8>) {
        let mut documents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        documents.retain(|(since, of, _)| *of != digest && since.elapsed() <= LIFETIME);
        documents.push_back((Instant::now(), digest, bytes));
        while documents.iter().map(|(_, _, bytes)| bytes.len()).sum::<usize>() > CAPACITY {
            documents.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_document_is_there_for_a_moment_and_within_bounds() {
        let recent = Recent::default();
        let digest = |n: u8| Digest::of(&[n]);
        recent.put(digest(1), b"one".to_vec());
        assert_eq!(recent.get(&digest(1)), Some(b"one".to_vec()));
        assert_eq!(recent.get(&digest(2)), None);
        tokio::time::advance(LIFETIME * 2).await;
        assert_eq!(recent.get(&digest(1)), None);
        for n in 0..10 {
            recent.put(digest(n), vec![n; CAPACITY / 4]);
        }
        let there: Vec<u8> = (0..10).filter(|n| recent.get(&digest(*n)).is_some()).collect();
        assert_eq!(there, [6, 7, 8, 9]);
    }
}
