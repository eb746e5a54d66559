//! Tells waiting for a connection from waiting for an answer. The HTTP library reports neither, so its connector is
//! wrapped: a request knows through its task how many connections are being made for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::watch;
use tower::{Layer, Service};

tokio::task_local! {
    /// How many connections the request of this task is making. The library starts them while the request is polled,
    /// and takes nothing with it that could carry this otherwise.
    static DIALS: Arc<watch::Sender<usize>>;
}

/// Runs a request; `None` once it has waited `limit` with no connection in the making. How long a connection may take
/// is the connector's own affair.
pub(super) async fn answered<F: Future>(request: F, limit: Duration) -> Option<F::Output> {
    let dials = Arc::new(watch::Sender::new(0));
    let silence = silence(dials.subscribe(), limit);
    tokio::select! {
        biased;
        answer = DIALS.scope(dials, request) => Some(answer),
        () = silence => None,
    }
}

/// Returns after `limit` in one piece without a dial. A connection that another request took first goes on in the
/// background and still counts here, for its own time limit at most.
async fn silence(mut dials: watch::Receiver<usize>, limit: Duration) {
    while dials.wait_for(|dials| *dials == 0).await.is_ok() {
        if tokio::time::timeout(limit, dials.changed()).await.is_err() {
            return;
        }
    }
}

/// Notes that the connection in the making for this task's request is there, though what is said on it first is not
/// said yet: from here on the host may be silent.
pub(super) fn connected() {
    let _ = DIALS.try_with(|dials| dials.send_modify(|dials| *dials = 0));
}

/// Wraps a connector so that [`answered`] sees its work.
#[derive(Clone)]
pub(super) struct DialLayer;

/// A connector that [`answered`] sees at work.
#[derive(Clone)]
pub(super) struct Dialing<S>(S);

impl<S> Layer<S> for DialLayer {
    type Service = Dialing<S>;

    fn layer(&self, connector: S) -> Dialing<S> {
        Dialing(connector)
    }
}

impl<S, R> Service<R> for Dialing<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, target: R) -> Self::Future {
        let dial = Dial::begin();
        let connecting = self.0.call(target);
        Box::pin(async move {
            let _dial = dial;
            connecting.await
        })
    }
}

/// One connection in the making; ends when dropped.
struct Dial(Arc<watch::Sender<usize>>);

impl Dial {
    /// `None` outside of [`answered`], where nobody asks.
    fn begin() -> Option<Self> {
        let dials = DIALS.try_with(Arc::clone).ok()?;
        dials.send_modify(|dials| *dials += 1);
        Some(Self(dials))
    }
}

impl Drop for Dial {
    fn drop(&mut self) {
        self.0.send_modify(|dials| *dials = dials.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn only_time_without_a_dial_counts_as_silence() {
        let began = Instant::now();
        let request = async {
            sleep(LIMIT / 2).await;
            let dial = Dial::begin();
            sleep(LIMIT * 3).await;
            drop(dial);
            sleep(LIMIT * 2).await;
        };
        assert_eq!(answered(request, LIMIT).await, None);
        assert_eq!(began.elapsed(), LIMIT / 2 + LIMIT * 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_there_and_not_ready_is_silent() {
        let began = Instant::now();
        let request = async {
            let _dial = Dial::begin();
            sleep(LIMIT / 2).await;
            connected();
            sleep(LIMIT * 3).await;
        };
        assert_eq!(answered(request, LIMIT).await, None);
        assert_eq!(began.elapsed(), LIMIT / 2 + LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_in_time_is_passed_on() {
        let request = async {
            let _dial = Dial::begin();
            sleep(LIMIT * 3).await;
            7
        };
        assert_eq!(answered(request, LIMIT).await, Some(7));
    }
}
