//! Redirects, ranges and bodies.

use super::*;

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
    assert_eq!(received[0].line(), "GET /blob?sig=canary-signature");
    assert_eq!(received[0].header("authorization"), None);
    assert!(received[0].header("accept").is_some());
}

#[tokio::test]
async fn a_redirect_back_carries_no_authorization_either() {
    let storage = Fake::start(|request| {
        let back = format!("http://{}/back", request.path().trim_start_matches('/'));
        Reply::status(307).header("location", &back)
    })
    .await;
    let elsewhere = storage.authority();
    let fake = Fake::start(move |request| match (request.path(), request.header("authorization")) {
        ("/back", None) => Reply::ok("layer"),
        ("/back", Some(_)) => Reply::status(500),
        (_, None) => Reply::status(401).header("www-authenticate", "Basic"),
        (_, Some(_)) => {
            let here = request.header("host").unwrap();
            Reply::status(307).header("location", &format!("http://{elsewhere}/{here}"))
        }
    })
    .await;
    let blob = registry().open(&repository(&fake), &blob_of(b"layer"), 0, &password()).await.unwrap();
    assert_eq!(read(blob).await.unwrap(), b"layer");
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
        (cut(None, "0123456789+"), Kind::Size, false),
        (cut(Some(11), "0123456789+"), Kind::Size, false),
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
