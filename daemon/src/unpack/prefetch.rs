//! Fetches of layers ahead of their turn to be unpacked. They live in the pull that wants them and end with it.

use std::ops::Range;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::{Context, Layer};
use crate::fetch::{self, Fetched, Fetcher, Line};

type Answer = Result<Fetched, fetch::Error>;

pub(super) struct Prefetch<'a> {
    fetcher: &'a Arc<Fetcher>,
    context: &'a Context,
    layers: &'a [Layer],
    /// Where the layers wait for download slots.
    line: Line,
    /// Aborted when this is dropped, so that a failed pull stops downloading.
    tasks: JoinSet<()>,
    /// One slot per layer: where the answer of its fetch will come.
    answers: Vec<Option<oneshot::Receiver<Answer>>>,
}

impl<'a> Prefetch<'a> {
    pub(super) fn new(fetcher: &'a Arc<Fetcher>, context: &'a Context, layers: &'a [Layer]) -> Self {
        let answers = layers.iter().map(|_| None).collect();
        Self { fetcher, context, layers, line: fetcher.line(), tasks: JoinSet::new(), answers }
    }

    /// Starts the fetches of `range` that have not started yet. Their places in line are taken here, in order, and not
    /// by tasks that race: the layers that can be unpacked first are downloaded first.
    pub(super) fn start(&mut self, range: Range<usize>) {
        for index in range {
            if self.answers[index].is_some() {
                continue;
            }
            let (answer, receiver) = oneshot::channel();
            self.answers[index] = Some(receiver);
            let place = self.line.place();
            let fetcher = Arc::clone(self.fetcher);
            let context = self.context.clone();
            let blob = self.layers[index].blob.clone();
            self.tasks.spawn(async move {
                let Context { containerd, source, meter } = &context;
                let answered = fetcher.blob(containerd, source, &blob, meter, &place).await;
                // Nobody listens once the pull has failed elsewhere.
                let _ = answer.send(answered);
            });
        }
    }

    /// Waits for the fetch of one layer, which must have been started.
    pub(super) async fn take(&mut self, index: usize) -> Answer {
        let receiver = self.answers[index].take();
        let receiver = receiver.expect("the caller starts a layer before it takes it");
        receiver.await.expect("a fetch task lives as long as its pull and always answers")
    }
}
