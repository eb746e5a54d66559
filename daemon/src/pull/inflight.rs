//! Pulls under way. Equal requests share one; whoever leaves takes nothing with them; the last one to leave ends it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Error, Outcome};
use crate::containerd::Snapshotter;
use crate::registry::Credentials;

/// What makes two pulls the same. Credentials belong to it: what one caller may read is not what another may.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The normalised reference.
    pub reference: String,
    /// Where it is unpacked.
    pub snapshotter: Snapshotter,
    /// Who is asking.
    pub credentials: Credentials,
}

/// What a caller gets of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// What the pull ended in.
    pub outcome: Arc<Outcome>,
    /// Whether the pull was under way when this caller came.
    pub joined: bool,
    /// Whether what was fetched is to be counted for this caller: exactly one of those that share a pull has it, the
    /// one that started it unless it left.
    pub counts: bool,
}

type Shared = Result<Arc<Outcome>, Arc<Error>>;

/// The pulls under way.
#[derive(Clone, Debug, Default)]
pub struct Inflight {
    /// Guards the map only; never held across an await.
    pulls: Arc<Mutex<HashMap<Key, Pull>>>,
    /// Owns every pull's task, so that a drain can wait for them.
    tasks: TaskTracker,
}

#[derive(Debug)]
struct Pull {
    /// Set once, when the pull ends.
    result: watch::Receiver<Option<Shared>>,
    /// Callers that wait; at zero the pull is ended.
    waiters: usize,
    /// Ends the pull.
    leave: CancellationToken,
    /// Set when the caller that started the pull left, and taken by the first who then gets its result.
    unclaimed: Arc<AtomicBool>,
}

/// One caller's place; leaves when dropped.
struct Seat {
    inflight: Inflight,
    key: Key,
    joined: bool,
    unclaimed: Arc<AtomicBool>,
    /// Tells this pull from a later one with the same key.
    leave: CancellationToken,
}

impl Inflight {
    /// Joins the pull with that key, or starts it with `work`.
    pub async fn join(
        &self,
        key: Key,
        work: impl Future<Output = Result<Outcome, Error>> + Send + 'static,
    ) -> Result<Share, Arc<Error>> {
        let (mut seat, mut result) = self.sit(key, work);
        let ended = result.wait_for(Option::is_some).await;
        let shared = ended.ok().and_then(|result| result.clone());
        // The sender is dropped unsent only if the pull's task panicked.
        let outcome = shared.unwrap_or_else(|| Err(Arc::new(Error::Aborted)))?;
        let joined = seat.joined;
        Ok(Share { outcome, joined, counts: seat.claim() })
    }

    /// Waits until every pull has ended.
    pub async fn drain(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }

    fn sit(
        &self,
        key: Key,
        work: impl Future<Output = Result<Outcome, Error>> + Send + 'static,
    ) -> (Seat, watch::Receiver<Option<Shared>>) {
        let mut pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        let joined = pulls.contains_key(&key);
        let pull = pulls.entry(key.clone()).or_insert_with(|| self.start(key.clone(), work));
        pull.waiters += 1;
        let (leave, unclaimed) = (pull.leave.clone(), Arc::clone(&pull.unclaimed));
        (Seat { inflight: self.clone(), key, joined, unclaimed, leave }, pull.result.clone())
    }

    fn start(&self, key: Key, work: impl Future<Output = Result<Outcome, Error>> + Send + 'static) -> Pull {
        let (sender, result) = watch::channel(None);
        let leave = CancellationToken::new();
        let (pulls, left) = (Arc::clone(&self.pulls), leave.clone());
        self.tasks.spawn(async move {
            let ended = tokio::select! {
                ended = work => ended.map(Arc::new).map_err(Arc::new),
                () = left.cancelled() => Err(Arc::new(Error::Aborted)),
            };
            // Off the map first: whoever comes from now on starts anew rather than reading an old answer.
            forget(&pulls, &key, &left);
            let _ = sender.send(Some(ended));
        });
        Pull { result, waiters: 0, leave, unclaimed: Arc::default() }
    }
}

