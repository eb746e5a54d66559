//! Which proxy a request goes through, from the environment variables that containerd reads, by the rules of Go's
//! library for them. A host for which a proxy is set is reached through it or not at all.

use std::net::IpAddr;

use reqwest::Url;

use super::hosts::{is_loopback, split_port};

/// Why the environment's proxies cannot be used. Never shows a value: a proxy's URL may hold a password.
#[derive(Debug, thiserror::Error)]
#[error("{variable} is not the URL of a proxy: expected http://HOST:PORT or https://HOST:PORT")]
pub struct ProxyError {
    /// The environment variable.
    pub variable: &'static str,
}

/// The proxies of this process.
#[derive(Clone, Default)]
pub(super) struct Proxies {
    http: Option<Url>,
    https: Option<Url>,
    exceptions: Vec<Exception>,
}

/// One entry of `NO_PROXY`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Exception {
    All,
    Network {
        address: IpAddr,
        prefix: u8,
        port: Option<u16>,
    },
    /// A name, and whether it is for the names below only.
    Domain {
        name: String,
        below_only: bool,
        port: Option<u16>,
    },
}

impl Proxies {
    /// Reads `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, each also in lower case.
    pub(super) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, ProxyError> {
        let value = |name: &'static str| {
            let given = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
            given(name).or_else(|| given(&name.to_ascii_lowercase()))
        };
        let proxy = |name| value(name).map(|text| proxy(text.trim()).ok_or(ProxyError { variable: name }));
        let exceptions = value("NO_PROXY").unwrap_or_default();
        Ok(Self {
            http: proxy("HTTP_PROXY").transpose()?,
            https: proxy("HTTPS_PROXY").transpose()?,
            exceptions: exceptions.split(',').filter_map(exception).collect(),
        })
    }

    /// The proxy for a URL; `None` is a direct connection. This node itself is never reached through a proxy, which
    /// would look for it on its own node.
    pub(super) fn of(&self, url: &Url) -> Option<&Url> {
        let host = url.host_str()?;
        let proxy = if url.scheme() == "https" { &self.https } else { &self.http }.as_ref()?;
        let host = host.trim_end_matches('.');
        let port = url.port_or_known_default();
        (!is_loopback(host) && !self.exceptions.iter().any(|exception| exception.covers(host, port)))
            .then_some(proxy)
    }
}

impl Exception {
    fn covers(&self, host: &str, at: Option<u16>) -> bool {
        let fits = |port: &Option<u16>| port.is_none() || *port == at;
        match self {
            Self::All => true,
            Self::Network { address, prefix, port } => {
                fits(port) && ip(host).is_some_and(|host| within(host, *address, *prefix))
            }
            Self::Domain { name, below_only, port } => {
                let before = host.to_ascii_lowercase();
                let before = before.strip_suffix(name.as_str());
                fits(port)
                    && before.is_some_and(|before| before.ends_with('.') || before.is_empty() && !below_only)
            }
        }
    }
}

