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
    let blob = read(&registry, &repository(&fake), &blob_of(b"layer"), &password()).await;
    assert_eq!(blob.unwrap(), b"layer");
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
    let blob = read(&registry(), &repository(&fake), &blob_of(b"layer"), &password()).await;
    assert_eq!(blob.unwrap(), b"layer");
}

#[tokio::test]
async fn endless_and_odd_redirects_end_as_unusable_answers() {
    for location in ["/again", "file:///etc/passwd", "ftp://h/", "http://"] {
        let fake = Fake::start(move |_| Reply::status(302).header("location", location)).await;
        let error = read(&registry(), &repository(&fake), &blob_of(b"x"), &Credentials::anonymous()).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind(), Kind::Answer, "{error}");
        assert!(fake.received().len() <= 11);
    }
}

#[tokio::test]
async fn what_ten_redirects_hide_is_kept_out_of_a_refusal_and_adds_nothing_to_it() {
    let words = format!("canary-signature-9 {}", "denied, d. ".repeat(5900));
    let body = format!(r#"{{"errors":[{{"message":"{words}"}}]}}"#);
    let fake = Fake::start_counting(move |request, count| {
        let here = request.header("host").unwrap();
        let next = format!("http://e:d@{here}/{count}?sig=canary-signature-{count}&e=d");
        match count {
            0..10 => Reply::status(307).header("location", &next),
            _ => Reply { status: 403, ..Reply::ok(&body) },
        }
    })
    .await;
    let (house, _directory) = direct(&fake);
    let error =
        read(&house, &repository(&fake), &blob_of(b"x"), &Credentials::anonymous()).await.unwrap_err();
    assert_eq!(fake.received().len(), 11);
    let text = error.to_string();
    assert!(text.contains("403 Forbidden: \"[redacted] denied, d. denied, d. "), "{text}");
    assert!(text.len() < 1500 && text.matches("[redacted]").count() == 1, "{text}");
}

#[tokio::test]
async fn html_is_refused_by_name_and_not_shown() {
    let fake =
        Fake::start(|_| Reply::ok("<html>canary-token</html>").header("content-type", "text/html")).await;
    let (registry, repository, login) = (registry(), repository(&fake), Credentials::anonymous());
    for error in [
        registry.resolve(&repository, "1", &login).await.unwrap_err(),
        read(&registry, &repository, &blob_of(b"x"), &login).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Answer);
        assert!(error.to_string().contains("HTML"), "{error}");
        assert_no_secret(&error);
    }
}
