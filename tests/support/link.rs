//! A TCP proxy that behaves as a long wire: what goes in comes out after a fixed delay, in order, and no more is under
//! way than a sender's window allows. The window opens as in slow start, from ten segments, twice per round trip.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

/// Bytes that go in at once.
const PIECE: usize = 64 << 10;
/// Ten segments, as Linux begins.
const FIRST_WINDOW: usize = 14_600;
/// What Linux lets one connection have under way, by its defaults: half of the largest receive buffer.
const WINDOW: usize = 3 << 20;

/// A running proxy; ends with its connections when dropped.
#[derive(Debug)]
pub struct Link {
    address: String,
    accepting: JoinHandle<()>,
}

impl Link {
    /// Starts a proxy in front of `upstream`, `host:port`, with this delay in each direction.
    pub async fn start(upstream: &str, one_way: Duration) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no free loopback port")?;
        let address = listener.local_addr().context("a listener without an address")?.to_string();
        let accepting = tokio::spawn(accept(listener, upstream.to_owned(), one_way));
        Ok(Self { address, accepting })
    }

    /// `127.0.0.1:<port>`, in place of the upstream's own address.
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, upstream: String, one_way: Duration) {
    // Dropped with this task, which ends all connections.
    let mut connections = JoinSet::new();
    while let Ok((caller, _)) = listener.accept().await {
        let upstream = upstream.clone();
        connections.spawn(async move {
            // The caller's kernel has its connection at once; on a wire, that takes a round trip first.
            let opened = Instant::now() + 2 * one_way;
            // An upstream that is away looks to the caller like one that hangs up.
            let Ok(server) = TcpStream::connect(&upstream).await else { return };
            let _ = (caller.set_nodelay(true), server.set_nodelay(true));
            let (from_caller, to_caller) = caller.into_split();
            let (from_server, to_server) = server.into_split();
            tokio::join!(
                direction(from_caller, to_server, one_way, opened),
                direction(from_server, to_caller, one_way, opened)
            );
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn direction(from: OwnedReadHalf, to: OwnedWriteHalf, delay: Duration, opened: Instant) {
    // Bounded by the window: what is sent and not yet acknowledged.
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::join!(enter(from, sender, delay, opened), leave(receiver, to));
}

/// Takes in what the window allows, and says when each piece arrives.
async fn enter(
    mut from: OwnedReadHalf,
    wire: mpsc::UnboundedSender<(Instant, Vec<u8>)>,
    delay: Duration,
    opened: Instant,
) {
    let mut unacknowledged: VecDeque<(Instant, usize)> = VecDeque::new();
    let mut under_way = 0;
    let mut window = FIRST_WINDOW;
    sleep_until(opened).await;
    loop {
        while let Some((_, length)) = unacknowledged.front().copied().filter(|(at, _)| *at <= Instant::now())
        {
            unacknowledged.pop_front();
            under_way -= length;
            // Each acknowledged byte lets one more go: twice as many per round trip.
            window = (window + length).min(WINDOW);
        }
        if under_way >= window {
            let next = unacknowledged.front().map(|(at, _)| *at);
            sleep_until(next.unwrap_or_else(Instant::now)).await;
            continue;
        }
        let mut piece = vec![0; PIECE.min(window - under_way)];
        let Ok(length @ 1..) = from.read(&mut piece).await else { return };
        piece.truncate(length);
        let now = Instant::now();
        unacknowledged.push_back((now + 2 * delay, length));
        under_way += length;
        if wire.send((now + delay, piece)).is_err() {
            return;
        }
    }
}

/// Lets out each piece at its time; the end of the wire is the end of the connection.
async fn leave(mut wire: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>, mut to: OwnedWriteHalf) {
    while let Some((at, piece)) = wire.recv().await {
        sleep_until(at).await;
        if to.write_all(&piece).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_comes_out_in_order_after_the_delay_and_no_faster_than_the_window() {
        let sent: Vec<u8> = (0..300_000_u32).map(|number| number.to_le_bytes()[0]).collect();
        let upstream = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = upstream.local_addr().expect("an address").to_string();
        let answer = sent.clone();
        tokio::spawn(async move {
            let (mut connection, _) = upstream.accept().await.expect("a connection");
            let mut asked = [0; 1];
            connection.read_exact(&mut asked).await.expect("a request");
            connection.write_all(&answer).await.expect("an answer");
        });
        let link = Link::start(&address, Duration::from_millis(20)).await.expect("a proxy");
        let started = Instant::now();
        let mut caller = TcpStream::connect(link.address()).await.expect("a connection");
        caller.write_all(b"?").await.expect("a request");
        let mut came = Vec::new();
        caller.read_to_end(&mut came).await.expect("an answer");
        assert_eq!(came, sent);
        // A handshake, there and back, and four more round trips of an opening window: 14 600 × (1 + 2 + 4 + 8 + 16).
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(240) && took < Duration::from_millis(600), "{took:?}");
    }
}
