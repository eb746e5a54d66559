//! The one place that reads a gRPC status of containerd: code and text become a [`Kind`].

use std::error::Error as _;
use std::time::Duration;

use tonic::{Code, Status};

/// A call to containerd that did not succeed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("containerd: {operation}{}: {message}", subject_text(.subject))]
pub struct Error {
    operation: &'static str,
    subject: String,
    kind: Kind,
    message: String,
}

/// What a failed call means to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// There is no such object.
    NotFound,
    /// The object is there already; for the callers here mostly an outcome, not a failure.
    AlreadyExists,
    /// containerd is not running, went away during the call, or a plugin behind it did.
    Unavailable,
    /// Another writer holds the ingest that was to be opened.
    Locked,
    /// The bytes that were to be committed have another size or digest.
    Mismatch,
    /// containerd refuses the request as malformed or out of order.
    Refused,
    /// The content store or the snapshotter's disk is full.
    NoSpace,
    /// This containerd does not have the service.
    Unimplemented,
    /// The call's own deadline passed.
    Deadline,
    /// Anything that containerd reports without a code of its own.
    Failed,
}

impl Error {
    pub(crate) fn new(operation: &'static str, subject: impl Into<String>, status: &Status) -> Self {
        Self { operation, subject: subject.into(), kind: kind(status), message: message(status) }
    }

    /// An ingest that cannot be opened. Only here does "locked" mean another writer (content/local/locks.go: "ref %s
    /// locked"): elsewhere it may be the words of any plugin, about a lock that no waiting resolves.
    pub(super) fn of_open(subject: impl Into<String>, status: &Status) -> Self {
        let locked = status.code() == Code::Unavailable
            && status.source().is_none()
            && status.message().contains("locked");
        let error = Self::new("open ingest", subject, status);
        if locked { Self { kind: Kind::Locked, ..error } } else { error }
    }

    /// A commit that failed. Its only precondition are the size and the digest.
    pub(super) fn of_commit(subject: impl Into<String>, status: &Status) -> Self {
        let mismatch = status.code() == Code::FailedPrecondition;
        let error = Self::new("commit blob", subject, status);
        if mismatch { Self { kind: Kind::Mismatch, ..error } } else { error }
    }

    /// A call that was not answered within a deadline of this side.
    pub(super) fn late(operation: &'static str, subject: impl Into<String>, limit: Duration) -> Self {
        let message = format!("no answer within {} s", limit.as_secs());
        Self { operation, subject: subject.into(), kind: Kind::Deadline, message }
    }

    /// An answer that a working containerd does not give.
    pub(super) fn unexpected(
        operation: &'static str,
        subject: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self { operation, subject: subject.into(), kind: Kind::Failed, message: message.into() }
    }

    /// What it means.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether containerd did not answer: it is not there, or hangs.
    pub fn is_away(&self) -> bool {
        matches!(self.kind, Kind::Unavailable | Kind::Deadline)
    }
}

fn subject_text(subject: &str) -> String {
    if subject.is_empty() { String::new() } else { format!(" {subject}") }
}

fn kind(status: &Status) -> Kind {
    // A status with a source was made on this side: the connection failed, or the call's deadline passed.
    if let Some(source) = status.source() {
        return if timed_out(source) { Kind::Deadline } else { Kind::Unavailable };
    }
    let text = status.message();
    match status.code() {
        Code::NotFound => Kind::NotFound,
        Code::AlreadyExists => Kind::AlreadyExists,
        Code::Unavailable => Kind::Unavailable,
        Code::DeadlineExceeded => Kind::Deadline,
        Code::Unimplemented => Kind::Unimplemented,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => Kind::Refused,
        _ if text.contains("no space left on device") || text.contains("disk quota exceeded") => {
            Kind::NoSpace
        }
        _ => Kind::Failed,
    }
}

fn timed_out(source: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(source);
    while let Some(error) = next {
        if error.is::<tonic::TimeoutExpired>() {
            return true;
        }
        next = error.source();
    }
    false
}

/// A status made on this side has an empty or a bare text ("transport error"): its chain of causes says more.
fn message(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut next = status.source();
    while let Some(error) = next {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = if text.is_empty() { cause } else { format!("{text}: {cause}") };
        }
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_becomes_the_kind_a_caller_branches_on() {
        for (status, expected) in [
            (Status::not_found("x"), Kind::NotFound),
            (Status::already_exists("x"), Kind::AlreadyExists),
            (Status::unavailable("database is locked"), Kind::Unavailable),
            (Status::failed_precondition("x"), Kind::Refused),
            (Status::unavailable("error reading from server: EOF"), Kind::Unavailable),
            (Status::out_of_range("x"), Kind::Refused),
            (Status::unknown("write /a: no space left on device"), Kind::NoSpace),
            (Status::unknown("boom"), Kind::Failed),
            (Status::deadline_exceeded("x"), Kind::Deadline),
        ] {
            assert_eq!(Error::new("op", "subject", &status).kind(), expected, "{status:?}");
        }
    }

    #[test]
    fn only_opening_an_ingest_is_locked_and_only_a_commit_mismatches() {
        let locked = Status::unavailable("ref layer-sha256:1 locked for 3s");
        assert_eq!(Error::of_open("subject", &locked).kind(), Kind::Locked);
        assert_eq!(Error::of_open("subject", &Status::unavailable("EOF")).kind(), Kind::Unavailable);
        assert_eq!(Error::of_commit("subject", &locked).kind(), Kind::Unavailable);
        let mismatch = Status::failed_precondition("unexpected commit digest");
        assert_eq!(Error::of_commit("subject", &mismatch).kind(), Kind::Mismatch);
        assert_eq!(Error::of_commit("subject", &Status::out_of_range("x")).kind(), Kind::Refused);
    }

    #[test]
    fn a_lost_connection_is_unavailable_and_says_why() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let status = Status::from_error(Box::new(refused));
        let error = Error::new("prepare snapshot", "sha256:1", &status);
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().contains("connection refused"), "{error}");
    }
}
