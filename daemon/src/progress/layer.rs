//! What is happening to one layer of a pull.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Changes;
use crate::oci::{Descriptor, Digest};

/// Where a layer is on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It waits for the snapshotter, for a download slot, or for another pull that brings the same blob.
    #[default]
    Waiting,
    /// Its blob comes, and where the direct engine works, its files are written meanwhile.
    Fetching,
    /// Its blob is here, and its files are written or proved.
    Unpacking,
    /// It is a committed snapshot that this pull made.
    Done,
    /// The snapshotter had it.
    Present,
    /// A remote snapshotter has it or loads it when it is read.
    Remote,
}

/// Who writes the files of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// drayd itself.
    Direct,
    /// containerd's diff service.
    Differ,
}

/// One layer, told of by whoever works on it.
#[derive(Debug, Default)]
pub struct Layer {
    digest: Option<Digest>,
    size: u64,
    /// Bytes of the blob that are here, from the first on. Never falls, though a transfer may begin anew.
    have: AtomicU64,
    /// Guards the rest; never held across an await.
    now: Mutex<Now>,
    changes: Arc<Changes>,
}

#[derive(Clone, Debug, Default)]
struct Now {
    state: State,
    host: String,
    engine: Option<Engine>,
    reason: String,
}

/// What is seen of a layer at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerView {
    /// Of its blob.
    pub digest: String,
    /// Bytes of its blob.
    pub size: u64,
    /// Bytes of its blob that need not come any more; all of them once it is a snapshot.
    pub done: u64,
    /// Where it is.
    pub state: State,
    /// The host that its bytes come from, or came from; empty if none was asked.
    pub host: String,
    /// Who writes its files, once somebody does.
    pub engine: Option<Engine>,
    /// Why it is that one, if not for being the one that is configured.
    pub reason: String,
}

impl Layer {
    pub(super) fn new(blob: &Descriptor, changes: Arc<Changes>) -> Self {
        let (digest, size) = (Some(blob.digest.clone()), blob.size);
        Self { digest, size, changes, ..Self::default() }
    }

    /// Its bytes come from `host` now.
    pub fn fetching(&self, host: &str) {
        self.change(|now| {
            let new = now.state != State::Fetching || now.host != host;
            if new {
                now.state = State::Fetching;
                host.clone_into(&mut now.host);
            }
            new
        });
    }

    /// It waits again.
    pub fn waiting(&self) {
        self.change(|now| std::mem::replace(&mut now.state, State::Waiting) != State::Waiting);
    }

    /// So many bytes of it are here, from the first one on.
    pub fn has(&self, bytes: u64) {
        self.have.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Its files are written by `engine`, and not by the configured one because of `reason`.
    pub fn written_by(&self, engine: Engine, reason: &dyn fmt::Display) {
        self.change(|now| {
            now.reason = reason.to_string();
            now.engine.replace(engine) != Some(engine)
        });
    }

    /// All of its blob is here.
    pub fn unpacking(&self) {
        self.has(self.size);
        self.change(|now| std::mem::replace(&mut now.state, State::Unpacking) != State::Unpacking);
    }

    /// There is nothing to be done for it any more.
    pub fn end(&self, state: State) {
        self.has(self.size);
        self.change(|now| std::mem::replace(&mut now.state, state) != state);
    }

    pub(super) fn view(&self) -> LayerView {
        let now = self.now().clone();
        LayerView {
            digest: self.digest.as_ref().map(ToString::to_string).unwrap_or_default(),
            size: self.size,
            done: self.have.load(Ordering::Relaxed).min(self.size),
            state: now.state,
            host: now.host,
            engine: now.engine,
            reason: now.reason,
        }
    }

    /// Changes it, and tells it if `change` says that something is new.
    fn change(&self, change: impl FnOnce(&mut Now) -> bool) {
        let mut now = self.now();
        // What comes of it after its end is for the content store alone.
        let ended = matches!(now.state, State::Done | State::Present | State::Remote);
        let new = !ended && change(&mut now);
        drop(now);
        if new {
            self.changes.tell();
        }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
