//! A host that answers by script over plain HTTP, one request per connection, and keeps what it was sent.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

type Script = dyn Fn(&Received, usize) -> Reply + Send + Sync;

pub(super) struct Fake {
    authority: String,
    state: Arc<State>,
    serving: tokio::task::JoinHandle<()>,
}

struct State {
    script: Box<Script>,
    received: Mutex<Vec<Received>>,
    tls_attempts: AtomicUsize,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(super) struct Received {
    head: String,
    pub(super) body: String,
}

#[derive(Clone, Debug)]
pub(super) struct Reply {
    /// 0 closes the connection without an answer.
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
    /// The announced length; without one, the body ends with the connection.
    pub(super) length: Option<usize>,
    /// What happens once everything is written.
    pub(super) ending: Ending,
    /// The pause before the answer.
    pub(super) pause: Duration,
    /// The pause before each byte of the body, where it comes byte by byte.
    pub(super) drip: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Close,
    /// The connection is reset.
    Reset,
    /// The connection stays open, and nothing comes.
    Silence,
}

impl Fake {
    pub(super) async fn start(script: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_counting(move |request, _| script(request)).await
    }

    /// With the number of requests that came before.
    pub(super) async fn start_counting(
        script: impl Fn(&Received, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let state =
            Arc::new(State { script: Box::new(script), received: Mutex::default(), tls_attempts: 0.into() });
        let serving = tokio::spawn(serve(listener, state.clone()));
        Self { authority, state, serving }
    }

    pub(super) fn authority(&self) -> String {
        self.authority.clone()
    }

    pub(super) fn received(&self) -> Vec<Received> {
        self.state.received.lock().unwrap().clone()
    }

    pub(super) fn tls_attempts(&self) -> usize {
        self.state.tls_attempts.load(Ordering::Relaxed)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, state: Arc<State>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(answer(stream, state.clone()));
    }
}

async fn answer(mut stream: TcpStream, state: Arc<State>) {
    let Some(request) = receive(&mut stream, &state).await else { return };
    let reply = {
        let mut received = state.received.lock().unwrap();
        let count = received.len();
        received.push(request.clone());
        (state.script)(&request, count)
    };
    tokio::time::sleep(reply.pause).await;
    // Whoever went away in the middle is no concern of the script.
    let _ = send(&mut stream, &reply, request.method() == "HEAD").await;
    match reply.ending {
        Ending::Close => {}
        Ending::Reset => stream.set_zero_linger().unwrap(),
        Ending::Silence => std::future::pending().await,
    }
}

async fn send(stream: &mut TcpStream, reply: &Reply, head: bool) -> std::io::Result<()> {
    if reply.status == 0 {
        return Ok(());
    }
    stream.write_all(reply.head().as_bytes()).await?;
    match (head, reply.drip) {
        (true, _) => {}
        (false, None) => stream.write_all(reply.body.as_bytes()).await?,
        (false, Some(pause)) => {
            for byte in reply.body.bytes() {
                tokio::time::sleep(pause).await;
                stream.write_all(&[byte]).await?;
            }
        }
    }
    Ok(())
}

async fn receive(stream: &mut TcpStream, state: &State) -> Option<Received> {
    let mut bytes = Vec::new();
    loop {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
        // The first byte of a TLS handshake.
        if bytes[0] == 0x16 {
            state.tls_attempts.fetch_add(1, Ordering::Relaxed);
            let _ = stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n").await;
            return None;
        }
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let request = Received { head: head.to_owned(), body: body.to_owned() };
        let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
        if body.len() >= length {
            return Some(request);
        }
    }
}

impl Received {
    /// Method and target.
    pub(super) fn line(&self) -> String {
        self.head.lines().next().unwrap().trim_end_matches(" HTTP/1.1").to_owned()
    }

    pub(super) fn method(&self) -> &str {
        self.head.split(' ').next().unwrap()
    }

    pub(super) fn path(&self) -> &str {
        self.head.split([' ', '?']).nth(1).unwrap()
    }

    /// Where the range begins that it asks for.
    pub(super) fn offset(&self) -> Option<usize> {
        Some(self.range()?.0)
    }

    /// Where it begins, and the last byte if it is told.
    fn range(&self) -> Option<(usize, Option<usize>)> {
        let (start, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((start.parse().unwrap(), last.parse().ok()))
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        fields.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }
}

impl Reply {
    pub(super) fn ok(body: &str) -> Self {
        Self { body: body.into(), length: Some(body.len()), ..Self::status(200) }
    }

    pub(super) fn status(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: String::new(),
            length: None,
            ending: Ending::Close,
            pause: Duration::ZERO,
            drip: None,
        }
    }

    /// The whole or the range that `request` asks for, as a host that obeys ranges serves it.
    pub(super) fn range_of(request: &Received, whole: &str) -> Self {
        let Some((start, last)) = request.range() else { return Self::ok(whole) };
        let size = whole.len();
        let last = last.unwrap_or(size - 1);
        let range = format!("bytes {start}-{last}/{size}");
        Self { status: 206, ..Self::ok(&whole[start..=last]) }.header("content-range", &range)
    }

    /// The same, but after so many bytes of the body the connection ends like this.
    pub(super) fn cut(mut self, after: usize, ending: Ending) -> Self {
        self.body.truncate(after);
        Self { ending, ..self }
    }

    pub(super) fn hang_up() -> Self {
        Self::status(0)
    }

    pub(super) fn silence() -> Self {
        Self { ending: Ending::Silence, ..Self::status(0) }
    }

    pub(super) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    fn head(&self) -> String {
        let length = self.length.map(|length| format!("content-length: {length}\r\n"));
        let headers: String =
            self.headers.iter().flat_map(|(name, value)| [name, ": ", value, "\r\n"]).collect();
        let (status, length) = (self.status, length.unwrap_or_default());
        format!("HTTP/1.1 {status} Scripted\r\nconnection: close\r\n{headers}{length}\r\n")
    }
}
