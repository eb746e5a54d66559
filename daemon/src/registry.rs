//! The registries outside: resolves names and opens blobs over HTTP, through mirrors, with credentials. The only house
//! that speaks HTTP and TLS. It asks the next host where one fails and the same one again where that may help, and
//! goes on where a body broke; it hashes documents, and leaves layers to whoever stores them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::metrics::Metrics;
use crate::oci::digest::Hasher;
use crate::oci::{Descriptor, Digest};
use crate::priority::Priority;

mod accepted;
mod access;
mod asked;
mod blob;
mod challenge;
mod check;
mod client_certificates;
mod credential_helper;
mod credentials;
mod credentials_file;
mod dial;
mod error;
mod failure;
mod file_text;
mod foreign;
#[doc(hidden)]
pub mod fuzz;
mod handshake;
mod hosts;
mod hosts_toml;
mod kept;
mod logins;
mod message;
mod pem;
mod proxies;
mod range;
mod rate;
mod redaction;
mod redirected;
mod requests;
mod resolve;
mod retry;
mod retry_after;
mod search;
mod secret;
mod session;
mod spare;
mod standing;
mod stream;
#[cfg(test)]
mod tests;
mod tls;
mod token;
mod tunnel;
mod wire;

pub use asked::{Asked, Origin};
pub use check::{Report, check};
pub use credential_helper::HelperError;
pub use credentials::{Credentials, CredentialsError, Given};
pub use credentials_file::CredentialsFileError;
pub use error::{Attempt, Error, Kind};
pub use failure::{Failure, Refusal};
pub use hosts_toml::HostsError;
pub use proxies::ProxyError;
pub use requests::{Open, Requests};
pub use resolve::Resolved;
pub use stream::Stream;
pub use tls::TlsError;
pub use wire::ClientError;

use accepted::Accepted;
use access::Access;
use credentials_file::CredentialsFile;
use hosts::Host;
use logins::{Chosen, Logins};
use proxies::Proxies;
use rate::Rate;
use search::Search;
use session::{Schemes, Session};
use spare::Spare;
use standing::Standing;
use wire::Wire;

/// The settings of this house.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directories with one directory per registry (`hosts.toml`, certificates), first match wins.
    pub config_path: Vec<PathBuf>,
    /// The node's own credentials in the form of Docker's `config.json`, for pulls that bring none.
    pub credentials_file: Option<PathBuf>,
    /// Mirrors, `host[:port]`, that get the caller's credentials as the registry itself does.
    pub trusted_mirrors: Vec<String>,
    /// Whether a host that refuses the caller's credentials is asked once more without any.
    pub anonymous_fallback: bool,
    /// The `User-Agent` of every request.
    pub user_agent: String,
    /// How long a host that is connected to may take for the headers of an answer.
    pub response_timeout: Duration,
    /// How long a body may stand still before it is asked for elsewhere. Less than what the pull as a whole allows,
    /// or there is no time left for that.
    pub stall_timeout: Duration,
    /// Connections for one large blob, 1 for no more than one.
    pub parallel_ranges: usize,
    /// Bytes that each of them is asked for at once.
    pub range_size: u64,
    /// Bytes per second of all bodies together; `None` is no limit.
    pub download_rate: Option<u64>,
    /// Environment variables that matter here; what is not set is not there.
    pub environment: Environment,
    /// Where what happens here is counted.
    pub metrics: Arc<Metrics>,
}

/// What is read of the environment, as a value, so that tests can have their own. `Debug` shows the names only: a
/// proxy's URL may hold a password.
#[derive(Clone, Default)]
pub struct Environment(pub BTreeMap<String, OsString>);

impl Environment {
    /// That of this process, as far as it matters here.
    pub fn of_process() -> Self {
        let names =
            ["PATH", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"];
        Self(names.iter().filter_map(|&name| Some((name.to_owned(), std::env::var_os(name)?))).collect())
    }

    fn text(&self, name: &str) -> Option<String> {
        self.0.get(name)?.to_str().map(String::from)
    }
}

/// A repository in a registry, as a reference names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Repository {
    /// The registry, `docker.io` or `host[:port]`.
    pub domain: String,
    /// The repository in it, `library/busybox`.
    pub path: String,
}

