//! The page of metrics, read as Prometheus reads it.

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::drayd::Drayd;

/// Settings for a page on a port of its own.
pub const SETTINGS: &str = "[metrics]\naddress = \"127.0.0.1:0\"\n";

/// The page as it is now.
#[derive(Debug)]
pub struct Page(pub String);

/// Where the page is: `127.0.0.1:PORT`.
pub fn address(drayd: &Drayd) -> Result<String> {
    let events = drayd.events();
    let line = events.iter().find_map(|event| {
        event.message().strip_prefix("metrics are served on http://")?.strip_suffix("/metrics")
    });
    Ok(line.context("drayd serves no metrics")?.to_owned())
}

/// Reads it.
pub async fn read(drayd: &Drayd) -> Result<Page> {
    let address = address(drayd)?;
    let mut stream = TcpStream::connect(&address).await.with_context(|| format!("nobody is on {address}"))?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer has no end of its head")?;
    ensure!(head.starts_with("HTTP/1.1 200 "), "{head}");
    ensure!(head.to_ascii_lowercase().contains("content-type: application/openmetrics-text"), "{head}");
    Ok(Page(body.to_owned()))
}

impl Page {
    /// The sum of all series of this name whose values are whole numbers and whose labels contain all of `labels`, each as `key="value"`.
    pub fn sum(&self, name: &str, labels: &[&str]) -> u64 {
        let series = self.0.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (own, of) = series.split_once('{').unwrap_or((series, ""));
            (own == name && labels.iter().all(|label| of.contains(label)))
                .then(|| value.split('.').next()?.parse::<u64>().ok())?
        });
        series.sum()
    }

    /// How many series there are of a name.
    pub fn count(&self, name: &str) -> usize {
        let of = |line: &&str| line.starts_with(name) && line[name.len()..].starts_with(['{', ' ']);
        self.0.lines().filter(of).count()
    }
}