/// A proxy's URL; without a scheme it is an HTTP one.
fn proxy(text: &str) -> Option<Url> {
    let url = if text.contains("://") { Url::parse(text) } else { Url::parse(&format!("http://{text}")) };
    url.ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

fn exception(text: &str) -> Option<Exception> {
    let text = text.trim().to_ascii_lowercase();
    if text == "*" {
        return Some(Exception::All);
    }
    if let Some((address, prefix)) = text.split_once('/') {
        let (address, prefix) = (ip(address)?, prefix.parse().ok()?);
        let bits = if address.is_ipv4() { 32 } else { 128 };
        return (prefix <= bits).then_some(Exception::Network { address, prefix, port: None });
    }
    // An IPv6 address without brackets has colons of its own.
    let (host, port) = if ip(&text).is_some() { (text.as_str(), None) } else { split_port(&text) };
    let port = port.map(str::parse).transpose().ok()?;
    if let Some(address) = ip(host) {
        let prefix = if address.is_ipv4() { 32 } else { 128 };
        return Some(Exception::Network { address, prefix, port });
    }
    let host = host.strip_prefix('*').unwrap_or(host);
    let name = host.trim_start_matches('.').trim_end_matches('.');
    let below_only = host.starts_with('.');
    (!name.is_empty()).then(|| Exception::Domain { name: name.into(), below_only, port })
}

fn ip(text: &str) -> Option<IpAddr> {
    let text = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    text.parse().ok()
}

fn within(host: IpAddr, network: IpAddr, prefix: u8) -> bool {
    let (host, network, bits) = match (host.to_canonical(), network.to_canonical()) {
        (IpAddr::V4(host), IpAddr::V4(network)) => {
            (u128::from(host.to_bits()), u128::from(network.to_bits()), 32)
        }
        (IpAddr::V6(host), IpAddr::V6(network)) => (host.to_bits(), network.to_bits(), 128),
        _ => return false,
    };
    // A shift by the whole width would be none.
    prefix == 0 || (host ^ network).checked_shr(bits - u32::from(prefix)).unwrap_or(1) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Proxies, ProxyError> {
        Proxies::read(|name| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).to_owned())
        })
    }

    /// Fault 47.
    #[test]
    fn a_url_goes_through_the_proxy_of_its_scheme_unless_no_proxy_names_its_host() {
        let no_proxy = "10.0.0.0/8, 192.0.2.7,fd00::/8,[2001:db8::1]:5000, reg.test , .below.test,*.star.test,\
                        port.test:5000,,bad/99,10.0.0.1/x";
        let proxies =
            read(&[("HTTP_PROXY", "http://p:1"), ("https_proxy", "q:2"), ("NO_PROXY", no_proxy)]).unwrap();
        for (url, expected) in [
            ("http://other.test/", Some("http://p:1/")),
            ("https://other.test/", Some("http://q:2/")),
            ("https://10.1.2.3/", None),
            ("https://11.1.2.3:5000/", Some("http://q:2/")),
            ("https://192.0.2.7:5000/", None),
            ("https://192.0.2.8/", Some("http://q:2/")),
            ("https://[fd12::1]/", None),
            ("https://[fe80::1]/", Some("http://q:2/")),
            ("https://[2001:db8::1]:5000/", None),
            ("https://[2001:db8::1]:5001/", Some("http://q:2/")),
            ("https://reg.test:5000/", None),
            ("https://REG.test/", None),
            ("https://a.reg.test/", None),
            ("https://areg.test/", Some("http://q:2/")),
            ("https://reg.test.evil.test/", Some("http://q:2/")),
            ("https://a.below.test/", None),
            ("https://below.test/", Some("http://q:2/")),
            ("https://a.star.test/", None),
            ("https://star.test/", Some("http://q:2/")),
            ("https://port.test:5000/", None),
            ("https://port.test/", Some("http://q:2/")),
            ("http://localhost:5000/", None),
            ("http://127.1.2.3/", None),
            ("https://[::1]:5000/", None),
        ] {
            let url: Url = url.parse().unwrap();
            assert_eq!(proxies.of(&url).map(Url::as_str), expected, "{url}");
        }
        let all = read(&[("HTTPS_PROXY", "https://p"), ("NO_PROXY", "a, *")]).unwrap();
        assert!(all.of(&"https://other.test/".parse().unwrap()).is_none());
        let none = read(&[("HTTP_PROXY", "p"), ("HTTPS_PROXY", " ")]).unwrap();
        assert!(none.of(&"https://other.test/".parse().unwrap()).is_none());
    }

    #[test]
    fn a_proxy_that_cannot_be_understood_is_an_error_without_its_value() {
        for value in ["socks5://canary:1080", "http://", "http://u:canary@:80", "http://h:canary"] {
            let error = read(&[("HTTPS_PROXY", value)]).err().unwrap();
            assert!(error.to_string().starts_with("HTTPS_PROXY is not the URL"), "{error}");
            assert!(!format!("{error} {error:?}").contains("canary"));
        }
    }
}
