//! Challenges, tokens and credentials.

use super::*;

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

/// Fault 20.
#[tokio::test]
async fn one_token_and_one_refusal_serve_a_whole_pull() {
    let tokens = Fake::start(|_| Reply::ok(r#"{"token":"canary-token","expires_in":300}"#)).await;
    let fake = bearer_registry(&tokens, "layer").await;
    let (registry, repository, login) = (registry(), repository(&fake), Credentials::anonymous());

    let resolved = registry.resolve(&repository, "1", &login).await.unwrap();
    assert_eq!(resolved.target.digest, Digest::of(MANIFEST.as_bytes()));
    assert_eq!(resolved.target.media_type, media_type::OCI_MANIFEST);
    assert!(resolved.body.is_none());
    let blob = read(&registry, &repository, &resolved.target, &login).await;
    assert_eq!(blob.unwrap(), MANIFEST.as_bytes());
    let layer = blob_of(b"layer");
    let layers = (0..4).map(|_| read(&registry, &repository, &layer, &login));
    assert!(
        futures_util::future::join_all(layers).await.iter().all(|bytes| bytes.as_ref().unwrap() == b"layer")
    );

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
async fn a_form_follows_redirects_within_its_origin_and_none_beyond() {
    for status in [301, 302, 303, 307, 308] {
        let elsewhere = Fake::start(|_| Reply::ok(r#"{"token":"canary-token"}"#)).await;
        let away = format!("http://{}/other", elsewhere.authority());
        for location in ["/moved", away.as_str(), "/token?x=1", "ftp://h/"] {
            let to = location.to_owned();
            let tokens = Fake::start(move |request| match (request.method(), request.path()) {
                ("POST", "/token") => Reply::status(status).header("location", &to),
                ("GET", "/token") if request.header("authorization").is_none() => Reply::status(401),
                _ => Reply::ok(r#"{"token":"canary-token"}"#),
            })
            .await;
            let fake = bearer_registry(&tokens, "").await;
            registry().resolve(&repository(&fake), "1", &password()).await.unwrap();
            let received = tokens.received();
            let asked: Vec<_> = received.iter().map(|it| format!("{} {}", it.method(), it.path())).collect();
            let repeats = status >= 307;
            match location {
                "/moved" => {
                    let method = if repeats { "POST" } else { "GET" };
                    assert_eq!(asked, ["POST /token".to_owned(), format!("{method} /moved")], "{status}");
                    assert_eq!(received[1].body == received[0].body, repeats, "{status}");
                    assert_eq!(received[1].header("content-type").is_some(), repeats, "{status}");
                }
                // By GET and with Basic, as where the form is refused.
                _ => assert_eq!(asked.last().unwrap(), "GET /token", "{status} {location}"),
            }
            assert_eq!(elsewhere.received().len(), 0, "{status}");
        }
    }
}

#[tokio::test]
async fn a_user_without_a_password_gets_an_anonymous_token() {
    let tokens = Fake::start(|request| match (request.method(), request.header("authorization")) {
        ("GET", None) => Reply::ok(r#"{"token":"canary-token"}"#),
        _ => Reply::status(401),
    })
    .await;
    let fake = bearer_registry(&tokens, "").await;
    let user = Credentials::new(Given { username: USER, ..Given::default() }).unwrap();
    registry().resolve(&repository(&fake), "1", &user).await.unwrap();
    assert_eq!(tokens.received().len(), 1);
}

#[tokio::test]
async fn a_password_without_a_user_is_a_refresh_token() {
    let tokens = Fake::start(|_| Reply::ok(r#"{"token":"canary-token"}"#)).await;
    let fake = bearer_registry(&tokens, "").await;
    let token = Credentials::new(Given { auth: "OlJFRlI=", ..Given::default() }).unwrap();
    registry().resolve(&repository(&fake), "1", &token).await.unwrap();
    let form = &tokens.received()[0].body;
    assert!(form.contains("grant_type=refresh_token&refresh_token=REFR&"), "{form}");
}

#[tokio::test]
async fn a_password_that_is_not_utf_8_is_proved_as_it_is() {
    // `u:x` and a byte of Latin-1.
    let latin = Credentials::new(Given { auth: "dTp4\n8A==", ..Given::default() }).unwrap();
    let tokens = Fake::start(|_| Reply::ok(r#"{"token":"canary-token"}"#)).await;
    let fake = bearer_registry(&tokens, "").await;
    registry().resolve(&repository(&fake), "1", &latin).await.unwrap();
    let form = &tokens.received()[0].body;
    assert!(form.contains("username=u&password=x%F0&"), "{form}");
    let fake = Fake::start(|request| match request.header("authorization") {
        Some("Basic dTp48A==") => manifest(),
        _ => Reply::status(401).header("www-authenticate", "Basic"),
    })
    .await;
    registry().resolve(&repository(&fake), "1", &latin).await.unwrap();
}

/// Fault 7.
#[tokio::test]
async fn a_host_in_upper_case_is_that_of_its_token_server() {
    let fake = Fake::start(|request| match (request.path(), request.header("x-key")) {
        (_, None) => Reply::status(403),
        ("/token", _) => Reply::ok(r#"{"token":"canary-token"}"#),
        _ if request.header("authorization").is_some() => manifest(),
        _ => {
            let realm = format!(r#"Bearer realm="http://{}/token""#, request.header("host").unwrap());
            Reply::status(401).header("www-authenticate", &realm)
        }
    })
    .await;
    let port = fake.authority().split_once(':').unwrap().1.to_owned();
    let hosts = Hosts::new();
    hosts.write(&format!("localhost:{port}"), "header = { x-key = 'k' }");
    let repository = named(&format!("LocalHost:{port}"));
    hosts.registry().resolve(&repository, "1", &Credentials::anonymous()).await.unwrap();
}

/// Fault 18.
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

/// Fault 14.
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
async fn credentials_never_share_a_token() {
    let tokens = Fake::start(|request| {
        if request.body.contains(PASSWORD) {
            Reply::ok(r#"{"token":"canary-token"}"#)
        } else {
            Reply::status(401)
        }
    })
    .await;
    let fake = bearer_registry(&tokens, "").await;
    let (registry, repository) = (registry(), repository(&fake));
    let wrong = Credentials::new(Given { username: USER, password: "wrong", ..Given::default() });
    let wrong = wrong.unwrap();
    registry.resolve(&repository, "1", &password()).await.unwrap();
    for login in [wrong, Credentials::anonymous()] {
        let error = registry.resolve(&repository, "1", &login).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unauthorized);
    }
    registry.resolve(&repository, "1", &password()).await.unwrap();
    assert_eq!(tokens.received().iter().filter(|request| request.body.contains(PASSWORD)).count(), 1);
}

#[tokio::test]
async fn concurrent_pulls_share_one_token_request() {
    let tokens = Fake::start(|_| Reply::ok(r#"{"token":"canary-token"}"#)).await;
    let fake = bearer_registry(&tokens, "").await;
    let (registry, repository, login) = (registry(), repository(&fake), password());
    let pulls = (0..8).map(|_| registry.resolve(&repository, "1", &login));
    assert!(futures_util::future::join_all(pulls).await.iter().all(Result::is_ok));
    assert_eq!(tokens.received().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_demand_that_is_out_of_date_is_given_up() {
    let tokens = Fake::start(|_| Reply::status(500)).await;
    let bearer = format!(r#"Bearer realm="http://{}/""#, tokens.authority());
    let fake = Fake::start_counting(move |_, count| match count {
        0 => Reply::status(401).header("www-authenticate", "Basic"),
        2 => Reply::status(401).header("www-authenticate", &bearer),
        _ => manifest(),
    })
    .await;
    let (registry, repository, login) = (registry(), repository(&fake), Credentials::anonymous());
    for succeeds in [false, true, true, true] {
        assert_eq!(registry.resolve(&repository, "1", &login).await.is_ok(), succeeds);
    }
}

/// Fault 13.
#[tokio::test]
async fn a_scope_with_a_comma_reaches_the_token_server_whole() {
    for challenge in [
        r#"Bearer realm="http://HOST/t",service="s",scope="repository:a/b:pull,push""#,
        r#"Bearer realm="http://HOST/t",scope="repository:a/b:pull,push",service="s""#,
    ] {
        let tokens = Fake::start(|_| Reply::ok(r#"{"token":"canary-token"}"#)).await;
        let challenge = challenge.replace("HOST", &tokens.authority());
        let fake = Fake::start(move |request| match request.header("authorization") {
            Some(_) => manifest(),
            None => Reply::status(401).header("www-authenticate", &challenge),
        })
        .await;
        registry().resolve(&repository(&fake), "1", &Credentials::anonymous()).await.unwrap();
        let asked = tokens.received()[0].line();
        assert_eq!(asked, "GET /t?service=s&scope=repository%3Aa%2Fb%3Apull%2Cpush");
    }
}

/// Fault 14.
#[tokio::test]
async fn a_token_is_taken_under_either_name() {
    for body in [
        r#"{"token":"canary-token"}"#,
        r#"{"access_token":"canary-token"}"#,
        r#"{"token":"other","access_token":"canary-token"}"#,
        r#"{"token":"canary-token","access_token":""}"#,
        r#"{"token":"canary-token","access_token":null}"#,
    ] {
        let tokens = Fake::start(move |_| Reply::ok(body)).await;
        let fake = bearer_registry(&tokens, "").await;
        registry().resolve(&repository(&fake), "1", &Credentials::anonymous()).await.unwrap();
    }
}

/// Fault 17.
#[tokio::test]
async fn no_lifetime_of_a_token_makes_a_storm_of_requests() {
    for expires in [
        "",
        r#","expires_in":0"#,
        r#","expires_in":-1"#,
        r#","expires_in":4000000000"#,
        r#","expires_in":"5""#,
        r#","expires_in":{}"#,
    ] {
        let body = format!(r#"{{"token":"canary-token"{expires}}}"#);
        let tokens = Fake::start(move |_| Reply::ok(&body)).await;
        let fake = bearer_registry(&tokens, "layer").await;
        let (registry, repository, login) = (registry(), repository(&fake), Credentials::anonymous());
        for _ in 0..5 {
            registry.resolve(&repository, "1", &login).await.unwrap();
            read(&registry, &repository, &blob_of(b"layer"), &login).await.unwrap();
        }
        assert_eq!(tokens.received().len(), 1, "{expires}");
    }
}

/// Fault 18.
#[tokio::test]
async fn a_token_is_renewed_before_it_expires() {
    let tokens = Fake::start(|_| Reply::ok(r#"{"token":"canary-token","expires_in":1}"#)).await;
    let fake = bearer_registry(&tokens, "layer").await;
    let (registry, repository, login) = (registry(), repository(&fake), Credentials::anonymous());
    registry.resolve(&repository, "1", &login).await.unwrap();
    let asked = fake.received().len();
    tokio::time::sleep(Duration::from_millis(950)).await;
    read(&registry, &repository, &blob_of(b"layer"), &login).await.unwrap();
    // One request, with the new token: the registry never saw the old one again.
    assert_eq!((fake.received().len() - asked, tokens.received().len()), (1, 2));
}

/// Fault 19.
#[tokio::test]
async fn each_repository_has_a_token_of_its_own() {
    let tokens = Fake::start(|request| {
        let repository = if request.line().contains("a%2Fb") { "ab" } else { "cd" };
        Reply::ok(&format!(r#"{{"token":"{repository}"}}"#))
    })
    .await;
    let realm = tokens.authority();
    let fake = Fake::start(move |request| {
        let (path, token) =
            if request.path().starts_with("/v2/a/b/") { ("a/b", "ab") } else { ("c/d", "cd") };
        match request.header("authorization") {
            Some(given) if given == format!("Bearer {token}") => manifest(),
            given => {
                let error = if given.is_some() { r#",error="insufficient_scope""# } else { "" };
                let challenge =
                    format!(r#"Bearer realm="http://{realm}/",scope="repository:{path}:pull"{error}"#);
                Reply::status(401).header("www-authenticate", &challenge)
            }
        }
    })
    .await;
    let registry = registry();
    for path in ["a/b", "c/d", "a/b", "c/d"] {
        let repository = Repository { path: path.into(), ..repository(&fake) };
        registry.resolve(&repository, "1", &Credentials::anonymous()).await.unwrap();
    }
    assert_eq!(tokens.received().len(), 2);
    assert_eq!(fake.received().len(), 6);
}

/// Fault 29.
#[tokio::test]
async fn the_realm_is_used_as_it_is_announced_and_only_after_a_refusal() {
    let tokens = Fake::start(|_| Reply::ok(r#"{"token":"canary-token"}"#)).await;
    let fake = bearer_registry(&tokens, "").await;
    registry().resolve(&repository(&fake), "1", &Credentials::anonymous()).await.unwrap();
    assert!(tokens.received()[0].line().starts_with("GET /token?x=1&service=svc&scope="));
    let open = Fake::start(|_| manifest()).await;
    registry().resolve(&repository(&open), "1", &password()).await.unwrap();
    assert_eq!((open.received().len(), tokens.received().len()), (1, 1));
    assert_eq!(open.received()[0].header("authorization"), None);
}
