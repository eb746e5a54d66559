//! Why a pull failed. Every variant names its subject; the CRI edge turns it into a gRPC code.

use std::time::Duration;

use super::plan::PlanError;
use super::room::Room;
use crate::node::NodeError;
use crate::node::snapshotter::ChoiceError;
use crate::oci::{Digest, WalkError};
use crate::{containerd, fetch, registry, unpack};

/// A pull that did not end in an image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// containerd is not there.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// No snapshotter fits the request.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// The name could not be resolved.
    #[error("cannot resolve the reference")]
    Resolve(#[source] registry::Error),
    /// An index, manifest or config could not be had.
    #[error("cannot fetch the image's {what}")]
    Document {
        /// `index`, `manifest` or `config`.
        what: &'static str,
        /// Why not.
        source: fetch::Error,
    },
    /// The reference leads to no image for this machine.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// A blob is named by an algorithm that containerd's content store does not have.
    #[error(
        "the image's {what} {digest} is named by {}: containerd keeps content under sha256 alone",
        .digest.algorithm().name()
    )]
    Algorithm {
        /// `manifest`, `layer`, `diff ID`, …
        what: &'static str,
        /// Its digest.
        digest: Digest,
    },
    /// Manifest and config contradict each other.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A layer did not become a snapshot.
    #[error("cannot unpack the image")]
    Unpack(#[source] unpack::Error),
    /// containerd failed in a step around the layers.
    #[error("cannot {step}")]
    Containerd {
        /// The step, as "record the image".
        step: &'static str,
        /// What containerd said.
        source: containerd::Error,
    },
    /// containerd had the image, and its CRI did not show it.
    #[error(
        "the image was complete in containerd, but its CRI plugin did not show it within {} s, so its records were \
         taken back; see containerd's log",
        .waited.as_secs()
    )]
    NotPublished {
        /// How long drayd waited.
        waited: Duration,
    },
    /// Somebody removed the image after its records were written, before CRI showed it.
    #[error("the image was removed while it was pulled; pull it again")]
    Removed,
    /// A request stayed open without a byte.
    #[error(
        "no byte came from the registry for {} s (pull.progress_timeout); check the network to it, or raise the limit",
        .limit.as_secs_f32()
    )]
    Stalled {
        /// The limit.
        limit: Duration,
    },
    /// It would not fit on a disk.
    #[error(
        "there is no room for the image on {} ({}): it needs about {} bytes and {} are free{}; remove images or files \
         there, or set pull.check_disk = false to try all the same",
        .0.path.display(), .0.used_by, .0.bytes.needed, .0.bytes.free,
        .0.inodes.map(|inodes| format!(", about {} inodes and {} are free", inodes.needed, inodes.free))
            .unwrap_or_default()
    )]
    NoRoom(Box<Room>),
    /// Somebody asked for its end.
    #[error("the pull was cancelled by a request to drayd's API")]
    Cancelled,
    /// Every caller left, or the pull broke off by a fault of drayd itself.
    #[error("the pull was given up")]
    Aborted,
}

impl Error {
    /// Whether containerd did not answer, so that there is no point in asking it more.
    pub fn containerd_is_away(&self) -> bool {
        match self {
            Self::Containerd { source, .. }
            | Self::Document { source: fetch::Error::Containerd(source), .. } => source.is_away(),
            Self::Unpack(error) => error.containerd_is_away(),
            _ => false,
        }
    }

    /// Whether the same pull may succeed later without anybody changing anything, so that what was fetched is worth
    /// keeping. An image that CRI does not show counts: it may be one that CRI cannot read, which is what its code
    /// tells the caller, but also one of which CRI will have heard by the next pull.
    pub fn is_transient(&self) -> bool {
        let away = |error: &containerd::Error| error.is_away() || error.kind() == containerd::Kind::Locked;
        let fetched = |error: &fetch::Error| match error {
            fetch::Error::Registry(error) => error.is_transient(),
            fetch::Error::Containerd(error) => away(error),
            fetch::Error::Locked { .. } => true,
            fetch::Error::TooLarge { .. } => false,
        };
        match self {
            Self::Node(_)
            | Self::NotPublished { .. }
            | Self::Removed
            | Self::Stalled { .. }
            | Self::Cancelled
            | Self::Aborted => true,
            Self::Resolve(error) => error.is_transient(),
            Self::Document { source, .. } | Self::Unpack(unpack::Error::Fetch(source)) => fetched(source),
            Self::Unpack(unpack::Error::Containerd { source, .. }) | Self::Containerd { source, .. } => {
                away(source)
            }
            Self::Choice(_)
            | Self::Walk(_)
            | Self::Algorithm { .. }
            | Self::Plan(_)
            | Self::NoRoom(_)
            | Self::Unpack(_) => false,
        }
    }
}
