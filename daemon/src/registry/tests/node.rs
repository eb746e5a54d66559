//! Which credentials go where: the caller's, the node's, and nobody's.

use super::*;

/// A file of the node's credentials, with the password of the tests for each user.
fn credentials_file(hosts: &Hosts, users: &[(&str, &str)]) -> PathBuf {
    let entries = users
        .iter()
        .map(|(host, user)| format!("\n{host:?}: {{\"username\": {user:?}, \"password\": {PASSWORD:?}}}"));
    let path = hosts.0.path().join("config.json");
    let text = format!("{{\"auths\": {{{}}}}}", entries.collect::<Vec<_>>().join(","));
    std::fs::write(&path, text).unwrap();
    path
}

fn mirrored(hosts: &Hosts, mirror: &Fake, server: &Fake) {
    let (mirror, server) = (mirror.authority(), server.authority());
    hosts.write(&server, &format!("server = 'http://{server}'\n[host.'http://{mirror}']\n"));
}

/// Fault 25.
#[tokio::test]
async fn a_mirror_gets_what_the_node_has_under_its_name() {
    let (mirror, server) = (basic_registry("mirror-user").await, basic_registry("server-user").await);
    let hosts = Hosts::new();
    mirrored(&hosts, &mirror, &server);
    let file = credentials_file(&hosts, &[(&mirror.authority(), "mirror-user")]);
    let registry = Registry::new(Config { credentials_file: Some(file), ..hosts.config() }).unwrap();
    for login in [Credentials::anonymous(), password()] {
        let resolved = registry.resolve(&repository(&server), "1", &login).await.unwrap();
        assert_eq!(resolved.host, mirror.authority());
    }
    assert!(authorizations(&mirror).iter().all(|given| *given == basic("mirror-user", PASSWORD)));
    assert!(server.received().is_empty());
}

#[tokio::test]
async fn the_registry_gets_what_the_node_has_and_an_edit_counts_at_once() {
    let fake = basic_registry("node-user").await;
    let hosts = Hosts::new();
    let file = credentials_file(&hosts, &[(&fake.authority(), "old-user")]);
    let config = Config { credentials_file: Some(file.clone()), ..config() };
    let registry = Registry::new(config).unwrap();
    let anonymous = Credentials::anonymous();
    let error = registry.resolve(&repository(&fake), "1", &anonymous).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unauthorized);
    credentials_file(&hosts, &[(&fake.authority(), "node-user")]);
    registry.resolve(&repository(&fake), "1", &anonymous).await.unwrap();
    // The caller's own come first, and are not replaced when they are refused.
    let error = registry.resolve(&repository(&fake), "1", &password()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unauthorized);
    std::fs::write(&file, format!("{{\n\"auths\": {{\"h\": {{\"auth\": {PASSWORD:?}}}}}}}")).unwrap();
    let error = registry.resolve(&repository(&fake), "1", &anonymous).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Configuration);
    let text = crate::cause::chain(&error);
    assert!(text.contains(&format!("{}:2: ", file.display())), "{text}");
    assert_no_secret(&error);
    assert!(!text.contains(PASSWORD), "{text}");
    std::fs::remove_file(&file).unwrap();
    let error = registry.resolve(&repository(&fake), "1", &anonymous).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Configuration);
}

