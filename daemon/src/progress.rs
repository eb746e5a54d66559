//! What one pull is doing right now: written by its stages, read by whoever watches it. Tells, and decides nothing.

mod layer;
mod meter;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

pub use layer::{Engine, Layer, LayerView, State};
pub use meter::Meter;

use crate::oci::Descriptor;

/// Where a pull is in its walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Its name is resolved and its documents are read.
    #[default]
    Resolving,
    /// It waits for its turn among the pulls of this node.
    Queued,
    /// Its layers are fetched and unpacked.
    Unpacking,
    /// Its records are written, and containerd's CRI is waited for.
    Recording,
}

/// One pull.
#[derive(Debug, Default)]
pub struct Progress {
    meter: Meter,
    /// Guards where it is and has been.
    stage: Mutex<Stages>,
    /// Lowest first; there once the manifest is read.
    layers: OnceLock<Vec<Arc<Layer>>>,
    changes: Arc<Changes>,
}

#[derive(Debug)]
struct Stages {
    now: Stage,
    since: Instant,
    /// Those that it has left, and how long it was in them.
    left: Vec<(Stage, Duration)>,
}

impl Default for Stages {
    fn default() -> Self {
        Self { now: Stage::default(), since: Instant::now(), left: Vec::new() }
    }
}

impl Stage {
    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resolving => "resolving",
            Self::Queued => "queued",
            Self::Unpacking => "unpacking",
            Self::Recording => "recording",
        }
    }
}

/// What is seen of a pull at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Where it is.
    pub stage: Stage,
    /// Bytes that came over the wire so far, documents and what came twice included.
    pub wire: u64,
    /// Lowest first; none before the manifest is read.
    pub layers: Vec<LayerView>,
}

/// Wakes those who watch. Bytes are no change: they come all the time.
#[derive(Debug, Default)]
pub(in crate::progress) struct Changes(watch::Sender<()>);

impl Changes {
    fn tell(&self) {
        self.0.send_replace(());
    }
}

impl Progress {
    /// What is counted of its wire.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Says where the pull is.
    pub fn enter(&self, stage: Stage) {
        let mut stages = self.stages();
        let spent = (stages.now, stages.since.elapsed());
        stages.left.push(spent);
        (stages.now, stages.since) = (stage, Instant::now());
        drop(stages);
        self.changes.tell();
    }

    /// The stages that it was in, and how long; the last one until now.
    pub fn spent(&self) -> Vec<(Stage, Duration)> {
        let stages = self.stages();
        stages.left.iter().copied().chain([(stages.now, stages.since.elapsed())]).collect()
    }

    /// Says which layers there are, lowest first. They are said once; what a second call says is not heard.
    pub fn plan<'a>(&self, layers: impl Iterator<Item = &'a Descriptor>) {
        let layer = |blob: &Descriptor| Arc::new(Layer::new(blob, Arc::clone(&self.changes)));
        if self.layers.set(layers.map(layer).collect()).is_ok() {
            self.changes.tell();
        }
    }

    /// The layer at `index` of the stack, to be told of. Before [`Self::plan`], or beyond it, nobody is told.
    pub fn layer(&self, index: usize) -> Arc<Layer> {
        self.layers.get().and_then(|layers| layers.get(index)).map_or_else(Arc::default, Arc::clone)
    }

    /// What is seen of it now.
    pub fn view(&self) -> View {
        let layers = self.layers.get().map(Vec::as_slice).unwrap_or_default();
        View {
            stage: self.stages().now,
            wire: self.meter.bytes(),
            layers: layers.iter().map(|layer| layer.view()).collect(),
        }
    }

    /// Resolves on every change from now on that is not of bytes alone.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.0.subscribe()
    }

    fn stages(&self) -> MutexGuard<'_, Stages> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl View {
    /// Bytes of all layers, compressed as the manifest counts them.
    pub fn total(&self) -> u64 {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.size))
    }

    /// Who wrote the files of its layers: `direct`, `differ`, `mixed`, or `none` if none were written.
    pub fn engines(&self) -> &'static str {
        let wrote = |engine| self.layers.iter().any(|layer| layer.engine == Some(engine));
        match (wrote(Engine::Direct), wrote(Engine::Differ)) {
            (true, false) => "direct",
            (false, true) => "differ",
            (true, true) => "mixed",
            (false, false) => "none",
        }
    }

    /// Bytes of the layers that need not come any more, whatever became of them: this only rises, and ends at
    /// [`Self::total`].
    pub fn done(&self) -> u64 {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.done))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::oci::Digest;

    fn blob(size: u64) -> Descriptor {
        let media_type = "application/vnd.oci.image.layer.v1.tar".into();
        let digest = Digest::of(&size.to_le_bytes());
        Descriptor { media_type, digest, size, annotations: BTreeMap::new(), urls: Vec::new() }
    }

    #[test]
    fn what_is_done_rises_to_the_total_whatever_becomes_of_the_layers() {
        let progress = Progress::default();
        assert_eq!((progress.view().done(), progress.view().total()), (0, 0));
        let blobs = [blob(10), blob(20), blob(30)];
        progress.plan(blobs.iter());
        let [low, middle, high] = [0, 1, 2].map(|index| progress.layer(index));
        let mut last = 0;
        let mut rises_to = |expected| {
            let view = progress.view();
            assert!(view.done() >= last);
            assert_eq!((view.done(), view.total()), (expected, 60));
            last = view.done();
        };
        rises_to(0);
        low.fetching("a.test");
        low.has(7);
        rises_to(7);
        // Another host begins anew.
        low.fetching("b.test");
        low.has(3);
        rises_to(7);
        low.has(10);
        middle.end(State::Remote);
        rises_to(30);
        low.unpacking();
        low.end(State::Done);
        rises_to(30);
        high.end(State::Present);
        rises_to(60);
    }

    #[tokio::test]
    async fn a_change_of_state_wakes_and_bytes_do_not() {
        let progress = Progress::default();
        progress.plan([blob(10)].iter());
        let mut changes = progress.changes();
        progress.layer(0).has(5);
        progress.meter().received(5);
        assert!(!changes.has_changed().unwrap());
        progress.layer(0).fetching("a.test");
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        progress.layer(0).fetching("a.test");
        assert!(!changes.has_changed().unwrap(), "the same again is no change");
        progress.enter(Stage::Recording);
        changes.changed().await.unwrap();
    }

    #[test]
    fn sizes_that_no_layer_has_are_no_reason_to_fail() {
        let progress = Progress::default();
        progress.plan([blob(u64::MAX), blob(u64::MAX - 1)].iter());
        progress.layer(0).end(State::Remote);
        progress.layer(1).end(State::Done);
        assert_eq!((progress.view().total(), progress.view().done()), (u64::MAX, u64::MAX));
    }

    #[test]
    fn a_layer_that_was_not_planned_tells_nobody() {
        let progress = Progress::default();
        progress.layer(3).fetching("a.test");
        assert_eq!(progress.view().layers, []);
    }
}
