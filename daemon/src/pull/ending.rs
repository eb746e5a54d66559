//! How calls end, in a closed set of classes: what operators count.

use super::error::Error;
use crate::node::snapshotter::ChoiceError;
use crate::oci::WalkError;
use crate::{containerd, fetch, registry, unpack};

/// The end of one PullImage call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ending {
    /// The image is there, and bytes of it came for this call.
    Fetched,
    /// The image is there, and was before.
    Present,
    /// The image is there, brought by a pull that is counted for another call.
    Joined,
    /// Somebody cancelled the pull.
    Cancelled,
    /// The caller left, or its deadline passed.
    GivenUp,
    /// It failed.
    Failed(Reason),
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// What was asked for is no image reference, or cannot be asked for so.
    Request,
    /// No snapshotter fits the request.
    Snapshotter,
    /// The registry does not have it, or not for this machine.
    NotFound,
    /// The registry wants other credentials.
    Denied,
    /// The registry is asked too often.
    RateLimited,
    /// The registry cannot be reached, or breaks off.
    Unavailable,
    /// No byte came for too long.
    Stalled,
    /// What the registry has is not what it should be.
    Broken,
    /// The node's own configuration.
    Configuration,
    /// There is no room for it.
    NoSpace,
    /// containerd, or a snapshotter.
    Containerd,
    /// Somebody removed the image meanwhile, or drayd itself failed.
    Aborted,
}

impl Ending {
    /// All there are.
    pub const ALL: [Self; 17] = [
        Self::Fetched,
        Self::Present,
        Self::Joined,
        Self::Cancelled,
        Self::GivenUp,
        Self::Failed(Reason::Request),
        Self::Failed(Reason::Snapshotter),
        Self::Failed(Reason::NotFound),
        Self::Failed(Reason::Denied),
        Self::Failed(Reason::RateLimited),
        Self::Failed(Reason::Unavailable),
        Self::Failed(Reason::Stalled),
        Self::Failed(Reason::Broken),
        Self::Failed(Reason::Configuration),
        Self::Failed(Reason::NoSpace),
        Self::Failed(Reason::Containerd),
        Self::Failed(Reason::Aborted),
    ];

    /// Of a call that failed.
    pub fn of_error(error: &Error) -> Self {
        match error {
            Error::Cancelled => Self::Cancelled,
            error => Self::Failed(Reason::of(error)),
        }
    }

    /// Whether the image is there.
    pub fn is_success(self) -> bool {
        matches!(self, Self::Fetched | Self::Present | Self::Joined)
    }

    /// Its name in metrics and answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fetched => "fetched",
            Self::Present => "present",
            Self::Joined => "joined",
            Self::Cancelled => "cancelled",
            Self::GivenUp => "given_up",
            Self::Failed(reason) => match reason {
                Reason::Request => "bad_request",
                Reason::Snapshotter => "no_snapshotter",
                Reason::NotFound => "not_found",
                Reason::Denied => "denied",
                Reason::RateLimited => "rate_limited",
                Reason::Unavailable => "unavailable",
                Reason::Stalled => "stalled",
                Reason::Broken => "broken_image",
                Reason::Configuration => "configuration",
                Reason::NoSpace => "no_space",
                Reason::Containerd => "containerd",
                Reason::Aborted => "aborted",
            },
        }
    }
}

impl Reason {
    fn of(error: &Error) -> Self {
        match error {
            Error::Node(_) | Error::Containerd { .. } | Error::NotPublished { .. } => Self::Containerd,
            Error::Choice(ChoiceError::UnknownHandler { .. } | ChoiceError::NotLoaded { .. }) => {
                Self::Snapshotter
            }
            Error::Walk(WalkError::Platform(_)) => Self::NotFound,
            Error::Walk(_) | Error::Algorithm { .. } | Error::Plan(_) => Self::Broken,
            Error::Resolve(error) => Self::of_registry(error),
            Error::Document { source, .. } => Self::of_fetch(source),
            Error::Unpack(error) => Self::of_unpack(error),
            Error::NoRoom(_) => Self::NoSpace,
            Error::Stalled { .. } => Self::Stalled,
            Error::Removed | Error::Aborted | Error::Cancelled => Self::Aborted,
        }
    }

    fn of_unpack(error: &unpack::Error) -> Self {
        match error {
            unpack::Error::Fetch(error) => Self::of_fetch(error),
            unpack::Error::Direct { source, .. } if source.is_full_disk() => Self::NoSpace,
            unpack::Error::Direct { .. } | unpack::Error::DiffId { .. } => Self::Broken,
            unpack::Error::Containerd { source, .. } => Self::of_containerd(source),
            unpack::Error::OnTheHost { .. }
            | unpack::Error::NotGuestPull { .. }
            | unpack::Error::Vanished { .. } => Self::Containerd,
        }
    }

    fn of_fetch(error: &fetch::Error) -> Self {
        match error {
            fetch::Error::Registry(error) => Self::of_registry(error),
            fetch::Error::Containerd(error) => Self::of_containerd(error),
            fetch::Error::TooLarge { .. } => Self::Broken,
            fetch::Error::Locked { .. } => Self::Containerd,
        }
    }

    fn of_containerd(error: &containerd::Error) -> Self {
        match error.kind() {
            containerd::Kind::NoSpace => Self::NoSpace,
            _ => Self::Containerd,
        }
    }

    fn of_registry(error: &registry::Error) -> Self {
        match error.kind() {
            registry::Kind::NotFound => Self::NotFound,
            registry::Kind::Unauthorized | registry::Kind::Denied => Self::Denied,
            registry::Kind::RateLimited => Self::RateLimited,
            registry::Kind::Unavailable => Self::Unavailable,
            registry::Kind::Answer | registry::Kind::Corrupt | registry::Kind::Size => Self::Broken,
            registry::Kind::Configuration => Self::Configuration,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_ending_has_a_name_of_its_own() {
        let names: BTreeSet<_> = Ending::ALL.iter().map(|ending| ending.name()).collect();
        assert_eq!(names.len(), Ending::ALL.len());
    }
}
