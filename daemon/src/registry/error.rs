//! What the registry house answers when no host served an object: every host with its own cause, and one class for
//! the caller to branch on.

use std::fmt;

use super::credentials_file::CredentialsFileError;
use super::failure::Failure;
use super::hosts_toml::HostsError;
use super::proxies::ProxyError;
use super::retry;
use super::wire::ClientError;

/// The class of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A working host does not have it.
    NotFound,
    /// Credentials are required, or were refused.
    Unauthorized,
    /// The host knows the caller and denies access.
    Denied,
    /// The host is asked too often.
    RateLimited,
    /// No connection, no answer in time, a broken one, or a server error.
    Unavailable,
    /// An answer that cannot be used: wrong length, HTML, too big.
    Answer,
    /// A whole answer whose bytes are not what the digest names.
    Corrupt,
    /// A body of another length than its descriptor says.
    Size,
    /// The node's own registry configuration is broken.
    Configuration,
}

/// Why an object could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The registry configuration of the reference's domain cannot be used.
    #[error("the registry configuration cannot be used")]
    Configuration(#[source] HostsError),
    /// The node's file of credentials cannot be used.
    #[error("the node's registry credentials cannot be used")]
    Credentials(#[source] CredentialsFileError),
    /// The environment names a proxy that is none.
    #[error("the proxy settings in the environment cannot be used")]
    Proxy(#[source] ProxyError),
    /// The HTTP client cannot be built, for want of system certificates for example.
    #[error("the HTTP client cannot be set up")]
    Client(#[source] ClientError),
    /// The registry configuration leaves no host to ask.
    #[error("{subject}: no host is configured with the capability for this request")]
    NoHost {
        /// What was asked for.
        subject: String,
    },
    /// Every host failed, each in its own way.
    #[error("{subject}: {}", listed(attempts))]
    Unserved {
        /// What was asked for.
        subject: String,
        /// The hosts in the order they were asked; never empty.
        attempts: Vec<Attempt>,
    },
}

/// One host's failure.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The host, with its port; with its scheme where a foreign layer's own address was asked.
    pub host: String,
    /// Whether it is the registry's own host rather than a mirror.
    pub own: bool,
    /// How often it was asked without progress.
    pub tries: u32,
    /// What it did the last time.
    pub failure: Failure,
}

impl Error {
    /// The class of the error, taken from the host that decides it, see [`Error::Unserved`].
    ///
    /// The registry's own host decides if it gave a clear answer (unauthorized, denied, rate limited, not found): it
    /// is the authority, whatever its mirrors said. Otherwise the host that got furthest decides: one that refused,
    /// before one that does not have the object, before one whose answer is unusable, before one that is not there.
    /// So a missing tag on a working mirror with the registry itself down is not found, not unavailable.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Configuration(_)
            | Self::Credentials(_)
            | Self::Proxy(_)
            | Self::Client(_)
            | Self::NoHost { .. } => Kind::Configuration,
            Self::Unserved { attempts, .. } => decisive_kind(attempts).unwrap_or(Kind::Unavailable),
        }
    }

    /// Whether what was asked for may be had without a range, though not with one.
    pub(super) fn may_be_for_ranges(&self) -> bool {
        match self {
            Self::Unserved { attempts, .. } => {
                attempts.iter().any(|attempt| attempt.failure.may_be_for_ranges())
            }
            _ => false,
        }
    }

    /// Whether the same call may succeed in a moment, as far as the deciding host can tell.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unserved { attempts, .. } => {
                decisive(attempts).is_some_and(|attempt| attempt.failure.is_transient())
            }
            _ => false,
        }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match (self.own, self.host.contains("://")) {
            (true, _) => "registry",
            (false, false) => "mirror",
            (false, true) => "foreign url",
        };
        write!(f, "{role} {}: {}", self.host, self.failure)?;
        if self.tries > 1 { write!(f, " (after {} tries)", self.tries) } else { Ok(()) }
    }
}

/// Whether the registry's own host has spoken: no host after it changes the error, and no second question the answer.
pub(super) fn is_final(own: &Failure) -> bool {
    rank(own.kind()) >= CLEAR && !retry::is_worth_it(own)
}

/// The class of what the deciding host did.
pub(super) fn decisive_kind(attempts: &[Attempt]) -> Option<Kind> {
    decisive(attempts).map(|attempt| attempt.failure.kind())
}

/// The first of the highest rank; among equals the first host is the preferred one.
fn decisive(attempts: &[Attempt]) -> Option<&Attempt> {
    attempts.iter().rev().max_by_key(|attempt| {
        let rank = rank(attempt.failure.kind());
        (attempt.own && rank >= CLEAR, rank)
    })
}

/// The lowest rank that is a clear answer.
const CLEAR: u8 = 2;

fn rank(kind: Kind) -> u8 {
    match kind {
        Kind::Unauthorized | Kind::Denied | Kind::RateLimited => 3,
        Kind::NotFound => CLEAR,
        Kind::Answer | Kind::Corrupt | Kind::Size => 1,
        Kind::Unavailable | Kind::Configuration => 0,
    }
}

fn listed(attempts: &[Attempt]) -> String {
    let texts: Vec<String> = attempts.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

#[cfg(test)]
mod tests {
    use http::{Method, StatusCode};

    use super::*;

    fn attempt(own: bool, status: u16) -> Attempt {
        let status = StatusCode::from_u16(status).unwrap();
        let failure = Failure::Status {
            method: Method::GET,
            url: "https://h/".into(),
            status,
            message: None,
            told: None,
        };
        Attempt { host: "h".into(), own, tries: 1, failure }
    }

    #[test]
    fn the_deciding_host_gives_the_class() {
        for (mirror, own, kind) in [
            (404, 503, Kind::NotFound),
            (503, 404, Kind::NotFound),
            (403, 503, Kind::Denied),
            (401, 404, Kind::NotFound),
            (404, 401, Kind::Unauthorized),
            (400, 503, Kind::Answer),
            (503, 503, Kind::Unavailable),
            (429, 400, Kind::RateLimited),
        ] {
            let attempts = vec![attempt(false, mirror), attempt(true, own)];
            let error = Error::Unserved { subject: "x".into(), attempts };
            assert_eq!(error.kind(), kind, "{mirror} {own}");
        }
    }

    #[test]
    fn every_host_is_listed_with_its_cause() {
        let attempts = vec![attempt(false, 404), Attempt { tries: 5, ..attempt(true, 503) }];
        assert_eq!(
            Error::Unserved { subject: "reg.test/a:1".into(), attempts }.to_string(),
            "reg.test/a:1: mirror h: GET https://h/: 404 Not Found; registry h: GET https://h/: 503 Service Unavailable (after 5 tries)"
        );
    }
}
