//! Requests to one host for one repository in one caller's name: the URL, the scheme that works, and the answer to a
//! 401. Gives back answers of every other status; what they mean is the caller's to say.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use http::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, RANGE};
use http::{Method, StatusCode};
use reqwest::Url;

use super::access::{Access, Denial, Proof};
use super::challenge::{self, Challenge};
use super::credentials::Login;
use super::credentials_file::CredentialsFile;
use super::failure::{Failure, Refusal, redacted};
use super::hosts::{Host, Scheme, split_port};
use super::logins::Logins;
use super::message::message_of;
use super::standing::Standing;
use super::wire::{Answer, Request, Role, Transport, Wire};

/// Largest error body read, as in containerd; the quotation is far shorter.
const REFUSAL_LIMIT: usize = 64 << 10;
/// Requests for one answer: bare or with a cached token, with that token renewed, and once more should the host have
/// changed its demand in between.
const TRIES: usize = 3;

/// Which hosts of unknown scheme speak TLS (`true`), as found out last.
#[derive(Default)]
pub(super) struct Schemes(
    /// Guards the findings by host, so that each is made once in the process.
    Mutex<HashMap<String, bool>>,
);

/// One host, one repository, one login.
pub(super) struct Session<'a> {
    pub(super) wire: &'a Wire,
    pub(super) access: &'a Access,
    pub(super) schemes: &'a Schemes,
    pub(super) standing: &'a Standing,
    /// For the targets of redirects.
    pub(super) logins: &'a Logins,
    pub(super) node: &'a CredentialsFile,
    pub(super) host: &'a Host,
    pub(super) path: &'a str,
    pub(super) login: Login,
    /// Whether the host is asked anonymously should it refuse the login.
    pub(super) fallback: bool,
}

/// What is asked of a host.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) method: &'a Method,
    /// `manifests` or `blobs`.
    pub(super) collection: &'a str,
    /// Tag or digest.
    pub(super) object: &'a str,
    pub(super) accept: &'a str,
    /// The first byte wanted.
    pub(super) offset: u64,
    /// The one behind the last that is wanted, unless all are.
    pub(super) end: Option<u64>,
    pub(super) role: Role,
}

