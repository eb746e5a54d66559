//! The one place that builds a gRPC status for a CRI caller: which error has which code is this table.

use tonic::{Code, Status};

use super::convert::ConvertError;
use crate::cause::{bounded, chain};
use crate::node::snapshotter::ChoiceError;
use crate::oci::WalkError;
use crate::pull::Error as PullError;
use crate::{containerd, fetch, images, registry, unpack};

/// Begins the message of a pull whose registry is not there. kubelet makes a reason of its own of messages that begin so
/// (`ErrRegistryUnavailable` of cri-api). Its other word, `SignatureValidationFailed`, is for what drayd does not do.
const REGISTRY_UNAVAILABLE: &str = "RegistryUnavailable";

/// A message that is not a request: `InvalidArgument`.
pub fn of_convert(error: &ConvertError) -> Status {
    Status::invalid_argument(bounded(chain(error)))
}

/// A failed pull of `reference`. An unreachable registry has kubelet's word for it in front. kubelet reads the word only
/// in messages whose code is `Unknown`: with `kubelet_reasons` they have that code.
pub fn of_pull(reference: &str, error: &PullError, kubelet_reasons: bool) -> Status {
    let message = format!("failed to pull image \"{reference}\": {}", chain(error));
    let unreachable = registry_error(error).is_some_and(|error| error.kind() == registry::Kind::Unavailable);
    match (unreachable, kubelet_reasons) {
        (true, true) => Status::unknown(bounded(format!("{REGISTRY_UNAVAILABLE}: {message}"))),
        (true, false) => Status::unavailable(bounded(format!("{REGISTRY_UNAVAILABLE}: {message}"))),
        (false, _) => Status::new(pull_code(error), bounded(message)),
    }
}

/// Images that cannot be listed, removed or measured.
pub fn of_images(error: &images::Error) -> Status {
    let code = match error {
        images::Error::Node(_) | images::Error::Unread(_) => Code::Unavailable,
        images::Error::Choice(error) => choice_code(error),
        images::Error::Containerd(error) => containerd_code(error),
        images::Error::NoRoot(_) => Code::FailedPrecondition,
        images::Error::Damaged(_) => Code::DataLoss,
        images::Error::Ambiguous { .. } => Code::InvalidArgument,
    };
    Status::new(code, bounded(chain(error)))
}

/// An image config that was read once and cannot be read any more: `DataLoss`.
pub fn of_config(id: &str, error: &serde_json::Error) -> Status {
    Status::data_loss(bounded(format!(
        "the image config {id} is no JSON: {error}; remove the image and pull it again"
    )))
}

/// A foreign call that could not be handed to containerd.
pub fn of_passthrough(error: &tonic::transport::Error) -> Status {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = next {
        if cause.is::<tonic::TimeoutExpired>() {
            return deadline_passed();
        }
        next = cause.source();
    }
    Status::unavailable(bounded(format!("containerd does not answer: {}", chain(error))))
}

/// A call whose caller's deadline passed.
pub fn deadline_passed() -> Status {
    Status::deadline_exceeded("the caller's deadline passed")
}

fn pull_code(error: &PullError) -> Code {
    match error {
        PullError::Node(_) | PullError::Stalled { .. } => Code::Unavailable,
        PullError::Choice(error) => choice_code(error),
        PullError::Walk(error) => walk_code(error),
        PullError::Algorithm { .. } => Code::InvalidArgument,
        PullError::NotPublished { .. }
        | PullError::Plan(_)
        | PullError::Unpack(
            unpack::Error::Vanished { .. }
            | unpack::Error::OnTheHost { .. }
            | unpack::Error::NotGuestPull { .. },
        ) => Code::FailedPrecondition,
        PullError::NoRoom(_) => Code::ResourceExhausted,
        PullError::Aborted | PullError::Cancelled | PullError::Removed => Code::Aborted,
        PullError::Resolve(error) => registry_code(error),
        PullError::Document { source, .. } | PullError::Unpack(unpack::Error::Fetch(source)) => {
            fetch_code(source)
        }
        PullError::Unpack(unpack::Error::Containerd { source, .. })
        | PullError::Containerd { source, .. } => containerd_code(source),
        PullError::Unpack(unpack::Error::Direct { source, .. }) if source.is_full_disk() => {
            Code::ResourceExhausted
        }
        // As with containerd, which gives a layer that its differ refuses no code of its own.
        PullError::Unpack(unpack::Error::Direct { .. }) => Code::Unknown,
        PullError::Unpack(unpack::Error::DiffId { .. }) => Code::DataLoss,
    }
}

