//! The one place that builds a gRPC status for a caller of this interface.

use tonic::Status;

use crate::cause::{bounded, chain};
use crate::images;
use crate::oci::reference::ReferenceError;
use crate::pull;

/// What was named is no reference: `InvalidArgument`.
pub(super) fn of_reference(error: &ReferenceError) -> Status {
    Status::invalid_argument(bounded(format!("cannot read the image reference: {}", chain(error))))
}

/// No image is named: `InvalidArgument`.
pub(super) fn no_image() -> Status {
    Status::invalid_argument("the request names no image")
}

/// A pull that is not under way: `NotFound`.
pub(super) fn no_pull(id: u64) -> Status {
    Status::not_found(format!("no pull with the number {id} is under way; `drayctl ps` lists those that are"))
}

/// A level of the log that there is not: `InvalidArgument`.
pub(super) fn no_level(level: &str) -> Status {
    let level: String = level.chars().take(32).collect();
    Status::invalid_argument(format!(
        "{level:?} is no level of the log: error, warn, info, debug and trace are"
    ))
}

/// A pull that cannot be explained: `FailedPrecondition`, whatever the reason, which the text tells.
pub(super) fn of_explain(reference: &str, error: &pull::Error) -> Status {
    Status::failed_precondition(bounded(format!("a pull of {reference} would fail: {}", chain(error))))
}

/// Images that cannot be listed: `Unavailable`.
pub(super) fn of_images(error: &images::Error) -> Status {
    Status::unavailable(bounded(chain(error)))
}

/// drayd is about to end: `Unavailable`.
pub(super) fn stopping() -> Status {
    Status::unavailable("drayd is stopping")
}
