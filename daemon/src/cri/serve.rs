//! The listener loop: HTTP/2 connections, each call to `ImageService` or through to containerd, and an orderly end.

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
use tonic::server::NamedService as _;
use tower::{Service as _, service_fn};

use super::authority::Tolerant;
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

/// Serves connections of `listener` until `stop` resolves, then lets calls of `ImageService` that are in progress end
/// while `patience` lasts. What is still running after that is dropped, which ends its pulls. Calls that are handed
/// through are not waited for: a client may hold an event stream open for ever, and connects again.
pub async fn serve(
    listener: UnixListener,
    endpoint: ImageEndpoint,
    containerd: Containerd,
    stop: impl Future<Output = ()>,
    patience: impl Future<Output = ()>,
) {
    let server = ImageServer::new(endpoint)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
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
        let (server, containerd, calls) = (server.clone(), containerd.clone(), calls.clone());
        let service = service_fn(move |request: Request<hyper::body::Incoming>| {
            let mut request = request.map(Body::new);
            authority::forget(&mut request);
            let ours = is_image_service(&request);
            let call = answer(ours, server.clone(), containerd.clone(), request);
            let running = ours.then(|| calls.token());
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

fn is_image_service(request: &Request<Body>) -> bool {
    let path = request.uri().path().strip_prefix('/').unwrap_or_default();
    path.strip_prefix(ImageServer::NAME).is_some_and(|method| method.starts_with('/'))
}

async fn answer(
    ours: bool,
    mut server: ImageServer,
    containerd: Containerd,
    request: Request<Body>,
) -> Result<Response<Body>, Infallible> {
    if !ours {
        return Ok(passthrough::pass(containerd.channel(), request).await);
    }
    let limit = deadline::of(request.headers());
    let call = server.call(request);
    let Some(limit) = limit else { return call.await };
    match tokio::time::timeout(limit, call).await {
        Ok(answered) => answered,
        Err(_) => Ok(status::deadline_passed().into_http()),
    }
}
