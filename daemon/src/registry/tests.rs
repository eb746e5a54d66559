//! The house against scripted hosts over real sockets.

mod fake;

use base64::Engine as _;
use fake::{Fake, Received, Reply};

use super::*;
use crate::oci::{Digest, media_type};

const MANIFEST: &str = r#"{"schemaVersion":2,"config":{},"layers":[]}"#;
const USER: &str = "canary-user";
const PASSWORD: &str = "canary-password";

fn registry() -> Registry {
    Registry::new(Config { config_path: Vec::new(), user_agent: "drayd/test".into() }).unwrap()
}

fn repository(fake: &Fake) -> Repository {
    Repository { domain: fake.authority(), path: "a/b".into() }
}

fn password() -> Credentials {
    Credentials::new(Given { username: USER, password: PASSWORD, ..Given::default() }).unwrap()
}

fn blob_of(bytes: &[u8]) -> Descriptor {
    Descriptor {
        media_type: "application/vnd.oci.image.layer.v1.tar".into(),
        digest: Digest::of(bytes),
        size: bytes.len() as u64,
        annotations: std::collections::BTreeMap::new(),
        urls: Vec::new(),
    }
}

fn manifest() -> Reply {
    Reply::ok(MANIFEST)
        .header("content-type", media_type::OCI_MANIFEST)
        .header("docker-content-digest", Digest::of(MANIFEST.as_bytes()).as_str())
}

