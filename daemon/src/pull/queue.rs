//! The pulls of this node that fetch something: so many at once, the most urgent first, and none is left behind.
//!
//! - A pull of a level comes before one of the level below that is not older by [`AGE`] or more. So whoever waits gets
//!   its turn, since those that come later than that all stand behind it.
//! - The last free place is not given to a pull of the lowest level before it has waited for [`AGE`], so that the next one
//!   for a pod need not wait for the end of a long one.
//! - No image has more than its own number of places.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::priority::{Level, Priority};

/// What a level is worth in waiting time: a pull before its need comes before a pod's that was asked for so much later.
const AGE: Duration = Duration::from_secs(600);

/// How many pulls fetch at the same time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// On this node; `None` is no limit.
    pub node: Option<NonZeroUsize>,
    /// Of one image, which may be pulled with several credentials and for several snapshotters.
    pub image: Option<NonZeroUsize>,
}

/// The queue of one node.
#[derive(Debug)]
pub struct Queue {
    limits: Limits,
    /// What times are counted from.
    began: Instant,
    /// Guards who runs and who waits; never held across an await.
    line: Mutex<Line>,
}

/// A pull's right to fetch. Given back when dropped.
#[derive(Debug)]
pub struct Admitted {
    queue: Arc<Queue>,
    id: u64,
}

/// Who runs and who waits.
#[derive(Debug, Default)]
struct Line {
    running: Vec<(u64, String)>,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    id: u64,
    image: String,
    priority: Priority,
    /// When it came, from the queue's beginning on.
    since: Duration,
    /// Rings when it is its turn.
    turn: oneshot::Sender<()>,
}

impl Queue {
    /// An empty queue.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, began: Instant::now(), line: Mutex::default() })
    }

    /// Waits for the turn of the pull `id` of `image`. Dropped, it leaves the queue.
    pub(super) async fn enter(self: &Arc<Self>, id: u64, image: &str, priority: &Priority) -> Admitted {
        let (turn, mut ring) = oneshot::channel();
        // From here on it is given back when this is dropped, whether it waits or has just got its turn.
        let admitted = Admitted { queue: Arc::clone(self), id };
        let (image, priority) = (image.to_owned(), priority.clone());
        let waiting = Waiting { id, image, priority, since: self.began.elapsed(), turn };
        self.line().waiting.push(waiting);
        self.admit();
        // Its age may let it in while nothing else happens.
        let aged = tokio::time::timeout(AGE, &mut ring).await.is_err();
        if aged {
            self.admit();
            // The sender is dropped unused by nobody but `leave`, which the end of this calls.
            let _ = (&mut ring).await;
        }
        admitted
    }

    /// The place of a pull among those that wait, from 1 on; `None` if it does not wait.
    pub fn place(&self, id: u64) -> Option<usize> {
        let line = self.line();
        let own = line.waiting.iter().find(|waiting| waiting.id == id)?;
        let own = (own.rank(), own.id);
        Some(1 + line.waiting.iter().filter(|waiting| (waiting.rank(), waiting.id) < own).count())
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.line().waiting.len()
    }

    /// How many may fetch at the same time.
    pub fn limit(&self) -> Option<NonZeroUsize> {
        self.limits.node
    }

    /// Gives the free places away; to be called when one becomes free and when a priority has risen.
    pub(super) fn admit(&self) {
        let mut line = self.line();
        while let Some(next) = line.next(&self.limits, self.began.elapsed()) {
            let Waiting { id, image, turn, .. } = line.waiting.remove(next);
            line.running.push((id, image));
            // Nobody there: it gives its place back as soon as this lock is free.
            let _ = turn.send(());
        }
    }

    fn leave(&self, id: u64) {
        let mut line = self.line();
        line.waiting.retain(|waiting| waiting.id != id);
        line.running.retain(|(running, _)| *running != id);
        drop(line);
        self.admit();
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.queue.leave(self.id);
    }
}

impl Line {
    /// Who of those that wait is next, if there is room for it.
    fn next(&self, limits: &Limits, now: Duration) -> Option<usize> {
        let free = limits.node.map_or(usize::MAX, |limit| limit.get().saturating_sub(self.running.len()));
        let last = limits.node.is_some_and(|limit| limit.get() > 1) && free == 1;
        if free == 0 {
            return None;
        }
        let fits = |waiting: &Waiting| {
            let same = self.running.iter().filter(|(_, image)| *image == waiting.image).count();
            let crowded = limits.image.is_some_and(|limit| same >= limit.get());
            let kept = last && waiting.priority.level() == Level::Low && now < waiting.since + AGE;
            !crowded && !kept
        };
        let fitting = self.waiting.iter().enumerate().filter(|(_, waiting)| fits(waiting));
        fitting.min_by_key(|(_, waiting)| (waiting.rank(), waiting.id)).map(|(index, _)| index)
    }
}

impl Waiting {
    /// The lowest is next.
    fn rank(&self) -> Duration {
        let levels_below_the_highest = match self.priority.level() {
            Level::High => 0,
            Level::Normal => 1,
            Level::Low => 2,
        };
        self.since + AGE * levels_below_the_highest
    }
}

#[cfg(test)]
mod tests;
