//! The parts of a large blob that are read ahead, each over a connection of its own: bounded in number and, since no
//! part is longer than a range, in memory. They advance only while the stream is read.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::part::Part;
use crate::registry::Requests;
use crate::registry::error::Error;
use crate::registry::spare::Leave;

/// In the order of the blob, without gaps.
#[derive(Default)]
pub(super) struct Window<'a> {
    parts: VecDeque<Ahead<'a>>,
    /// Hosts that gave parts which are complete.
    pub(super) gave: Vec<String>,
    /// Whether a host was met that does not serve ranges.
    pub(super) rangeless: bool,
}

struct Ahead<'a> {
    /// Reads the part; `None` once it has ended.
    run: Option<Pin<Box<dyn Future<Output = Ended> + Send + 'a>>>,
    /// What it read. Never more than the part.
    bytes: mpsc::UnboundedReceiver<Bytes>,
    requests: Requests,
    error: Option<Error>,
    /// To be read ahead of others.
    leave: Option<Leave>,
    /// Lets it read; until then it is asked for alone.
    gate: Option<oneshot::Sender<Pace>>,
    /// Of its bytes, how many the caller does not have yet.
    left: u64,
}

/// How a part is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// As fast as it comes.
    Ahead,
    /// As fast as it is taken.
    Along,
}

enum Ended {
    Complete {
        from: Vec<String>,
    },
    /// There is no range to be had here.
    Rangeless,
    Failed(Error),
}

impl<'a> Window<'a> {
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Begins a part behind the last. Without a leave it is only asked for, so that its host has answered by the time
    /// that it is the first.
    pub(super) fn push(&mut self, leave: Option<Leave>, part: impl FnOnce(Requests) -> Part<'a>) {
        let (sender, bytes) = mpsc::unbounded_channel();
        let (gate, opened) = oneshot::channel();
        let requests = Requests::default();
        let part = part(requests.clone());
        let left = part.end - part.position;
        let (gate, opened) = if leave.is_some() { (None, None) } else { (Some(gate), Some(opened)) };
        let run = Some(Box::pin(read(part, sender, opened)) as _);
        self.parts.push_back(Ahead { run, bytes, requests, error: None, leave, gate, left });
    }

    /// Whether the last part is asked for alone.
    pub(super) fn holds_back(&self) -> bool {
        self.parts.back().is_some_and(|last| last.gate.is_some())
    }

    /// Lets the last part be read ahead.
    pub(super) fn give(&mut self, leave: Leave) {
        if let Some(last) = self.parts.back_mut() {
            last.leave = Some(leave);
            last.open(Pace::Ahead);
        }
    }

    /// Bytes of the first part that the caller does not have yet.
    pub(super) fn first_left(&self) -> u64 {
        self.parts.front().map_or(0, |first| first.left)
    }

    /// Closes all connections. What was read ahead is lost.
    pub(super) fn close(&mut self) {
        self.parts.clear();
        self.rangeless = false;
    }

    /// Whether any part waits for a host.
    pub(super) fn is_waiting(&self) -> bool {
        self.parts.iter().any(|part| part.requests.any())
    }

    /// Lets all parts read on.
    pub(super) fn drive(&mut self, context: &mut Context<'_>) {
        for part in &mut self.parts {
            let Some(run) = &mut part.run else { continue };
            let Poll::Ready(ended) = run.as_mut().poll(context) else { continue };
            part.run = None;
            match ended {
                Ended::Complete { from } => self.gave.extend(from),
                Ended::Rangeless => self.rangeless = true,
                Ended::Failed(error) => part.error = Some(error),
            }
        }
    }

    /// The next bytes of the first part; `None` after its last, when it is no longer in the window.
    pub(super) fn poll_first(&mut self) -> Poll<Result<Option<Bytes>, Error>> {
        let Some(first) = self.parts.front_mut() else { return Poll::Ready(Ok(None)) };
        if let Ok(bytes) = first.bytes.try_recv() {
            first.left -= bytes.len() as u64;
            return Poll::Ready(Ok(Some(bytes)));
        }
        first.open(Pace::Along);
        if first.run.is_some() {
            return Poll::Pending;
        }
        let error = first.error.take();
        self.parts.pop_front();
        Poll::Ready(error.map_or(Ok(None), Err))
    }
}

impl Ahead<'_> {
    fn open(&mut self, pace: Pace) {
        // Nobody there: it has ended.
        let _ = self.gate.take().map(|gate| gate.send(pace));
    }
}

async fn read(
    mut part: Part<'_>,
    bytes: mpsc::UnboundedSender<Bytes>,
    gate: Option<oneshot::Receiver<Pace>>,
) -> Ended {
    match read_into(&mut part, &bytes, gate).await {
        Ok(()) => Ended::Complete { from: part.search.map(|search| search.gave()).unwrap_or_default() },
        Err(_) if part.rangeless => Ended::Rangeless,
        Err(error) => Ended::Failed(error),
    }
}

async fn read_into(
    part: &mut Part<'_>,
    bytes: &mpsc::UnboundedSender<Bytes>,
    gate: Option<oneshot::Receiver<Pace>>,
) -> Result<(), Error> {
    let pace = match gate {
        None => Pace::Ahead,
        Some(gate) => {
            part.open().await?;
            // Dropped with the window: this is not polled any more.
            gate.await.unwrap_or(Pace::Along)
        }
    };
    while let Some(more) = part.next().await? {
        // Nobody takes them any more only when this is not polled any more.
        drop(bytes.send(more));
        if pace == Pace::Along {
            until_polled_again().await;
        }
    }
    Ok(())
}

/// Each call for bytes lets every part read on before it looks for what was read, so that this wakes nobody.
async fn until_polled_again() {
    let mut polled = false;
    poll_fn(|_| if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}