impl Session<'_> {
    /// Sends the request as the caller, and where that is wished once more as nobody, should the caller be refused.
    pub(super) async fn send(&self, ask: Ask<'_>) -> Result<Answer, Failure> {
        if !self.fallback {
            return self.send_as_told(ask).await;
        }
        let host = &self.host.authority;
        let refusal = match self.access.refusal(host, self.path, &self.login) {
            Some(refusal) => refusal,
            None => match self.send_as_told(ask).await {
                Err(refusal @ Failure::Unauthorized { refusal: Refusal::Credentials, .. }) => {
                    tracing::warn!(host, "the pull's credentials were refused; asking without any");
                    self.access.remember_refusal(host, self.path, &self.login, &refusal);
                    refusal
                }
                other => return other,
            },
        };
        let anonymous = Session { login: Login::Anonymous, fallback: false, ..*self };
        match anonymous.send_as_told(ask).await {
            // What is to be mended is the credentials.
            Err(Failure::Unauthorized { .. }) => Err(refusal),
            other => other,
        }
    }

    /// Sends the request, with what the host is known to demand, and answers its challenge if it makes one.
    async fn send_as_told(&self, ask: Ask<'_>) -> Result<Answer, Failure> {
        let (host, path) = (&self.host.authority, self.path);
        let mut demand = self.access.demand(host, path);
        let mut refused = None;
        for _ in 0..TRIES {
            let proof = match &demand {
                Some(challenge) => self.prove(challenge, &mut refused).await?,
                None => None,
            };
            let answer = self.exchange(ask, proof.as_ref().map(|proof| &proof.header)).await?;
            if answer.response.status() != StatusCode::UNAUTHORIZED {
                return Ok(answer);
            }
            if !answer.from_origin {
                return self.prove_elsewhere(ask, answer).await;
            }
            let Some(challenge) = challenge::choose(answer.response.headers()) else {
                return Err(self.unauthorized(Some(answer), Refusal::NoChallenge).await);
            };
            refused = Some(answer);
            self.access.remember(host, path, challenge.clone());
            let renewable = proof.as_ref().is_none_or(|proof| self.access.retract(proof));
            // A proof just made was refused: only another demand is worth another one.
            if !renewable && demand.as_ref() == Some(&challenge) {
                break;
            }
            demand = Some(challenge);
        }
        let refusal = if self.login == Login::Anonymous { Refusal::Required } else { Refusal::Credentials };
        Err(self.unauthorized(refused, refusal).await)
    }

    /// The proof that a challenge wants. `refused` is the answer that carried it; a challenge without one is
    /// remembered from earlier and may be out of date, so it is forgotten when it cannot be met, and where the login
    /// does not even fit, the host is asked again without a proof.
    async fn prove(
        &self,
        challenge: &Challenge,
        refused: &mut Option<Answer>,
    ) -> Result<Option<Proof>, Failure> {
        let path = self.path;
        let reach = |realm: &Url| self.realm_reach(realm);
        let denial = match self.access.prove(challenge, path, &self.login, reach).await {
            Ok(proof) => return Ok(Some(proof)),
            Err(denial) => denial,
        };
        self.access.forget(&self.host.authority, path);
        match denial {
            Denial::Failure(failure) => Err(failure),
            Denial::Refusal(_) if refused.is_none() => Ok(None),
            Denial::Refusal(refusal) => Err(self.unauthorized(refused.take(), refusal).await),
        }
    }

    /// The failure that an answer's status stands for, with the registry's own words.
    pub(super) async fn refusal(&self, mut answer: Answer) -> Failure {
        Failure::Status {
            message: self.message(&mut answer).await,
            method: answer.method.clone(),
            url: redacted(&answer.url),
            status: answer.response.status(),
            told: answer.told(),
        }
    }

    async fn unauthorized(&self, answer: Option<Answer>, refusal: Refusal) -> Failure {
        match answer {
            Some(mut answer) => {
                let message = self.message(&mut answer).await;
                Failure::Unauthorized { url: redacted(&answer.url), refusal, message }
            }
            None => Failure::Unauthorized { url: self.host.authority.clone(), refusal, message: None },
        }
    }

    async fn message(&self, answer: &mut Answer) -> Option<String> {
        let body = answer.document(REFUSAL_LIMIT).await.ok()?;
        message_of(&body, |message| answer.scrub(&self.login, message))
    }

    /// One request, by the scheme the host speaks.
    async fn exchange(&self, ask: Ask<'_>, authorization: Option<&HeaderValue>) -> Result<Answer, Failure> {
        let send = async |tls: bool| self.wire.send(self.request(ask, tls, authorization)?).await;
        match self.host.scheme {
            Scheme::Http => send(false).await,
            Scheme::Https => send(true).await,
            Scheme::Either => {
                let first = self.schemes.get(&self.host.authority).unwrap_or(true);
                let answer = send(first).await;
                if !self.speaks_otherwise(first, &answer) {
                    self.schemes.set(&self.host.authority, first);
                    return answer;
                }
                match send(!first).await {
                    // Neither works: the first is what is expected of the host, so its failure says more.
                    Err(failure) if failure.is_unreachable() => answer,
                    other => {
                        self.schemes.set(&self.host.authority, !first);
                        other
                    }
                }
            }
        }
    }

    /// Whether an answer looks like that of a host that speaks the other scheme. A certificate that is refused is no
    /// such sign: falling back to plain HTTP then would undo the check.
    fn speaks_otherwise(&self, tls: bool, answer: &Result<Answer, Failure>) -> bool {
        let scheme = if tls { "https" } else { "http" };
        let own = Url::parse(&format!("{scheme}://{}/", self.host.authority)).map(|url| redacted(&url));
        // A redirect may have led elsewhere; what fails there says nothing about this host.
        let at_host = |url: &str| own.as_ref().is_ok_and(|own| url.starts_with(own));
        match answer {
            Err(
                Failure::Unreachable { url, .. } | Failure::Proxy { url, .. } | Failure::NoTls { url, .. },
            ) => at_host(url),
            // It may wait for the rest of what is no request to it.
            Err(Failure::Silent { url, .. }) => tls && at_host(url),
            Err(Failure::Broken { url, .. }) => !tls && at_host(url),
            // What servers with TLS say to a plain request.
            Ok(answer) => !tls && answer.response.status() == StatusCode::BAD_REQUEST,
            Err(_) => false,
        }
    }

    fn request(
        &self,
        ask: Ask<'_>,
        tls: bool,
        authorization: Option<&HeaderValue>,
    ) -> Result<Request, Failure> {
        let headers = Self::headers(ask);
        let mut origin_headers = self.host.headers.clone();
        if let Some(authorization) = authorization {
            origin_headers.insert(AUTHORIZATION, authorization.clone());
        }
        let transport =
            Transport { tls: self.host.tls.clone(), dial_timeout: self.host.dial_timeout, role: ask.role };
        let url = self.url(ask, tls)?;
        Ok(Request { method: ask.method.clone(), url, headers, origin_headers, body: None, transport })
    }

    /// What goes to every host that a request is led to.
    pub(super) fn headers(ask: Ask<'_>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Ok(accept) = HeaderValue::from_str(ask.accept) {
            headers.insert(ACCEPT, accept);
        }
        // Some registries refuse any range, so the first request has none.
        let last = ask.end.map(|end| end.saturating_sub(1).to_string()).unwrap_or_default();
        if (ask.offset > 0 || ask.end.is_some())
            && let Ok(range) = HeaderValue::from_str(&format!("bytes={}-{last}", ask.offset))
        {
            headers.insert(RANGE, range);
        }
        headers
    }

    fn url(&self, ask: Ask<'_>, tls: bool) -> Result<Url, Failure> {
        let Host { authority, root, namespace, .. } = self.host;
        let scheme = if tls { "https" } else { "http" };
        let text = format!("{scheme}://{authority}{root}/{}/{}/{}", self.path, ask.collection, ask.object);
        let mut url = Url::parse(&text).map_err(|error| Failure::Unusable {
            method: ask.method.clone(),
            url: authority.clone(),
            reason: format!("the host makes no URL: {error}"),
        })?;
        if let Some(namespace) = namespace {
            url.query_pairs_mut().append_pair("ns", namespace);
        }
        Ok(url)
    }

    /// How a token server is met: like the host itself when it is on it.
    fn realm_reach(&self, realm: &Url) -> (Transport, HeaderMap) {
        let Host { authority, tls, headers, dial_timeout, .. } = self.host;
        let same_name = split_port(authority).0.eq_ignore_ascii_case(realm.host_str().unwrap_or_default());
        let same_origin = same_name
            && Url::parse(&format!("{}://{authority}", realm.scheme()))
                .is_ok_and(|host| host.origin() == realm.origin());
        let tls = if same_name { tls.clone() } else { tls.elsewhere() };
        let headers = if same_origin { headers.clone() } else { HeaderMap::new() };
        (Transport { tls, dial_timeout: *dial_timeout, role: Role::Document }, headers)
    }
}

impl Schemes {
    fn get(&self, host: &str) -> Option<bool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(host).copied()
    }

    fn set(&self, host: &str, tls: bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(host.to_owned(), tls);
    }
}
