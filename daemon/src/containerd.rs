//! containerd's native gRPC API as drayd uses it: one lazily connected channel, and a file per service. Owns every
//! header, deadline and error code of that wire; knows nothing of registries or pulls.

pub mod content;
pub mod cri;
pub mod diff;
pub mod error;
pub mod events;
pub mod images;
pub mod introspection;
pub mod labels;
pub mod leases;
pub mod snapshots;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint, Uri};

use crate::trace;

pub use containerd_client::types::Mount;
pub use error::{Error, Kind};
pub use leases::{CurrentLease, Lease};
pub use snapshots::{Snapshotter, SnapshotterNameError};

/// containerd refuses and never sends messages above this (`defaults.DefaultMaxRecvMsgSize`); tonic's own default of
/// 4 MiB is too little for a list of images.
pub const MAX_MESSAGE: usize = 16 << 20;

/// For calls that only touch containerd's metadata. They take milliseconds; a disk that is busy with unpacking makes
/// them take seconds.
const METADATA_DEADLINE: Duration = Duration::from_secs(30);

/// The most that a call may take which leaves something under a lease.
pub const LONGEST_CALL: Duration = longest([
    content::ingest::LONGEST_COMMIT,
    diff::APPLY_DEADLINE,
    snapshots::PREPARE_DEADLINE,
    snapshots::COMMIT_DEADLINE,
]);

/// The namespace of the CRI plugin (its `constants.K8sContainerdNamespace`).
const CRI_NAMESPACE: &str = "k8s.io";

/// A handle on one containerd in one namespace, and under one lease if [`Containerd::under`] made it. Cloning shares
/// the connection.
#[derive(Clone, Debug)]
pub struct Containerd {
    /// Reconnects by itself after containerd was away; never connected before the first call.
    channel: Channel,
    /// Where the socket is, for messages.
    address: PathBuf,
    /// Sent with every call as `containerd-namespace`.
    namespace: MetadataValue<Ascii>,
    /// Sent as `containerd-lease`: what a call creates or finds is kept from collection by that lease.
    lease: Option<CurrentLease>,
}

/// Why a connection cannot even be described.
#[derive(Debug, thiserror::Error)]
#[error("containerd namespace `{0}` is not a legal header value: use letters, digits, `-`, `_` and `.`")]
pub struct NamespaceError(String);

impl Containerd {
    /// A handle on the containerd that listens on `address`; does not connect yet. `namespace` is containerd's
    /// tenancy name, `k8s.io` for Kubernetes.
    pub fn new(address: &Path, namespace: &str) -> Result<Self, NamespaceError> {
        let header = namespace.parse().map_err(|_| NamespaceError(namespace.escape_default().to_string()))?;
        Ok(Self { channel: channel(address), address: address.into(), namespace: header, lease: None })
    }

    /// The same containerd, with every call under the lease that is current by then.
    #[must_use]
    pub fn under(&self, lease: &CurrentLease) -> Self {
        Self { lease: Some(lease.clone()), ..self.clone() }
    }

    /// The socket's path.
    pub fn address(&self) -> &Path {
        &self.address
    }

    /// Whether containerd's CRI plugin looks at what happens here: it watches its own namespace only, whose name is
    /// fixed, so that in any other one nothing is to be waited for.
    pub fn has_cri(&self) -> bool {
        self.namespace == CRI_NAMESPACE
    }

    /// The channel itself, for passing foreign requests through unchanged.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// containerd's version, such as `1.7.24`.
    pub async fn version(&self) -> Result<String, Error> {
        use containerd_client::services::v1::version_client::VersionClient;
        let mut client = VersionClient::new(self.channel());
        let response = client.version(self.request(())).await.map_err(|s| Error::new("version", "", &s))?;
        Ok(response.into_inner().version)
    }

    fn request<T>(&self, message: T) -> tonic::Request<T> {
        self.request_within(METADATA_DEADLINE, message)
    }

    fn request_within<T>(&self, deadline: Duration, message: T) -> tonic::Request<T> {
        let mut request = self.stream_request(message);
        request.set_timeout(deadline);
        request
    }

    /// For streams that live as long as their data moves: their owner watches for a stall.
    fn stream_request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.metadata_mut().insert("containerd-namespace", self.namespace.clone());
        if let Some(lease) = &self.lease {
            request.metadata_mut().insert("containerd-lease", lease.header());
        }
        for (name, value) in trace::headers() {
            if let Ok(value) = value.parse() {
                request.metadata_mut().insert(name, value);
            }
        }
        request
    }
}

const fn longest(deadlines: [Duration; 4]) -> Duration {
    let (mut longest, mut at) = (Duration::ZERO, 0);
    while at < deadlines.len() {
        if deadlines[at].as_nanos() > longest.as_nanos() {
            longest = deadlines[at];
        }
        at += 1;
    }
    longest
}

fn channel(address: &Path) -> Channel {
    let path = address.to_owned();
    // The URI only fills :scheme and :authority; the connector below decides where the bytes go.
    Endpoint::from(Uri::from_static("http://localhost"))
        .initial_stream_window_size(Some(4 << 20))
        .initial_connection_window_size(Some(16 << 20))
        .connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
        }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn calls_carry_the_span_that_they_are_made_in() {
        let containerd = Containerd::new(Path::new("/none"), "k8s.io").expect("a legal namespace");
        let sent = || containerd.request(()).metadata().get("traceparent").cloned();
        assert_eq!(sent(), None);
        let traceparent = trace::tests::collected(sent).expect("a header");
        assert!(traceparent.to_str().is_ok_and(|value| value.starts_with("00-")), "{traceparent:?}");
    }

    #[tokio::test]
    async fn only_the_namespace_of_kubernetes_has_a_cri() {
        for (namespace, expected) in [("k8s.io", true), ("default", false), ("K8S.io", false), ("", false)] {
            let containerd = Containerd::new(Path::new("/none"), namespace).expect("a legal namespace");
            assert_eq!(containerd.has_cri(), expected, "{namespace}");
        }
    }
}
