//! The hosts that serve a registry's content, in the order they are asked, and how each one is reached.

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderMap;

use super::file_text::text_of;
use super::hosts_toml::{self, HostsError, Reading};
use super::secret::Secret;
use super::tls::{Tls, TlsError};

/// How long a connection may take to come about when the host's file does not say; containerd's figure.
pub(super) const DIAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Docker Hub: the name in references, and the host that answers for it.
const HUB: (&str, &str) = ("docker.io", "registry-1.docker.io");

/// The directory for registries without one of their own.
pub(super) const DEFAULT_DIRECTORY: &str = "_default";

/// How a host speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    Http,
    Https,
    /// HTTPS, and plain HTTP when the host turns out not to speak TLS.
    Either,
}

/// What a host may be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capabilities {
    /// Content by digest.
    pub(super) pull: bool,
    /// What a tag points to.
    pub(super) resolve: bool,
}

impl Capabilities {
    pub(super) const ALL: Self = Self { pull: true, resolve: true };
}

/// One host that serves a registry's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) scheme: Scheme,
    /// `host[:port]`.
    pub(super) authority: String,
    /// The API's root on that host, `/v2` as a rule, without a slash at its end.
    pub(super) root: String,
    pub(super) capabilities: Capabilities,
    pub(super) tls: Tls,
    /// Sent with every request to this host, and to no other.
    pub(super) headers: HeaderMap,
    pub(super) dial_timeout: Duration,
    /// Whether it is the registry itself, the only host that the request's credentials are for.
    pub(super) own: bool,
    /// The registry that is meant, told to a mirror that may serve several.
    pub(super) namespace: Option<String>,
}

impl Host {
    /// The host that a reference's domain names, with nothing configured.
    pub(super) fn upstream(domain: &str) -> Self {
        let authority = if domain == HUB.0 { HUB.1 } else { domain };
        let (name, port) = split_port(authority);
        let loopback = is_loopback(name);
        let scheme = match port {
            Some("80") if loopback => Scheme::Http,
            None | Some("443") => Scheme::Https,
            // A registry on the node itself is mostly a development one, with TLS or without.
            Some(_) if loopback => Scheme::Either,
            Some(_) => Scheme::Https,
        };
        let mut host = Self::new(domain, scheme, authority, "/v2");
        // Nobody stands between the node and itself, and no authority certifies `localhost`.
        host.tls.skip_verify = loopback;
        host
    }

    /// A host for `domain` with all capabilities and no settings of its own.
    pub(super) fn new(domain: &str, scheme: Scheme, authority: &str, root: &str) -> Self {
        let own = bare(authority) == bare(if domain == HUB.0 { HUB.1 } else { domain });
        Self {
            scheme,
            authority: authority.into(),
            root: root.into(),
            capabilities: Capabilities::ALL,
            tls: Tls::default(),
            headers: HeaderMap::new(),
            dial_timeout: DIAL_TIMEOUT,
            own,
            namespace: (!own).then(|| domain.to_owned()),
        }
    }
}

/// The hosts for `domain` as the first matching directory of `config_path` has them, else the domain's own host. The
/// files are read anew each time, so that an edit needs no restart.
pub(super) fn load(config_path: &[PathBuf], domain: &str) -> Result<Vec<Host>, HostsError> {
    // The domain becomes a file name; a parsed reference has none of these, and nothing else may reach here.
    if domain.contains(['/', '\0']) || domain.starts_with('.') {
        return Ok(vec![Host::upstream(domain)]);
    }
    match directory(config_path, domain)? {
        Some(directory) => read(&directory, domain).hosts(),
        None => Ok(vec![Host::upstream(domain)]),
    }
}

/// What one directory says of `domain`.
pub(super) fn read(directory: &Path, domain: &str) -> Reading {
    let file = directory.join("hosts.toml");
    let text = match fs::read(&file).map(text_of) {
        Ok(Err(line)) => {
            return Err(HostsError::Content { path: file, line, reason: "not UTF-8".into() }).into();
        }
        Ok(Ok(text)) => Ok(text),
        Err(source) => Err(source),
    };
    match text {
        Ok(text) if !text.trim().is_empty() => hosts_toml::parse(&file, &text, domain, |path| fs::read(path)),
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(HostsError::Read { path: file, source }).into()
        }
        // An empty file counts as none.
        _ => certificates_only(directory, domain).into(),
    }
}

