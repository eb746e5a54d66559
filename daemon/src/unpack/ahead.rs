//! What a pull does ahead of a layer's turn: which layers it fetches, which it writes, and where.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::bring::{Bringer, Target};
use super::direct::Place;
use super::prefetch::Prefetch;
use super::staging::Staging;
use super::step::{self, Active};
use super::{Context, Engine, Error, Layer, Unpacker};
use crate::containerd::introspection::LoadedSnapshotter;
use crate::fetch::Turn;

/// How long the writers of a pull that has ended may take to see it.
const WRITERS: Duration = Duration::from_secs(30);

/// The work ahead of one pull.
pub(super) struct Ahead<'a> {
    unpacker: &'a Unpacker,
    context: &'a Context,
    snapshotter: &'a LoadedSnapshotter,
    layers: &'a [Layer],
    pub(super) prefetch: Prefetch<'a>,
    /// Made with the first layer that is missing, if there are more above it.
    staging: Option<Arc<Staging>>,
    /// Of the layers that are written ahead: nobody else begins with them. The first is that of the layer `claimed`.
    turns: VecDeque<Turn>,
    claimed: usize,
    /// Threads that write.
    writers: TaskTracker,
    /// Key of the snapshot that is being filled.
    pub(super) active: Option<String>,
}

impl<'a> Ahead<'a> {
    pub(super) fn new(
        unpacker: &'a Unpacker,
        context: &'a Context,
        snapshotter: &'a LoadedSnapshotter,
        layers: &'a [Layer],
    ) -> Self {
        let writers = TaskTracker::new();
        let Unpacker { fetcher, readers, .. } = unpacker;
        let (fetcher, readers) = (Arc::clone(fetcher), Arc::clone(readers));
        let bringer = Bringer { fetcher, readers, writers: writers.clone() };
        let prefetch = Prefetch::new(bringer, context, layers);
        let turns = VecDeque::new();
        Self {
            unpacker,
            context,
            snapshotter,
            layers,
            prefetch,
            staging: None,
            turns,
            claimed: 0,
            writers,
            active: None,
        }
    }

    /// The turn at a layer. To be asked for from below.
    pub(super) async fn turn(&mut self, index: usize) -> Result<Turn, Error> {
        if index == self.claimed
            && let Some(turn) = self.turns.pop_front()
        {
            self.claimed += 1;
            return Ok(turn);
        }
        let key = (self.snapshotter.name.clone(), self.layers[index].chain_id.clone());
        let turn = self.unpacker.turns.take(key);
        self.prefetch.beside(async { Ok(turn.await) }).await
    }

    /// Starts what the layer needs, which is missing, and what those above it need. A local snapshotter that lacks a
    /// layer lacks all above it: they can come at once. A remote one must be asked about each first, or it would never
    /// load anything lazily.
    pub(super) async fn start(&mut self, index: usize, active: &Active) -> Result<(), Error> {
        if self.prefetch.has_started(index) {
            return Ok(());
        }
        let direct = self.unpacker.writing.engine == Engine::Direct;
        let here = Place::of_mounts(&active.mounts).filter(|_| direct).map(Target::Active);
        self.prefetch.start(index, here);
        if self.snapshotter.remote_capable {
            return Ok(());
        }
        let above = index + 1..self.layers.len();
        if direct && !above.is_empty() && Staging::is_possible(&self.snapshotter.name) {
            self.open_staging(index + 1).await?;
        }
        for index in above {
            let claimed = (self.claimed..self.claimed + self.turns.len()).contains(&index);
            let staging = self.staging.as_ref().filter(|_| claimed);
            self.prefetch.start(index, staging.map(|staging| Target::Staged(Arc::clone(staging))));
        }
        Ok(())
    }

    /// Takes the turns of the layers from `first` on, as far as nobody else has them, and makes the place where they are
    /// written.
    async fn open_staging(&mut self, first: usize) -> Result<(), Error> {
        let free = |layer: &Layer| {
            self.unpacker.turns.try_take((self.snapshotter.name.clone(), layer.chain_id.clone()))
        };
        self.turns = self.layers[first..].iter().map_while(free).collect();
        self.claimed = first;
        if self.turns.is_empty() {
            return Ok(());
        }
        let snapshots = self.context.containerd.snapshots(&self.snapshotter.name);
        let layer = &self.layers[first];
        let key = self.unpacker.keys.next(&layer.chain_id);
        let staging = self.prefetch.beside(async {
            let opened = Staging::open(snapshots, key).await;
            opened.map_err(|source| Error::containerd(layer, &self.snapshotter.name, source))
        });
        self.staging = staging.await?.map(Arc::new);
        Ok(())
    }

    /// Ends what still goes on and removes what was made for it, unless containerd is `away`. What cannot be removed is
    /// left to the lease.
    pub(super) async fn close(self, away: bool) {
        let Self { prefetch, staging, writers, active, .. } = self;
        prefetch.end().await;
        writers.close();
        // They end with the piece that they have. A disk that does not take it holds up no pull for ever.
        let ended = timeout(WRITERS, writers.wait()).await;
        if away || ended.is_err() {
            return;
        }
        let snapshots = self.context.containerd.snapshots(&self.snapshotter.name);
        let keys = active.into_iter().chain(staging.map(|staging| staging.key().to_owned()));
        for key in keys {
            step::abandon(&snapshots, &key).await;
        }
    }
}
