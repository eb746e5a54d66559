//! A request as it came, and on which address.

use std::net::SocketAddr;

/// The protocol that a request came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// A request as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `HEAD`, …
    pub method: String,
    /// Path with the query string.
    pub target: String,
    /// Headers in their order, names in lower case. What HTTP/2 sends as `:authority` is `host`.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
    /// The address that was asked.
    pub to: SocketAddr,
    /// Who asked: the port tells connections apart.
    pub from: SocketAddr,
    /// The protocol.
    pub version: Version,
    /// Whether it came over TLS.
    pub secure: bool,
}

impl Request {
    /// The path without the query string.
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The query string.
    pub fn query(&self) -> &str {
        self.target.split_once('?').unwrap_or_default().1
    }

    /// A header by its name in lower case; the first of several.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(present, _)| present == name).map(|(_, value)| value.as_str())
    }

    /// First byte of a `Range: bytes=<first>-` or `bytes=<first>-<last>`.
    pub fn range_start(&self) -> Option<usize> {
        self.range().map(|(start, _)| start)
    }

    /// First byte and, if it is named, last byte of a `Range` of one span.
    pub fn range(&self) -> Option<(usize, Option<usize>)> {
        let (start, end) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let end = if end.is_empty() { None } else { Some(end.parse().ok()?) };
        Some((start.parse().ok()?, end))
    }

    /// Whether this asks for bytes of a blob.
    pub fn fetches_blob(&self) -> bool {
        self.method == "GET" && self.path().contains("/blobs/")
    }

    /// The repository that a registry's path names.
    pub fn repository(&self) -> Option<&str> {
        let below = self.path().strip_prefix("/v2/")?;
        let end = ["/manifests/", "/blobs/", "/referrers/", "/tags/"].iter().find_map(|at| below.find(at))?;
        Some(&below[..end])
    }
}
