//! Download slots: how many layers are open at once on this node, and whose turn it is. A hard limit, shared fairly:
//!
//! - within a pull the lowest layers come first, since they can be unpacked first;
//! - a free slot goes to a pull of the highest priority, among those to the one that has the fewest, among equals to the
//!   one that has waited longest for its last;
//! - while a pull that has none waits, a slot is asked back: from one of a lower priority at once, else one that was held
//!   for [`SLICE`], from the pull that holds most;
//! - a place that has waited for [`PATIENCE`] is of the highest priority, so that none waits for ever.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::priority::{Level, Priority};

/// How long a slot is held at least. Asking one back costs a request for the rest of the layer: little beside this.
const SLICE: Duration = Duration::from_secs(10);
/// How long a place waits behind those of higher priorities.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks of a pull without a slot whether one can be asked back.
const LOOK: Duration = Duration::from_secs(1);

/// The slots of one node.
#[derive(Debug)]
pub struct Slots(
    /// Guards who waits and who holds; never held across an await.
    Mutex<Queue>,
);

/// The places of one pull.
#[derive(Debug)]
pub struct Line {
    slots: Arc<Slots>,
    priority: Priority,
    number: u64,
    next: u64,
}

/// One layer's place. Given up when dropped.
#[derive(Debug)]
pub struct Place {
    slots: Arc<Slots>,
    priority: Priority,
    key: Key,
    /// Rings when the standing of this place may have changed.
    bell: Arc<Notify>,
}

/// Line, and rank in it.
type Key = (u64, u64);

#[derive(Debug)]
struct Queue {
    limit: usize,
    places: BTreeMap<Key, Entry>,
    /// When each line got its last slot, as a count of all slots given; a line without one has waited longest.
    served: HashMap<u64, u64>,
    given: u64,
    lines: u64,
}

#[derive(Debug)]
struct Entry {
    standing: Standing,
    bell: Arc<Notify>,
    priority: Priority,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Does not know yet whether it needs a slot; those above it wait until it does.
    Asking,
    /// Waits for something else, which may take long; those above it go before it.
    Aside,
    /// Waits for a slot.
    Waiting { since: Instant },
    /// Holds one.
    Open { since: Instant, asked_back: AskedBack, given_as: Level },
}

/// Whether a slot is to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AskedBack {
    No,
    Yes,
    /// It would be of no use: its transfer would start anew.
    Never,
}

impl Slots {
    /// So many slots; `None` is no limit.
    pub fn new(limit: Option<NonZeroUsize>) -> Arc<Self> {
        let limit = limit.map_or(usize::MAX, NonZeroUsize::get);
        let (places, served) = (BTreeMap::new(), HashMap::new());
        Arc::new(Self(Mutex::new(Queue { limit, places, served, given: 0, lines: 0 })))
    }

    /// The line of a pull of that priority, which may rise.
    pub fn line(self: &Arc<Self>, priority: &Priority) -> Line {
        let mut queue = self.queue();
        queue.lines += 1;
        Line { slots: Arc::clone(self), priority: priority.clone(), number: queue.lines, next: 0 }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// A place behind all that were taken before.
    pub fn place(&mut self) -> Place {
        let (key, bell) = ((self.number, self.next), Arc::new(Notify::new()));
        self.next += 1;
        let (standing, priority) = (Standing::Asking, self.priority.clone());
        self.slots.queue().places.insert(key, Entry { standing, bell: Arc::clone(&bell), priority });
        Place { slots: Arc::clone(&self.slots), priority: self.priority.clone(), key, bell }
    }
}

impl Place {
    /// How urgent the pull is whose place it is.
    pub(super) fn priority(&self) -> &Priority {
        &self.priority
    }

    /// Waits for something else than a slot: gives back the one it holds, and lets the places above go first.
    pub fn step_aside(&self) {
        self.stand(Standing::Aside);
    }

    /// Whether it holds a slot, or gets one now. If not, it is in line for one from here on.
    pub fn try_open(&self) -> bool {
        if !self.is_open() {
            self.wait();
        }
        self.is_open()
    }

    /// Gives its slot back and goes in line for one again.
    pub fn give_back(&self) {
        self.stand(Standing::Waiting { since: Instant::now() });
    }

    /// Waits for a slot.
    pub async fn open(&self) {
        while !self.try_open() {
            let ring = tokio::time::timeout(LOOK, self.bell.notified()).await;
            if ring.is_err() {
                self.slots.queue().ask_back(self.key, Instant::now());
            }
        }
    }

    /// Returns when the slot that it holds is to be given back.
    pub async fn asked_back(&self) {
        let asked_back = |queue: &Queue| {
            matches!(queue.standing(self.key), Some(Standing::Open { asked_back: AskedBack::Yes, .. }))
        };
        while !asked_back(&self.slots.queue()) {
            self.bell.notified().await;
        }
    }