/// The first directory there is. One that cannot be looked at is an error, as in containerd: it may hold the mirrors.
pub(super) fn directory(config_path: &[PathBuf], domain: &str) -> Result<Option<PathBuf>, HostsError> {
    for root in config_path {
        for path in names(domain).into_iter().map(|name| root.join(name)) {
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => return Ok(Some(path)),
                Err(source) if source.kind() == ErrorKind::NotADirectory => {
                    return Err(HostsError::Read { path: root.clone(), source });
                }
                Err(source) if source.kind() != ErrorKind::NotFound => {
                    return Err(HostsError::Read { path, source });
                }
                _ => {}
            }
        }
    }
    Ok(None)
}

/// Directory names for a domain, first one first, as containerd looks them up; and then in lower case, since a host is
/// the same in any case. To containerd it is another one, and its mirrors are passed by.
fn names(domain: &str) -> Vec<String> {
    let mut names = Vec::new();
    let lower = domain.to_ascii_lowercase();
    for domain in [domain].into_iter().chain((lower != domain).then_some(lower.as_str())) {
        if let (host, Some(port)) = split_port(domain) {
            names.push(format!("{host}_{port}_"));
        }
        names.push(domain.to_owned());
    }
    names.push(DEFAULT_DIRECTORY.to_owned());
    names
}

/// A directory as Docker lays it out: `*.crt` are authorities, each `*.cert` with its `*.key` a pair of the client's.
fn certificates_only(directory: &Path, domain: &str) -> Result<Vec<Host>, HostsError> {
    let unread = |source| HostsError::Read { path: directory.into(), source };
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(directory).map_err(unread)? {
        files.push(entry.map_err(unread)?.path());
    }
    files.sort();
    let mut host = Host::upstream(domain);
    for file in files {
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("crt") => contents(&file).and_then(|pem| host.tls.add_authorities(&file, pem.expose())),
            Some("cert") => {
                let path = file.with_extension("key");
                contents(&path).and_then(|key| {
                    host.tls.add_client(&file, contents(&file)?.expose(), Some((&path, key.expose())))
                })
            }
            _ => Ok(()),
        }
        .map_err(HostsError::Tls)?;
    }
    Ok(vec![host])
}

/// A file that may hold a key.
fn contents(path: &Path) -> Result<Secret, TlsError> {
    fs::read(path).map(Secret::new).map_err(|source| TlsError::Read { path: path.into(), source })
}

/// Splits `host:port`; an IPv6 address keeps its brackets.
pub(super) fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

