//! Entry points for random input to what this house reads of strangers: nothing may panic, and what must hold for any
//! input is asserted.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use http::header::{HeaderMap, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};

use super::challenge::{self, Challenge};
use super::credentials::{Credentials, Given, Login, server_of};
use super::credentials_file::CredentialsFile;
use super::range::ContentRange;
use super::{hosts_toml, retry_after};

/// Stands for a secret in inputs; no error may show it.
const CANARY: &str = "canary";

/// `WWW-Authenticate`: a line for each header.
pub fn challenge(input: &[u8]) {
    let values = input.split(|&byte| byte == b'\n').filter_map(|line| HeaderValue::from_bytes(line).ok());
    let headers: HeaderMap = values.map(|value| (WWW_AUTHENTICATE, value)).collect();
    if let Some(Challenge::Bearer { realm, scopes, .. }) = challenge::choose(&headers) {
        assert!(matches!(realm.scheme(), "http" | "https") && realm.has_host(), "a token server is a host");
        let blank = |scope: &String| scope.is_empty() || scope.contains(' ');
        assert!(!scopes.iter().any(blank), "scopes are single words");
    }
}

/// `hosts.toml`, without the certificates that it names.
pub fn hosts_toml(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let path = Path::new("/c/hosts.toml");
    let reading = hosts_toml::parse(path, text, "reg.test:5000", |_| Err(io::ErrorKind::NotFound.into()));
    let lines = text.matches('\n').count() + 1;
    for mistake in &reading.mistakes {
        let place = mistake.to_string();
        let line = place.strip_prefix("/c/hosts.toml:").and_then(|rest| rest.split(':').next());
        let line = line.and_then(|line| line.parse().ok());
        assert!(line.is_some_and(|line| (1..=lines).contains(&line)), "a mistake has a place: {place}");
    }
    if reading.mistakes.is_empty() {
        assert!(!reading.hosts.is_empty(), "there is always a host to ask");
        for host in &reading.hosts {
            assert!(!host.authority.is_empty() && !host.root.ends_with('/'), "a host makes a URL");
            assert_eq!(host.own, host.namespace.is_none(), "a mirror is told which registry is meant");
        }
    }
}

/// The node's file of credentials, the fields of a pull's credentials (a line for each), and the spellings of a server.
pub fn credentials(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match CredentialsFile::parse(Path::new("/c"), text) {
        Ok(file) => {
            let found = file.find("reg.test", "a/b");
            let shown = match found.login {
                // The user's name is shown.
                Some(Login::Password { password, .. }) => format!("{password:?}"),
                login => format!("{login:?}"),
            };
            assert!(!shown.contains(CANARY), "a login shows no secret");
        }
        Err(error) => {
            assert!(!format!("{error} {error:?}").contains(CANARY), "an error shows nothing of the file");
        }
    }
    let mut fields = text.split('\n');
    let mut field = || fields.next().unwrap_or_default();
    let given = Given {
        username: field(),
        password: field(),
        auth: field(),
        server_address: field(),
        identity_token: field(),
        registry_token: field(),
    };
    match Credentials::new(given) {
        Ok(credentials) => assert!(!format!("{credentials:?}").contains(CANARY), "credentials show nothing"),
        Err(error) => assert!(!format!("{error} {error:?}").contains(CANARY), "an error shows nothing"),
    }
    let server = server_of(text);
    assert!(!server.contains(['/', '?', '#', '@']), "a server is a host with its port: {server}");
}

/// `Retry-After`.
pub fn retry_after(input: &[u8]) {
    // The last day that a date can name is in the year 9999.
    const LONGEST: Duration = Duration::from_secs(8030 * 366 * 24 * 3600);
    let Ok(value) = HeaderValue::from_bytes(input) else { return };
    let number = value.to_str().is_ok_and(|text| text.trim().bytes().all(|byte| byte.is_ascii_digit()));
    if let Some(wait) =
        retry_after::told(&HeaderMap::from_iter([(RETRY_AFTER, value)]), SystemTime::UNIX_EPOCH)
    {
        assert!(!wait.is_zero(), "no wait is none");
        assert!(number || wait < LONGEST, "a date is at most so far away: {wait:?}");
    }
}

/// `Content-Range`.
pub fn content_range(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Some(range) = ContentRange::parse(text) {
        assert!(range.total.is_none_or(|total| range.start < total), "a range lies in its whole");
        assert!(
            range.total.is_none_or(|total| range.continues(range.start, total)),
            "it continues where it starts"
        );
    }
}
