//! Pulls under way, as those see them who look on from outside: who they are for, how far they are, and their end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::Error;
use super::inflight::Shared;
use super::request::Pod;
use crate::containerd::Snapshotter;
use crate::node::snapshotter::{Choice, Reason};
use crate::priority::Priority;
use crate::progress::{Progress, View};
use crate::trace;

/// What a pull is, as far as it does not change.
#[derive(Debug)]
pub struct Ongoing {
    /// Counts the pulls of this process; no two have the same.
    pub id: u64,
    /// The normalised reference.
    pub reference: String,
    /// Where it is unpacked.
    pub snapshotter: Snapshotter,
    /// The runtime handler that decided; empty if the request named none.
    pub handler: String,
    /// Why it is that snapshotter.
    pub reason: Reason,
    /// When the first call for it came.
    pub started: SystemTime,
    /// How urgent it is.
    pub priority: Priority,
    /// How far it is.
    pub progress: Arc<Progress>,
    /// The calls that wait for it; guards only that.
    waiting: Mutex<Vec<Waiting>>,
    /// Whether somebody asked for its end.
    cancelled: AtomicBool,
    /// Ends it.
    end: CancellationToken,
}

/// A call that waits for a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Tells it from others.
    seat: u64,
    /// The pod that it is for, if it says so.
    pub pod: Option<Pod>,
}

/// A pull that is looked at until its end.
#[derive(Clone, Debug)]
pub struct Watched {
    /// What it is.
    pub ongoing: Arc<Ongoing>,
    /// Set once, when it ends.
    result: watch::Receiver<Option<Shared>>,
    /// Changes since the last look.
    changes: watch::Receiver<()>,
}

/// What a look sees.
#[derive(Clone, Debug)]
pub enum Look {
    /// It goes on.
    On(View),
    /// It has ended, and this was seen last.
    Ended(View, Shared),
}

impl Ongoing {
    pub(super) fn new(id: u64, reference: String, choice: &Choice, priority: Priority) -> Self {
        Self {
            id,
            reference,
            snapshotter: choice.snapshotter.name.clone(),
            handler: choice.handler.clone(),
            reason: choice.reason,
            started: SystemTime::now(),
            priority,
            progress: Arc::default(),
            waiting: Mutex::default(),
            cancelled: AtomicBool::new(false),
            end: CancellationToken::new(),
        }
    }

    /// The calls that wait for it, those of longest ago first.
    pub fn waiting(&self) -> Vec<Waiting> {
        self.calls().clone()
    }

    /// Ends it for all that wait for it.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.end.cancel();
    }

    /// The span of one of its stages, below the one that is current.
    pub(super) fn span(&self, stage: &'static str) -> Span {
        trace::stage(stage, &self.reference, self.snapshotter.as_str())
    }

    /// Ends it because nobody waits for it.
    pub(super) fn leave(&self) {
        self.end.cancel();
    }

    /// Returns when it is to end; whether somebody asked for that.
    pub(super) async fn ended_early(&self) -> bool {
        self.end.cancelled().await;
        self.cancelled.load(Ordering::SeqCst)
    }

    pub(super) fn sit(&self, seat: u64, pod: Option<Pod>) {
        self.calls().push(Waiting { seat, pod });
    }

    /// Takes a call away; whether none waits any more.
    pub(super) fn stand_up(&self, seat: u64) -> bool {
        let mut calls = self.calls();
        calls.retain(|call| call.seat != seat);
        calls.is_empty()
    }

    fn calls(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    pub(super) fn new(ongoing: Arc<Ongoing>, result: watch::Receiver<Option<Shared>>) -> Self {
        let changes = ongoing.progress.changes();
        Self { ongoing, result, changes }
    }

    /// What is seen now.
    pub fn look(&self) -> Look {
        // In this order: what is seen of a pull that has ended is seen after its end.
        let ended = self.result.borrow().clone();
        let view = self.ongoing.progress.view();
        match ended {
            Some(result) => Look::Ended(view, result),
            // Its task has panicked.
            None if self.result.has_changed().is_err() => Look::Ended(view, Err(Arc::new(Error::Aborted))),
            None => Look::On(view),
        }
    }

    /// What is seen when there is something new to see: at once when the pull or a layer enters another state and when
    /// it ends, and every `interval` for its bytes.
    pub async fn next(&mut self, interval: Duration) -> Look {
        let until = Instant::now() + interval;
        tokio::select! {
            _ = self.result.changed() => {}
            _ = self.changes.changed() => {}
            () = tokio::time::sleep_until(until) => {}
        }
        self.look()
    }
}
