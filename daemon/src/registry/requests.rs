//! How many requests are under way for one pull, for whoever watches it for a stall.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts requests that wait for an answer or for more of it, and for nothing else: not for the time at which a host
/// wants to be asked again, nor for whoever takes the bytes.
#[derive(Clone, Debug, Default)]
pub struct Requests(Arc<AtomicUsize>);

/// One request under way; over when dropped.
#[derive(Debug)]
pub struct Open(Requests);

impl Requests {
    /// Whether any is under way.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Notes that one is under way.
    pub fn open(&self) -> Open {
        self.0.fetch_add(1, Ordering::Relaxed);
        Open(self.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
