//! `hosts.toml`, containerd's file of mirrors and TLS settings for one registry. A file that cannot be understood is
//! an error with its line: ignoring it would quietly pull past the mirrors it asks for.

use std::cell::RefCell;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

use http::{HeaderMap, HeaderName, HeaderValue};
use reqwest::Url;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::hosts::{Capabilities, Host, Scheme, split_port};
use super::redaction::REDACTED;
use super::secret::Secret;
use super::tls::{Tls, TlsError};

/// Why the configuration of a registry cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    /// The file or directory cannot be read.
    #[error("{path} cannot be read")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file says something that has no meaning.
    #[error("{path}:{line}: {reason}")]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// A certificate that the file names cannot be used.
    #[error("{path}:{line}: a certificate cannot be used")]
    Certificate {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with the certificate.
        source: TlsError,
    },
    /// A certificate in a directory without a file cannot be used.
    #[error("a certificate of the registry cannot be used")]
    Tls(#[source] TlsError),
}

type Value<'a> = Spanned<DeValue<'a>>;

/// The keys of a host. Beside them, the root of the file has `server` and `host`.
const KEYS: [&str; 7] =
    ["capabilities", "ca", "client", "skip_verify", "header", "override_path", "dial_timeout"];

/// Headers that speak of the message or of the connection under it. Those are made by who sends them: Go drops the first
/// four of what is configured, and with any other of them a request would contradict itself.
const OWN_HEADERS: [HeaderName; 9] = [
    http::header::HOST,
    http::header::CONTENT_LENGTH,
    http::header::TRANSFER_ENCODING,
    http::header::TRAILER,
    http::header::CONNECTION,
    http::header::TE,
    http::header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// How a certificate file is read.
pub(super) type ReadFile = fn(&Path) -> io::Result<Vec<u8>>;

/// What a file says, and all that is wrong with it.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// Of use only if there are no mistakes.
    pub(super) hosts: Vec<Host>,
    pub(super) mistakes: Vec<HostsError>,
    /// What has no effect, as containerd passes over it, too: the line, and what stands there.
    pub(super) idle: Vec<(usize, String)>,
}

impl Reading {
    /// The hosts, or the first mistake.
    pub(super) fn hosts(self) -> Result<Vec<Host>, HostsError> {
        self.mistakes.into_iter().next().map_or(Ok(self.hosts), Err)
    }
}

impl From<Result<Vec<Host>, HostsError>> for Reading {
    fn from(result: Result<Vec<Host>, HostsError>) -> Self {
        match result {
            Ok(hosts) => Self { hosts, ..Self::default() },
            Err(mistake) => Self { mistakes: vec![mistake], ..Self::default() },
        }
    }
}

/// The hosts in a file's text: its mirrors as they are written, then `server`.
pub(super) fn parse(path: &Path, text: &str, domain: &str, read: ReadFile) -> Reading {
    let file = File { path, text, read, mistakes: RefCell::default(), idle: RefCell::default() };
    let hosts = match DeTable::parse(text) {
        Ok(document) => file.hosts(document.get_ref(), domain),
        Err(error) => {
            let message = error.message().lines().next().unwrap_or_default();
            file.note::<()>(Err(file.error(error.span().unwrap_or_default(), message)));
            Vec::new()
        }
    };
    let (mut mistakes, mut idle) = (file.mistakes.into_inner(), file.idle.into_inner());
    mistakes.sort_by_key(HostsError::line);
    idle.sort();
    Reading { hosts, mistakes, idle }
}

/// The keys of one host, whatever its address.
struct Entry {
    capabilities: Capabilities,
    tls: Tls,
    /// Any TLS key was written, `skip_verify = false` too: the writer expects TLS to be tried.
    tls_given: bool,
    skip_verify: Option<bool>,
    headers: HeaderMap,
    override_path: bool,
    dial_timeout: Option<Duration>,
}

