//! The listener loop: HTTP/2 connections, each call to a service of ours or through to containerd, and an orderly end.

use std::convert::Infallible;
use std::time::Duration;

use drayd_proto::cri::image_service_server::ImageServiceServer;
use http::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthService;
use tower::{Service as _, service_fn};

use super::authority::Tolerant;
use super::health::Health;
use super::service::ImageEndpoint;
use super::{authority, deadline, passthrough, status};
use crate::containerd::{Containerd, MAX_MESSAGE};

/// After a failed accept, which mostly means that descriptors ran out: a loop without it would burn a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// For answers to leave after the last call has ended; a local client takes them in at once.
const FLUSH: Duration = Duration::from_millis(200);

/// Calls at once on one connection. A client has one connection for all it does, and its quick calls must not wait for
/// slow pulls, as they would with HTTP/2's usual 100 or 200; grpc-go sets no limit.
const MAX_CALLS: u32 = 10_000;

type ImageServer = ImageServiceServer<ImageEndpoint>;

/// What answers the calls of a connection.
#[derive(Clone)]
struct Services {
    images: ImageServer,
    health: HealthServer<HealthService>,
    containerd: Containerd,
}

/// Serves connections of `listener` until `stop` resolves, then lets calls of `ImageService` that are in progress end
/// while `patience` lasts. What is still running after that is dropped, which ends its pulls. Other calls are not
/// waited for: a client may hold an event stream open for ever, and connects again.
pub async fn serve(
    listener: UnixListener,
    endpoint: ImageEndpoint,
    health: &Health,
    containerd: Containerd,
    stop: impl Future<Output = ()>,
    patience: impl Future<Output = ()>,
) {
    let images = ImageServer::new(endpoint)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let services = Services { images, health: health.service(), containerd };
    let (graceful, calls) = (GracefulShutdown::new(), TaskTracker::new());
    let mut connections = JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // Connections that ended are taken off, so that their count is that of live ones.
            Some(_) = connections.join_next() => continue,
            () = &mut stop => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (services, calls) = (services.clone(), calls.clone());
        let service = service_fn(move |request: Request<hyper::body::Incoming>| {
            let mut request = request.map(Body::new);
            authority::forget(&mut request);
            let running = is_of::<ImageServer, _>(&request).then(|| calls.token());
            let call = services.clone().answer(request);
            async move {
                let answered = call.await;
                drop(running);
                answered
            }
        });
        let mut http = auto::Builder::new(TokioExecutor::new()).http2_only();
        http.http2().max_concurrent_streams(MAX_CALLS);
        let connection =
            http.serve_connection(TokioIo::new(Tolerant::new(stream)), TowerToHyperService::new(service));
        let watched = graceful.watch(connection.into_owned());
        connections.spawn(async move {
            if let Err(error) = watched.await {
                tracing::debug!(error = %error, "a connection ended early");
            }
        });
    }
    drop(listener);
    drain(graceful, calls, patience).await;
    connections.shutdown().await;
}

/// Lets connections end, at the longest until the last call of ours has been answered or `patience` is over.
async fn drain(graceful: GracefulShutdown, calls: TaskTracker, patience: impl Future<Output = ()>) {
    calls.close();
    let answered = async {
        calls.wait().await;
        // The last answers are still to be written.
        tokio::time::sleep(FLUSH).await;
    };
    tokio::select! {
        () = graceful.shutdown() => {}
        () = answered => {}
        () = patience => tracing::warn!("calls are still running and are ended now"),
    }
}

impl Services {
    async fn answer(mut self, request: Request<Body>) -> Result<Response<Body>, Infallible> {
        if is_of::<HealthServer<HealthService>, _>(&request) {
            return self.health.call(request).await;
        }
        if !is_of::<ImageServer, _>(&request) {
            return Ok(passthrough::pass(self.containerd.channel(), request).await);
        }
        let limit = deadline::of(request.headers());
        let call = self.images.call(request);
        let Some(limit) = limit else { return call.await };
        match tokio::time::timeout(limit, call).await {
            Ok(answered) => answered,
            Err(_) => Ok(status::deadline_passed().into_http()),
        }
    }
}

/// Whether a call is for a method of `S`.
fn is_of<S: NamedService, B>(request: &Request<B>) -> bool {
    let path = request.uri().path().strip_prefix('/').unwrap_or_default();
    path.strip_prefix(S::NAME).is_some_and(|method| method.starts_with('/'))
}
