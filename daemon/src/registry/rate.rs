//! The node's limit on bytes per second over all bodies of blobs and documents, each connection in its turn.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Bytes that a connection takes at a time: few enough that many take turns within a second at common rates.
const TURN: u32 = 64 << 10;

/// Turns are given in the order in which they are asked for.
pub(super) struct Rate {
    /// How long one turn takes; `None` without a limit.
    turn: Option<Duration>,
    /// When the next turn begins; guards only that.
    next: Mutex<Instant>,
}

/// What one body may still read.
pub(super) struct Allowance {
    rate: Arc<Rate>,
    /// Below zero where a read brought more than was left.
    left: i64,
}

/// A turn that is waited for, given back if it is not taken.
struct Turn<'a> {
    rate: &'a Rate,
    length: Duration,
    taken: bool,
}

impl Rate {
    pub(super) fn new(bytes_per_second: Option<u64>) -> Self {
        let turn = bytes_per_second
            .map(|rate| Duration::from_secs(TURN.into()) / u32::try_from(rate).unwrap_or(u32::MAX));
        Self { turn, next: Mutex::new(Instant::now()) }
    }

    async fn turn(&self, length: Duration) {
        let at = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let at = (*next).max(Instant::now());
            *next = at + length;
            at
        };
        let mut turn = Turn { rate: self, length, taken: false };
        sleep_until(at).await;
        turn.taken = true;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.taken {
            let mut next = self.rate.next.lock().unwrap_or_else(PoisonError::into_inner);
            *next = next.checked_sub(self.length).unwrap_or(*next);
        }
    }
}

impl Allowance {
    pub(super) fn new(rate: Arc<Rate>) -> Self {
        Self { rate, left: 0 }
    }

    /// Returns when more may be read.
    pub(super) async fn ready(&mut self) {
        let Some(turn) = self.rate.turn else { return };
        while self.left <= 0 {
            self.rate.turn(turn).await;
            self.left += i64::from(TURN);
        }
    }

    /// Notes what was read.
    pub(super) fn spend(&mut self, bytes: usize) {
        if self.rate.turn.is_some() {
            self.left = self.left.saturating_sub_unsigned(bytes as u64);
        }
    }
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
                let mut allowance = Allowance::new(rate);
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
    async fn a_turn_that_is_not_taken_is_no_loss() {
        let rate = Arc::new(Rate::new(Some(u64::from(TURN))));
        let mut first = Allowance::new(Arc::clone(&rate));
        first.ready().await;
        for _ in 0..10 {
            let mut left = Allowance::new(Arc::clone(&rate));
            assert!(tokio::time::timeout(Duration::from_millis(10), left.ready()).await.is_err());
        }
        let began = Instant::now();
        Allowance::new(rate).ready().await;
        assert!(began.elapsed() <= Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_nothing_waits() {
        let mut allowance = Allowance::new(Arc::new(Rate::new(None)));
        allowance.spend(1 << 30);
        allowance.ready().await;
    }
}