/// What the registry house says, if it is what failed.
fn registry_error(error: &PullError) -> Option<&registry::Error> {
    match error {
        PullError::Resolve(error)
        | PullError::Document { source: fetch::Error::Registry(error), .. }
        | PullError::Unpack(unpack::Error::Fetch(fetch::Error::Registry(error))) => Some(error),
        _ => None,
    }
}

fn walk_code(error: &WalkError) -> Code {
    match error {
        WalkError::Malformed { source, .. } if source.is_of_algorithm() => Code::InvalidArgument,
        WalkError::Platform(_) => Code::NotFound,
        WalkError::Malformed { .. }
        | WalkError::Artifact { .. }
        | WalkError::Shadowed { .. }
        | WalkError::Nesting { .. } => Code::FailedPrecondition,
    }
}

fn choice_code(error: &ChoiceError) -> Code {
    match error {
        // containerd 1.7 gives this error no code of its own, and kubelet shows such messages bare.
        ChoiceError::UnknownHandler { .. } => Code::Unknown,
        ChoiceError::NotLoaded { .. } => Code::FailedPrecondition,
    }
}

fn fetch_code(error: &fetch::Error) -> Code {
    match error {
        fetch::Error::Registry(error) => registry_code(error),
        fetch::Error::Containerd(error) => containerd_code(error),
        fetch::Error::TooLarge { .. } => Code::FailedPrecondition,
        fetch::Error::Locked { .. } => Code::Unavailable,
    }
}

fn registry_code(error: &registry::Error) -> Code {
    match error.kind() {
        registry::Kind::NotFound => Code::NotFound,
        registry::Kind::Unauthorized => Code::Unauthenticated,
        registry::Kind::Denied => Code::PermissionDenied,
        registry::Kind::RateLimited => Code::ResourceExhausted,
        registry::Kind::Unavailable => Code::Unavailable,
        registry::Kind::Answer => Code::Unknown,
        registry::Kind::Corrupt | registry::Kind::Size => Code::DataLoss,
        registry::Kind::Configuration => Code::FailedPrecondition,
    }
}

