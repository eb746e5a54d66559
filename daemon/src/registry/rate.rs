//! The node's limit on bytes per second over all bodies of blobs and documents, each connection in its turn. While bodies
//! of more urgent pulls come, the others have shorter turns.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::priority::{Level, Priority};

/// Bytes that a connection takes at a time, at most: few enough that many take turns within a second at common rates.
const LONGEST_TURN: u64 = 64 << 10;
/// Turns in a second at rates below that, so that nobody waits long for one that a slow host holds.
const TURNS_PER_SECOND: u64 = 8;

/// By how much turns are shorter while somebody more urgent reads: so much of the rate is left to the others.
const SHARE: u64 = 8;

/// How late a turn may begin and count from when it could have: timers ring up to a millisecond late, and later on a
/// busy machine, which is many turns at a high rate.
const SLACK: Duration = Duration::from_millis(5);

/// Turns are given in the order in which they are asked for. What of a turn did not come is given back, so that time is
/// charged for bytes that came and for nothing else.
pub(super) struct Rate {
    /// `None` is no limit.
    bytes_per_second: Option<u64>,
    /// When the next turn begins; guards only that.
    next: Mutex<Instant>,
    /// The order: who holds it has the next turn.
    queue: Semaphore,
    /// Wakes who has the next turn, since it begins sooner.
    sooner: Notify,
    /// Bodies that are read, by level.
    reading: [AtomicUsize; 3],
}

/// What one body may still read.
pub(super) struct Allowance {
    rate: Arc<Rate>,
    priority: Priority,
    /// What it counts as among those that read.
    level: Level,
    /// Below zero where a read brought more than was left.
    left: i64,
}

impl Rate {
    pub(super) fn new(bytes_per_second: Option<u64>) -> Self {
        Self {
            bytes_per_second,
            next: Mutex::new(Instant::now()),
            queue: Semaphore::new(1),
            sooner: Notify::new(),
            reading: Default::default(),
        }
    }

    /// Whether anybody reads who is more urgent.
    fn is_wanted_by_others(&self, level: Level) -> bool {
        self.reading[level as usize + 1..].iter().any(|count| count.load(Ordering::Relaxed) > 0)
    }

    /// Waits for a turn of this length.
    async fn turn(&self, length: Duration) {
        let _first = self.queue.acquire().await.expect("the queue is never closed");
        let asked = Instant::now();
        loop {
            let at = {
                let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
                if *next <= Instant::now() {
                    // From when it began, not from when the timer rang.
                    *next = (*next).max(asked.checked_sub(SLACK).unwrap_or(asked)) + length;
                    return;
                }
                *next
            };
            tokio::select! {
                () = sleep_until(at) => {}
                () = self.sooner.notified() => {}
            }
        }
    }

    /// Settles with a body that has ended: what it leaves makes the next turn sooner, what it owes makes it later.
    fn settle(&self, bytes_per_second: u64, left: i64) {
        let time = time(left.unsigned_abs(), bytes_per_second);
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if left < 0 {
            *next = (*next).max(Instant::now()) + time;
        } else {
            *next = next.checked_sub(time).unwrap_or(*next);
            self.sooner.notify_one();
        }
    }
}

impl Allowance {
    pub(super) fn new(rate: Arc<Rate>, priority: Priority) -> Self {
        let level = priority.level();
        rate.reading[level as usize].fetch_add(1, Ordering::Relaxed);
        Self { rate, priority, level, left: 0 }
    }

    /// Returns when more may be read.
    pub(super) async fn ready(&mut self) {
        let Some(bytes_per_second) = self.rate.bytes_per_second else { return };
        let whole = (bytes_per_second / TURNS_PER_SECOND).clamp(1, LONGEST_TURN);
        while self.left <= 0 {
            self.follow();
            let shared = self.rate.is_wanted_by_others(self.level);
            let turn = if shared { (whole / SHARE).max(1) } else { whole };
            self.rate.turn(time(turn, bytes_per_second)).await;
            self.left = self.left.saturating_add_unsigned(turn);
        }
    }

    /// Counts as what its pull is by now.
    fn follow(&mut self) {
        let level = self.priority.level();
        if level != self.level {
            self.rate.reading[self.level as usize].fetch_sub(1, Ordering::Relaxed);
            self.rate.reading[level as usize].fetch_add(1, Ordering::Relaxed);
            self.level = level;
        }
    }

    /// Notes what was read.
    pub(super) fn spend(&mut self, bytes: usize) {
        if self.rate.bytes_per_second.is_some() {
            self.left = self.left.saturating_sub_unsigned(bytes as u64);
        }
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.rate.reading[self.level as usize].fetch_sub(1, Ordering::Relaxed);
        if let Some(bytes_per_second) = self.rate.bytes_per_second {
            self.rate.settle(bytes_per_second, self.left);
        }
    }
}

