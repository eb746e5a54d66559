//! The registries outside: resolves names and opens blobs over HTTP, through mirrors, with credentials. The only house
//! that speaks HTTP and TLS. It moves bytes and checks no blob's digest; it retries nothing but what authentication
//! and ranges need.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::oci::Descriptor;

mod access;
mod blob;
mod challenge;
mod check;
mod credential_helper;
mod credentials;
mod credentials_file;
mod error;
mod failure;
mod foreign;
#[doc(hidden)]
pub mod fuzz;
mod hosts;
mod hosts_toml;
mod kept;
mod logins;
mod message;
mod proxies;
mod range;
mod redirected;
mod resolve;
mod secret;
mod session;
#[cfg(test)]
mod tests;
mod tls;
mod token;
mod wire;

pub use blob::Blob;
pub use check::{Report, check};
pub use credential_helper::HelperError;
pub use credentials::{Credentials, CredentialsError, Given};
pub use credentials_file::CredentialsFileError;
pub use error::{Attempt, Error, Kind};
pub use failure::{Failure, Refusal};
pub use hosts_toml::HostsError;
pub use proxies::ProxyError;
pub use resolve::Resolved;
pub use tls::TlsError;

use access::Access;
use credentials_file::CredentialsFile;
use hosts::Host;
use logins::Logins;
use proxies::Proxies;
use session::{Schemes, Session};
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
    /// Environment variables that matter here; what is not set is not there.
    pub environment: Environment,
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
    /// Where mirrors are configured; read anew by each call.
    config_path: Vec<PathBuf>,
    /// Connections.
    wire: Arc<Wire>,
    /// Tokens and demands.
    access: Access,
    /// Which login goes where.
    logins: Logins,
    /// Which local hosts speak TLS.
    schemes: Schemes,
}

impl Registry {
    /// A registry house with nothing learned yet.
    pub fn new(config: Config) -> Result<Self, Error> {
        let proxies = Proxies::read(|name| config.environment.text(name)).map_err(Error::Proxy)?;
        let wire = Arc::new(Wire::new(config.user_agent, proxies));
        wire.check().map_err(Error::Client)?;
        let access = Access::new(wire.clone());
        let programs = config.environment.0.get("PATH").cloned().unwrap_or_default();
        let logins = Logins::new(
            config.credentials_file,
            programs,
            &config.trusted_mirrors,
            config.anonymous_fallback,
        );
        Ok(Self { config_path: config.config_path, wire, access, logins, schemes: Schemes::default() })
    }

    /// Finds what a tag or digest of a repository points to, on the first host that knows.
    pub async fn resolve(
        &self,
        repository: &Repository,
        object: &str,
        credentials: &Credentials,
    ) -> Result<Resolved, Error> {
        let by_digest = object.contains(':');
        let subject = format!("{repository}{}{object}", if by_digest { '@' } else { ':' });
        let node = self.logins.of_node().await.map_err(Error::Credentials)?;
        let mut attempts = Vec::new();
        for host in self.hosts(repository).await?.iter().filter(|host| serves(host, by_digest)) {
            let resolving = async {
                let session = self.session(host, repository, credentials, &node).await?;
                resolve::resolve(&session, object).await
            };
            match resolving.await {
                Ok(resolved) => return Ok(served(resolved, &attempts)),
                Err(failure) => attempts.push(attempt(host, failure)),
            }
        }
        Err(given_up(subject, attempts))
    }

    /// Opens a blob or manifest for reading from `offset`, on the first host that serves it; a foreign layer that none
    /// has, at its own addresses.
    pub async fn open(
        &self,
        repository: &Repository,
        descriptor: &Descriptor,
        offset: u64,
        credentials: &Credentials,
    ) -> Result<Blob, Error> {
        let subject = format!("{repository}@{}", descriptor.digest);
        let node = self.logins.of_node().await.map_err(Error::Credentials)?;
        let mut attempts = Vec::new();
        for host in self.hosts(repository).await?.iter().filter(|host| host.capabilities.pull) {
            let opening = async {
                let session = self.session(host, repository, credentials, &node).await?;
                blob::open(&session, descriptor, offset, subject.clone()).await
            };
            match opening.await {
                Ok(blob) => return Ok(served(blob, &attempts)),
                Err(failure) => attempts.push(attempt(host, failure)),
            }
        }
        let foreign = !descriptor.urls.is_empty() && error::kind_of(&attempts) == Some(Kind::NotFound);
        if foreign
            && let Some(blob) = foreign::open(&self.wire, descriptor, offset, &subject, &mut attempts).await
        {
            return Ok(served(blob, &attempts));
        }
        Err(given_up(subject, attempts))
    }

    async fn hosts(&self, repository: &Repository) -> Result<Vec<Host>, Error> {
        let (config_path, domain) = (self.config_path.clone(), repository.domain.clone());
        let load = move || hosts::load(&config_path, &domain);
        let hosts = tokio::task::spawn_blocking(load).await.expect("reading the hosts' files does not panic");
        hosts.map_err(Error::Configuration)
    }

    async fn session<'a>(
        &'a self,
        host: &'a Host,
        repository: &'a Repository,
        credentials: &Credentials,
        node: &'a CredentialsFile,
    ) -> Result<Session<'a>, Failure> {
        let chosen = self.logins.choose(host, repository, credentials, node).await?;
        Ok(Session {
            wire: &self.wire,
            access: &self.access,
            schemes: &self.schemes,
            logins: &self.logins,
            node,
            host,
            path: &repository.path,
            login: chosen.login,
            fallback: chosen.fallback,
        })
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

/// Whether a host may be asked what a tag or a digest is; a digest needs no trust in it.
fn serves(host: &Host, by_digest: bool) -> bool {
    host.capabilities.pull && (host.capabilities.resolve || by_digest)
}

fn attempt(host: &Host, failure: Failure) -> Attempt {
    Attempt { host: host.authority.clone(), own: host.own, failure }
}

/// What a host served; those before it failed, which no error tells then.
fn served<T>(object: T, attempts: &[Attempt]) -> T {
    for attempt in attempts {
        tracing::debug!(%attempt, "host passed over");
    }
    object
}

fn given_up(subject: String, attempts: Vec<Attempt>) -> Error {
    if attempts.is_empty() { Error::NoHost { subject } } else { Error::Unserved { subject, attempts } }
}
