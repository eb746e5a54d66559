//! The parts of a large blob that are read ahead, each over a connection of its own: bounded in number and, since no
//! part is longer than a range, in memory. They advance only while the stream is read.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::mpsc;

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
    _leave: Leave,
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

    pub(super) fn push(&mut self, leave: Leave, part: impl FnOnce(Requests) -> Part<'a>) {
        let (sender, bytes) = mpsc::unbounded_channel();
        let requests = Requests::default();
        let run = Some(Box::pin(read(part(requests.clone()), sender)) as _);
        self.parts.push_back(Ahead { run, bytes, requests, error: None, _leave: leave });
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
            return Poll::Ready(Ok(Some(bytes)));
        }
        if first.run.is_some() {
            return Poll::Pending;
        }
        let error = first.error.take();
        self.parts.pop_front();
        Poll::Ready(error.map_or(Ok(None), Err))
    }
}

async fn read(mut part: Part<'_>, bytes: mpsc::UnboundedSender<Bytes>) -> Ended {
    loop {
        match part.next().await {
            // Nobody takes them any more only when this is not polled any more.
            Ok(Some(more)) => drop(bytes.send(more)),
            Ok(None) => {
                let from = part.search.map(|search| search.gave()).unwrap_or_default();
                return Ended::Complete { from };
            }
            Err(_) if part.rangeless => return Ended::Rangeless,
            Err(error) => return Ended::Failed(error),
        }
    }
}
