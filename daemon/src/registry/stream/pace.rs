//! Whether a stream waits for its hosts, or its hosts for whoever reads it: only in the first case more connections
//! bring more.

use tokio::time::{Duration, Instant};

/// How long is looked back, at least; twice that at most.
const WINDOW: Duration = Duration::from_millis(200);
/// Nothing is said of less.
const ENOUGH: Duration = Duration::from_millis(50);

/// How the time of late was spent.
pub(super) struct Pace {
    /// When the last call ended.
    last: Instant,
    /// In calls, and altogether.
    waited: Duration,
    elapsed: Duration,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { last: Instant::now(), waited: Duration::ZERO, elapsed: Duration::ZERO }
    }

    /// Notes that a call which ends now began then.
    pub(super) fn waited_since(&mut self, began: Instant) {
        let now = Instant::now();
        self.waited += now - began;
        self.elapsed += now - self.last;
        self.last = now;
        if self.elapsed > 2 * WINDOW {
            self.waited /= 2;
            self.elapsed /= 2;
        }
    }

    /// Whether more than half of the time went into waiting, as far as is known.
    pub(super) fn is_of_the_hosts(&self) -> bool {
        self.elapsed < ENOUGH || self.waited * 2 > self.elapsed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_slower_side_sets_the_pace_and_that_may_change() {
        let mut pace = Pace::new();
        assert!(pace.is_of_the_hosts(), "nothing is known yet");
        for (wait, use_, expected) in [(1, 9, false), (9, 1, true), (4, 6, false), (6, 4, true)] {
            for _ in 0..100 {
                let began = Instant::now();
                tokio::time::advance(Duration::from_millis(wait)).await;
                pace.waited_since(began);
                tokio::time::advance(Duration::from_millis(use_)).await;
            }
            assert_eq!(pace.is_of_the_hosts(), expected, "{wait} ms of waiting for {use_} ms of use");
        }
    }
}