/// Whether a host name without its port is this node itself.
pub(super) fn is_loopback(name: &str) -> bool {
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// An authority for comparison: case does not count, nor does HTTPS' own port.
fn bare(authority: &str) -> String {
    authority.strip_suffix(":443").unwrap_or(authority).to_ascii_lowercase()
}

/// The registry that a directory is for, or `_default`.
pub(super) fn domain_of(name: &str) -> String {
    let split = name.strip_suffix('_').and_then(|name| name.rsplit_once('_'));
    match split {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => format!("{host}:{port}"),
        _ => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_alone_leads_to_its_own_host() {
        for (domain, scheme, authority, skip_verify) in [
            ("docker.io", Scheme::Https, "registry-1.docker.io", false),
            ("reg.test", Scheme::Https, "reg.test", false),
            ("reg.test:5000", Scheme::Https, "reg.test:5000", false),
            ("localhost", Scheme::Https, "localhost", true),
            ("localhost:443", Scheme::Https, "localhost:443", true),
            ("127.0.0.1:80", Scheme::Http, "127.0.0.1:80", true),
            ("127.9.9.9:5000", Scheme::Either, "127.9.9.9:5000", true),
            ("[::1]:5000", Scheme::Either, "[::1]:5000", true),
            ("[::1]", Scheme::Https, "[::1]", true),
            ("localhost.test:5000", Scheme::Https, "localhost.test:5000", false),
        ] {
            let host = Host::upstream(domain);
            assert_eq!((host.scheme, host.authority.as_str()), (scheme, authority));
            assert_eq!(host.tls.skip_verify, skip_verify, "{domain}");
            assert!(host.own && host.namespace.is_none(), "{domain}");
        }
    }

    /// Fault 46.
    #[test]
    fn directories_are_looked_up_in_containerds_order() {
        assert_eq!(names("h:5000"), ["h_5000_", "h:5000", "_default"]);
        assert_eq!(names("h"), ["h", "_default"]);
        assert_eq!(names("[::1]"), ["[::1]", "_default"]);
        assert_eq!(names("H:5000"), ["H_5000_", "H:5000", "h_5000_", "h:5000", "_default"]);
        for (name, domain) in [
            ("h_5000_", "h:5000"),
            ("h:5000", "h:5000"),
            ("h", "h"),
            ("_default", "_default"),
            ("a_b_", "a_b_"),
        ] {
            assert_eq!(domain_of(name), domain);
        }
    }

    /// Fault 7.
    #[test]
    fn a_registry_in_upper_case_has_the_mirrors_of_the_one_in_lower_case() {
        let root = tempfile::tempdir().unwrap();
        let first = || load(&[root.path().to_path_buf()], "Reg.Test:1").unwrap()[0].authority.clone();
        assert_eq!(first(), "Reg.Test:1");
        for (name, mirror) in
            [("_default", "a"), ("reg.test:1", "b"), ("reg.test_1_", "c"), ("Reg.Test:1", "d")]
        {
            let directory = root.path().join(name);
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("hosts.toml"), format!("[host.\"https://{mirror}\"]")).unwrap();
            assert_eq!(first(), mirror);
        }
    }

    /// Faults 36 and 46.
    #[test]
    fn the_first_directory_with_a_match_wins() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let roots = [one.path().to_path_buf(), two.path().to_path_buf()];
        let write = |root: &Path, name: &str, mirror: &str| {
            fs::create_dir_all(root.join(name)).unwrap();
            fs::write(root.join(name).join("hosts.toml"), format!("[host.\"https://{mirror}\"]")).unwrap();
        };
        let first = || load(&roots, "h:5000").unwrap()[0].authority.clone();
        assert_eq!(first(), "h:5000");
        for (root, name, mirror) in [
            (two.path(), "_default", "a"),
            (two.path(), "h:5000", "b"),
            (two.path(), "h_5000_", "c"),
            (one.path(), "_default", "d"),
        ] {
            write(root, "h", "never");
            write(root, name, mirror);
            assert_eq!(first(), mirror);
        }
    }

    #[test]
    fn what_is_no_directory_leads_past_no_mirror() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        match load(std::slice::from_ref(&file), "reg.test") {
            Err(HostsError::Read { path, source }) => {
                assert_eq!((path, source.kind()), (file, ErrorKind::NotADirectory));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(load(&[root.path().join("none")], "reg.test").unwrap(), [Host::upstream("reg.test")]);
    }

    #[test]
    fn a_file_that_is_not_utf_8_is_refused_with_its_line() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("reg.test");
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("hosts.toml"), b"server = 'http://a'\n# \xe9\n").unwrap();
        let error = load(&[root.path().into()], "reg.test").unwrap_err();
        assert_eq!(error.to_string(), format!("{}/hosts.toml:2: not UTF-8", directory.display()));
    }

    #[test]
    fn a_directory_of_certificates_configures_the_registry_itself() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("reg.test");
        fs::create_dir(&directory).unwrap();
        let hosts = || load(&[root.path().to_path_buf()], "reg.test");
        assert_eq!(hosts().unwrap(), [Host::upstream("reg.test")]);
        fs::write(directory.join("ca.crt"), "no certificate").unwrap();
        assert!(matches!(hosts(), Err(HostsError::Tls(_))));
    }
}
