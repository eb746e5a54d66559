//! Secrets that are obtained from elsewhere and kept for a while, such as tokens: one fetch per key at a time, shared
//! by all who wait for it, and its result kept until shortly before it expires.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use tokio::time::Instant;

use super::failure::Failure;

type Fetching<V> = BoxFuture<'static, Result<Timed<V>, Failure>>;

/// A value and when to stop using it.
#[derive(Clone, Debug)]
pub(super) struct Timed<V> {
    pub(super) value: V,
    pub(super) good_until: Instant,
}

/// All values by what they are for.
pub(super) struct Kept<K, V> {
    /// Guards the slots; shared with the running fetches, which put their result here.
    slots: Arc<Mutex<HashMap<K, Slot<V>>>>,
}

enum Slot<V> {
    /// Being fetched. Weak, so that a fetch nobody waits for any more is dropped rather than left half done.
    Pending(WeakShared<Fetching<V>>),
    Ready(Timed<V>),
}

/// A value, and whether it was there before it was asked for.
pub(super) struct Issued<V> {
    pub(super) value: V,
    pub(super) cached: bool,
}

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Self { slots: Arc::default() }
    }
}

impl<K, V> Kept<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Clone + PartialEq + Send + Sync + 'static,
{
    /// The value for `key`, by `fetch` if there is none that is still good. A failure goes to all who waited, and is
    /// then forgotten.
    pub(super) async fn get<F>(&self, key: &K, fetch: impl FnOnce() -> F) -> Result<Issued<V>, Failure>
    where
        F: Future<Output = Result<Timed<V>, Failure>> + Send + 'static,
    {
        let fetch = match self.ready_or_fetch(key, fetch) {
            Ok(value) => return Ok(Issued { value, cached: true }),
            Err(fetch) => fetch,
        };
        fetch.await.map(|timed| Issued { value: timed.value, cached: false })
    }

    /// Drops a value that was refused, unless another caller already had it replaced.
    pub(super) fn drop_refused(&self, key: &K, refused: &V) {
        let mut slots = self.lock();
        if matches!(slots.get(key), Some(Slot::Ready(timed)) if timed.value == *refused) {
            slots.remove(key);
        }
    }

    fn ready_or_fetch<F>(&self, key: &K, fetch: impl FnOnce() -> F) -> Result<V, Shared<Fetching<V>>>
    where
        F: Future<Output = Result<Timed<V>, Failure>> + Send + 'static,
    {
        let mut slots = self.lock();
        match slots.get(key) {
            Some(Slot::Ready(timed)) if timed.good_until > Instant::now() => return Ok(timed.value.clone()),
            Some(Slot::Pending(running)) => {
                if let Some(running) = running.upgrade() {
                    return Err(running);
                }
            }
            _ => {}
        }
        let now = Instant::now();
        slots.retain(|_, slot| match slot {
            Slot::Ready(timed) => timed.good_until > now,
            Slot::Pending(running) => running.upgrade().is_some(),
        });
        let running = self.keep(key.clone(), fetch()).boxed().shared();
        if let Some(weak) = running.downgrade() {
            slots.insert(key.clone(), Slot::Pending(weak));
        }
        Err(running)
    }

    /// Runs a fetch and puts its result into the key's slot.
    fn keep(
        &self,
        key: K,
        fetch: impl Future<Output = Result<Timed<V>, Failure>> + Send + 'static,
    ) -> impl Future<Output = Result<Timed<V>, Failure>> + Send + 'static {
        let slots = self.slots.clone();
        async move {
            let result = fetch.await;
            let mut slots = slots.lock().unwrap_or_else(PoisonError::into_inner);
            match &result {
                Ok(timed) => slots.insert(key, Slot::Ready(timed.clone())),
                Err(_) => slots.remove(&key),
            };
            drop(slots);
            result
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Slot<V>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// A fetch that takes a second and counts itself.
    fn slow(count: &Arc<AtomicUsize>, seconds: u64) -> impl FnOnce() -> Fetching<usize> {
        let count = count.clone();
        move || {
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let value = count.fetch_add(1, Ordering::Relaxed);
                Ok(Timed { value, good_until: Instant::now() + Duration::from_secs(seconds) })
            }
            .boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_callers_share_one_fetch_and_later_ones_its_result() {
        let (kept, count) = (Kept::default(), Arc::default());
        let one = kept.get(&"key", slow(&count, 60));
        let two = kept.get(&"key", slow(&count, 60));
        let (one, two) = tokio::join!(one, two);
        assert!(!one.unwrap().cached && !two.unwrap().cached);
        assert!(kept.get(&"key", slow(&count, 60)).await.unwrap().cached);
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_or_refused_value_is_fetched_anew() {
        let (kept, count) = (Kept::default(), Arc::default());
        let get = || kept.get(&"key", slow(&count, 10));
        let first = get().await.unwrap().value;
        tokio::time::sleep(Duration::from_secs(11)).await;
        let second = get().await.unwrap();
        assert!(!second.cached);
        kept.drop_refused(&"key", &first);
        assert!(get().await.unwrap().cached, "another value than the refused one stays");
        kept.drop_refused(&"key", &second.value);
        assert!(!get().await.unwrap().cached);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fetch_whose_caller_is_gone_is_started_anew() {
        let (kept, count) = (Kept::default(), Arc::default());
        let gone = tokio::time::timeout(Duration::from_millis(10), kept.get(&"key", slow(&count, 60))).await;
        assert!(gone.is_err());
        assert!(kept.get(&"key", slow(&count, 60)).await.is_ok());
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}