/// All registries, for all pulls of the process: they share connections, tokens and what was learned about hosts.
pub struct Registry {
    shared: Arc<Shared>,
    /// Where this one's requests are counted.
    requests: Requests,
    /// How urgent they are.
    priority: Priority,
}

/// What all pulls share.
pub struct Shared {
    /// Where mirrors are configured; read anew by each call.
    config_path: Vec<PathBuf>,
    /// Connections.
    wire: Arc<Wire>,
    /// Tokens and demands.
    access: Access,
    /// Who was shown what.
    accepted: Accepted,
    /// Which login goes where.
    logins: Logins,
    /// Which local hosts speak TLS.
    schemes: Schemes,
    /// Counts what happens.
    metrics: Arc<Metrics>,
    /// How hosts have done so far.
    standing: Standing,
    /// How long a body may stand still.
    stall_timeout: Duration,
    parallel_ranges: usize,
    range_size: u64,
    /// Connections beside the first one of each blob: so many ranges are in memory at most.
    spare: Arc<Spare>,
    /// The limit on all bodies.
    rate: Arc<Rate>,
}

impl Registry {
    /// A registry house with nothing learned yet.
    pub fn new(config: Config) -> Result<Self, Error> {
        let proxies = Proxies::read(|name| config.environment.text(name)).map_err(Error::Proxy)?;
        let metrics = Arc::clone(&config.metrics);
        let wire = Arc::new(Wire::new(config.user_agent, proxies, config.response_timeout, metrics));
        wire.check().map_err(Error::Client)?;
        let access = Access::new(wire.clone());
        let programs = config.environment.0.get("PATH").cloned().unwrap_or_default();
        let logins = Logins::new(
            config.credentials_file,
            programs,
            &config.trusted_mirrors,
            config.anonymous_fallback,
        );
        let shared = Shared {
            config_path: config.config_path,
            wire,
            access,
            accepted: Accepted::default(),
            logins,
            schemes: Schemes::default(),
            metrics: config.metrics,
            standing: Standing::default(),
            stall_timeout: config.stall_timeout,
            parallel_ranges: config.parallel_ranges,
            range_size: config.range_size,
            spare: Spare::new(config.parallel_ranges),
            rate: Arc::new(Rate::new(config.download_rate)),
        };
        Ok(Self { shared: Arc::new(shared), requests: Requests::default(), priority: Priority::default() })
    }

    /// The same for one pull, whose requests are counted on their own.
    #[must_use]
    pub fn counting(&self, requests: &Requests) -> Self {
        Self { shared: Arc::clone(&self.shared), requests: requests.clone(), priority: self.priority.clone() }
    }

    /// The same for one pull, whose bodies have the share of its priority.
    #[must_use]
    pub fn urgent(self, priority: &Priority) -> Self {
        Self { priority: priority.clone(), ..self }
    }

    /// Finds what a tag or digest of a repository points to, on the first host that knows. A digest that only a
    /// header tells is a claim: [`Self::document`] and [`Self::stream`] fetch by it, and bytes that do not match are
    /// refused, so that nothing is ever recorded under it.
    pub async fn resolve(
        &self,
        repository: &Repository,
        object: &str,
        credentials: &Credentials,
    ) -> Result<Resolved, Error> {
        self.resolved(repository, object, credentials, true).await
    }

    /// The same by the manifest's own bytes, for a target that turned out not to be what a header told of it.
    pub async fn resolve_by_body(
        &self,
        repository: &Repository,
        object: &str,
        credentials: &Credentials,
    ) -> Result<Resolved, Error> {
        self.resolved(repository, object, credentials, false).await
    }

