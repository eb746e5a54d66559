//! A registry that does what a script says, over plain HTTP/1.1: any status, headers and body, bodies that break off,
//! stall or trickle, and a journal of what it was asked. One request per connection, so that the end of a connection
//! is the end of an answer. `image` makes small images in memory for it.

pub mod image;
mod reply;
mod wire;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

pub use reply::{End, Reply};

/// What is answered to the n-th request of a route, counted from 0.
type Script = Arc<dyn Fn(&Request, usize) -> Reply + Send + Sync>;

/// A running scripted registry; ends when dropped.
pub struct Scripted {
    address: String,
    state: Arc<State>,
    serving: JoinHandle<()>,
}

/// A request as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `HEAD`, …
    pub method: String,
    /// Path with the query string.
    pub target: String,
    /// Headers, names in lower case.
    pub headers: HashMap<String, String>,
    /// The body.
    pub body: String,
}

impl Request {
    /// The path without the query string.
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// A header by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// First byte of a `Range: bytes=<first>-`.
    pub fn range_start(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

#[derive(Default)]
struct State {
    /// Guards the routes by method and path; a route of GET also answers HEAD, without a body.
    routes: Mutex<HashMap<(String, String), (Script, usize)>>,
    /// Guards the journal, in the order of arrival.
    journal: Mutex<Vec<Request>>,
    /// Told of each request.
    arrived: Notify,
    /// Blob answers that are being sent now, and the most there ever were at once.
    open: AtomicUsize,
    most_open: AtomicUsize,
}

impl Scripted {
    /// Listens on a free loopback port. Without routes it answers 404 to everything.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no free loopback port")?;
        let address = listener.local_addr().context("a listener without an address")?.to_string();
        let state = Arc::new(State::default());
        let serving = tokio::spawn(serve(listener, Arc::clone(&state)));
        Ok(Self { address, state, serving })
    }

    /// `127.0.0.1:<port>`, as it begins a reference.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Answers `method` on `path` (without a query) by `script`, replacing what did so before.
    pub fn on(
        &self,
        method: &str,
        path: &str,
        script: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static,
    ) {
        let key = (method.to_owned(), path.to_owned());
        locked(&self.state.routes).insert(key, (Arc::new(script), 0));
    }

    /// Every request so far.
    pub fn journal(&self) -> Vec<Request> {
        locked(&self.state.journal).clone()
    }

    /// The requests so far whose method and path these are.
    pub fn asked(&self, method: &str, path: &str) -> Vec<Request> {
        let wanted = |request: &Request| request.method == method && request.path() == path;
        self.journal().into_iter().filter(wanted).collect()
    }

    /// Returns once a GET for `path` has come.
    pub async fn await_get(&self, path: &str) {
        loop {
            let arrived = self.state.arrived.notified();
            tokio::pin!(arrived);
            // Registered before the look, so that a request in between is not missed.
            arrived.as_mut().enable();
            if !self.asked("GET", path).is_empty() {
                return;
            }
            arrived.await;
        }
    }

    /// The most blob answers that were being sent at the same time.
    pub fn most_open_blobs(&self) -> usize {
        self.state.most_open.load(Ordering::SeqCst)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, state: Arc<State>) {
    // Dropped with the listener, so that no connection outlives the registry.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(answer(stream, Arc::clone(&state)));
    }
}

async fn answer(mut stream: TcpStream, state: Arc<State>) {
    let Some(request) = wire::receive(&mut stream).await else { return };
    let reply = state.reply(&request);
    let head = request.method == "HEAD";
    let blob = request.method == "GET" && request.path().contains("/blobs/");
    if blob {
        let now = state.open.fetch_add(1, Ordering::SeqCst) + 1;
        state.most_open.fetch_max(now, Ordering::SeqCst);
    }
    // The other side may leave at any time.
    let _ = wire::send(&mut stream, &reply, head).await;
    if blob {
        state.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl State {
    fn reply(&self, request: &Request) -> Reply {
        locked(&self.journal).push(request.clone());
        self.arrived.notify_waiters();
        let found = {
            let mut routes = locked(&self.routes);
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

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
