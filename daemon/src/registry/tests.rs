//! The house against scripted hosts over real sockets.

mod auth;
mod fake;
mod fallback;
mod foreign;
mod mirrors;
mod node;
mod ranges;
mod resolve;
mod retry;
mod secure;
mod stream;
mod tls;
mod transfer;

use std::fmt::Write as _;

use base64::Engine as _;
use fake::{Ending, Fake, Received, Reply};
use tokio::time::Instant;

use super::*;
use crate::oci::{Digest, media_type};

const MANIFEST: &str = r#"{"schemaVersion":2,"config":{},"layers":[]}"#;
const USER: &str = "canary-user";
const PASSWORD: &str = "canary-password";

fn config() -> Config {
    Config {
        config_path: Vec::new(),
        credentials_file: None,
        trusted_mirrors: Vec::new(),
        anonymous_fallback: false,
        user_agent: "drayd/test".into(),
        response_timeout: Duration::from_secs(10),
        stall_timeout: Duration::from_secs(30),
        parallel_ranges: 1,
        range_size: 8 << 20,
        download_rate: None,
        environment: Environment::default(),
        metrics: Arc::default(),
    }
}

fn registry() -> Registry {
    Registry::new(config()).unwrap()
}

/// A directory of `hosts.toml` files, as the node's owner writes it.
struct Hosts(tempfile::TempDir);

impl Hosts {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Writes the file of a registry, and gives the directory it is in.
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let directory = self.0.path().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("hosts.toml"), text).unwrap();
        directory
    }

    fn config(&self) -> Config {
        Config { config_path: vec![self.0.path().into()], ..config() }
    }

    fn registry(&self) -> Registry {
        Registry::new(self.config()).unwrap()
    }
}

/// A registry house with mirrors, each over plain HTTP, in front of `own`; and the files that say so.
fn mirrored(mirrors: &[&Fake], own: &str) -> (Registry, Hosts) {
    let mut text = format!("server = '{own}'\n");
    for mirror in mirrors {
        let _ = writeln!(text, "[host.'{}']", plain(mirror));
    }
    let hosts = Hosts::new();
    hosts.write(own.split_once("://").unwrap().1, &text);
    (hosts.registry(), hosts)
}

fn plain(fake: &Fake) -> String {
    format!("http://{}", fake.authority())
}

/// A house whose only host is `fake`, over plain HTTP.
fn direct(fake: &Fake) -> (Registry, Hosts) {
    mirrored(&[], &plain(fake))
}

/// All bytes of a stream from its position on.
async fn drain(stream: &mut Stream<'_>) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    while let Some(part) = stream.next().await? {
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

fn offsets(fake: &Fake) -> Vec<Option<usize>> {
    fake.received().iter().map(Received::offset).collect()
}

fn repository(fake: &Fake) -> Repository {
    Repository { domain: fake.authority(), path: "a/b".into() }
}

/// A repository whose hosts a file names.
fn named(domain: &str) -> Repository {
    Repository { domain: domain.into(), path: "a/b".into() }
}

fn basic(username: &str, password: &str) -> String {
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{username}:{password}")))
}

/// A host that serves the manifest to one user only.
async fn basic_registry(username: &'static str) -> Fake {
    let wanted = basic(username, PASSWORD);
    Fake::start(move |request| match request.header("authorization") {
        Some(given) if given == wanted => manifest(),
        _ => Reply::status(401).header("www-authenticate", "Basic"),
    })
    .await
}

/// The `Authorization` headers a host received.
fn authorizations(fake: &Fake) -> Vec<String> {
    let received = fake.received();
    received.iter().filter_map(|request| request.header("authorization").map(String::from)).collect()
}

fn password() -> Credentials {
    Credentials::new(Given { username: USER, password: PASSWORD, ..Given::default() }).unwrap()
}

fn blob_of(bytes: &[u8]) -> Descriptor {
    Descriptor {
        media_type: "application/vnd.oci.image.layer.v1.tar".into(),
        digest: Digest::of(bytes),
        size: bytes.len() as u64,
        annotations: BTreeMap::new(),
        urls: Vec::new(),
    }
}

fn manifest() -> Reply {
    Reply::ok(MANIFEST)
        .header("content-type", media_type::OCI_MANIFEST)
        .header("docker-content-digest", Digest::of(MANIFEST.as_bytes()).as_str())
}

/// The whole blob.
async fn read(
    registry: &Registry,
    repository: &Repository,
    blob: &Descriptor,
    login: &Credentials,
) -> Result<Vec<u8>, Error> {
    drain(&mut registry.stream(repository, blob, 0, login)).await
}

fn assert_no_secret(error: &Error) {
    let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{USER}:{PASSWORD}"));
    for text in [error.to_string(), format!("{error:?}")] {
        for secret in [PASSWORD, &encoded, "canary-signature", "canary-token"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

#[tokio::test]
async fn mirrors_come_first_without_the_credentials_and_every_failure_is_listed() {
    let challenge = |request: &Received| match request.header("authorization") {
        Some(_) => Reply { body: r#"{"errors":[{"code":"DENIED"}]}"#.into(), ..Reply::status(403) },
        None => Reply::status(401).header("www-authenticate", "Basic"),
    };
    let (mirror, fake) = (Fake::start(challenge).await, Fake::start(challenge).await);
    let hosts = Hosts::new();
    let file = format!("[host.'http://{}/p']\nheader = {{ x-key = 'canary-token' }}\n", mirror.authority());
    hosts.write(&fake.authority(), &file);
    let registry = hosts.registry();

    let error = registry.resolve(&repository(&fake), "1", &password()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    let text = error.to_string();
    assert!(text.contains(&format!("mirror {}: ", mirror.authority())), "{text}");
    assert!(text.contains("none were given for this host"), "{text}");
    assert!(text.contains(&format!("registry {}: ", fake.authority())), "{text}");
    assert!(text.ends_with(r#"403 Forbidden: "DENIED""#), "{text}");
    assert_no_secret(&error);
    let received = mirror.received();
    assert!(received.iter().all(|request| request.header("authorization").is_none()));
    assert!(received.iter().all(|request| request.header("x-key") == Some("canary-token")));
    let namespace = fake.authority().replace(':', "%3A");
    assert_eq!(received[0].line(), format!("HEAD /p/v2/a/b/manifests/1?ns={namespace}"));
    assert!(fake.received().iter().all(|request| request.header("x-key").is_none()));
}

#[tokio::test]
async fn a_local_host_without_tls_is_found_out_once() {
    let fake = Fake::start(|_| manifest()).await;
    let (registry, repository) = (registry(), repository(&fake));
    for _ in 0..3 {
        registry.resolve(&repository, "1", &Credentials::anonymous()).await.unwrap();
    }
    assert_eq!(fake.tls_attempts(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_not_there_is_unavailable() {
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let repository = Repository { domain: gone.to_string(), path: "a".into() };
    let error = registry().resolve(&repository, "1", &Credentials::anonymous()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.is_transient());
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(error.to_string().ends_with("(after 5 tries)"), "{error}");
}
