//! A TCP proxy that lets a server's answers through at a chosen rate and counts them, so that a check can act in the
//! middle of a transfer and see what went over the wire.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

/// Bytes that go through at once: at the slowest rates used, a few of them per second.
const PIECE: usize = 8 << 10;

/// A running proxy; ends with its connections when dropped.
#[derive(Debug)]
pub struct Throttle {
    address: String,
    flow: Arc<Flow>,
    accepting: JoinHandle<()>,
}

/// What all connections of one proxy share.
#[derive(Debug)]
struct Flow {
    /// Bytes of answers per second over all connections; 0 is no limit.
    rate: AtomicU64,
    /// Bytes of answers that were sent on.
    passed: AtomicU64,
    /// When the next piece may go.
    next: Mutex<Instant>,
}

impl Throttle {
    /// Starts a proxy in front of `upstream`, `host:port`, at this many bytes of answers per second.
    pub async fn start(upstream: &str, bytes_per_second: u64) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no free loopback port")?;
        let address = listener.local_addr().context("a listener without an address")?.to_string();
        let flow = Arc::new(Flow {
            rate: AtomicU64::new(bytes_per_second),
            passed: AtomicU64::new(0),
            next: Mutex::new(Instant::now()),
        });
        let accepting = tokio::spawn(accept(listener, upstream.to_owned(), Arc::clone(&flow)));
        Ok(Self { address, flow, accepting })
    }

    /// `127.0.0.1:<port>`, in place of the upstream's own address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Bytes of answers that were sent on so far, heads of answers included.
    pub fn passed(&self) -> u64 {
        self.flow.passed.load(Ordering::Relaxed)
    }

    /// Changes the rate, for open connections, too; 0 is no limit.
    pub fn set_rate(&self, bytes_per_second: u64) {
        self.flow.rate.store(bytes_per_second, Ordering::Relaxed);
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Flow {
    /// Waits until `bytes` more may go.
    async fn take(&self, bytes: usize) {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate == 0 {
            return;
        }
        let at = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let at = (*next).max(Instant::now());
            *next = at + Duration::from_micros(bytes as u64 * 1_000_000 / rate);
            at
        };
        sleep_until(at).await;
    }
}

async fn accept(listener: TcpListener, upstream: String, flow: Arc<Flow>) {
    // Dropped with this task, which ends all connections.
    let mut connections = JoinSet::new();
    while let Ok((caller, _)) = listener.accept().await {
        let (upstream, flow) = (upstream.clone(), Arc::clone(&flow));
        connections.spawn(async move {
            // An upstream that is away looks to the caller like one that hangs up.
            let Ok(server) = TcpStream::connect(&upstream).await else { return };
            let (from_caller, to_caller) = caller.into_split();
            let (from_server, to_server) = server.into_split();
            tokio::join!(forward(from_caller, to_server), paced(from_server, to_caller, &flow));
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    // Either side may break off; the other direction then ends by itself.
    let _ = copy(&mut from, &mut to).await;
}

async fn paced(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, flow: &Flow) {
    let mut piece = vec![0; PIECE];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        flow.take(length).await;
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
        flow.passed.fetch_add(length as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_pass_whole_at_the_rate_and_are_counted() {
        let upstream = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = upstream.local_addr().expect("an address").to_string();
        tokio::spawn(async move {
            let (mut connection, _) = upstream.accept().await.expect("a connection");
            connection.write_all(&vec![7; 100_000]).await.expect("an answer");
        });
        let throttle = Throttle::start(&address, 500_000).await.expect("a proxy");
        let started = Instant::now();
        let mut caller = TcpStream::connect(throttle.address()).await.expect("a connection");
        let mut answer = Vec::new();
        caller.read_to_end(&mut answer).await.expect("an answer");
        assert_eq!(answer, vec![7; 100_000]);
        assert_eq!(throttle.passed(), 100_000);
        // All but the last piece were waited for.
        assert!(started.elapsed() >= Duration::from_millis(180), "{:?}", started.elapsed());
    }
}
