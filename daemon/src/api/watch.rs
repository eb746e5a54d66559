//! Pulls as streams of messages.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use drayd_proto::dray::PullProgress;
use futures_util::future::FusedFuture as _;
use futures_util::stream::{SelectAll, unfold};
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, oneshot};

use super::convert;
use crate::pull::{Error, Look, Outcome, Puller, Watched};

type Pulls = Pin<Box<dyn Stream<Item = PullProgress> + Send>>;

/// One pull, from what is seen now to its end.
pub(super) fn one(puller: Arc<Puller>, watched: Watched, interval: Duration) -> Pulls {
    enum At {
        Begin,
        Middle,
        End,
    }
    Box::pin(unfold((puller, watched, At::Begin), move |(puller, mut watched, at)| async move {
        let look = match at {
            At::Begin => watched.look(),
            At::Middle => watched.next(interval).await,
            At::End => return None,
        };
        let message = show(&puller, &watched, &look);
        let at = if matches!(look, Look::Ended(..)) { At::End } else { At::Middle };
        Some((message, (puller, watched, at)))
    }))
}

/// All pulls, those that are under way and those that begin later. Never ends.
pub(super) fn all(puller: Arc<Puller>, interval: Duration) -> Pulls {
    // Before those under way are listed: what begins in between is seen twice, and taken once.
    let begun = puller.begun();
    let mut running = SelectAll::new();
    let mut newest = 0;
    for watched in puller.ongoing() {
        newest = newest.max(watched.ongoing.id);
        running.push(one(Arc::clone(&puller), watched, interval));
    }
    Box::pin(unfold(
        (puller, running, begun, newest),
        move |(puller, mut running, mut begun, mut newest)| async move {
            loop {
                tokio::select! {
                    Some(message) = running.next(), if !running.is_empty() => {
                        return Some((message, (puller, running, begun, newest)));
                    }
                    watched = next_begun(&puller, &mut begun) => {
                        for watched in watched {
                            if watched.ongoing.id > newest {
                                newest = watched.ongoing.id;
                                running.push(one(Arc::clone(&puller), watched, interval));
                            }
                        }
                    }
                }
            }
        },
    ))
}

/// The pull that `call` waits for, from when it is `shown` to the end of the call, which is made as long as this is read.
pub(super) fn call(
    puller: Arc<Puller>,
    reference: String,
    call: impl Future<Output = Result<Arc<Outcome>, Arc<Error>>> + Send + 'static,
    shown: oneshot::Receiver<Watched>,
    interval: Duration,
) -> Pulls {
    enum At<C> {
        /// Nothing is under way yet.
        Begin {
            call: C,
            shown: oneshot::Receiver<Watched>,
        },
        Middle {
            call: C,
            messages: Pulls,
        },
        End,
    }
    let begin = At::Begin { call: Box::pin(call.fuse()), shown };
    Box::pin(unfold((puller, reference, begin), move |(puller, reference, at)| async move {
        let (mut call, mut messages) = match at {
            At::Begin { mut call, shown } => tokio::select! {
                biased;
                Ok(watched) = shown => (call, one(Arc::clone(&puller), watched, interval)),
                ended = &mut call => {
                    let message = PullProgress {
                        reference: reference.clone(),
                        ended: Some(convert::ended(&ended)),
                        ..PullProgress::default()
                    };
                    return Some((message, (puller, reference, At::End)));
                }
            },
            At::Middle { call, messages } => (call, messages),
            At::End => return None,
        };
        let message = loop {
            tokio::select! {
                message = messages.next() => break message?,
                _ = &mut call, if !call.is_terminated() => {}
            }
        };
        let at = if message.ended.is_some() {
            // Whoever has seen the end finds the image.
            if !call.is_terminated() {
                let _ = call.await;
            }
            At::End
        } else {
            At::Middle { call, messages }
        };
        Some((message, (puller, reference, at)))
    }))
}

/// The next pull that begins. A reader who was too slow to hear of each gets those that are under way.
async fn next_begun(puller: &Puller, begun: &mut broadcast::Receiver<Watched>) -> Vec<Watched> {
    match begun.recv().await {
        Ok(watched) => vec![watched],
        Err(RecvError::Lagged(_)) => puller.ongoing(),
        Err(RecvError::Closed) => std::future::pending().await,
    }
}

/// What is seen of a pull now.
pub(super) fn show(puller: &Puller, watched: &Watched, look: &Look) -> PullProgress {
    convert::progress(&watched.ongoing, look, puller.queue().place(watched.ongoing.id))
}
