//! How a request becomes an allowed one: remembers what each host demands for each repository and proves the caller's
//! login accordingly. Nothing is proved before a host has asked for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use reqwest::Url;
use tokio::time::Instant;

use super::challenge::Challenge;
use super::credentials::Login;
use super::failure::{Failure, Refusal};
use super::kept::Kept;
use super::secret::Secret;
use super::token::{self, Order};
use super::wire::{Transport, Wire};

/// Bound on remembered demands. A node pulls from fewer repositories in its life; forgetting one costs a round trip.
const DEMANDS: usize = 1024;

/// How long a login that a host refused is not shown to it again, where there is another way: registries lock accounts
/// after some attempts, and one pull makes dozens of requests.
const REFUSAL_LIFETIME: Duration = Duration::from_secs(60);

/// A login's refusals are by host and repository.
type Refused = (String, String, Login);

/// The demands and tokens of the process.
pub(super) struct Access {
    wire: Arc<Wire>,
    tokens: Kept<Order, Secret>,
    /// Guards what each host and repository demands, so that only the first request to it is refused.
    demands: Mutex<HashMap<(String, String), Challenge>>,
    /// Guards which logins were refused of late, and how.
    refusals: Mutex<HashMap<Refused, (Failure, Instant)>>,
}

/// An `Authorization` header and where it is from.
pub(super) struct Proof {
    pub(super) header: HeaderValue,
    /// The token in it, when it came from the cache and may have died there.
    cached: Option<(Order, Secret)>,
}

impl Access {
    pub(super) fn new(wire: Arc<Wire>) -> Self {
        Self { wire, tokens: Kept::default(), demands: Mutex::default(), refusals: Mutex::default() }
    }

    /// What `host` demanded for `path` the last time.
    pub(super) fn demand(&self, host: &str, path: &str) -> Option<Challenge> {
        let demands = self.demands.lock().unwrap_or_else(PoisonError::into_inner);
        demands.get(&(host.to_owned(), path.to_owned())).cloned()
    }

    /// Remembers a demand.
    pub(super) fn remember(&self, host: &str, path: &str, challenge: Challenge) {
        let mut demands = self.demands.lock().unwrap_or_else(PoisonError::into_inner);
        if demands.len() >= DEMANDS {
            demands.clear();
        }
        demands.insert((host.to_owned(), path.to_owned()), challenge);
    }

    /// Forgets a demand that could not be met: the host may ask for something else by now.
    pub(super) fn forget(&self, host: &str, path: &str) {
        let mut demands = self.demands.lock().unwrap_or_else(PoisonError::into_inner);
        demands.remove(&(host.to_owned(), path.to_owned()));
    }

    /// How a host refused a login of late.
    pub(super) fn refusal(&self, host: &str, path: &str, login: &Login) -> Option<Failure> {
        let refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let (failure, until) = refusals.get(&(host.to_owned(), path.to_owned(), login.clone()))?;
        (*until > Instant::now()).then(|| failure.clone())
    }

    /// Remembers a refusal.
    pub(super) fn remember_refusal(&self, host: &str, path: &str, login: &Login, failure: &Failure) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        refusals.retain(|_, (_, until)| *until > now);
        let key = (host.to_owned(), path.to_owned(), login.clone());
        refusals.insert(key, (failure.clone(), now + REFUSAL_LIFETIME));
    }

    /// Proves `login` as the challenge wants it, by a token request if none is at hand. The refusal is for a login
    /// that does not fit the challenge. `reach` tells how to meet a token server, and with which headers.
    pub(super) async fn prove(
        &self,
        challenge: &Challenge,
        path: &str,
        login: &Login,
        reach: impl FnOnce(&Url) -> (Transport, HeaderMap),
    ) -> Result<Proof, Denial> {
        let (realm, service, scopes) = match (challenge, login) {
            (Challenge::Basic, Login::Password { .. }) => return plain(token::basic(login)),
            (Challenge::Basic, Login::Anonymous) => return Err(Denial::Refusal(Refusal::Required)),
            (Challenge::Basic, _) => return Err(Denial::Refusal(Refusal::PasswordRequired)),
            (Challenge::Bearer { .. }, Login::RegistryToken(secret)) => {
                return plain(token::authorization("Bearer", secret.expose()));
            }
            (Challenge::Bearer { realm, service, scopes }, _) => (realm, service, scopes),
        };
        let order = Order {
            realm: realm.clone(),
            service: service.clone(),
            scopes: pull_scopes(scopes.clone(), path),
            login: login.clone(),
        };
        let fetch = || {
            let (transport, headers) = reach(realm);
            order.clone().fetch(self.wire.clone(), transport, headers)
        };
        let issued = self.tokens.get(&order, fetch).await.map_err(Denial::Failure)?;
        let header =
            token::authorization("Bearer", issued.value.expose()).ok_or(Denial::Refusal(Refusal::NoToken))?;
        Ok(Proof { header, cached: issued.cached.then_some((order, issued.value)) })
    }

    /// Whether another proof is worth trying after a host refused this one: yes for a token out of the cache, which
    /// is dropped.
    pub(super) fn retract(&self, proof: &Proof) -> bool {
        if let Some((order, value)) = &proof.cached {
            self.tokens.drop_refused(order, value);
        }
        proof.cached.is_some()
    }
}

/// Why nothing could be proved.
pub(super) enum Denial {
    /// The login does not fit.
    Refusal(Refusal),
    /// The token server failed.
    Failure(Failure),
}

fn plain(header: Option<HeaderValue>) -> Result<Proof, Denial> {
    header.map(|header| Proof { header, cached: None }).ok_or(Denial::Refusal(Refusal::Credentials))
}

/// The scopes to order: those of the challenge, and the right to pull when the challenge names no repository. A
/// mirror may know the repository by another name, so its own word goes before ours.
fn pull_scopes(mut scopes: Vec<String>, path: &str) -> Vec<String> {
    if !scopes.iter().any(|scope| scope.starts_with("repository:")) {
        scopes.push(format!("repository:{path}:pull"));
    }
    scopes.sort();
    scopes.dedup();
    scopes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pull_scope_is_added_only_where_none_is_named() {
        let scopes = |given: &[&str]| pull_scopes(given.iter().map(|&scope| scope.into()).collect(), "a/b");
        assert_eq!(scopes(&[]), ["repository:a/b:pull"]);
        assert_eq!(scopes(&["z", "a", "z"]), ["a", "repository:a/b:pull", "z"]);
        assert_eq!(scopes(&["repository:proxy/a/b:pull"]), ["repository:proxy/a/b:pull"]);
    }
}
