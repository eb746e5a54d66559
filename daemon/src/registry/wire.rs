//! One HTTP request from the first byte to the headers of its final answer: the pools of connections, redirects by
//! hand, and the deadlines. Knows neither tokens nor registries; keeps what is for one origin away from any other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use http::{Method, StatusCode};
use reqwest::{Client, Response, Url};

use super::credentials::Login;
use super::dial::{self, DialLayer};
use super::failure::{Failure, innermost, redacted};
use super::hosts::DIAL_TIMEOUT;
use super::proxies::Proxies;
use super::redaction::{Secrets, unescaped};
use super::retry_after;
use super::secret::Secret;
use super::tls::Tls;
use super::{token, tunnel};
use crate::metrics::Metrics;

/// How long a whole small document may take: at the limit of a manifest's size this is still below 150 KiB/s.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Redirects followed for one request; the figure of containerd and of browsers' ancestors.
const REDIRECTS: usize = 10;
/// Idle connections are kept this long, as containerd does; the gaps within one pull are shorter.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Bound on remembered clients. One per TLS setting is needed; replaced certificate files leave dead ones behind.
const CLIENTS: usize = 64;

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// Small documents: many share one HTTP/2 connection.
    Document,
    /// Blob bodies: HTTP/1.1 moves them at twice HTTP/2's rate on the same processor, one connection each.
    Blob,
}

/// How to reach a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Transport {
    pub(super) tls: Tls,
    pub(super) dial_timeout: Duration,
    pub(super) role: Role,
}

/// A request to be sent.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) url: Url,
    /// Sent to the first origin and to every redirect target.
    pub(super) headers: HeaderMap,
    /// Sent to the first origin only: authorization and the host's configured headers.
    pub(super) origin_headers: HeaderMap,
    /// A form.
    pub(super) body: Option<String>,
    pub(super) transport: Transport,
}

/// The headers of an answer, with its body still to come.
pub(super) struct Answer {
    pub(super) method: Method,
    /// Where it finally came from.
    pub(super) url: Url,
    /// Whether that is the origin first asked.
    pub(super) from_origin: bool,
    pub(super) response: Response,
    /// What was sent that is to be kept out of what the host says of it: proofs, headers, and what is hidden in the
    /// URLs of redirects.
    pub(super) secrets: Secrets,
}

/// The HTTP clients of the process.
pub(super) struct Wire {
    user_agent: String,
    /// How long a host that is connected to may take for the headers of its answer.
    response_timeout: Duration,
    proxies: Proxies,
    pub(super) metrics: Arc<Metrics>,
    /// Guards the clients by their settings. Each holds its own pool, so they are shared and never built twice.
    clients: Mutex<HashMap<Transport, Client>>,
}

/// Why no HTTP client can be built.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// TLS cannot be set up, for want of system certificates for example.
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
    /// The HTTP library's own reason.
    #[error("the HTTP library cannot be set up")]
    Http(#[source] reqwest::Error),
}

impl Wire {
    pub(super) fn new(
        user_agent: String,
        proxies: Proxies,
        response_timeout: Duration,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { user_agent, proxies, response_timeout, metrics, clients: Mutex::default() }
    }

    /// Builds a first client, so that a node without usable system certificates shows it at start.
    pub(super) fn check(&self) -> Result<(), ClientError> {
        let transport = Transport { tls: Tls::default(), dial_timeout: DIAL_TIMEOUT, role: Role::Document };
        self.client(&transport).map(drop)
    }

