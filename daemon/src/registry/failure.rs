//! How one host fails for one object. The texts name the host and the status, never a query, a user or a secret, and
//! quote the registry's own words within bounds.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use http::{Method, StatusCode};
use reqwest::Url;
use rustls::{AlertDescription, CertificateError};

use super::credential_helper::HelperError;
use super::error::Kind;
use super::retry;

/// What one host did instead of serving the object. Causes are texts, since concurrent callers share the failure of
/// one token request and the foreign errors cannot be cloned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No connection: name not found, refused or timed out.
    #[error("cannot connect to {url}: {cause}")]
    Unreachable {
        /// Redacted URL.
        url: String,
        /// The innermost causes.
        cause: String,
    },
    /// The proxy before the host does not let us through.
    #[error("no way to {url}: {}", refusal_of_proxy(*status))]
    Proxy {
        /// Redacted URL, and the proxy.
        url: String,
        /// What the proxy answers, if that can be told.
        status: Option<StatusCode>,
    },
    /// A connection to something that does not speak TLS, or not with us: it may want a client certificate.
    #[error("no TLS with {url}: {cause}")]
    NoTls {
        /// Redacted URL.
        url: String,
        /// What TLS found wrong.
        cause: String,
    },
    /// The host's certificate is not trusted.
    #[error("{url}: {cause}; {}", advice.text())]
    Untrusted {
        /// Redacted URL.
        url: String,
        /// What TLS found wrong.
        cause: String,
        /// What is to be done.
        advice: Advice,
    },
    /// Connected, but no answer came in time.
    #[error("{method} {url}: no answer within {} s", limit.as_secs_f32())]
    Silent {
        /// The request's method.
        method: Method,
        /// Redacted URL.
        url: String,
        /// How long it was waited.
        limit: Duration,
    },
    /// The connection broke in the middle of an answer.
    #[error("{method} {url}: connection broken: {cause}")]
    Broken {
        /// The request's method.
        method: Method,
        /// Redacted URL.
        url: String,
        /// The innermost causes.
        cause: String,
    },
    /// The body ended too early.
    #[error("{url}: the body ended {missing} bytes too early")]
    Truncated {
        /// Redacted URL.
        url: String,
        /// How many bytes were not sent.
        missing: u64,
    },
    /// The body stood still, or trickled.
    #[error("{url}: the body stood still")]
    Stalled {
        /// Redacted URL, or the host where it is not known.
        url: String,
    },
    /// The body has another length than the descriptor says.
    #[error("{url}: the descriptor says {stated} bytes, the host sends {sent}")]
    Size {
        /// Redacted URL.
        url: String,
        /// By the descriptor.
        stated: u64,
        /// As the host announces, or as far as it was read.
        sent: u64,
    },
    /// An HTTP status that is no success.
    #[error("{method} {url}: {status}{}{}", quote(message.as_deref()), asked(*told))]
    Status {
        /// The request's method.
        method: Method,
        /// Redacted URL.
        url: String,
        /// The status.
        status: StatusCode,
        /// The registry's own words.
        message: Option<String>,
        /// How long the host asks to be left alone.
        told: Option<Duration>,
    },
    /// The credentials, or their absence, were refused.
    #[error("{url}: {refusal}{}", quote(message.as_deref()))]
    Unauthorized {
        /// Redacted URL of the registry or of its token server.
        url: String,
        /// What exactly was refused.
        refusal: Refusal,
        /// The registry's own words.
        message: Option<String>,
    },
    /// An answer that cannot be used.
    #[error("{method} {url}: {reason}")]
    Unusable {
        /// The request's method.
        method: Method,
        /// Redacted URL.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A whole body that is not the object.
    #[error("{url}: the bytes do not match the digest{}", found(actual.as_deref()))]
    Corrupt {
        /// Redacted URL, or the host where there were several.
        url: String,
        /// Their digest, where it was computed.
        actual: Option<String>,
    },
    /// The node's credential helper gave no answer, so the host was not asked.
    #[error("the node's credentials for {host} cannot be had: {cause}")]
    Helper {
        /// The host.
        host: String,
        /// What the helper did.
        cause: HelperError,
    },
}

/// Why a request stays unauthorized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Anonymous access was tried.
    #[error("credentials are required and none were given for this host (add an image pull secret)")]
    Required,
    /// Credentials were tried.
    #[error("the credentials were refused (correct the image pull secret)")]
    Credentials,
    /// The host wants user and password, and a token is what there is.
    #[error("user and password are required, but the credentials are a token")]
    PasswordRequired,
    /// There is no challenge that can be answered.
    #[error("unauthorized, and the host asks for neither bearer nor basic authentication")]
    NoChallenge,
    /// The token server's answer holds no token.
    #[error("the token server's answer holds no token")]
    NoToken,
}