/// How long so many bytes take.
fn time(bytes: u64, bytes_per_second: u64) -> Duration {
    let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second.max(1));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_bodies_together_keep_the_rate_and_each_has_its_share() {
        let rate = Arc::new(Rate::new(Some(1 << 20)));
        let began = Instant::now();
        let read = |pieces: usize, piece: usize| {
            let rate = Arc::clone(&rate);
            async move {
                let mut allowance = Allowance::new(rate, Priority::default());
                for _ in 0..pieces {
                    allowance.ready().await;
                    allowance.spend(piece);
                }
                began.elapsed().as_secs_f64()
            }
        };
        // 5 MiB in pieces below and above a turn, and 1 MiB that has a third of the rate meanwhile.
        let (fine, coarse, small) = tokio::join!(read(640, 4 << 10), read(5, 512 << 10), read(256, 4 << 10));
        assert!((2.5..3.2).contains(&small), "{small}");
        let last = fine.max(coarse);
        assert!((5.3..6.1).contains(&last), "{last}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_more_urgent_pull_has_most_of_the_rate_and_the_others_something() {
        let rate = Arc::new(Rate::new(Some(1 << 20)));
        let began = Instant::now();
        let read = |priority: &Priority, pieces: usize| {
            let (rate, priority) = (Arc::clone(&rate), priority.clone());
            async move {
                let mut allowance = Allowance::new(rate, priority);
                for _ in 0..pieces {
                    allowance.ready().await;
                    allowance.spend(4 << 10);
                }
                began.elapsed().as_secs_f64()
            }
        };
        let (low, high) = (Priority::new(Level::Low), Priority::new(Level::High));
        // 2 MiB each.
        let (first, second) = tokio::join!(read(&low, 512), read(&high, 512));
        assert!((2.1..2.5).contains(&second), "{second}");
        assert!((3.8..4.2).contains(&first), "{first}");
        // Whoever is lifted meanwhile has an equal share from then on.
        let began = Instant::now();
        let lift = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            low.raise(Level::High);
        };
        let (_, _, ()) = tokio::join!(read(&low, 512), read(&high, 512), lift);
        assert!((3.8..4.2).contains(&began.elapsed().as_secs_f64()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_that_takes_many_turns_in_a_millisecond_is_reached() {
        let rate = Arc::new(Rate::new(Some(512 << 20)));
        let began = Instant::now();
        let mut allowance = Allowance::new(rate, Priority::default());
        for _ in 0..4096 {
            allowance.ready().await;
            allowance.spend(64 << 10);
        }
        let took = began.elapsed().as_millis();
        assert!((490..520).contains(&took), "{took} ms for half a second");
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_are_charged_for_what_came_and_no_more() {
        for (bytes_per_second, bodies, bytes) in
            [(64 << 10, 20, 9000), (4 << 10, 1, 60_000), (1 << 10, 3, 200), (100, 3, 60_000), (1, 2, 9)]
        {
            let rate = Arc::new(Rate::new(Some(bytes_per_second)));
            let began = Instant::now();
            for _ in 0..bodies {
                let mut allowance = Allowance::new(Arc::clone(&rate), Priority::default());
                allowance.ready().await;
                allowance.spend(bytes);
            }
            // Whoever comes next waits for the bytes of all.
            Allowance::new(rate, Priority::default()).ready().await;
            let (took, charged) = (began.elapsed(), time(bodies * bytes as u64, bytes_per_second));
            assert!(took.abs_diff(charged) <= Duration::from_millis(10), "{took:?} for {charged:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_body_leaves_wakes_who_waits_for_it() {
        let rate = Arc::new(Rate::new(Some(1)));
        let mut first = Allowance::new(Arc::clone(&rate), Priority::default());
        first.ready().await;
        first.ready().await;
        let mut second = Allowance::new(Arc::clone(&rate), Priority::default());
        let waiting = async {
            second.ready().await;
            Instant::now()
        };
        let leaving = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            drop(first);
            Instant::now()
        };
        let (began, left) = tokio::join!(waiting, leaving);
        assert_eq!(began, left);
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_is_not_taken_is_no_loss() {
        let rate = Arc::new(Rate::new(Some(8)));
        let mut first = Allowance::new(Arc::clone(&rate), Priority::default());
        first.ready().await;
        first.spend(8);
        let began = Instant::now();
        for _ in 0..10 {
            let mut left = Allowance::new(Arc::clone(&rate), Priority::default());
            assert!(tokio::time::timeout(Duration::from_millis(10), left.ready()).await.is_err());
        }
        Allowance::new(rate, Priority::default()).ready().await;
        assert!(began.elapsed() <= Duration::from_millis(126), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_nothing_waits() {
        let mut allowance = Allowance::new(Arc::new(Rate::new(None)), Priority::default());
        allowance.spend(1 << 30);
        allowance.ready().await;
    }
}
