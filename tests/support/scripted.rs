//! A registry that does what a script says: any status, headers and body, bodies that break off, stall or trickle,
//! and a journal of what it was asked. HTTP/1.1 and HTTP/2, plain and over TLS, on as many addresses as a check needs.
//!
//! A request goes through the gates (the first that answers, answers), then to the route of its method and path, then
//! through the changes, which may break the answer.
//!
//! | file | owns |
//! |---|---|
//! | `request`, `reply` | what came; what is answered, faults included |
//! | `wire`, `http2` | HTTP/1.1 by hand; HTTP/2 by frames |
//! | `tls` | an authority of the test's own |
//! | `image` | small images in memory, and the routes that serve them |
//! | `tokens`, `signer` | a token server, and the gate that wants its tokens; tokens that docker-registry can read |
//! | `storage` | blobs behind signed URLs that wear out |

mod http2;
pub mod image;
mod reply;
mod request;
mod signer;
pub mod storage;
mod tls;
pub mod tokens;
mod wire;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

pub use reply::{End, Reply};
pub use request::{Request, Version};
pub use signer::{ISSUER, Signer};
pub use tls::{Authority, Identity, Tls};

/// What is answered to the n-th request of a route, counted from 0.
type Script = Arc<dyn Fn(&Request, usize) -> Reply + Send + Sync>;
/// Answers a request before its route can.
type Gate = Arc<dyn Fn(&Request) -> Option<Reply> + Send + Sync>;
/// Makes another answer of one.
type Change = Arc<dyn Fn(&Request, Reply) -> Reply + Send + Sync>;

/// A running scripted registry; ends when dropped.
pub struct Scripted {
    address: String,
    scheme: &'static str,
    state: State,
    /// One task per address, each the owner of its connections.
    serving: Mutex<JoinSet<()>>,
}

/// Both ends of a connection.
#[derive(Clone, Copy, Debug)]
struct Peer {
    to: SocketAddr,
    from: SocketAddr,
    secure: bool,
}

/// What all connections share.
#[derive(Clone, Default)]
struct State(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Guards the routes by method and path; a route of GET also answers HEAD, without a body.
    routes: Mutex<HashMap<(String, String), (Script, usize)>>,
    /// Guards the gates, in the order of their making.
    gates: Mutex<Vec<Gate>>,
    /// Guards the changes, in the order of their making.
    changes: Mutex<Vec<Change>>,
    /// Guards the journal, in the order of arrival.
    journal: Mutex<Vec<Request>>,
    /// Told of each request.
    arrived: Notify,
    /// Answers that are under way.
    all: Gauge,
    /// Blob answers that are.
    blobs: Gauge,
    /// Guards the time from the first blob request to the end of the last answer to one.
    span: Mutex<Option<(Instant, Instant)>>,
}

/// How many there are now, and the most there ever were at once.
#[derive(Default)]
struct Gauge {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// Counts an answer as under way until it is dropped.
struct Open {
    state: State,
    blob: bool,
}

impl Scripted {
    /// Listens on a free loopback port, without TLS. Without routes it answers 404 to everything.
    pub async fn start() -> Result<Self> {
        Self::first("127.0.0.1", None).await
    }

    /// As [`Scripted::start`], over TLS.
    pub async fn start_tls(tls: Tls<'_>) -> Result<Self> {
        Self::first("127.0.0.1", Some(tls)).await
    }

    /// As [`Scripted::start`], on this loopback address: `127.0.0.2`, `::1`, …
    pub async fn start_at(ip: &str) -> Result<Self> {
        Self::first(ip, None).await
    }

    async fn first(ip: &str, tls: Option<Tls<'_>>) -> Result<Self> {
        let mut registry = Self {
            address: String::new(),
            scheme: if tls.is_some() { "https" } else { "http" },
            state: State::default(),
            serving: Mutex::default(),
        };
        registry.address = registry.listen(ip, tls).await?;
        Ok(registry)
    }

    /// Listens on a free port of one more loopback address (`127.0.0.2`, `::1`, …), with the same routes and journal;
    /// [`Request::to`] tells the addresses apart. Returns `host:port`, as it begins a reference.
    pub async fn listen(&self, ip: &str, tls: Option<Tls<'_>>) -> Result<String> {
        let acceptor = tls.map(Tls::acceptor).transpose()?;
        let ip: IpAddr = ip.parse().with_context(|| format!("{ip} is no address"))?;
        let listener = TcpListener::bind((ip, 0)).await.with_context(|| format!("no free port on {ip}"))?;
        let address = listener.local_addr().context("a listener without an address")?.to_string();
        locked(&self.serving).spawn(serve(listener, acceptor, self.state.clone()));
        Ok(address)
    }

    /// `127.0.0.1:<port>`, as it begins a reference: the first of its addresses.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// `http://` or `https://` with that address.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Answers `method` on `path` (without a query) by `script`, replacing what did so before.
    pub fn on(
        &self,
        method: &str,
        path: &str,
        script: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static,
    ) {
        let key = (method.to_owned(), path.to_owned());
        locked(&self.state.0.routes).insert(key, (Arc::new(script), 0));
    }