/// What helps against a certificate that is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Its authority is to be configured.
    Configure,
    /// Another authority than those that are configured.
    Reconfigure,
    /// Another time.
    Renew,
    /// Another name.
    Rename,
}

impl Advice {
    /// `configured` is whether authorities are.
    fn on(error: &CertificateError, configured: bool) -> Self {
        match error {
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => Self::Renew,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::Rename
            }
            _ if configured => Self::Reconfigure,
            _ => Self::Configure,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Configure => {
                "if this host is to be trusted, set `ca` (or `skip_verify`) for it in its hosts.toml"
            }
            Self::Reconfigure => {
                "neither the system's authorities nor those configured for this host (`ca`) vouch for it"
            }
            Self::Renew => "the host needs a valid certificate, or this node's clock is wrong",
            Self::Rename => "the host needs a certificate that names it in its subjectAltName",
        }
    }
}

impl Failure {
    /// Its class.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Unreachable { .. }
            | Self::Proxy { .. }
            | Self::NoTls { .. }
            | Self::Untrusted { .. }
            | Self::Silent { .. }
            | Self::Broken { .. }
            | Self::Truncated { .. }
            | Self::Stalled { .. } => Kind::Unavailable,
            Self::Status { status, .. } => status_kind(*status),
            Self::Unauthorized { .. } => Kind::Unauthorized,
            Self::Size { .. } => Kind::Size,
            Self::Unusable { .. } => Kind::Answer,
            Self::Corrupt { .. } => Kind::Corrupt,
            Self::Helper { cause, .. } if cause.is_transient() => Kind::Unavailable,
            Self::Helper { .. } => Kind::Configuration,
        }
    }

    /// Whether the same request may succeed in a moment.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Untrusted { .. } | Self::NoTls { .. } => false,
            Self::Proxy { .. } => retry::is_worth_it(self),
            _ => matches!(self.kind(), Kind::Unavailable | Kind::RateLimited),
        }
    }

    /// How long the host asks to be left alone, if it does.
    pub(super) fn told(&self) -> Option<Duration> {
        match self {
            Self::Status { told, .. } => *told,
            _ => None,
        }
    }

    /// Whether no request reached the host, so that no other request will.
    pub(super) fn is_unreachable(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. } | Self::Proxy { .. } | Self::NoTls { .. } | Self::Untrusted { .. }
        )
    }

    /// Whether it may come of asking for a range.
    pub(super) fn may_be_for_ranges(&self) -> bool {
        match self {
            Self::Silent { .. }
            | Self::Broken { .. }
            | Self::Truncated { .. }
            | Self::Stalled { .. }
            | Self::Size { .. }
            | Self::Unusable { .. } => true,
            Self::Status { status, .. } => *status != StatusCode::TOO_MANY_REQUESTS,
            Self::Unreachable { .. }
            | Self::Proxy { .. }
            | Self::NoTls { .. }
            | Self::Untrusted { .. }
            | Self::Unauthorized { .. }
            | Self::Corrupt { .. }
            | Self::Helper { .. } => false,
        }
    }

    /// Whether the host gave no sign of life.
    pub(super) fn is_absence(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Silent { .. })
    }

    pub(super) fn unusable(method: &Method, url: &Url, reason: impl Into<String>) -> Self {
        Self::Unusable { method: method.clone(), url: redacted(url), reason: reason.into() }
    }

    /// Reads an error of the HTTP library. Its URL is left out, since that may hold a signed query; `url` is redacted.
    /// `configured` is whether there are authorities for the host beside the system's.
    pub(super) fn of_transport(
        method: &Method,
        url: String,
        error: reqwest::Error,
        configured: bool,
    ) -> Self {
        let connecting = error.is_connect();
        let error = error.without_url();
        let cause = innermost(&error);
        match of_tls(&error) {
            _ if connecting && cause.ends_with(NO_TUNNEL) => Self::Proxy { url, status: None },
            _ if connecting && cause.ends_with(NO_TUNNEL_WITHOUT_LOGIN) => {
                Self::Proxy { url, status: Some(StatusCode::PROXY_AUTHENTICATION_REQUIRED) }
            }
            Some(rustls::Error::InvalidCertificate(error)) => {
                Self::Untrusted { url, cause, advice: Advice::on(error, configured) }
            }
            Some(_) if connecting => Self::NoTls { url, cause },
            // What breaks later breaks by chance, but for our certificate: hosts refuse that after the handshake.
            _ if is_about_our_certificate(&cause) => Self::NoTls { url, cause },
            _ if connecting => Self::Unreachable { url, cause },
            _ => Self::Broken { method: method.clone(), url, cause },
        }
    }
}