    /// Keeps the slot from being asked back, for a host that cannot continue where it stopped.
    pub fn keep(&self) {
        let mut queue = self.slots.queue();
        if let Some(Entry { standing: Standing::Open { asked_back, .. }, .. }) =
            queue.places.get_mut(&self.key)
        {
            *asked_back = AskedBack::Never;
        }
    }

    /// Goes in line, if it is not: how long it waits counts from then.
    fn wait(&self) {
        if !matches!(self.slots.queue().standing(self.key), Some(Standing::Waiting { .. })) {
            self.stand(Standing::Waiting { since: Instant::now() });
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.slots.queue().standing(self.key), Some(Standing::Open { .. }))
    }

    fn stand(&self, standing: Standing) {
        let mut queue = self.slots.queue();
        if let Some(own) = queue.places.get_mut(&self.key) {
            own.standing = standing;
        }
        queue.give(Instant::now());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut queue = self.slots.queue();
        queue.places.remove(&self.key);
        if queue.places.range((self.key.0, 0)..=(self.key.0, u64::MAX)).next().is_none() {
            queue.served.remove(&self.key.0);
        }
        queue.give(Instant::now());
    }
}

impl Queue {
    fn standing(&self, key: Key) -> Option<Standing> {
        self.places.get(&key).map(|entry| entry.standing)
    }

    fn open(&self) -> impl Iterator<Item = (Key, Instant, AskedBack)> {
        self.places.iter().filter_map(|(key, entry)| match entry.standing {
            Standing::Open { since, asked_back, .. } => Some((*key, since, asked_back)),
            _ => None,
        })
    }

    fn open_in(&self, line: u64) -> usize {
        self.open().filter(|((of, _), ..)| *of == line).count()
    }

    /// The place of each line that comes next; lines whose next place is still asking have none.
    fn heads(&self) -> Vec<Key> {
        let (mut heads, mut seen) = (Vec::new(), HashSet::new());
        for (key, entry) in &self.places {
            match entry.standing {
                Standing::Waiting { .. } if seen.insert(key.0) => heads.push(*key),
                Standing::Asking => {
                    seen.insert(key.0);
                }
                _ => {}
            }
        }
        heads
    }

    /// Gives away what is free.
    fn give(&mut self, now: Instant) {
        while self.open().count() < self.limit {
            let last = |line: &u64| self.served.get(line).copied().unwrap_or_default();
            let rank = |key: &Key| (Reverse(self.level(*key, now)), self.open_in(key.0), last(&key.0));
            let next = self.heads().into_iter().min_by_key(rank);
            let Some(key) = next else { return };
            self.given += 1;
            self.served.insert(key.0, self.given);
            let given_as = self.level(key, now);
            if let Some(entry) = self.places.get_mut(&key) {
                entry.standing = Standing::Open { since: now, asked_back: AskedBack::No, given_as };
                entry.bell.notify_one();
            }
        }
    }

    /// Asks one slot back for the line of `key` if it has none and no other is on its way to it.
    fn ask_back(&mut self, key: Key, now: Instant) {
        let starving = self.heads().iter().filter(|(line, _)| self.open_in(*line) == 0).count();
        let coming = self.open().filter(|(_, _, asked_back)| *asked_back == AskedBack::Yes).count();
        if self.open_in(key.0) > 0 || coming >= starving {
            return;
        }
        let own = self.level(key, now);
        let due = self.open().filter(|(of, since, asked_back)| {
            let level = self.level(*of, now);
            let lower = level < own;
            *asked_back == AskedBack::No && level <= own && (lower || now.duration_since(*since) >= SLICE)
        });
        let victim = due.max_by_key(|(of, since, _)| {
            (Reverse(self.level(*of, now)), self.open_in(of.0), now.duration_since(*since))
        });
        let Some((victim, ..)) = victim else { return };
        if let Some(Entry { standing: Standing::Open { asked_back, .. }, bell, .. }) =
            self.places.get_mut(&victim)
        {
            *asked_back = AskedBack::Yes;
            bell.notify_one();
        }
    }

    /// How urgent a place is.
    fn level(&self, key: Key, now: Instant) -> Level {
        let Some(entry) = self.places.get(&key) else { return Level::Low };
        match entry.standing {
            Standing::Waiting { since } if now.duration_since(since) >= PATIENCE => Level::High,
            // What it was given for is worth a slice, whatever comes.
            Standing::Open { since, given_as, .. } if now.duration_since(since) < SLICE => {
                given_as.max(entry.priority.level())
            }
            _ => entry.priority.level(),
        }
    }
}

#[cfg(test)]
mod tests;