impl Entry {
    /// The host at a written address.
    fn at(self, domain: &str, address: &str) -> Result<Host, String> {
        let text = if address.contains("://") { address.to_owned() } else { format!("https://{address}") };
        let url =
            Url::parse(&text).map_err(|error| format!("`{}` is not a host: {error}", shown(address)))?;
        let scheme = match url.scheme() {
            "https" => Scheme::Https,
            // With TLS keys beside a plain address, containerd tries TLS first.
            "http" if self.tls_given && written_port(address) != Some("80") => Scheme::Either,
            "http" => Scheme::Http,
            other => {
                let address = shown(address);
                return Err(format!("`{address}`: scheme `{other}` is neither http nor https"));
            }
        };
        let name = url.host_str().ok_or_else(|| format!("`{}` names no host", shown(address)))?;
        let authority = url.port().map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"));
        let path = url.path().trim_end_matches('/');
        let root =
            if self.override_path || path.ends_with("/v2") { path.to_owned() } else { format!("{path}/v2") };
        let mut host = Host::new(domain, scheme, &authority, &root);
        host.capabilities = self.capabilities;
        self.settle(&mut host);
        Ok(host)
    }

    /// The registry's own host when `server` is not written. As in containerd it keeps all capabilities.
    fn upstream(self, domain: &str) -> Host {
        let mut host = Host::upstream(domain);
        self.settle(&mut host);
        host
    }

    fn settle(self, host: &mut Host) {
        let skip_verify = self.skip_verify.unwrap_or(host.tls.skip_verify);
        host.tls = self.tls;
        host.tls.skip_verify = skip_verify;
        host.headers = self.headers;
        // As in Go, zero is the default rather than no time at all.
        host.dial_timeout = self.dial_timeout.filter(|time| !time.is_zero()).unwrap_or(host.dial_timeout);
    }
}

impl HostsError {
    fn line(&self) -> usize {
        match self {
            Self::Content { line, .. } | Self::Certificate { line, .. } => *line,
            Self::Read { .. } | Self::Tls(_) => 0,
        }
    }
}

/// A file under reading: turns places in it into errors.
struct File<'a> {
    path: &'a Path,
    text: &'a str,
    read: ReadFile,
    /// All found so far.
    mistakes: RefCell<Vec<HostsError>>,
    idle: RefCell<Vec<(usize, String)>>,
}

