//! Connections that a blob may have beside its first one. The node has a number of them, since each reads a range ahead
//! into memory; they go to the blob of which most is left, for that is what a pull waits for in the end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long a blob is known to want a connection. One that is read says so again with each of its bytes; others may
/// have what one leaves that stands still.
const CLAIM: Duration = Duration::from_secs(1);

/// The spare connections of one node.
pub(super) struct Spare(
    /// Guards who has how much left; never held across an await.
    Mutex<State>,
);

struct State {
    free: usize,
    /// Bytes that are not asked for yet, of each blob that wants another connection.
    wanting: BTreeMap<u64, (u64, Instant)>,
    readers: u64,
}

/// One blob that is read.
pub(super) struct Reader {
    spare: Arc<Spare>,
    number: u64,
}

/// One connection. Given back when dropped.
pub(super) struct Leave(Arc<Spare>);

impl Spare {
    pub(super) fn new(connections: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { free: connections, wanting: BTreeMap::new(), readers: 0 })))
    }

    pub(super) fn reader(self: &Arc<Self>) -> Reader {
        let mut state = self.state();
        state.readers += 1;
        Reader { spare: Arc::clone(self), number: state.readers }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// A connection, if one is free and no other blob that wants one has more left than these bytes. The blob is known
    /// to want one from here on.
    pub(super) fn take(&self, left: u64) -> Option<Leave> {
        let mut state = self.spare.state();
        state.wanting.insert(self.number, (left, Instant::now()));
        let claims = |(other, since): &(u64, Instant)| *other > left && since.elapsed() < CLAIM;
        if state.free == 0 || state.wanting.values().any(claims) {
            return None;
        }
        state.free -= 1;
        Some(Leave(Arc::clone(&self.spare)))
    }

    /// Notes that the blob wants no more connections for now.
    pub(super) fn is_content(&self) {
        self.spare.state().wanting.remove(&self.number);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.is_content();
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.state().free += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_most_left_has_all_that_it_wants_and_then_the_next_one() {
        let spare = Spare::new(3);
        let (small, large) = (spare.reader(), spare.reader());
        let first = small.take(10).expect("nobody else wants one");
        let others = [large.take(100), large.take(80)];
        assert!(others.iter().all(Option::is_some));
        assert!(large.take(60).is_none(), "there are no more than three");
        drop(first);
        assert!(small.take(9).is_none(), "the other has more left");
        let last = large.take(60);
        assert!(last.is_some());
        large.is_content();
        drop(others);
        assert!(small.take(9).is_some() && last.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_blob_that_stands_still_leaves_what_is_free_to_others() {
        let spare = Spare::new(1);
        let (small, large) = (spare.reader(), spare.reader());
        let held = small.take(9);
        assert!(held.is_some() && large.take(100).is_none());
        drop(held);
        assert!(small.take(9).is_none());
        tokio::time::advance(CLAIM).await;
        assert!(small.take(9).is_some());
    }

    #[test]
    fn a_reader_that_goes_stands_in_nobodys_way() {
        let spare = Spare::new(1);
        let (small, large) = (spare.reader(), spare.reader());
        let held = large.take(100);
        assert!(large.take(90).is_none() && small.take(1).is_none());
        drop((held, large));
        assert!(small.take(1).is_some());
    }
}