    /// The client for a host.
    fn client(&self, transport: &Transport) -> Result<Client, ClientError> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(transport) {
            return Ok(client.clone());
        }
        let proxies = self.proxies.clone();
        let mut builder = Client::builder()
            // Instead of what the library itself reads of the environment.
            .proxy(reqwest::Proxy::custom(move |url| proxies.of(url).cloned()))
            .user_agent(&self.user_agent)
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .connect_timeout(transport.dial_timeout)
            .connector_layer(DialLayer)
            .pool_idle_timeout(IDLE_TIMEOUT);
        let protocols: &[&str] = match transport.role {
            Role::Document => &["h2", "http/1.1"],
            Role::Blob => {
                builder = builder.http1_only();
                &["http/1.1"]
            }
        };
        let tls = transport.tls.config(protocols).map_err(ClientError::Tls)?;
        // Once for each state of the files, not for each request.
        for fault in &transport.tls.passed_over {
            tracing::warn!("{fault}; it has no effect");
        }
        let client = builder.tls_backend_preconfigured(tls).build().map_err(ClientError::Http)?;
        if clients.len() >= CLIENTS {
            clients.clear();
        }
        clients.insert(transport.clone(), client.clone());
        Ok(client)
    }

    /// Sends a request and follows its redirects. Any status may come back.
    pub(super) async fn send(&self, request: Request) -> Result<Answer, Failure> {
        let Request { mut method, url: first, headers, mut origin_headers, mut body, transport } = request;
        let mut url = first.clone();
        let mut from_origin = true;
        let mut secrets = Secrets::default();
        secrets.add_headers(&origin_headers);
        for _ in 0..=REDIRECTS {
            // Once elsewhere, always elsewhere: another host must not choose what is asked in the caller's name.
            from_origin &= url.origin() == first.origin();
            let mut headers = headers.clone();
            if from_origin {
                merge(&mut headers, &origin_headers);
            }
            // A host keeps its TLS settings on all its ports.
            let transport = if url.host() == first.host() {
                transport.clone()
            } else {
                Transport { tls: transport.tls.elsewhere(), ..transport.clone() }
            };
            let response = self.once(&method, &url, headers, body.clone(), &transport).await?;
            match redirect(&method, &url, &response)? {
                Some(next) if body.is_none() => {
                    secrets.add_url(&next);
                    url = next;
                }
                // A form holds secrets: it goes to the origin that it is for, and nowhere else.
                Some(next) if next.origin() == first.origin() => {
                    let status = response.status();
                    if !matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) {
                        // After the others it is left, as Go and browsers do.
                        (method, body) = (Method::GET, None);
                        origin_headers.remove(CONTENT_TYPE);
                    }
                    secrets.add_url(&next);
                    url = next;
                }
                _ => {
                    return Ok(Answer { method, url, from_origin, response, secrets });
                }
            }
        }
        Err(Failure::unusable(&method, &first, format!("more than {REDIRECTS} redirects")))
    }

    async fn once(
        &self,
        method: &Method,
        url: &Url,
        headers: HeaderMap,
        body: Option<String>,
        transport: &Transport,
    ) -> Result<Response, Failure> {
        let proxy = self.proxies.of(url);
        // What a proxy does with a connection that it took is an answer, and the library calls all of it connecting.
        let dial_timeout = match proxy {
            Some(_) => transport.dial_timeout.min(self.response_timeout),
            None => transport.dial_timeout,
        };
        let transport = Transport { dial_timeout, ..transport.clone() };
        let place = || match proxy {
            Some(proxy) => {
                format!("{} (through proxy {})", redacted(url), proxy.origin().ascii_serialization())
            }
            None => redacted(url),
        };
        let client = self.client(&transport).map_err(|error| {
            Failure::unusable(method, url, format!("no HTTP client: {}", innermost(&error)))
        })?;
        let mut request = client.request(method.clone(), url.clone()).headers(headers);
        if let Some(body) = body {
            request = request.body(body);
        }
        let answer = match dial::answered(request.send(), self.response_timeout).await {
            Some(answer) => answer.map_err(|error| {
                Failure::of_transport(method, place(), error, transport.tls.has_authorities())
            }),
            None => {
                Err(Failure::Silent { method: method.clone(), url: place(), limit: self.response_timeout })
            }
        };
        match (answer, proxy) {
            (Err(Failure::Proxy { url: place, status: None }), Some(proxy)) => {
                let status =
                    tunnel::refusal(proxy, login_of(proxy).as_ref(), url, self.response_timeout).await;
                Err(Failure::Proxy { url: place, status })
            }
            // No registry answers so.
            (Ok(answer), Some(_)) if answer.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
                Err(Failure::Proxy { url: place(), status: Some(answer.status()) })
            }
            (answer, _) => answer,
        }
    }
}

