//! A link of 1 Gbit/s to a registry: a network namespace for it, and a token bucket on its end of the pair that joins
//! it to this one. Both go with the guard.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

/// Bits per second, headers included.
pub(crate) const RATE: f64 = 1e9;
/// Of the range that is set aside for measuring networks.
const ADDRESS: &str = "198.18.213.2:5000";
pub(crate) const NAMESPACE: &str = "drayd-bench";
/// Larger than the largest piece that the kernel hands on at once, and less than 3 ms of the rate.
const MAKE: [&str; 8] = [
    "ip netns add drayd-bench",
    "ip link add drayd-bench0 type veth peer name drayd-bench1 netns drayd-bench",
    "ip addr add 198.18.213.1/30 dev drayd-bench0",
    "ip link set drayd-bench0 up",
    "ip -netns drayd-bench addr add 198.18.213.2/30 dev drayd-bench1",
    "ip -netns drayd-bench link set drayd-bench1 up",
    "ip -netns drayd-bench link set lo up",
    "tc -netns drayd-bench qdisc add dev drayd-bench1 root tbf rate 1gbit burst 256kb latency 50ms",
];
/// The pair first: a namespace stays for as long as something runs in it, and so would what is in it.
const REMOVE: [&str; 2] = ["ip link del drayd-bench0", "ip netns del drayd-bench"];

/// The link.
pub(crate) struct Wire(());

impl Wire {
    /// Makes it, removing what a killed run has left.
    pub(crate) fn make() -> Result<Self> {
        remove();
        let wire = Self(());
        MAKE.iter().try_for_each(|line| run(line))?;
        Ok(wire)
    }

    /// Where a registry in the namespace is to listen, and is found.
    #[expect(clippy::unused_self, reason = "there is no such address without a link")]
    pub(crate) fn address(&self) -> &'static str {
        ADDRESS
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        remove();
    }
}

/// Seconds that a client needs which throws away what comes, one blob after another.
pub(crate) fn download(address: &str, paths: &[String]) -> Result<f64> {
    let started = Instant::now();
    let mut piece = vec![0; 1 << 20];
    for path in paths {
        let mut connection = TcpStream::connect(address)?;
        write!(connection, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut length = connection.read(&mut piece)?;
        ensure!(piece.starts_with(b"HTTP/1.1 200 "), "{address} does not give {path}");
        while length > 0 {
            length = connection.read(&mut piece)?;
        }
    }
    Ok(started.elapsed().as_secs_f64())
}

fn remove() {
    for line in REMOVE {
        // What is not there need not be removed.
        let _ = run(line);
    }
}

fn run(line: &str) -> Result<()> {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap_or_default()).args(words).output();
    let output = output.with_context(|| format!("cannot run {line}; run `make install`"))?;
    ensure!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
