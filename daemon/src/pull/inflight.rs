//! Pulls under way. Equal requests share one; whoever leaves takes nothing with them; the last one to leave ends it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{broadcast, watch};
use tokio_util::task::TaskTracker;

use super::ongoing::{Ongoing, Watched};
use super::request::Pod;
use super::{Error, Outcome};
use crate::containerd::Snapshotter;
use crate::node::snapshotter::Choice;
use crate::priority::{Level, Priority};
use crate::registry::Credentials;

/// Pulls that begin before whoever listens hears of the first of them, at most.
const UNHEARD: usize = 256;

/// What makes two pulls the same. Credentials belong to it: what one caller may read is not what another may.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// The normalised reference.
    reference: String,
    /// Where it is unpacked.
    snapshotter: Snapshotter,
    /// Who is asking.
    credentials: Credentials,
}

/// What a caller gets of a pull.
#[derive(Clone, Debug)]
pub struct Share {
    /// What the pull ended in.
    pub outcome: Arc<Outcome>,
    /// Whether the pull was under way when this caller came.
    pub joined: bool,
    /// Whether what was fetched is to be counted for this caller: exactly one of those that share a pull has it, the
    /// one that started it unless it left.
    pub counts: bool,
}

/// What all callers of a pull are told.
pub type Shared = Result<Arc<Outcome>, Arc<Error>>;

/// The pulls under way.
#[derive(Clone, Debug, Default)]
pub struct Inflight {
    /// Guards the map only; never held across an await.
    pulls: Arc<Mutex<HashMap<Key, Pull>>>,
    /// Numbers pulls and callers.
    number: Arc<AtomicU64>,
    /// Tells of each pull that begins.
    begun: Begun,
    /// Owns every pull's task, so that a drain can wait for them.
    tasks: TaskTracker,
}

#[derive(Clone, Debug)]
struct Begun(broadcast::Sender<Watched>);

impl Default for Begun {
    fn default() -> Self {
        Self(broadcast::Sender::new(UNHEARD))
    }
}

#[derive(Debug)]
struct Pull {
    ongoing: Arc<Ongoing>,
    /// Set once, when the pull ends.
    result: watch::Receiver<Option<Shared>>,
    /// Set when the caller that started the pull left, and taken by the first who then gets its result.
    unclaimed: Arc<AtomicBool>,
}

impl Pull {
    fn watched(&self) -> Watched {
        Watched::new(Arc::clone(&self.ongoing), self.result.clone())
    }
}

/// One caller's place; leaves when dropped.
pub struct Seat {
    inflight: Inflight,
    key: Key,
    number: u64,
    joined: bool,
    unclaimed: Arc<AtomicBool>,
    watched: Watched,
    result: watch::Receiver<Option<Shared>>,
}

impl Inflight {
    /// Takes a place at the pull that is wanted, and starts it with `work` if it is not under way.
    pub fn sit<W>(
        &self,
        reference: String,
        choice: &Choice,
        credentials: Credentials,
        level: Level,
        pod: Option<Pod>,
        work: impl FnOnce(Arc<Ongoing>) -> W,
    ) -> Seat
    where
        W: Future<Output = Result<Outcome, Error>> + Send + 'static,
    {
        let key =
            Key { reference: reference.clone(), snapshotter: choice.snapshotter.name.clone(), credentials };
        let mut pulls = self.pulls();
        // Within the lock: whoever hears of pulls hears of them in the order of their numbers.
        let number = self.next_number();
        let joined = pulls.contains_key(&key);
        let pull = pulls.entry(key.clone()).or_insert_with(|| {
            let ongoing = Arc::new(Ongoing::new(number, reference, choice, Priority::new(level)));
            self.start(key.clone(), Arc::clone(&ongoing), work(ongoing))
        });
        pull.ongoing.sit(number, pod);
        if !joined {
            // Nobody may be listening.
            let _ = self.begun.0.send(pull.watched());
        }
        pull.ongoing.priority.raise(level);
        Seat {
            inflight: self.clone(),
            key,
            number,
            joined,
            unclaimed: Arc::clone(&pull.unclaimed),
            watched: pull.watched(),
            result: pull.result.clone(),
        }
    }

    /// All pulls under way, in the order in which they began.
    pub fn list(&self) -> Vec<Watched> {
        let mut all: Vec<_> = self.pulls().values().map(Pull::watched).collect();
        all.sort_by_key(|watched| watched.ongoing.id);
        all
    }

    /// Tells of each pull that begins from now on.
    pub fn begun(&self) -> broadcast::Receiver<Watched> {
        self.begun.0.subscribe()
    }

    /// Waits until every pull has ended.
    pub async fn drain(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }

    fn start(
        &self,
        key: Key,
        ongoing: Arc<Ongoing>,
        work: impl Future<Output = Result<Outcome, Error>> + Send + 'static,
    ) -> Pull {
        let (sender, result) = watch::channel(None);
        let (inflight, own) = (self.clone(), Arc::clone(&ongoing));
        self.tasks.spawn(async move {
            let ended = tokio::select! {
                ended = work => ended,
                cancelled = own.ended_early() => Err(if cancelled { Error::Cancelled } else { Error::Aborted }),
            };
            // Off the map first: whoever comes from now on starts anew rather than reading an old answer.
            inflight.forget(&key, own.id);
            let _ = sender.send(Some(ended.map(Arc::new).map_err(Arc::new)));
        });
        Pull { ongoing, result, unclaimed: Arc::default() }
    }

