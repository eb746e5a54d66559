//! From a tag or digest to its target.

use super::*;

/// Fault 67.
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

/// Fault 66.
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
    assert_eq!(error.kind(), Kind::Corrupt);
    let actual = Digest::of(MANIFEST.as_bytes());
    for digest in [wanted, actual] {
        assert!(error.to_string().contains(digest.as_str()), "{error}");
    }
}

/// Fault 69.
#[tokio::test(start_paused = true)]
async fn every_request_for_a_reference_says_the_same_of_what_is_accepted() {
    let elsewhere = Fake::start(|_| Reply { length: None, ..manifest() }).await;
    let location = format!("http://{}/m", elsewhere.authority());
    let fake = Fake::start_counting(move |request, count| match (request.header("authorization"), count) {
        (None, _) => Reply::status(401).header("www-authenticate", "Basic"),
        (_, 0..4) => Reply::status(503),
        _ => Reply::status(307).header("location", &location),
    })
    .await;
    let (registry, _directory) = direct(&fake);
    registry.resolve(&repository(&fake), "1", &password()).await.unwrap();
    let mut accepted: Vec<_> = [fake.received(), elsewhere.received()]
        .concat()
        .iter()
        .map(|request| request.header("accept").unwrap().to_owned())
        .collect();
    assert!(accepted.len() > 5, "{accepted:?}");
    accepted.dedup();
    assert_eq!(accepted.len(), 1, "{accepted:?}");
    assert!(accepted[0].contains("manifest.list.v2+json"), "{accepted:?}");
}

/// Faults 70 and 88.
#[tokio::test]
async fn a_digest_in_a_header_is_never_taken_for_that_of_the_body() {
    let claimed = Digest::of(b"other");
    let lying = {
        let claimed = claimed.to_string();
        move |_: &Received| {
            Reply::ok(MANIFEST)
                .header("content-type", media_type::OCI_MANIFEST)
                .header("docker-content-digest", &claimed)
        }
    };
    let fake = Fake::start(lying).await;
    let (registry, _directory) = direct(&fake);
    let (repository, login) = (repository(&fake), Credentials::anonymous());
    let resolved = registry.resolve(&repository, "1", &login).await.unwrap();
    assert_eq!((&resolved.target.digest, resolved.body.is_none()), (&claimed, true));
    let error = registry.document(&repository, &resolved.target, &login).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    for digest in [&claimed, &Digest::of(MANIFEST.as_bytes())] {
        assert!(error.to_string().contains(digest.as_str()), "{error}");
    }
    let error = registry.resolve_by_body(&repository, "1", &login).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
}

/// Fault 70.
#[tokio::test]
async fn what_head_tells_is_passed_over_where_the_bytes_are_asked_for() {
    for told in [Digest::of(MANIFEST.as_bytes()).to_string(), String::new()] {
        let fake = Fake::start(move |request| match request.method() {
            "HEAD" => Reply::ok("gone").header("docker-content-digest", Digest::of(b"gone").as_str()),
            _ => Reply::ok(MANIFEST).header("docker-content-digest", &told),
        })
        .await;
        let login = Credentials::anonymous();
        let resolved = registry().resolve_by_body(&repository(&fake), "1", &login).await.unwrap();
        assert_eq!(resolved.target.digest, Digest::of(MANIFEST.as_bytes()));
        assert_eq!(resolved.body.as_deref(), Some(MANIFEST.as_bytes()));
    }
}
