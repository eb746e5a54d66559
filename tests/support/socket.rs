//! A gRPC channel to a unix socket.

use std::path::{Path, PathBuf};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// A channel that connects on its first call, and anew after the other side was restarted.
pub fn channel(socket: &Path) -> Channel {
    let socket: PathBuf = socket.to_owned();
    // The address is never looked at, but becomes the `:authority`, which must be a host.
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    }))
}