impl File<'_> {
    fn line(&self, span: Range<usize>) -> usize {
        self.text.get(..span.start).unwrap_or(self.text).matches('\n').count() + 1
    }

    fn error(&self, span: Range<usize>, reason: impl fmt::Display) -> HostsError {
        HostsError::Content { path: self.path.into(), line: self.line(span), reason: reason.to_string() }
    }

    /// Puts a mistake to the others, so that the rest is still read.
    fn note<T>(&self, result: Result<T, HostsError>) -> Option<T> {
        result.map_err(|mistake| self.mistakes.borrow_mut().push(mistake)).ok()
    }

    fn hosts(&self, root: &DeTable<'_>, domain: &str) -> Vec<Host> {
        let tables = root.get("host").and_then(|tables| self.note(self.table(tables)));
        let mut tables: Vec<_> = tables.into_iter().flat_map(DeTable::iter).collect();
        // The parser sorts by name; order in the file is the order of asking.
        tables.sort_by_key(|(name, _)| name.span().start);
        let mut hosts = Vec::new();
        for (name, table) in tables {
            let Some(table) = self.note(self.table(table)) else { continue };
            let host = self.entry(table, &[]).at(domain, name.get_ref());
            hosts.extend(self.note(host.map_err(|reason| self.error(name.span(), reason))));
        }
        let entry = self.entry(root, &["server", "host"]);
        let own = match root.get("server") {
            None => Ok(entry.upstream(domain)),
            Some(server) => self.string(server).and_then(|address| match address {
                "" => Ok(entry.upstream(domain)),
                _ => entry.at(domain, address).map_err(|reason| self.error(server.span(), reason)),
            }),
        };
        hosts.extend(self.note(own));
        hosts
    }

    /// Reads the keys of a host; `others` are the further ones that may stand beside them.
    fn entry(&self, table: &DeTable<'_>, others: &[&str]) -> Entry {
        let unknown = table.keys().filter(|key| {
            let key = key.get_ref().as_ref();
            !KEYS.contains(&key) && !others.contains(&key)
        });
        self.idle
            .borrow_mut()
            .extend(unknown.map(|key| (self.line(key.span()), format!("unknown key `{}`", key.get_ref()))));
        Entry {
            capabilities: self.note(self.capabilities(table)).unwrap_or(Capabilities::ALL),
            tls: self.note(self.tls(table)).unwrap_or_default(),
            tls_given: ["ca", "client", "skip_verify"].iter().any(|&key| table.contains_key(key)),
            skip_verify: self.note(self.boolean_of(table, "skip_verify")).flatten(),
            headers: self.note(self.headers(table)).unwrap_or_default(),
            override_path: self.note(self.boolean_of(table, "override_path")).flatten().unwrap_or(false),
            dial_timeout: table.get("dial_timeout").and_then(|value| self.note(self.duration(value))),
        }
    }

    /// The capabilities written; none is all. Those for pushing are known and passed over.
    fn capabilities(&self, table: &DeTable<'_>) -> Result<Capabilities, HostsError> {
        let Some(value) = table.get("capabilities") else {
            return Ok(Capabilities::ALL);
        };
        let mut found = Vec::new();
        for item in self.array(value)? {
            let name = self.string(item)?.to_ascii_lowercase();
            if !["pull", "resolve", "push", "referrers"].contains(&name.as_str()) {
                let reason =
                    format!("unknown capability `{name}`: expected pull, resolve, push or referrers");
                return Err(self.error(item.span(), reason));
            }
            found.push(name);
        }
        let has = |name: &str| found.is_empty() || found.iter().any(|capability| capability == name);
        Ok(Capabilities { pull: has("pull"), resolve: has("resolve") })
    }

    fn tls(&self, table: &DeTable<'_>) -> Result<Tls, HostsError> {
        let mut tls = Tls::default();
        if let Some(value) = table.get("ca") {
            for path in self.strings(value)? {
                let (path, pem) = self.certificate(value, path)?;
                tls.add_authorities(&path, pem.expose()).map_err(|source| self.unusable(value, source))?;
            }
        }
        let clients = match table.get("client") {
            Some(value) if value.get_ref().is_str() => std::slice::from_ref(value),
            Some(value) => self.array(value)?,
            None => &[],
        };
        for client in clients {
            let (certificate, key) = match self.strings(client)?[..] {
                [certificate] | [certificate, ""] => (certificate, None),
                [certificate, key] => (certificate, Some(self.certificate(client, key)?)),
                _ => {
                    return Err(
                        self.error(client.span(), "expected a certificate, or a certificate and its key")
                    );
                }
            };
            let (path, pem) = self.certificate(client, certificate)?;
            let key = key.as_ref().map(|(path, pem)| (path.as_path(), pem.expose()));
            tls.add_client(&path, pem.expose(), key).map_err(|source| self.unusable(client, source))?;
        }
        Ok(tls)
    }

    /// A certificate file, which may hold a key; a relative path starts at the directory of this one.
    fn certificate(&self, value: &Value<'_>, path: &str) -> Result<(PathBuf, Secret), HostsError> {
        let path = self.path.parent().unwrap_or(Path::new("")).join(path);
        match (self.read)(&path) {
            Ok(pem) => Ok((path, Secret::new(pem))),
            Err(source) => Err(self.unusable(value, TlsError::Read { path, source })),
        }
    }

    fn unusable(&self, value: &Value<'_>, source: TlsError) -> HostsError {
        HostsError::Certificate { path: self.path.into(), line: self.line(value.span()), source }
    }

    fn headers(&self, table: &DeTable<'_>) -> Result<HeaderMap, HostsError> {
        let mut headers = HeaderMap::new();
        let Some(value) = table.get("header") else {
            return Ok(headers);
        };
        for (name, values) in self.table(value)? {
            let header = HeaderName::try_from(name.get_ref().as_ref())
                .map_err(|_| self.error(name.span(), "not a header name"))?;
            if OWN_HEADERS.contains(&header) {
                self.idle.borrow_mut().push((self.line(name.span()), format!("header `{}`", name.get_ref())));
                continue;
            }
            for text in self.strings(values)? {
                let mut value = HeaderValue::try_from(text)
                    .map_err(|_| self.error(values.span(), "not a header value"))?;
                // It may be a key; sensitive values show in no Debug.
                value.set_sensitive(true);
                headers.append(&header, value);
            }
        }
        Ok(headers)
    }

    fn duration(&self, value: &Value<'_>) -> Result<Duration, HostsError> {
        duration(self.string(value)?)
            .ok_or_else(|| self.error(value.span(), "not a duration: expected a form like `5s` or `1m30s`"))
    }

    fn table<'v, 't>(&self, value: &'v Value<'t>) -> Result<&'v DeTable<'t>, HostsError> {
        value.get_ref().as_table().ok_or_else(|| self.mistyped(value, "a table"))
    }

    fn array<'v, 't>(&self, value: &'v Value<'t>) -> Result<&'v [Value<'t>], HostsError> {
        value.get_ref().as_array().map(|array| &array[..]).ok_or_else(|| self.mistyped(value, "a list"))
    }

    fn string<'v>(&self, value: &'v Value<'_>) -> Result<&'v str, HostsError> {
        value.get_ref().as_str().ok_or_else(|| self.mistyped(value, "a string"))
    }

    fn boolean_of(&self, table: &DeTable<'_>, key: &str) -> Result<Option<bool>, HostsError> {
        let read = |value: &Value<'_>| {
            value.get_ref().as_bool().ok_or_else(|| self.mistyped(value, "true or false"))
        };
        table.get(key).map(read).transpose()
    }

    /// One string or a list of them.
    fn strings<'v>(&self, value: &'v Value<'_>) -> Result<Vec<&'v str>, HostsError> {
        match value.get_ref().as_array() {
            Some(items) => items.iter().map(|item| self.string(item)).collect(),
            None => Ok(vec![self.string(value)?]),
        }
    }

    fn mistyped(&self, value: &Value<'_>, expected: &str) -> HostsError {
        self.error(value.span(), format!("expected {expected}, found {}", value.get_ref().type_str()))
    }
}

/// A written address, which may be none, without what may be a password in it: all before the last `@`, and its query.
fn shown(address: &str) -> String {
    let (scheme, rest) = match address.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), address),
    };
    match rest.rsplit_once('@') {
        Some((_, rest)) => format!("{scheme}{REDACTED}@{}", before_query(rest)),
        None => format!("{scheme}{}", before_query(rest)),
    }
}

fn before_query(text: &str) -> &str {
    text.split(['?', '#']).next().unwrap_or_default()
}

/// The port as it stands in an address; a parsed URL no longer tells a written default port from none.
fn written_port(address: &str) -> Option<&str> {
    let authority = address.split_once("://").map_or(address, |(_, rest)| rest);
    split_port(authority.split('/').next().unwrap_or_default()).1
}

/// Reads a duration in Go's spelling, which is what the file's other readers take.
fn duration(text: &str) -> Option<Duration> {
    let text = text.strip_prefix('+').unwrap_or(text);
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut seconds) = (text, 0.0_f64);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let factor = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            // The sign for micro is in Unicode twice.
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * factor;
        rest = tail;
    }
    if text.is_empty() { None } else { Duration::try_from_secs_f64(seconds).ok() }
}

#[cfg(test)]
mod tests;