async fn read(mut blob: Blob) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    while let Some(chunk) = blob.next().await? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn assert_no_secret(error: &Error) {
    let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{USER}:{PASSWORD}"));
    for text in [error.to_string(), format!("{error:?}")] {
        for secret in [PASSWORD, &encoded, "canary-signature", "canary-token"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

/// A registry that wants bearer tokens of `tokens`, and the manifest and blob behind them.
async fn bearer_registry(tokens: &Fake, blob: &'static str) -> Fake {
    let challenge = format!(
        r#"Bearer realm="http://{}/token?x=1",service="svc",scope="repository:a/b:pull""#,
        tokens.authority()
    );
    Fake::start(move |request| match request.header("authorization") {
        Some("Bearer canary-token") if request.path().starts_with("/v2/a/b/manifests/") => manifest(),
        Some("Bearer canary-token") => Reply::ok(blob),
        _ => Reply::status(401).header("www-authenticate", &challenge),
    })
    .await
}

#[tokio::test]
async fn one_token_and_one_refusal_serve_a_whole_pull() {
    let tokens = Fake::start(|_| Reply::ok(r#"{"token":"canary-token","expires_in":300}"#)).await;
    let fake = bearer_registry(&tokens, "layer").await;
    let (registry, repository, login) = (registry(), repository(&fake), Credentials::anonymous());

    let resolved = registry.resolve(&repository, "1", &login).await.unwrap();
    assert_eq!(resolved.target.digest, Digest::of(MANIFEST.as_bytes()));
    assert_eq!(resolved.target.media_type, media_type::OCI_MANIFEST);
    assert!(resolved.body.is_none());
    let blob = registry.open(&repository, &resolved.target, 0, &login).await.unwrap();
    assert_eq!(read(blob).await.unwrap(), MANIFEST.as_bytes());
    let layer = blob_of(b"layer");
    let layers = (0..4)
        .map(|_| async { read(registry.open(&repository, &layer, 0, &login).await.unwrap()).await.unwrap() });
    assert!(futures_util::future::join_all(layers).await.iter().all(|bytes| bytes == b"layer"));

    let asked: Vec<_> = fake.received().iter().map(Received::line).collect();
    assert_eq!(asked.len(), 7, "{asked:?}");
    assert_eq!(asked[..2], ["HEAD /v2/a/b/manifests/1", "HEAD /v2/a/b/manifests/1"]);
    let received = fake.received();
    assert_eq!(received[0].header("accept"), received[1].header("accept"));
    assert_eq!(received[0].header("authorization"), None);
    let asked: Vec<_> = tokens.received().iter().map(Received::line).collect();
    assert_eq!(asked, ["GET /token?x=1&service=svc&scope=repository%3Aa%2Fb%3Apull"]);
}

#[tokio::test]
async fn a_password_goes_by_form_first_and_by_basic_where_that_is_unknown() {
    for form_status in [200, 400, 401, 404, 405] {
        let tokens = Fake::start(move |request| {
            if request.method() == "POST" && form_status != 200 {
                return Reply::status(form_status);
            }
            Reply::ok(r#"{"access_token":"canary-token"}"#)
        })
        .await;
        let fake = bearer_registry(&tokens, "").await;
        registry().resolve(&repository(&fake), "1", &password()).await.unwrap();
        let received = tokens.received();
        assert_eq!(received[0].line(), "POST /token?x=1");
        assert!(received[0].body.contains("client_id=drayd&grant_type=password"), "{}", received[0].body);
        assert_eq!(received.len(), if form_status == 200 { 1 } else { 2 });
        if let Some(get) = received.get(1) {
            assert!(get.header("authorization").is_some_and(|value| value.starts_with("Basic ")));
        }
    }
}

#[tokio::test]
async fn a_token_that_died_in_the_cache_is_replaced_within_the_call() {
    let tokens = Fake::start(|_| Reply::ok(r#"{"token":"canary-token","expires_in":300}"#)).await;
    let challenge = format!(r#"Bearer realm="http://{}/""#, tokens.authority());
    let fake = Fake::start_counting(move |request, count| match (request.header("authorization"), count) {
        (Some(_), 2) | (None, _) => Reply::status(401).header("www-authenticate", &challenge),
        _ => manifest(),
    })
    .await;
    let (registry, repository) = (registry(), repository(&fake));
    for _ in 0..2 {
        registry.resolve(&repository, "1", &Credentials::anonymous()).await.unwrap();
    }
    assert_eq!(fake.received().len(), 4);
    assert_eq!(tokens.received().len(), 2);
}

#[tokio::test]
async fn refused_credentials_are_unauthorized_and_shown_nowhere() {
    for answer in [
        r#"{"details":"canary-password is wrong"}"#,
        r#"{"errors":[{"code":"UNAUTHORIZED","message":"canary-password"}]}"#,
    ] {
        let tokens = Fake::start(move |_| Reply { body: answer.into(), ..Reply::status(401) }).await;
        let fake = bearer_registry(&tokens, "").await;
        let error = registry().resolve(&repository(&fake), "1", &password()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unauthorized);
        assert!(error.to_string().contains("credentials were refused"), "{error}");
        assert!(error.to_string().contains(&tokens.authority()), "{error}");
        assert!(!error.is_transient());
        assert_no_secret(&error);
    }
}

#[tokio::test]
async fn an_answer_without_a_token_is_unauthorized() {
    for body in ["{}", r#"{"token":""}"#, "[]", "<html>", r#"{"token":7}"#] {
        let tokens = Fake::start(move |_| Reply::ok(body)).await;
        let fake = bearer_registry(&tokens, "").await;
        let error = registry().resolve(&repository(&fake), "1", &Credentials::anonymous()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unauthorized, "{error}");
        assert!(error.to_string().contains(&tokens.authority()), "{error}");
    }
}

#[tokio::test]
async fn basic_is_answered_with_user_and_password_only() {
    let fake = Fake::start(|request| match request.header("authorization") {
        Some("Basic Y2FuYXJ5LXVzZXI6Y2FuYXJ5LXBhc3N3b3Jk") => manifest(),
        _ => Reply::status(401).header("www-authenticate", r#"Basic realm="r""#),
    })
    .await;
    let (registry, repository) = (registry(), repository(&fake));
    registry.resolve(&repository, "1", &password()).await.unwrap();
    assert_eq!(fake.received().len(), 2);
    let token = Given { identity_token: "canary-token", ..Given::default() };
    for (login, text) in [
        (Credentials::anonymous(), "none were given"),
        (Credentials::new(token).unwrap(), "user and password are required"),
    ] {
        let error = registry.resolve(&repository, "1", &login).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unauthorized);
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[tokio::test]
async fn a_registry_token_is_sent_as_it_is() {
    let tokens = Fake::start(|_| Reply::status(500)).await;
    let fake = bearer_registry(&tokens, "").await;
    let login = Credentials::new(Given { registry_token: "canary-token", ..Given::default() }).unwrap();
    registry().resolve(&repository(&fake), "1", &login).await.unwrap();
    assert!(tokens.received().is_empty());
}

#[tokio::test]
async fn a_redirect_to_another_origin_carries_no_authorization() {
    let storage = Fake::start(|_| Reply::ok("layer")).await;
    let location = format!("http://{}/blob?sig=canary-signature", storage.authority());
    let fake = Fake::start(move |request| match request.header("authorization") {
        Some(_) if request.path().ends_with("/hop") => Reply::status(302).header("location", &location),
        Some(_) => Reply::status(307).header("location", "/v2/hop"),
        None => Reply::status(401).header("www-authenticate", "Basic"),
    })
    .await;
    let registry = registry();
    let blob = registry.open(&repository(&fake), &blob_of(b"layer"), 0, &password()).await.unwrap();
    assert_eq!(read(blob).await.unwrap(), b"layer");
    let received = storage.received();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].header("authorization"), None);
    assert!(received[0].header("accept").is_some());
}

#[tokio::test]
async fn endless_and_odd_redirects_end_as_unusable_answers() {
    for location in ["/again", "file:///etc/passwd", "ftp://h/", "http://"] {
        let fake = Fake::start(move |_| Reply::status(302).header("location", location)).await;
        let error = registry()
            .open(&repository(&fake), &blob_of(b"x"), 0, &Credentials::anonymous())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Answer, "{error}");
        assert!(fake.received().len() <= 11);
    }
}

#[tokio::test]
async fn a_blob_continues_at_the_offset_or_starts_over() {
    const WHOLE: &str = "0123456789";
    for (status, content_range, body, offset) in [
        (206, "bytes 4-9/10", "456789", 4),
        (206, "bytes 4-9/*", "456789", 4),
        (206, "bytes 0-9/10", WHOLE, 0),
        (206, "bytes 5-9/10", "56789", 0),
        (206, "bytes 4-9/11", "456789", 0),
        (206, "", "456789", 0),
        (200, "", WHOLE, 0),
        (416, "", "", 0),
        (400, "", "", 0),
    ] {
        let fake = Fake::start(move |request| match request.header("range") {
            Some("bytes=4-") if content_range.is_empty() => {
                Reply { body: body.into(), ..Reply::status(status) }
            }
            Some("bytes=4-") => {
                Reply { body: body.into(), ..Reply::status(status) }.header("content-range", content_range)
            }
            _ => Reply::ok(WHOLE),
        })
        .await;
        let blob = registry()
            .open(&repository(&fake), &blob_of(WHOLE.as_bytes()), 4, &Credentials::anonymous())
            .await
            .unwrap();
        assert_eq!(blob.offset, offset, "{status} {content_range}");
        let start = usize::try_from(offset).unwrap();
        assert_eq!(read(blob).await.unwrap(), &WHOLE.as_bytes()[start..], "{status} {content_range}");
    }
}

#[tokio::test]
async fn a_body_that_is_cut_or_too_long_is_an_error() {
    let cut = |length: Option<usize>, body: &str| Reply { body: body.into(), length, ..Reply::status(200) };
    for (reply, kind, transient) in [
        (cut(Some(10), "01234"), Kind::Unavailable, true),
        (cut(None, "01234"), Kind::Unavailable, true),
        (cut(None, "0123456789+"), Kind::Answer, false),
        (cut(Some(11), "0123456789+"), Kind::Answer, false),
    ] {
        let fake = Fake::start(move |_| reply.clone()).await;
        let opened =
            registry().open(&repository(&fake), &blob_of(b"0123456789"), 0, &Credentials::anonymous()).await;
        let error = match opened {
            Ok(blob) => read(blob).await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!((error.kind(), error.is_transient()), (kind, transient), "{error}");
    }
}

#[tokio::test]
async fn html_is_refused_by_name_and_not_shown() {
    let fake =
        Fake::start(|_| Reply::ok("<html>canary-token</html>").header("content-type", "text/html")).await;
    let (registry, repository, login) = (registry(), repository(&fake), Credentials::anonymous());
    for error in [
        registry.resolve(&repository, "1", &login).await.unwrap_err(),
        registry.open(&repository, &blob_of(b"x"), 0, &login).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Answer);
        assert!(error.to_string().contains("HTML"), "{error}");
        assert_no_secret(&error);
    }
}

#[tokio::test]
async fn any_refusal_of_head_is_followed_by_get() {
    for status in [400, 403, 404, 405, 500, 0] {
        let fake = Fake::start(move |request| match (request.method(), status) {
            ("HEAD", 0) => Reply::hang_up(),
            ("HEAD", status) => Reply::status(status),
            _ => manifest(),
        })
        .await;
        let resolved = registry().resolve(&repository(&fake), "1", &Credentials::anonymous()).await.unwrap();
        assert_eq!(resolved.body.as_deref(), Some(MANIFEST.as_bytes()), "{status}");
    }
}

#[tokio::test]
async fn a_digest_is_trusted_only_from_a_complete_answer() {
    let other = Digest::of(b"other").to_string();
    for (digest, length, content_type) in [
        ("", true, media_type::OCI_MANIFEST),
        ("sha256:short", true, media_type::OCI_MANIFEST),
        (&other, false, media_type::OCI_MANIFEST),
        (&other, true, "application/json"),
    ] {
        let head = Reply {
            length: length.then_some(MANIFEST.len()),
            ..Reply::status(200).header("content-type", content_type).header("docker-content-digest", digest)
        };
        let fake = Fake::start(
            move |request| {
                if request.method() == "HEAD" { head.clone() } else { Reply::ok(MANIFEST) }
            },
        )
        .await;
        let resolved = registry().resolve(&repository(&fake), "1", &Credentials::anonymous()).await.unwrap();
        assert_eq!(resolved.target.digest, Digest::of(MANIFEST.as_bytes()));
        assert_eq!(resolved.target.size, MANIFEST.len() as u64);
        assert_eq!(resolved.target.media_type, media_type::OCI_MANIFEST);
    }
}

#[tokio::test]
async fn a_manifest_that_is_not_the_one_named_is_refused() {
    let fake = Fake::start(|_| Reply::ok(MANIFEST)).await;
    let wanted = Digest::of(b"other");
    let error =
        registry().resolve(&repository(&fake), wanted.as_str(), &Credentials::anonymous()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Answer);
    assert!(error.to_string().contains(wanted.as_str()), "{error}");
}

#[tokio::test]
async fn mirrors_come_first_without_the_credentials_and_every_failure_is_listed() {
    let challenge = |request: &Received| match request.header("authorization") {
        Some(_) => Reply { body: r#"{"errors":[{"code":"DENIED"}]}"#.into(), ..Reply::status(403) },
        None => Reply::status(401).header("www-authenticate", "Basic"),
    };
    let (mirror, fake) = (Fake::start(challenge).await, Fake::start(challenge).await);
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join(fake.authority());
    std::fs::create_dir(&own).unwrap();
    let file = format!("[host.'http://{}/p']\nheader = {{ x-key = 'canary-token' }}\n", mirror.authority());
    std::fs::write(own.join("hosts.toml"), file).unwrap();
    let config = Config { config_path: vec![directory.path().into()], user_agent: "drayd/test".into() };
    let registry = Registry::new(config).unwrap();

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

#[tokio::test]
async fn a_host_that_is_not_there_is_unavailable() {
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let repository = Repository { domain: gone.to_string(), path: "a".into() };
    let error = registry().resolve(&repository, "1", &Credentials::anonymous()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.is_transient());
    assert!(error.to_string().contains("refused"), "{error}");
}
