//! The tokens of the process: one request per order at a time, shared by all who wait for it, and its answer kept
//! until shortly before it expires.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use tokio::time::Instant;

use super::failure::Failure;
use super::secret::Secret;
use super::token::{Order, Token};

type Fetch = Shared<BoxFuture<'static, Result<Token, Failure>>>;

/// All tokens by what they are for.
#[derive(Clone, Default)]
pub(super) struct Tokens {
    /// Guards the slots; shared with the running fetches, which put their result here.
    slots: Arc<Mutex<HashMap<Order, Slot>>>,
}

enum Slot {
    /// Being fetched. Weak, so that a fetch nobody waits for any more is dropped rather than left half done.
    Pending(WeakShared<BoxFuture<'static, Result<Token, Failure>>>),
    Ready(Token),
}

/// A token, and whether it was there before it was asked for.
pub(super) struct Issued {
    pub(super) value: Secret,
    pub(super) cached: bool,
}

impl Tokens {
    /// The token for `order`, by `fetch` if there is none that is still good. A failure goes to all who waited, and
    /// is then forgotten.
    pub(super) async fn get<F>(&self, order: &Order, fetch: impl FnOnce() -> F) -> Result<Issued, Failure>
    where
        F: Future<Output = Result<Token, Failure>> + Send + 'static,
    {
        let fetch = match self.ready_or_fetch(order, fetch) {
            Ok(value) => return Ok(Issued { value, cached: true }),
            Err(fetch) => fetch,
        };
        fetch.await.map(|token| Issued { value: token.value, cached: false })
    }

    /// Drops a token that a registry refused, unless another caller already had it replaced.
    pub(super) fn drop_refused(&self, order: &Order, refused: &Secret) {
        let mut slots = self.lock();
        if matches!(slots.get(order), Some(Slot::Ready(token)) if token.value == *refused) {
            slots.remove(order);
        }
    }

    fn ready_or_fetch<F>(&self, order: &Order, fetch: impl FnOnce() -> F) -> Result<Secret, Fetch>
    where
        F: Future<Output = Result<Token, Failure>> + Send + 'static,
    {
        let mut slots = self.lock();
        match slots.get(order) {
            Some(Slot::Ready(token)) if token.good_until > Instant::now() => return Ok(token.value.clone()),
            Some(Slot::Pending(running)) => {
                if let Some(running) = running.upgrade() {
                    return Err(running);
                }
            }
            _ => {}
        }
        let now = Instant::now();
        slots.retain(|_, slot| match slot {
            Slot::Ready(token) => token.good_until > now,
            Slot::Pending(running) => running.upgrade().is_some(),
        });
        let running = self.keep(order.clone(), fetch()).boxed().shared();
        if let Some(weak) = running.downgrade() {
            slots.insert(order.clone(), Slot::Pending(weak));
        }
        Err(running)
    }

    /// Runs a fetch and puts its result into the order's slot.
    fn keep(
        &self,
        order: Order,
        fetch: impl Future<Output = Result<Token, Failure>> + Send + 'static,
    ) -> impl Future<Output = Result<Token, Failure>> + Send + 'static {
        let tokens = self.clone();
        async move {
            let result = fetch.await;
            let mut slots = tokens.lock();
            match &result {
                Ok(token) => slots.insert(order, Slot::Ready(token.clone())),
                Err(_) => slots.remove(&order),
            };
            drop(slots);
            result
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Order, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::super::credentials::Login;
    use super::*;

    fn order() -> Order {
        Order {
            realm: "http://t.test/".parse().unwrap(),
            service: None,
            scopes: Vec::new(),
            login: Login::Anonymous,
        }
    }

    /// A fetch that takes a second and counts itself.
    fn slow(
        count: &Arc<AtomicUsize>,
        seconds: u64,
    ) -> impl FnOnce() -> BoxFuture<'static, Result<Token, Failure>> {
        let count = count.clone();
        move || {
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let value = Secret::new(count.fetch_add(1, Ordering::Relaxed).to_string());
                Ok(Token { value, good_until: Instant::now() + Duration::from_secs(seconds) })
            }
            .boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_callers_share_one_fetch_and_later_ones_its_token() {
        let (tokens, count) = (Tokens::default(), Arc::default());
        let order = order();
        let one = tokens.get(&order, slow(&count, 60));
        let two = tokens.get(&order, slow(&count, 60));
        let (one, two) = tokio::join!(one, two);
        assert!(!one.unwrap().cached && !two.unwrap().cached);
        assert!(tokens.get(&order, slow(&count, 60)).await.unwrap().cached);
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_or_refused_token_is_fetched_anew() {
        let (tokens, count) = (Tokens::default(), Arc::default());
        let order = order();
        let get = || tokens.get(&order, slow(&count, 10));
        let first = get().await.unwrap().value;
        tokio::time::sleep(Duration::from_secs(11)).await;
        let second = get().await.unwrap();
        assert!(!second.cached);
        tokens.drop_refused(&order, &first);
        assert!(get().await.unwrap().cached, "another token than the refused one stays");
        tokens.drop_refused(&order, &second.value);
        assert!(!get().await.unwrap().cached);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fetch_whose_caller_is_gone_is_started_anew() {
        let (tokens, count) = (Tokens::default(), Arc::default());
        let order = order();
        let gone =
            tokio::time::timeout(Duration::from_millis(10), tokens.get(&order, slow(&count, 60))).await;
        assert!(gone.is_err());
        assert!(tokens.get(&order, slow(&count, 60)).await.is_ok());
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}