fn containerd_code(error: &containerd::Error) -> Code {
    use containerd::Kind;
    match error.kind() {
        Kind::Unavailable | Kind::Locked | Kind::Deadline => Code::Unavailable,
        Kind::NoSpace => Code::ResourceExhausted,
        Kind::Unimplemented => Code::FailedPrecondition,
        Kind::Mismatch => Code::DataLoss,
        Kind::NotFound | Kind::AlreadyExists | Kind::Refused | Kind::Failed => Code::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cause::MAX_MESSAGE;
    use crate::oci::digest::DigestError;
    use crate::oci::{DiffId, Digest, DocumentError, NoPlatform};
    use crate::pull::plan::PlanError;
    use crate::unpack::tree;

    /// Fault 156, disk full among others.
    #[test]
    fn every_failure_of_a_pull_has_its_code() {
        let digest = || Digest::of(b"x");
        let containerd = |status: Status| containerd::Error::new("prepare snapshot", "x", &status);
        let unpack = |status| {
            let (layer, snapshotter) = ("x".into(), "overlayfs".parse().expect("a name"));
            PullError::Unpack(unpack::Error::Containerd { layer, snapshotter, source: containerd(status) })
        };
        let handler = ChoiceError::UnknownHandler { handler: "x".into(), known: "none".into() };
        let diff_id = unpack::Error::DiffId {
            layer: "x".into(),
            stated: DiffId(digest()),
            actual: DiffId(Digest::of(b"y")),
            from_store: true,
        };
        let direct = |kind: std::io::ErrorKind| {
            let (layer, snapshotter) = ("x".into(), "overlayfs".parse().expect("a name"));
            let step = tree::Error::Step { step: "write", path: "x".into(), source: kind.into() };
            PullError::Unpack(unpack::Error::Direct { layer, snapshotter, source: step.into() })
        };
        let schema1 = WalkError::Malformed {
            what: "manifest",
            digest: digest(),
            source: DocumentError::Schema1.into(),
        };
        let unheard_of = WalkError::Malformed {
            what: "manifest",
            digest: digest(),
            source: Box::new(DocumentError::BadDigest {
                place: "config".into(),
                source: DigestError::Algorithm("sha999".into()),
            }),
        };
        for (error, code) in [
            (PullError::Choice(handler), Code::Unknown),
            (PullError::Walk(NoPlatform { wanted: "x".into(), offered: Vec::new() }.into()), Code::NotFound),
            (schema1.into(), Code::FailedPrecondition),
            (PullError::Algorithm { what: "layer", digest: digest() }, Code::InvalidArgument),
            (unheard_of.into(), Code::InvalidArgument),
            (
                WalkError::Artifact { digest: digest(), artifact_type: "x".into() }.into(),
                Code::FailedPrecondition,
            ),
            (PullError::Plan(PlanError::Counts { layers: 1, diff_ids: 2 }), Code::FailedPrecondition),
            (PullError::Unpack(diff_id), Code::DataLoss),
            (direct(std::io::ErrorKind::StorageFull), Code::ResourceExhausted),
            (direct(std::io::ErrorKind::QuotaExceeded), Code::ResourceExhausted),
            (direct(std::io::ErrorKind::NotADirectory), Code::Unknown),
            (unpack(Status::unknown("mkdir: no space left on device")), Code::ResourceExhausted),
            (unpack(Status::unavailable("connection refused")), Code::Unavailable),
            (unpack(Status::unknown("boom")), Code::Unknown),
            (PullError::Stalled { limit: Duration::from_secs(1) }, Code::Unavailable),
            (PullError::NotPublished { waited: Duration::from_secs(1) }, Code::FailedPrecondition),
            (PullError::Aborted, Code::Aborted),
            (PullError::Removed, Code::Aborted),
        ] {
            let status = of_pull("docker.io/library/x:1", &error, true);
            assert_eq!(status.code(), code, "{status:?}");
            let message = status.message();
            assert!(message.starts_with("failed to pull image \"docker.io/library/x:1\": "), "{message}");
        }
    }

    /// Fault 156, the word that kubelet looks for.
    #[test]
    fn an_unreachable_registry_has_kubelets_word_and_its_code_if_wanted() {
        let silent = || registry::Error::Unserved { subject: "x".into(), attempts: Vec::new() };
        let fetch = || fetch::Error::Registry(silent());
        for error in [
            PullError::Resolve(silent()),
            PullError::Document { what: "manifest", source: fetch() },
            PullError::Unpack(unpack::Error::Fetch(fetch())),
        ] {
            for (reasons, code) in [(false, Code::Unavailable), (true, Code::Unknown)] {
                let status = of_pull("reg.test/x:1", &error, reasons);
                assert_eq!(status.code(), code, "{status:?}");
                let begins = "RegistryUnavailable: failed to pull image \"reg.test/x:1\": ";
                assert!(status.message().starts_with(begins), "{status:?}");
            }
        }
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let cut = bounded("ü".repeat(MAX_MESSAGE));
        assert!(cut.len() < MAX_MESSAGE + 16 && cut.ends_with("(cut)"));
        assert_eq!(bounded("short".into()), "short");
    }
}
