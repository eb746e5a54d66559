//! One host's failure, and the next host's turn.

use super::*;

const HTML: &str = "<html>canary-token</html>";

fn html() -> Reply {
    Reply::ok(HTML).header("content-type", "text/html; charset=utf-8")
}

/// Fault 44.
#[tokio::test]
async fn an_html_page_is_refused_and_the_next_host_asked() {
    let mirror = Fake::start(|_| html()).await;
    let fake =
        Fake::start(
            |request| {
                if request.path().contains("/manifests/") { manifest() } else { Reply::ok("layer") }
            },
        )
        .await;
    let (registry, _directory) = mirrored(&[&mirror], &plain(&fake));
    let (repository, login) = (repository(&fake), Credentials::anonymous());
    let resolved = registry.resolve(&repository, "1", &login).await.unwrap();
    assert_eq!(resolved.host, fake.authority());
    let document = registry.document(&repository, &resolved.target, &login).await.unwrap();
    assert_eq!(document, MANIFEST);
    let layer = blob_of(b"layer");
    let mut stream = registry.stream(&repository, &layer, 0, &login);
    assert_eq!(drain(&mut stream).await.unwrap(), b"layer");
    assert_eq!(stream.host(), fake.authority());
    assert_eq!(mirror.received().len(), 4, "HEAD, GET, document and blob, each once");

    let (registry, _directory) = mirrored(&[], &plain(&mirror));
    let repository = super::repository(&mirror);
    for error in [
        registry.resolve(&repository, "1", &login).await.unwrap_err(),
        drain(&mut registry.stream(&repository, &layer, 0, &login)).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Answer);
        assert!(error.to_string().contains(&mirror.authority()), "{error}");
        assert!(error.to_string().contains("HTML"), "{error}");
        assert_no_secret(&error);
    }
}

/// Fault 53.
#[tokio::test(start_paused = true)]
async fn a_missing_tag_on_a_mirror_comes_before_a_registry_that_speaks_no_tls() {
    let (mirror, fake) = (Fake::start(|_| Reply::status(404)).await, Fake::start(|_| manifest()).await);
    let (registry, _directory) = mirrored(&[&mirror], &format!("https://{}", fake.authority()));
    let error = registry.resolve(&repository(&fake), "1", &Credentials::anonymous()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    let text = error.to_string();
    let (first, second) = text.split_once("; ").unwrap();
    assert!(first.contains("404 Not Found"), "{text}");
    assert!(second.starts_with(&format!("registry {}: no TLS with", fake.authority())), "{text}");
    assert_eq!(fake.tls_attempts(), 1, "no later attempt would find TLS there");
}

#[tokio::test(start_paused = true)]
async fn a_failing_mirror_is_left_for_the_next_host_and_only_the_last_is_asked_again() {
    let mirror = Fake::start(|_| Reply::status(503)).await;
    let fake = Fake::start_counting(|_, count| match count {
        0..2 => Reply::status(502),
        _ => Reply::ok("layer"),
    })
    .await;
    let (registry, _directory) = mirrored(&[&mirror], &plain(&fake));
    let (repository, layer, login) = (repository(&fake), blob_of(b"layer"), Credentials::anonymous());
    let mut stream = registry.stream(&repository, &layer, 0, &login);
    assert_eq!(drain(&mut stream).await.unwrap(), b"layer");
    assert_eq!((mirror.received().len(), fake.received().len()), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn a_mirror_is_asked_again_where_the_registry_is_not_there() {
    let mirror = Fake::start_counting(|_, count| match count {
        0 => Reply::status(503),
        _ => Reply::ok("layer"),
    })
    .await;
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (registry, _directory) = mirrored(&[&mirror], &format!("http://{gone}"));
    let repository = Repository { domain: gone.to_string(), path: "a/b".into() };
    let (layer, login) = (blob_of(b"layer"), Credentials::anonymous());
    let mut stream = registry.stream(&repository, &layer, 0, &login);
    assert_eq!(drain(&mut stream).await.unwrap(), b"layer");
}

#[tokio::test(start_paused = true)]
async fn the_registrys_own_clear_answer_ends_the_search() {
    let (mirror, fake) =
        (Fake::start(|_| Reply::status(503)).await, Fake::start(|_| Reply::status(404)).await);
    let (registry, _directory) = mirrored(&[&mirror], &plain(&fake));
    let (repository, layer, login) = (repository(&fake), blob_of(b"layer"), Credentials::anonymous());
    let error = drain(&mut registry.stream(&repository, &layer, 0, &login)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert_eq!((mirror.received().len(), fake.received().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_host_that_timed_out_is_not_asked_for_every_blob_of_a_pull() {
    let mirror = Fake::start(|_| Reply::silence()).await;
    let fake = Fake::start(|_| Reply::ok("layer")).await;
    let (registry, _directory) = mirrored(&[&mirror], &plain(&fake));
    let (repository, layer, login) = (repository(&fake), blob_of(b"layer"), Credentials::anonymous());
    for _ in 0..5 {
        assert_eq!(drain(&mut registry.stream(&repository, &layer, 0, &login)).await.unwrap(), b"layer");
    }
    assert_eq!((mirror.received().len(), fake.received().len()), (1, 5));
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(drain(&mut registry.stream(&repository, &layer, 0, &login)).await.unwrap(), b"layer");
    assert_eq!(mirror.received().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_timed_out_is_still_asked_when_all_others_fail() {
    let mirror = Fake::start_counting(|_, count| match count {
        0 => Reply::silence(),
        _ => Reply::ok("layer"),
    })
    .await;
    let fake = Fake::start_counting(|_, count| match count {
        0 => Reply::ok("layer"),
        _ => Reply::status(404),
    })
    .await;
    let (registry, _directory) = mirrored(&[&mirror], &plain(&fake));
    let (repository, layer, login) = (repository(&fake), blob_of(b"layer"), Credentials::anonymous());
    for hosts in [[1, 1], [2, 2]] {
        assert_eq!(drain(&mut registry.stream(&repository, &layer, 0, &login)).await.unwrap(), b"layer");
        assert_eq!([mirror.received().len(), fake.received().len()], hosts);
    }
}

/// Faults 70 and 88, with a host that has the claimed manifest.
#[tokio::test]
async fn a_document_of_another_digest_is_refused_and_the_next_host_asked() {
    let mirror = Fake::start(|_| Reply::ok(&MANIFEST.replace("2,", "3,"))).await;
    let fake = Fake::start(|_| manifest()).await;
    let (registry, _directory) = mirrored(&[&mirror], &plain(&fake));
    let (repository, login) = (repository(&fake), Credentials::anonymous());
    let mut target = blob_of(MANIFEST.as_bytes());
    target.media_type = media_type::OCI_MANIFEST.into();
    assert_eq!(registry.document(&repository, &target, &login).await.unwrap(), MANIFEST);
    assert_eq!((mirror.received().len(), fake.received().len()), (1, 1));
}

#[tokio::test]
async fn a_redirect_loop_is_one_hosts_failure() {
    let mirror = Fake::start(|_| Reply::status(302).header("location", "/again")).await;
    let fake = Fake::start(|_| Reply::ok("layer")).await;
    let (registry, _directory) = mirrored(&[&mirror], &plain(&fake));
    let (repository, layer, login) = (repository(&fake), blob_of(b"layer"), Credentials::anonymous());
    assert_eq!(drain(&mut registry.stream(&repository, &layer, 0, &login)).await.unwrap(), b"layer");
    assert_eq!(mirror.received().len(), 11);
}