/// The header that proves the user and password in a proxy's URL to it.
fn login_of(proxy: &Url) -> Option<HeaderValue> {
    let password = Secret::new(unescaped(proxy.password().unwrap_or_default()));
    let login = Login::Password { username: unescaped(proxy.username()), password };
    (!proxy.username().is_empty()).then(|| token::basic(&login)).flatten()
}

impl Answer {
    /// One header as text.
    pub(super) fn header(&self, name: impl http::header::AsHeaderName) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// `text` of the host without what proved `login` to it and all else that was sent in confidence, in any spelling
    /// that it may have been sent in.
    pub(super) fn scrub(&self, login: &Login, text: &str) -> String {
        let mut secrets = self.secrets.clone();
        secrets.add_login(login);
        secrets.hide(text)
    }

    /// How long the host asks to be left alone, if it does.
    pub(super) fn told(&self) -> Option<Duration> {
        retry_after::told(self.response.headers(), SystemTime::now())
    }

    /// The length of the body as announced; for an answer to HEAD, of the body that GET would have.
    pub(super) fn length(&self) -> Option<u64> {
        self.header(http::header::CONTENT_LENGTH)?.trim().parse().ok()
    }

    /// The media type without its parameters, in lower case.
    pub(super) fn media_type(&self) -> Option<String> {
        let text = self.header(CONTENT_TYPE)?;
        Some(text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
    }

    /// An unusable answer, for a reason.
    pub(super) fn unusable(&self, reason: impl Into<String>) -> Failure {
        Failure::unusable(&self.method, &self.url, reason)
    }

    /// The next bytes of the body.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        self.response
            .chunk()
            .await
            .map_err(|error| Failure::of_transport(&self.method, redacted(&self.url), error, false))
    }

    /// The whole body of a small document, or an error if it is longer than `limit` bytes.
    pub(super) async fn document(&mut self, limit: usize) -> Result<Bytes, Failure> {
        let read = async {
            let mut body = Vec::new();
            while let Some(chunk) = self.chunk().await? {
                if body.len() + chunk.len() > limit {
                    return Err(self.unusable(format!("the answer is larger than {limit} bytes")));
                }
                body.extend_from_slice(&chunk);
            }
            Ok(Bytes::from(body))
        };
        let read = tokio::time::timeout(DOCUMENT_TIMEOUT, read).await;
        read.unwrap_or_else(|_| {
            let (method, url) = (self.method.clone(), redacted(&self.url));
            Err(Failure::Silent { method, url, limit: DOCUMENT_TIMEOUT })
        })
    }
}

/// Adds headers, each in place of one of the same name.
fn merge(headers: &mut HeaderMap, more: &HeaderMap) {
    for name in more.keys() {
        headers.remove(name);
        for value in more.get_all(name) {
            headers.append(name, value.clone());
        }
    }
}

/// Where an answer sends us, if it does.
fn redirect(method: &Method, url: &Url, response: &Response) -> Result<Option<Url>, Failure> {
    if !matches!(
        response.status(),
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    ) {
        return Ok(None);
    }
    let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
    let next = location.and_then(|location| url.join(location).ok());
    match next {
        Some(next) if matches!(next.scheme(), "http" | "https") && next.has_host() => Ok(Some(next)),
        _ => Err(Failure::unusable(
            method,
            url,
            "a redirect to nowhere, or to something other than http or https",
        )),
    }
}
