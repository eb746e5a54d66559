//! What became of the calls since drayd was started, by image and snapshotter: enough to tell whether an image was
//! transferred once for two pods. Kept in memory, of which it takes a bounded part.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::ending::Ending;

/// Images that are remembered, each with its snapshotter; beyond that, the one whose last call ended longest ago is
/// forgotten. With long names and messages they take about a megabyte.
const MOST: usize = 1000;

/// Longest message kept of a failure.
const MESSAGE: usize = 512;

/// Since the start of this process.
#[derive(Debug)]
pub struct History {
    since: SystemTime,
    /// Guards what is remembered; never held across an await.
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// By reference and snapshotter.
    entries: HashMap<(String, String), (Entry, u64)>,
    /// Calls that ended, of which the number of each entry's last one tells its age.
    ended: u64,
    forgotten: u64,
}

/// What became of the calls for one image on one snapshotter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The normalised reference.
    pub reference: String,
    /// The snapshotter; empty for calls that failed before one was chosen.
    pub snapshotter: String,
    /// Calls that ended.
    pub calls: u64,
    /// Those for which bytes came over the wire and ended in an image: calls that shared a pull count one.
    pub transfers: u64,
    /// Bytes that came over the wire.
    pub bytes: u64,
    /// Calls by how they ended.
    pub endings: BTreeMap<Ending, u64>,
    /// When the last call ended.
    pub last: SystemTime,
    /// What the last call that failed said; empty if none did.
    pub failure: String,
}

/// Which entries are asked for: an empty word stands for all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter<'a> {
    /// The normalised reference.
    pub reference: &'a str,
    /// The snapshotter.
    pub snapshotter: &'a str,
}

/// One call that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended<'a> {
    pub(super) reference: &'a str,
    pub(super) snapshotter: &'a str,
    pub(super) ending: Ending,
    /// That this call is to be counted for.
    pub(super) bytes: u64,
    /// What it said, if it failed.
    pub(super) failure: Option<&'a str>,
}

impl Default for History {
    fn default() -> Self {
        Self { since: SystemTime::now(), kept: Mutex::default() }
    }
}

impl History {
    /// When it begins.
    pub fn since(&self) -> SystemTime {
        self.since
    }

    /// How many images were forgotten for want of room.
    pub fn forgotten(&self) -> u64 {
        self.kept().forgotten
    }

    /// What became of the calls, the latest first.
    pub fn entries(&self, filter: Filter<'_>) -> Vec<Entry> {
        let wanted = |asked: &str, has: &str| asked.is_empty() || asked == has;
        let kept = self.kept();
        let mut found: Vec<_> = kept
            .entries
            .values()
            .filter(|(entry, _)| {
                wanted(filter.reference, &entry.reference) && wanted(filter.snapshotter, &entry.snapshotter)
            })
            .collect();
        found.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
        found.into_iter().map(|(entry, _)| entry.clone()).collect()
    }

    pub(super) fn add(&self, ended: Ended<'_>) {
        let mut kept = self.kept();
        kept.ended += 1;
        let number = kept.ended;
        let key = (ended.reference.to_owned(), ended.snapshotter.to_owned());
        if kept.entries.len() == MOST && !kept.entries.contains_key(&key) {
            kept.forget_one();
        }
        let (entry, last) = kept.entries.entry(key).or_insert_with(|| (Entry::new(&ended), number));
        *last = number;
        entry.add(&ended);
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn forget_one(&mut self) {
        let oldest = self.entries.iter().min_by_key(|(_, (_, number))| *number).map(|(key, _)| key.clone());
        if let Some(oldest) = oldest {
            self.entries.remove(&oldest);
            self.forgotten += 1;
        }
    }
}

impl Entry {
    fn new(ended: &Ended<'_>) -> Self {
        Self {
            reference: ended.reference.into(),
            snapshotter: ended.snapshotter.into(),
            calls: 0,
            transfers: 0,
            bytes: 0,
            endings: BTreeMap::new(),
            last: SystemTime::now(),
            failure: String::new(),
        }
    }

    fn add(&mut self, ended: &Ended<'_>) {
        self.calls += 1;
        self.transfers += u64::from(ended.ending.is_success() && ended.bytes > 0);
        self.bytes += ended.bytes;
        *self.endings.entry(ended.ending).or_default() += 1;
        self.last = SystemTime::now();
        if let Some(failure) = ended.failure {
            self.failure = failure.chars().take(MESSAGE).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ending::Reason;
    use super::*;

    fn ended(reference: &str, ending: Ending, bytes: u64) -> Ended<'_> {
        Ended { reference, snapshotter: "nydus", ending, bytes, failure: None }
    }

    #[test]
    fn calls_transfers_and_bytes_are_counted_apart_for_each_snapshotter() {
        let history = History::default();
        for (ending, bytes) in [(Ending::Fetched, 100), (Ending::Joined, 0), (Ending::Present, 0)] {
            history.add(ended("a", ending, bytes));
        }
        history.add(Ended { snapshotter: "overlayfs", ..ended("a", Ending::Fetched, 7) });
        history.add(ended("b", Ending::Fetched, 1));
        let failure = Some("no such thing");
        history.add(Ended { failure, ..ended("b", Ending::Failed(Reason::NotFound), 30) });
        let seen = |filter| {
            let entries = history.entries(filter).into_iter();
            entries.map(|e| (e.reference, e.snapshotter, e.calls, e.transfers, e.bytes)).collect::<Vec<_>>()
        };
        let row = |reference: &str, snapshotter: &str, calls, transfers, bytes| {
            (reference.to_owned(), snapshotter.to_owned(), calls, transfers, bytes)
        };
        let (a, b, other) =
            (row("a", "nydus", 3, 1, 100), row("b", "nydus", 2, 1, 31), row("a", "overlayfs", 1, 1, 7));
        assert_eq!(seen(Filter::default()), [b.clone(), other.clone(), a.clone()]);
        assert_eq!(seen(Filter { reference: "a", ..Filter::default() }), [other, a.clone()]);
        assert_eq!(seen(Filter { reference: "a", snapshotter: "nydus" }), [a]);
        let last = &history.entries(Filter { reference: "b", ..Filter::default() })[0];
        assert_eq!(last.failure, "no such thing");
        let endings = [(Ending::Fetched, 1), (Ending::Failed(Reason::NotFound), 1)];
        assert_eq!(last.endings, BTreeMap::from(endings));
    }

    #[test]
    fn the_one_that_ended_longest_ago_is_forgotten_and_memory_is_bounded() {
        let history = History::default();
        let long = "x".repeat(100 * MESSAGE);
        for number in 0..MOST + 10 {
            history.add(Ended { failure: Some(&long), ..ended(&number.to_string(), Ending::GivenUp, 0) });
            // Always the latest but one.
            history.add(ended("kept", Ending::Present, 0));
        }
        let entries = history.entries(Filter::default());
        assert_eq!((entries.len(), history.forgotten()), (MOST, 11));
        assert_eq!((entries[0].reference.as_str(), entries[0].calls), ("kept", MOST as u64 + 10));
        assert!(entries.iter().all(|entry| entry.failure.len() <= MESSAGE));
        assert!(!entries.iter().any(|entry| entry.reference == "0"));
    }
}
