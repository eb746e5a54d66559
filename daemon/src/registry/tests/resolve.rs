//! From a tag or digest to its target.

use super::*;

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