impl Seat {
    /// Whether this caller counts what was fetched; asked once, when the result is there.
    fn claim(&mut self) -> bool {
        // A starter that got its result has not left.
        !std::mem::replace(&mut self.joined, true) || self.unclaimed.swap(false, Ordering::SeqCst)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.joined {
            self.unclaimed.store(true, Ordering::SeqCst);
        }
        let mut pulls = self.inflight.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(pull) = pulls.get_mut(&self.key).filter(|pull| pull.leave == self.leave) else {
            return;
        };
        pull.waiters -= 1;
        if pull.waiters == 0 {
            pull.leave.cancel();
            pulls.remove(&self.key);
        }
    }
}

fn forget(pulls: &Mutex<HashMap<Key, Pull>>, key: &Key, leave: &CancellationToken) {
    let mut pulls = pulls.lock().unwrap_or_else(PoisonError::into_inner);
    if pulls.get(key).is_some_and(|pull| pull.leave == *leave) {
        pulls.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::Notify;

    use super::*;
    use crate::oci::Digest;
    use crate::pull::call::Tally;

    fn key(reference: &str) -> Key {
        let snapshotter = "overlayfs".parse().expect("a snapshotter name");
        Key { reference: reference.into(), snapshotter, credentials: Credentials::anonymous() }
    }

    fn outcome() -> Outcome {
        Outcome { image_id: Digest::of(b"config"), records: Vec::new(), tally: Tally::default() }
    }

    #[tokio::test]
    async fn equal_requests_share_one_pull() {
        let (inflight, runs, gate) =
            (Inflight::default(), Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let work = || {
            let (runs, gate) = (Arc::clone(&runs), Arc::clone(&gate));
            async move {
                runs.fetch_add(1, Ordering::SeqCst);
                gate.notified().await;
                Ok(outcome())
            }
        };
        let first = inflight.join(key("a"), work());
        let second = inflight.join(key("a"), work());
        let open = async {
            tokio::task::yield_now().await;
            gate.notify_one();
        };
        let (first, second, ()) = tokio::join!(first, second, open);
        let (first, second) = (first.expect("a result"), second.expect("a result"));
        assert!(!first.joined && first.counts, "{first:?}");
        assert!(second.joined && !second.counts, "{second:?}");
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        assert!(inflight.pulls.lock().expect("the lock").is_empty());
    }

    #[tokio::test]
    async fn one_waiter_that_leaves_takes_nothing_with_it_and_the_last_ends_the_pull() {
        let (inflight, gate) = (Inflight::default(), Arc::new(Notify::new()));
        let (alive, dropped) = tokio::sync::oneshot::channel::<()>();
        let opened = Arc::clone(&gate);
        let work = async move {
            let _alive = alive;
            opened.notified().await;
            Ok(outcome())
        };
        let mut first = Box::pin(inflight.join(key("a"), work));
        let mut second = Box::pin(inflight.join(key("a"), async { Ok(outcome()) }));
        assert!(futures_util::poll!(&mut first).is_pending());
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(first);
        tokio::task::yield_now().await;
        assert!(futures_util::poll!(&mut second).is_pending(), "the pull ended with its first caller");
        drop(second);
        assert!(dropped.await.is_err(), "the pull's work was never dropped");
        inflight.drain().await;
    }

    #[tokio::test]
    async fn a_pull_that_panics_is_an_error_and_blocks_nobody() {
        let inflight = Inflight::default();
        let broken = inflight.join(key("a"), async { panic!("on purpose") }).await;
        assert!(matches!(*broken.expect_err("an error"), Error::Aborted));
        assert!(inflight.join(key("a"), async { Ok(outcome()) }).await.is_ok());
    }

    #[tokio::test]
    async fn when_the_first_caller_leaves_exactly_one_of_the_others_counts_the_bytes() {
        let (inflight, gate) = (Inflight::default(), Arc::new(Notify::new()));
        let opened = Arc::clone(&gate);
        let work = async move {
            opened.notified().await;
            Ok(outcome())
        };
        let mut first = Box::pin(inflight.join(key("a"), work));
        assert!(futures_util::poll!(&mut first).is_pending());
        let others =
            futures_util::future::join_all((0..3).map(|_| inflight.join(key("a"), async { Ok(outcome()) })));
        let leave = async {
            tokio::task::yield_now().await;
            drop(first);
            gate.notify_one();
        };
        let (others, ()) = tokio::join!(others, leave);
        let counted =
            others.into_iter().filter(|share| share.as_ref().is_ok_and(|share| share.counts)).count();
        assert_eq!(counted, 1);
    }
}
