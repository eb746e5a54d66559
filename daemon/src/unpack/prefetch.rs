//! Layers that are brought ahead of their turn to be unpacked. They live in the pull that wants them and end with it; one
//! that fails ends the pull at once, whatever layer it is working on.

use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};
use tracing::Instrument as _;

use super::bring::{Bringer, Brought, Target};
use super::{Context, Error, Layer};
use crate::fetch::{self, Line};
use crate::trace;

pub(super) struct Prefetch<'a> {
    bringer: Bringer,
    context: &'a Context,
    layers: &'a [Layer],
    /// Where the layers wait for download slots.
    line: Line,
    /// Aborted when this is dropped, so that a failed pull stops downloading.
    tasks: JoinSet<(usize, Result<Brought, fetch::Error>)>,
    /// One for each layer whose fetch was started.
    started: Vec<Option<Started>>,
}

struct Started {
    task: AbortHandle,
    /// Whether the layer still waits for its blob.
    needed: bool,
    /// Where the answer goes, and where it comes from: each taken once.
    answer: Option<oneshot::Sender<Brought>>,
    receiver: Option<oneshot::Receiver<Brought>>,
}

impl<'a> Prefetch<'a> {
    pub(super) fn new(bringer: Bringer, context: &'a Context, layers: &'a [Layer]) -> Self {
        let started = layers.iter().map(|_| None).collect();
        let line = bringer.fetcher.line(&context.priority);
        Self { bringer, context, layers, line, tasks: JoinSet::new(), started }
    }

    /// Whether the layer is being brought.
    pub(super) fn has_started(&self, index: usize) -> bool {
        self.started[index].is_some()
    }

    /// Begins to bring a layer, unless that has begun. Its place in line is taken here, in the order of the calls, and
    /// not by tasks that race: the layers that can be unpacked first are downloaded first.
    pub(super) fn start(&mut self, index: usize, target: Option<Target>) {
        if self.has_started(index) {
            return;
        }
        let place = self.line.place();
        let (bringer, context) = (self.bringer.clone(), self.context.clone());
        let (layer, told) = (self.layers[index].clone(), context.progress.layer(index));
        let span = trace::layer("fetch", layer.blob.digest.as_str(), layer.blob.size);
        let bring = async move {
            let brought = bringer.bring(&context, &layer, &told, &place, target).await;
            (index, brought)
        };
        let task = self.tasks.spawn(bring.instrument(span));
        let (answer, receiver) = oneshot::channel();
        let (answer, receiver) = (Some(answer), Some(receiver));
        self.started[index] = Some(Started { task, needed: true, answer, receiver });
    }

    /// The answer of one layer's fetch, which must have been started. It comes while [`Prefetch::beside`] runs.
    pub(super) fn answer(&mut self, index: usize) -> impl Future<Output = Brought> + use<> {
        let started = self.started[index].as_mut().and_then(|started| started.receiver.take());
        let receiver = started.expect("the caller starts a layer before it asks for it, and asks once");
        async { receiver.await.expect("a fetch that fails ends whoever waits for its answer") }
    }

    /// Runs `work` beside the fetches, and ends it with the first of them that fails.
    pub(super) async fn beside<T>(
        &mut self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::select! {
            done = work => done,
            error = self.failure() => Err(error),
        }
    }

    /// The layer is there without its blob, so that the blob is fetched for the content store alone. Ends the fetch, if
    /// there is one, unless blobs are to stay there.
    pub(super) fn unneeded(&mut self, index: usize) {
        if let Some(started) = &mut self.started[index] {
            started.needed = false;
            if !self.context.keep_layers {
                started.task.abort();
            }
        }
    }

    /// Waits for the fetches that nothing was unpacked from.
    pub(super) async fn finish(&mut self) -> Result<(), Error> {
        while let Some(joined) = self.tasks.join_next().await {
            self.hand_out(joined)?;
        }
        Ok(())
    }

    /// Ends all that is still under way, and waits for that.
    pub(super) async fn end(mut self) {
        self.tasks.shutdown().await;
    }

    async fn failure(&mut self) -> Error {
        while let Some(joined) = self.tasks.join_next().await {
            if let Err(error) = self.hand_out(joined) {
                return error;
            }
        }
        std::future::pending().await
    }

    /// An answer to whoever waits for it. One that nobody needs may be a failure: the image runs without that blob, and
    /// a pull that needs it fetches it.
    fn hand_out(
        &mut self,
        joined: Result<(usize, Result<Brought, fetch::Error>), tokio::task::JoinError>,
    ) -> Result<(), Error> {
        let (index, answer) = match joined {
            Ok(ended) => ended,
            Err(error) if error.is_cancelled() => return Ok(()),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        let Some(started) = &mut self.started[index] else { return Ok(()) };
        match answer {
            Ok(brought) => {
                // Nobody may be waiting.
                let _ = started.answer.take().map(|answer| answer.send(brought));
            }
            Err(error) if started.needed => return Err(error.into()),
            Err(error) => {
                let digest = &self.layers[index].blob.digest;
                tracing::warn!(%digest, %error, "a layer that needed no unpacking is not kept as a blob");
            }
        }
        Ok(())
    }
}
