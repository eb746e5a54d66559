//! A gRPC channel to a unix socket.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{self, Poll};

use drayd_proto::cri::image_service_client::ImageServiceClient;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::{Service, service_fn};

/// A channel that connects on its first call, and anew after the other side was restarted.
pub fn channel(socket: &Path) -> Channel {
    let socket: PathBuf = socket.to_owned();
    // The address is never looked at, but becomes the `:authority`, which must be a host.
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    }))
}

/// A client that sends a caller's deadline and leaves keeping it to the other side; a [`channel`] ends the call itself.
pub fn client_without_deadlines(socket: &Path) -> ImageServiceClient<Client<Connector, Body>> {
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build(Connector(socket.to_owned()));
    ImageServiceClient::with_origin(client, Uri::from_static("http://localhost"))
}

/// Connects to one socket, whatever the address.
#[derive(Clone, Debug)]
pub struct Connector(PathBuf);

impl Service<Uri> for Connector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let socket = self.0.clone();
        Box::pin(async move { UnixStream::connect(socket).await.map(TokioIo::new) })
    }
}
