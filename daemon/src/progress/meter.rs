//! What a pull is doing on the wire right now, for whoever watches it for a stall.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::registry::Requests;

/// Counts of one pull. Written by its transfers, read by its watchdog.
#[derive(Debug, Default)]
pub struct Meter {
    /// Bytes of registry answers so far.
    bytes: AtomicU64,
    requests: Requests,
}

impl Meter {
    /// Bytes received so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Where the registry client counts the pull's requests.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Notes bytes received.
    pub fn received(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns once a request has been open for `limit` without a byte on any of the pull's connections. Time
    /// without an open request (unpacking, waiting for another pull, or for when a host wants to be asked again) never
    /// counts, as in containerd.
    pub async fn stalled(&self, limit: Duration) {
        // Late by a tenth at most, and never a busy loop.
        let tick = (limit / 10).clamp(Duration::from_millis(10), Duration::from_secs(10));
        let mut last = (Instant::now(), self.bytes());
        loop {
            tokio::time::sleep(tick).await;
            let bytes = self.bytes();
            if bytes != last.1 || !self.requests.any() {
                last = (Instant::now(), bytes);
            } else if last.0.elapsed() >= limit {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn silence_on_an_open_request_is_a_stall() {
        let meter = Meter::default();
        let _open = meter.requests().open();
        let started = Instant::now();
        meter.stalled(LIMIT).await;
        assert!(started.elapsed() >= LIMIT && started.elapsed() <= LIMIT * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn time_without_an_open_request_never_counts() {
        let meter = Meter::default();
        assert!(tokio::time::timeout(LIMIT * 100, meter.stalled(LIMIT)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_byte_now_and_then_is_progress() {
        let meter = Meter::default();
        let _open = meter.requests().open();
        let drip = async {
            for _ in 0..20 {
                tokio::time::sleep(LIMIT / 2).await;
                meter.received(1);
            }
        };
        tokio::select! {
            () = meter.stalled(LIMIT) => panic!("taken for a stall"),
            () = drip => {}
        }
    }
}