    /// Answers what `gate` has an answer for, before any route; routes do not count such a request.
    pub fn gate(&self, gate: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static) {
        locked(&self.state.0.gates).push(Arc::new(gate));
    }

    /// Lets every answer go through `change`, those of gates and the 404 for what has no route included.
    pub fn change(&self, change: impl Fn(&Request, Reply) -> Reply + Send + Sync + 'static) {
        locked(&self.state.0.changes).push(Arc::new(change));
    }

    /// Every request so far.
    pub fn journal(&self) -> Vec<Request> {
        locked(&self.state.0.journal).clone()
    }

    /// Every request since the last call of this, which the journal then forgets.
    pub fn take_journal(&self) -> Vec<Request> {
        std::mem::take(&mut *locked(&self.state.0.journal))
    }

    /// The requests so far whose method and path these are.
    pub fn asked(&self, method: &str, path: &str) -> Vec<Request> {
        let wanted = |request: &Request| request.method == method && request.path() == path;
        self.journal().into_iter().filter(wanted).collect()
    }

    /// Returns once a GET for `path` has come.
    pub async fn await_get(&self, path: &str) {
        loop {
            let arrived = self.state.0.arrived.notified();
            tokio::pin!(arrived);
            // Registered before the look, so that a request in between is not missed.
            arrived.as_mut().enable();
            if !self.asked("GET", path).is_empty() {
                return;
            }
            arrived.await;
        }
    }

    /// Requests that are being answered now, the stalled ones included.
    pub fn open_requests(&self) -> usize {
        self.state.0.all.now.load(Ordering::SeqCst)
    }

    /// The most requests that were being answered at the same time.
    pub fn most_open_requests(&self) -> usize {
        self.state.0.all.most.load(Ordering::SeqCst)
    }

    /// The most blob answers that were being sent at the same time.
    pub fn most_open_blobs(&self) -> usize {
        self.state.0.blobs.most.load(Ordering::SeqCst)
    }

    /// The time from the first blob request to the end of the last answer to one, since this was asked last.
    pub fn take_blob_span(&self) -> Option<Duration> {
        locked(&self.state.0.span).take().map(|(first, last)| last - first)
    }
}

async fn serve(listener: TcpListener, acceptor: Option<TlsAcceptor>, state: State) {
    // Dropped with the listener, so that no connection outlives the registry.
    let mut connections = JoinSet::new();
    while let Ok((stream, from)) = listener.accept().await {
        let Ok(to) = stream.local_addr() else { continue };
        let peer = Peer { to, from, secure: acceptor.is_some() };
        connections.spawn(connected(stream, acceptor.clone(), peer, state.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn connected(stream: TcpStream, acceptor: Option<TlsAcceptor>, peer: Peer, state: State) {
    // The last piece of an answer is not to wait for the other side's acknowledgement of the one before.
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = acceptor else { return wire::converse(stream, peer, &state).await };
    // Whoever does not like the certificate leaves here.
    let Ok(stream) = acceptor.accept(stream).await else { return };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        http2::converse(stream, peer, &state).await;
    } else {
        wire::converse(stream, peer, &state).await;
    }
}

impl State {
    /// The answer, and the guard that counts it as under way.
    fn reply(&self, request: &Request) -> (Reply, Open) {
        locked(&self.0.journal).push(request.clone());
        let open = Open::count(self, request);
        self.0.arrived.notify_waiters();
        let gates = locked(&self.0.gates).clone();
        let answered = gates.iter().find_map(|gate| gate(request));
        let reply = answered.unwrap_or_else(|| self.routed(request));
        let changes = locked(&self.0.changes).clone();
        (changes.iter().fold(reply, |reply, change| change(request, reply)), open)
    }

    fn routed(&self, request: &Request) -> Reply {
        let found = {
            let mut routes = locked(&self.0.routes);
            let own = (request.method.clone(), request.path().to_owned());
            let key = if request.method == "HEAD" && !routes.contains_key(&own) {
                ("GET".to_owned(), own.1)
            } else {
                own
            };
            routes.get_mut(&key).map(|(script, count)| {
                let nth = *count;
                // Only what has the body counts, so that a script need not know whether HEAD came first.
                *count += usize::from(key.0 == request.method);
                (Arc::clone(script), nth)
            })
        };
        found.map_or_else(|| Reply::status(404), |(script, nth)| script(request, nth))
    }
}

impl Open {
    fn count(state: &State, request: &Request) -> Self {
        let open = Self { state: state.clone(), blob: request.fetches_blob() };
        open.gauges().for_each(Gauge::up);
        open.touch();
        open
    }

    fn gauges(&self) -> impl Iterator<Item = &Gauge> {
        let Shared { all, blobs, .. } = &*self.state.0;
        [all].into_iter().chain(self.blob.then_some(blobs))
    }

    fn touch(&self) {
        if self.blob {
            let now = Instant::now();
            locked(&self.state.0.span).get_or_insert((now, now)).1 = now;
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.gauges().for_each(Gauge::down);
        self.touch();
    }
}

impl Gauge {
    fn up(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn down(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