fn status_kind(status: StatusCode) -> Kind {
    match status {
        StatusCode::UNAUTHORIZED => Kind::Unauthorized,
        StatusCode::FORBIDDEN => Kind::Denied,
        StatusCode::NOT_FOUND | StatusCode::GONE => Kind::NotFound,
        StatusCode::TOO_MANY_REQUESTS => Kind::RateLimited,
        StatusCode::REQUEST_TIMEOUT => Kind::Unavailable,
        status if status.is_server_error() => Kind::Unavailable,
        _ => Kind::Answer,
    }
}

/// What the HTTP library says when a proxy answers a request for a tunnel with 407, and with another status but 200.
const NO_TUNNEL_WITHOUT_LOGIN: &str = "tunnel error: proxy authorization required";
const NO_TUNNEL: &str = "tunnel error: unsuccessful";

/// Scheme, host, port and path: what a reader needs, without the user, the query and the fragment, where secrets are.
pub(super) fn redacted(url: &Url) -> String {
    format!("{}{}", url.origin().ascii_serialization(), url.path())
}

/// The last two causes of a chain: the outer ones of the HTTP library only say that something failed.
pub(super) fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut last = error.to_string();
    let mut text = last.clone();
    let mut cause = error.source();
    while let Some(error) = cause {
        let this = error.to_string();
        // Some errors print their source themselves, and the library's own layers say nothing at all.
        let empty = last.contains(&this) || last.starts_with("client error");
        text = if empty { this.clone() } else { format!("{last}: {this}") };
        last = this;
        cause = error.source();
    }
    text
}

/// The TLS library's error in a chain. Errors of the system wrap others without counting them among their sources.
fn of_tls<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    let inner = match error.downcast_ref::<io::Error>() {
        Some(error) => error.get_ref().map(|inner| inner as &'a (dyn StdError + 'static)),
        None => error.source(),
    };
    error.downcast_ref().or_else(|| of_tls(inner?))
}

/// What a host says of a client certificate that it does not take.
const CERTIFICATE_ALERTS: [AlertDescription; 8] = [
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
    AlertDescription::CertificateRequired,
];

/// Whether a cause is such an alert. Told by its text, which is all that the HTTP/2 library keeps of it.
fn is_about_our_certificate(cause: &str) -> bool {
    let text = |alert| rustls::Error::AlertReceived(alert).to_string();
    CERTIFICATE_ALERTS.into_iter().any(|alert| cause.ends_with(&text(alert)))
}

fn refusal_of_proxy(status: Option<StatusCode>) -> String {
    match status {
        Some(StatusCode::PROXY_AUTHENTICATION_REQUIRED) => {
            "the proxy wants user and password, or refuses those in its URL (407)".into()
        }
        Some(status) => format!("the proxy answers {status}"),
        None => "the proxy refuses".into(),
    }
}

fn asked(told: Option<Duration>) -> String {
    told.map(|told| format!(" (it asks for {} s of rest)", told.as_secs())).unwrap_or_default()
}

fn found(actual: Option<&str>) -> String {
    actual.map(|actual| format!(": they are {actual}")).unwrap_or_default()
}

fn quote(message: Option<&str>) -> String {
    message.map(|message| format!(": \"{message}\"")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redacted_url_keeps_no_user_query_or_fragment() {
        let url = "https://user:canary@reg.test:5000/v2/a/blobs/x?sig=canary#canary".parse().unwrap();
        assert_eq!(redacted(&url), "https://reg.test:5000/v2/a/blobs/x");
    }

    #[test]
    fn an_alert_about_our_certificate_is_told_from_one_by_chance() {
        for (cause, about) in [
            ("received fatal alert: CertificateRequired", true),
            ("connection error: received fatal alert: BadCertificate", true),
            ("connection error: received fatal alert: InternalError", false),
            ("connection reset by peer", false),
        ] {
            assert_eq!(is_about_our_certificate(cause), about, "{cause}");
        }
    }

    #[test]
    fn every_status_has_its_class() {
        for (status, kind) in [
            (401, Kind::Unauthorized),
            (403, Kind::Denied),
            (404, Kind::NotFound),
            (429, Kind::RateLimited),
            (500, Kind::Unavailable),
            (503, Kind::Unavailable),
            (302, Kind::Answer),
            (400, Kind::Answer),
        ] {
            assert_eq!(status_kind(StatusCode::from_u16(status).unwrap()), kind, "{status}");
        }
    }
}
