//! Turns: a lock per key, so that the same work is never done twice at once. Keys that nobody holds take no memory.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// One lock per key. Waiters get their turn in the order they came.
#[derive(Debug)]
pub struct Turns<K> {
    /// Guards the map only; never held across an await.
    locks: Mutex<HashMap<K, Weak<AsyncMutex<()>>>>,
}

/// The holder's turn; passes on when dropped.
#[derive(Debug)]
pub struct Turn(#[allow(dead_code, reason = "held for its drop")] OwnedMutexGuard<()>);

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self { locks: Mutex::new(HashMap::new()) }
    }
}

impl<K: Eq + Hash> Turns<K> {
    /// The turn at `key`, if nobody has it.
    pub fn try_take(&self, key: K) -> Option<Turn> {
        self.lock(key).try_lock_owned().ok().map(Turn)
    }

    /// Waits for the turn at `key`.
    pub async fn take(&self, key: K) -> Turn {
        let lock = self.lock(key);
        Turn(lock.lock_owned().await)
    }

    fn lock(&self, key: K) -> Arc<AsyncMutex<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(&key).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(AsyncMutex::new(()));
        locks.insert(key, Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_has_one_holder_and_other_keys_do_not_wait() {
        let turns = Turns::default();
        let first = turns.take("a").await;
        let _other = turns.take("b").await;
        assert!(turns.try_take("a").is_none() && turns.try_take("c").is_some());
        let second = tokio::time::timeout(std::time::Duration::from_secs(1), turns.take("a")).await;
        assert!(second.is_err(), "two holders of one key");
        drop(first);
        let _ = turns.take("a").await;
    }

    #[tokio::test]
    async fn keys_that_nobody_holds_are_forgotten() {
        let turns = Turns::default();
        for key in 0..100 {
            drop(turns.take(key).await);
        }
        let _held = turns.take(1000).await;
        assert_eq!(turns.locks.lock().unwrap().len(), 1);
    }
}
