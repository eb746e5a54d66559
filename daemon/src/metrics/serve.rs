//! The page that Prometheus reads.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::Metrics;

/// Readers at once; a node has one or two, and those that say nothing soon make room.
const READERS: usize = 64;
/// How long a reader may take for its request.
const HEAD: Duration = Duration::from_secs(2);
/// And for the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// After a failed accept, which mostly means that descriptors ran out.
const PAUSE: Duration = Duration::from_millis(100);
/// What the text is (`OpenMetrics` 1.0, content types).
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Listens on `address`.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Answers `GET /metrics` until dropped. `look` is called before each answer, for what is not counted as it happens.
pub async fn serve<L>(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    look: impl Fn() -> L + Clone + Send + Sync + 'static,
) where
    L: Future<Output = ()> + Send,
{
    let mut readers = JoinSet::new();
    loop {
        while readers.len() >= READERS {
            readers.join_next().await;
        }
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a reader of the metrics");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
            Some(_) = readers.join_next() => continue,
        };
        let (metrics, look) = (Arc::clone(&metrics), look.clone());
        readers.spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let (metrics, look) = (&metrics, &look);
                async move {
                    if request.uri().path() == "/metrics" && request.method() == Method::GET {
                        look().await;
                    }
                    Ok::<_, Infallible>(answer(&request, metrics))
                }
            });
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEAD).keep_alive(false);
            // Whoever reads too slowly reads again.
            let _ =
                tokio::time::timeout(PATIENCE, http.serve_connection(TokioIo::new(stream), service)).await;
        });
    }
}

fn answer(request: &Request<Incoming>, metrics: &Metrics) -> Response<String> {
    let mut response = Response::default();
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            *response.body_mut() = metrics.text();
            response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(OPEN_METRICS));
        }
        (_, "/metrics") => *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED,
        _ => {
            *response.status_mut() = StatusCode::NOT_FOUND;
            response.body_mut().push_str("drayd's metrics are under /metrics\n");
        }
    }
    response
}
