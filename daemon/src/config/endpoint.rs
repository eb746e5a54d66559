//! Where something is sent by HTTP.

use super::Authority;
use super::written::Written;

/// `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(String);

impl Endpoint {
    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Written for Endpoint {
    const FORM: &'static str = "http://HOST:PORT";

    fn read(text: &str) -> Option<Self> {
        let authority = text.strip_prefix("http://")?;
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        (has_port && Authority::read(authority).is_some()).then(|| Self(text.into()))
    }

    fn write(&self) -> String {
        self.0.clone()
    }
}

impl Written for Option<Endpoint> {
    const FORM: &'static str = "http://HOST:PORT, or nothing";

    fn read(text: &str) -> Option<Self> {
        if text.is_empty() { Some(None) } else { Endpoint::read(text).map(Some) }
    }

    fn write(&self) -> String {
        self.as_ref().map(Endpoint::write).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_has_a_scheme_a_host_and_a_port() {
        for text in ["http://127.0.0.1:4317", "http://collector.test:1", "http://[::1]:4317"] {
            assert_eq!(Endpoint::read(text).map(|read| read.write()).as_deref(), Some(text));
        }
        for text in
            ["", "127.0.0.1:4317", "https://h:1", "http://h", "http://h:1/p", "http://:1", "http://u@h:1"]
        {
            assert_eq!(Endpoint::read(text), None, "{text}");
        }
        assert_eq!(Option::<Endpoint>::read(""), Some(None));
    }
}