    fn forget(&self, key: &Key, id: u64) {
        let mut pulls = self.pulls();
        if pulls.get(key).is_some_and(|pull| pull.ongoing.id == id) {
            pulls.remove(key);
        }
    }

    fn next_number(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn pulls(&self) -> MutexGuard<'_, HashMap<Key, Pull>> {
        self.pulls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Whether the pull was under way.
    pub fn has_joined(&self) -> bool {
        self.joined
    }

    /// The pull, for whoever looks on.
    pub fn watched(&self) -> &Watched {
        &self.watched
    }

    /// Waits for the pull's end.
    pub async fn end(mut self) -> Result<Share, Arc<Error>> {
        let ended = self.result.wait_for(Option::is_some).await;
        let shared = ended.ok().and_then(|result| result.clone());
        // The sender is dropped unsent only if the pull's task panicked.
        let outcome = shared.unwrap_or_else(|| Err(Arc::new(Error::Aborted)))?;
        let joined = self.joined;
        Ok(Share { outcome, joined, counts: self.claim() })
    }

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
        let ongoing = &self.watched.ongoing;
        let mut pulls = self.inflight.pulls();
        // Under the lock: nobody may sit down at a pull that its last caller is leaving.
        if ongoing.stand_up(self.number) {
            ongoing.leave();
            if pulls.get(&self.key).is_some_and(|pull| pull.ongoing.id == ongoing.id) {
                pulls.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::Notify;

    use super::*;
    use crate::containerd::introspection::LoadedSnapshotter;
    use crate::node::snapshotter::Reason;
    use crate::oci::Digest;
    use crate::pull::call::Tally;
    use crate::pull::ongoing::Look;

    fn choice() -> Choice {
        let name = "overlayfs".parse().expect("a snapshotter name");
        let snapshotter = LoadedSnapshotter { name, root: None, remote_capable: false };
        Choice { snapshotter, handler: String::new(), reason: Reason::NoHandler }
    }

    impl Inflight {
        fn sit_at<W>(&self, reference: &str, work: W) -> Seat
        where
            W: Future<Output = Result<Outcome, Error>> + Send + 'static,
        {
            self.sit(reference.into(), &choice(), Credentials::anonymous(), Level::Normal, None, |_| work)
        }
    }

    fn outcome() -> Outcome {
        Outcome {
            image_id: Digest::of(b"config"),
            records: Vec::new(),
            tally: Tally::default(),
            engine: "none",
        }
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
        let first = inflight.sit_at("a", work()).end();
        let second = inflight.sit_at("a", work()).end();
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
        let mut first = Box::pin(inflight.sit_at("a", work).end());
        let mut second = Box::pin(inflight.sit_at("a", async { Ok(outcome()) }).end());
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
        let broken = inflight.sit_at("a", async { panic!("on purpose") }).end().await;
        assert!(matches!(*broken.expect_err("an error"), Error::Aborted));
        assert!(inflight.sit_at("a", async { Ok(outcome()) }).end().await.is_ok());
    }

    #[tokio::test]
    async fn when_the_first_caller_leaves_exactly_one_of_the_others_counts_the_bytes() {
        let (inflight, gate) = (Inflight::default(), Arc::new(Notify::new()));
        let opened = Arc::clone(&gate);
        let work = async move {
            opened.notified().await;
            Ok(outcome())
        };
        let mut first = Box::pin(inflight.sit_at("a", work).end());
        assert!(futures_util::poll!(&mut first).is_pending());
        let others = futures_util::future::join_all(
            (0..3).map(|_| inflight.sit_at("a", async { Ok(outcome()) }).end()),
        );
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

    #[tokio::test]
    async fn whoever_looks_on_sees_who_waits_and_can_end_it_for_all() {
        let inflight = Inflight::default();
        let pod = |name: &str| Some(Pod { namespace: "ns".into(), name: name.into() });
        let sit = |name| {
            let work = |_| std::future::pending();
            inflight.sit("a".into(), &choice(), Credentials::anonymous(), Level::Normal, pod(name), work)
        };
        let (first, second) = (sit("one"), sit("two"));
        let other = inflight.sit_at("b", std::future::pending());
        let list = inflight.list();
        let seen: Vec<_> = list
            .iter()
            .map(|watched| {
                let waiting = watched.ongoing.waiting().into_iter().map(|waiting| waiting.pod);
                (watched.ongoing.reference.clone(), waiting.collect::<Vec<_>>())
            })
            .collect();
        assert_eq!(seen, [("a".to_owned(), vec![pod("one"), pod("two")]), ("b".to_owned(), vec![None])]);
        drop(other);
        assert_eq!(inflight.list().len(), 1);
        list[0].ongoing.cancel();
        for seat in [first, second] {
            assert!(matches!(*seat.end().await.expect_err("an error"), Error::Cancelled));
        }
        inflight.drain().await;
        let look = list[0].look();
        assert!(
            matches!(&look, Look::Ended(_, Err(error)) if matches!(**error, Error::Cancelled)),
            "{look:?}"
        );
        assert!(inflight.list().is_empty());
    }
}
