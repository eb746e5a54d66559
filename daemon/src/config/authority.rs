//! Hosts with their port, as they stand in references and `hosts.toml`.

use std::fmt;

use super::written::Written;

/// `HOST` or `HOST:PORT`, without scheme and path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority(String);

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Written for Authority {
    const FORM: &'static str = "HOST or HOST:PORT, without scheme and path";

    fn read(text: &str) -> Option<Self> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let good = match inner {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                !host.is_empty()
                    && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
            }
        };
        let port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
        (good && port).then(|| Self(text.into()))
    }

    fn write(&self) -> String {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_taken_with_or_without_a_port_and_with_nothing_else() {
        for text in ["h", "h.test:5000", "127.0.0.1:1", "[::1]", "[::1]:5000"] {
            assert_eq!(Authority::read(text).map(|read| read.write()).as_deref(), Some(text));
        }
        for text in
            ["", ":5000", "h:", "h:0", "h:x", "h:70000", "https://h", "h/p", "a b", "[h]:1", "::1", "u@h"]
        {
            assert_eq!(Authority::read(text), None, "{text}");
        }
    }
}