#[tokio::test]
async fn a_helper_that_is_not_there_fails_its_host_by_name() {
    let fake = Fake::start(|_| manifest()).await;
    let hosts = Hosts::new();
    let file = hosts.0.path().join("config.json");
    std::fs::write(&file, r#"{"credsStore":"nowhere"}"#).unwrap();
    let registry = Registry::new(Config { credentials_file: Some(file), ..config() }).unwrap();
    let error = registry.resolve(&repository(&fake), "1", &Credentials::anonymous()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Configuration);
    assert!(error.to_string().contains("docker-credential-nowhere is not in PATH"), "{error}");
    registry.resolve(&repository(&fake), "1", &password()).await.unwrap();
}

/// Fault 26.
#[tokio::test]
async fn the_callers_credentials_go_to_a_mirror_only_when_it_is_trusted() {
    let (mirror, server) = (basic_registry(USER).await, basic_registry(USER).await);
    let hosts = Hosts::new();
    mirrored(&hosts, &mirror, &server);
    for trusted in [false, true] {
        let trusted_mirrors = if trusted { vec![mirror.authority()] } else { Vec::new() };
        let registry = Registry::new(Config { trusted_mirrors, ..hosts.config() }).unwrap();
        let resolved = registry.resolve(&repository(&server), "1", &password()).await.unwrap();
        let host = if trusted { &mirror } else { &server };
        assert_eq!(resolved.host, host.authority());
        assert_eq!(authorizations(&mirror).is_empty(), !trusted);
    }
}

/// Fault 27.
#[tokio::test]
async fn refused_credentials_fail_a_public_image_unless_the_fallback_is_on() {
    for token_server in [true, false] {
        let tokens = Fake::start(|request| {
            let proved = request.method() == "POST" || request.header("authorization").is_some();
            if proved { Reply::status(401) } else { Reply::ok(r#"{"token":"canary-token"}"#) }
        })
        .await;
        let bearer = format!(r#"Bearer realm="http://{}/""#, tokens.authority());
        let fake = Fake::start(move |request| match request.header("authorization") {
            Some("Bearer canary-token") => manifest(),
            None if !token_server && !request.path().ends_with("/private") => manifest(),
            _ if token_server => Reply::status(401).header("www-authenticate", &bearer),
            _ => Reply::status(401).header("www-authenticate", "Basic"),
        })
        .await;
        let registry = registry();
        if token_server {
            let error = registry.resolve(&repository(&fake), "1", &password()).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Unauthorized);
            assert!(error.to_string().contains(&tokens.authority()), "{error}");
            assert!(error.to_string().contains("the credentials were refused"), "{error}");
        }
        let asked = tokens.received().len();
        let registry = Registry::new(Config { anonymous_fallback: true, ..config() }).unwrap();
        for _ in 0..3 {
            registry.resolve(&repository(&fake), "1", &password()).await.unwrap();
        }
        // Refused by form and by Basic, then an anonymous token for all; the refused login is not shown again.
        assert_eq!(tokens.received().len() - asked, if token_server { 3 } else { 0 });
        if !token_server {
            // Nothing to see anonymously either: the refusal of the credentials is what is told.
            let error = registry.resolve(&repository(&fake), "private", &password()).await.unwrap_err();
            assert!(error.to_string().contains("the credentials were refused"), "{error}");
        }
    }
}

/// Fault 23.
#[tokio::test]
async fn a_second_registry_behind_a_redirect_gets_its_own_credentials_only() {
    let second = basic_registry("second-user").await;
    let location = format!("http://{}/v2/a/b/manifests/1", second.authority());
    let wanted = basic(USER, PASSWORD);
    let first = Fake::start(move |request| match request.header("authorization") {
        Some(given) if given == wanted => Reply::status(307).header("location", &location),
        _ => Reply::status(401).header("www-authenticate", "Basic"),
    })
    .await;
    let hosts = Hosts::new();
    let (one, two) = (first.authority(), second.authority());
    for (users, found) in [
        (vec![(one.as_str(), USER), (two.as_str(), "second-user")], true),
        (vec![(one.as_str(), USER)], false),
        (vec![(one.as_str(), USER), (two.as_str(), "wrong-user")], false),
    ] {
        let file = credentials_file(&hosts, &users);
        let registry = Registry::new(Config { credentials_file: Some(file), ..config() }).unwrap();
        let resolved = registry.resolve(&repository(&first), "1", &Credentials::anonymous()).await;
        assert_eq!(resolved.is_ok(), found, "{users:?}: {resolved:?}");
        if let Err(error) = resolved {
            assert_eq!(error.kind(), Kind::Unauthorized, "{error}");
        }
    }
    assert!(authorizations(&second).iter().all(|given| *given != basic(USER, PASSWORD)));
    assert!(authorizations(&first).iter().all(|given| *given == basic(USER, PASSWORD)));
    assert!(!authorizations(&second).is_empty());
}

/// Fault 30.
#[tokio::test]
async fn credentials_apply_in_every_spelling_of_their_registry_and_to_no_other() {
    let fake = basic_registry(USER).await;
    let host = fake.authority();
    for (server_address, applies) in [
        (String::new(), true),
        (host.clone(), true),
        (format!("https://{host}"), true),
        (format!("https://{host}/v1/"), true),
        ("other.test".to_owned(), false),
    ] {
        let given =
            Given { username: USER, password: PASSWORD, server_address: &server_address, ..Given::default() };
        let before = authorizations(&fake).len();
        let resolved = registry().resolve(&repository(&fake), "1", &Credentials::new(given).unwrap()).await;
        assert_eq!(resolved.is_ok(), applies, "{server_address}");
        assert_eq!(authorizations(&fake).len() > before, applies, "{server_address}");
        if let Err(error) = resolved {
            assert!(error.to_string().contains("none were given for this host"), "{error}");
        }
    }
}