    async fn resolved(
        &self,
        repository: &Repository,
        object: &str,
        credentials: &Credentials,
        by_headers: bool,
    ) -> Result<Resolved, Error> {
        let by_digest = object.contains(':');
        // A digest needs no trust in the host.
        let fits = |host: &Host| host.capabilities.resolve || by_digest;
        let mut search = Search::begin(self, repository, credentials, fits).await?;
        while let Some(session) = search.next().await {
            let open = self.requests.open();
            let resolved = if by_headers {
                resolve::resolve(&session, object).await
            } else {
                resolve::resolve_by_body(&session, object).await
            };
            drop(open);
            match resolved {
                Ok(resolved) => {
                    let read = resolved.body.as_ref().map_or(0, |body| body.len() as u64);
                    self.metrics.received_from(search.host().unwrap_or_default()).inc_by(read);
                    self.accepted.remember(repository, &resolved.target.digest, credentials, search.node());
                    search.served();
                    return Ok(resolved);
                }
                Err(failure) => search.failed(failure),
            }
        }
        let error = search.given_up(format!("{repository}{}{object}", if by_digest { '@' } else { ':' }));
        if matches!(error.kind(), Kind::Unauthorized | Kind::Denied) {
            self.accepted.forget(repository, credentials, search.node());
        }
        Err(error)
    }

    /// Whether [`Self::resolve`] has led to this manifest before in the name of the same credentials, the node's being
    /// as they were. Asks nobody: what the repository's hosts would say now may be another thing.
    pub async fn has_shown(
        &self,
        repository: &Repository,
        manifest: &Digest,
        credentials: &Credentials,
    ) -> Result<bool, Error> {
        let node = self.logins.of_node().await.map_err(Error::Credentials)?;
        Ok(self.accepted.knows(repository, manifest, credentials, &node))
    }

    /// A blob or manifest from `offset` on, from whichever hosts serve it. Nothing is asked before the first call to
    /// [`Stream::next`].
    pub fn stream<'a>(
        &'a self,
        repository: &'a Repository,
        descriptor: &'a Descriptor,
        offset: u64,
        credentials: &'a Credentials,
    ) -> Stream<'a> {
        Stream::new(self, repository, descriptor, offset, credentials)
    }

    /// The bytes of a manifest, index or config, proved by its digest. They are held in memory: whether its size is
    /// acceptable is for the caller to say first.
    pub async fn document(
        &self,
        repository: &Repository,
        descriptor: &Descriptor,
        credentials: &Credentials,
    ) -> Result<Bytes, Error> {
        let mut stream = self.stream(repository, descriptor, 0, credentials);
        loop {
            let mut bytes = Vec::new();
            while let Some(part) = stream.next().await? {
                bytes.extend_from_slice(&part);
            }
            let mut hasher = Hasher::new(descriptor.digest.algorithm());
            hasher.update(&bytes);
            let actual = hasher.finish();
            if actual == descriptor.digest {
                return Ok(bytes.into());
            }
            stream.refuse(Some(actual.as_str()));
        }
    }

    /// The hosts of a repository in the configured order.
    async fn hosts(&self, repository: &Repository) -> Result<Vec<Host>, Error> {
        let (config_path, domain) = (self.config_path.clone(), repository.domain.clone());
        let load = move || hosts::load(&config_path, &domain);
        let hosts = tokio::task::spawn_blocking(load).await.expect("reading the hosts' files does not panic");
        hosts.map_err(Error::Configuration)
    }

    fn session<'a>(
        &'a self,
        host: &'a Host,
        repository: &'a Repository,
        node: &'a CredentialsFile,
        chosen: Chosen,
    ) -> Session<'a> {
        Session {
            wire: &self.wire,
            access: &self.access,
            schemes: &self.schemes,
            standing: &self.standing,
            logins: &self.logins,
            node,
            host,
            path: &repository.path,
            login: chosen.login,
            fallback: chosen.fallback,
        }
    }
}

impl Deref for Registry {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.path)
    }
}
