//! The hosts that a file names, in their order, with and without a proxy.

use std::ffi::OsString;

use super::*;

fn anonymous() -> Credentials {
    Credentials::anonymous()
}

async fn serving() -> Fake {
    Fake::start(|_| manifest()).await
}

/// An address where nobody listens.
async fn nobody() -> String {
    tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string()
}

/// Fault 33.
#[tokio::test]
async fn a_header_that_would_break_the_request_is_left_out_of_it() {
    let fake = Fake::start(|request| match request.header("x-own") {
        Some(_) => manifest(),
        None => Reply::status(400),
    })
    .await;
    let hosts = Hosts::new();
    let headers = "[header]\nContent-Length = '10'\nTransfer-Encoding = 'chunked'\nHost = 'h'\nX-Own = '1'\n";
    hosts.write(&fake.authority(), &format!("server = '{}'\n{headers}", plain(&fake)));
    hosts.registry().resolve(&repository(&fake), "1", &Credentials::anonymous()).await.unwrap();
    let asked = &fake.received()[0];
    assert_eq!(asked.header("host"), Some(fake.authority().as_str()));
    assert_eq!((asked.header("content-length"), asked.header("transfer-encoding")), (None, None));
}

#[tokio::test]
async fn without_server_the_registry_itself_is_asked_last() {
    let fake = serving().await;
    let hosts = Hosts::new();
    hosts.write(&fake.authority(), &format!("[host.'http://{}']", nobody().await));
    let resolved = hosts.registry().resolve(&repository(&fake), "1", &anonymous()).await.unwrap();
    assert_eq!(resolved.host, fake.authority());
}

/// Fault 34.
#[tokio::test]
async fn with_a_mirror_as_server_the_registry_itself_is_never_asked() {
    let (upstream, mirror) = (serving().await, Fake::start(|_| Reply::status(404)).await);
    let hosts = Hosts::new();
    hosts.write(&upstream.authority(), &format!("server = 'http://{}'", mirror.authority()));
    let error = hosts.registry().resolve(&repository(&upstream), "1", &anonymous()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    let text = error.to_string();
    assert!(text.contains(&format!("mirror {}", mirror.authority())), "{text}");
    assert!(!text.contains(&format!("http://{}", upstream.authority())), "{text}");
    assert!(upstream.received().is_empty() && upstream.tls_attempts() == 0);
}

/// Fault 36.
#[tokio::test]
async fn of_several_directories_the_first_with_a_match_counts() {
    let (one, two) = (serving().await, serving().await);
    let (first, second) = (Hosts::new(), Hosts::new());
    let config_path = vec![first.0.path().into(), second.0.path().into()];
    let registry = Registry::new(Config { config_path, ..config() }).unwrap();
    second.write("reg.test", &format!("server = 'http://{}'", two.authority()));
    let asked = async || registry.resolve(&named("reg.test"), "1", &anonymous()).await.unwrap().host;
    assert_eq!(asked().await, two.authority());
    first.write("reg.test", &format!("server = 'http://{}'", one.authority()));
    assert_eq!(asked().await, one.authority());
}

/// Fault 39.
#[tokio::test]
async fn a_broken_file_fails_the_pull_and_never_leads_past_the_mirrors() {
    let fake = serving().await;
    let hosts = Hosts::new();
    for (text, line) in [
        ("[host.'http://a']\n[host.'http://a']", 2),
        ("[host", 1),
        ("\n[host.'http://a']\ncapabilities = ['fly']", 3),
        ("[host.'http://a']\ndial_timeout = 'fast'", 2),
    ] {
        let file = hosts.write(&fake.authority(), text).join("hosts.toml");
        let error = hosts.registry().resolve(&repository(&fake), "1", &anonymous()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Configuration);
        let text = crate::cause::chain(&error);
        assert!(text.contains(&format!("{}:{line}: ", file.display())), "{text}");
    }
    assert!(fake.received().is_empty() && fake.tls_attempts() == 0);
}

/// Fault 40.
#[tokio::test]
async fn the_default_directory_names_the_registry_meant_and_falls_back_to_it() {
    for status in [404, 500] {
        let (mirror, fake) = (Fake::start(move |_| Reply::status(status)).await, serving().await);
        let hosts = Hosts::new();
        hosts.write("_default", &format!("[host.'http://{}']", mirror.authority()));
        let resolved = hosts.registry().resolve(&repository(&fake), "1", &anonymous()).await.unwrap();
        assert_eq!(resolved.host, fake.authority());
        let namespace = fake.authority().replace(':', "%3A");
        assert!(
            mirror.received().iter().all(|request| request.line().ends_with(&format!("?ns={namespace}")))
        );
        assert!(fake.received().iter().all(|request| !request.line().contains("ns=")));
    }
}

/// Fault 41.
#[tokio::test]
async fn a_mirrors_path_is_not_the_registrys() {
    let fake = serving().await;
    let hosts = Hosts::new();
    let text = format!("[host.'http://{}/proxy/x']\noverride_path = true", nobody().await);
    hosts.write(&fake.authority(), &text);
    hosts.registry().resolve(&repository(&fake), "1", &anonymous()).await.unwrap();
    assert_eq!(fake.received()[0].line(), "HEAD /v2/a/b/manifests/1");
}

#[tokio::test]
async fn an_edited_file_counts_at_once() {
    let (one, two) = (serving().await, serving().await);
    let hosts = Hosts::new();
    let registry = hosts.registry();
    for host in [&one, &two] {
        hosts.write("reg.test", &format!("server = 'http://{}'", host.authority()));
        let resolved = registry.resolve(&named("reg.test"), "1", &anonymous()).await.unwrap();
        assert_eq!(resolved.host, host.authority());
    }
}

fn environment(variables: &[(&str, String)]) -> Environment {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), OsString::from(value)));
    Environment(variables.collect())
}

/// Fault 47.
#[tokio::test]
async fn a_request_goes_through_its_proxy_or_not_at_all() {
    let proxy = serving().await;
    let hosts = Hosts::new();
    hosts.write("reg.invalid", "server = 'http://reg.invalid'");
    let with = |variables: &[(&str, String)]| {
        let environment = environment(variables);
        Registry::new(Config { environment, ..hosts.config() }).unwrap()
    };
    let url = format!("http://{USER}:{PASSWORD}@{}", proxy.authority());
    let registry = with(&[("HTTP_PROXY", url.clone())]);
    let resolved = registry.resolve(&named("reg.invalid"), "1", &anonymous()).await.unwrap();
    assert_eq!(resolved.host, "reg.invalid");
    let received = proxy.received();
    assert!(received[0].line().starts_with("HEAD http://reg.invalid/v2/a/b/manifests/1"), "{received:?}");
    assert_eq!(received[0].header("proxy-authorization"), Some(basic(USER, PASSWORD).as_str()));
    assert_eq!(received[0].header("authorization"), None);

    // A dead proxy: the registry could be reached directly, and is not.
    let gone = format!("http://{USER}:{PASSWORD}@{}", nobody().await);
    let error = with(&[("HTTP_PROXY", gone.clone())])
        .resolve(&named("reg.invalid"), "1", &anonymous())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("refused"), "{error}");
    assert_no_secret(&error);

    // This node and the exceptions are reached directly.
    let fake = serving().await;
    Registry::new(Config {
        environment: environment(&[("HTTP_PROXY", gone.clone()), ("HTTPS_PROXY", gone.clone())]),
        ..config()
    })
    .unwrap()
    .resolve(&repository(&fake), "1", &anonymous())
    .await
    .unwrap();
    let error = with(&[("HTTP_PROXY", url), ("NO_PROXY", ".invalid".to_owned())])
        .resolve(&named("reg.invalid"), "1", &anonymous())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(!error.to_string().contains("refused"), "{error}");
}

#[test]
fn a_proxy_that_cannot_be_read_is_an_error_at_the_start() {
    let variables = [("HTTPS_PROXY".to_owned(), OsString::from("socks5://canary-token"))];
    let config = Config { environment: Environment(variables.into()), ..config() };
    assert!(!format!("{config:?}").contains("canary"));
    let error = Registry::new(config).err().unwrap();
    assert_eq!(error.kind(), Kind::Configuration);
    assert_no_secret(&error);
    assert!(crate::cause::chain(&error).contains("HTTPS_PROXY"), "{error}");
}

/// Each answer of a proxy, over TLS and without, and how often it is asked.
#[tokio::test(start_paused = true)]
async fn what_a_proxy_does_is_told_of_the_proxy() {
    for (scheme, status, expected, asked) in [
        ("https", 407, "the proxy wants user and password, or refuses those in its URL (407)", 1),
        ("http", 407, "the proxy wants user and password, or refuses those in its URL (407)", 1),
        // Once more, for the status.
        ("https", 403, "the proxy answers 403 Forbidden", 2),
        ("https", 502, "the proxy answers 502 Bad Gateway", 10),
    ] {
        let proxy = Fake::start(move |_| Reply::status(status)).await;
        let hosts = Hosts::new();
        hosts.write("reg.invalid", &format!("server = '{scheme}://reg.invalid'"));
        let variable = if scheme == "https" { "HTTPS_PROXY" } else { "HTTP_PROXY" };
        let url = format!("http://{USER}:{PASSWORD}@{}", proxy.authority());
        let environment = environment(&[(variable, url)]);
        let registry = Registry::new(Config { environment, ..hosts.config() }).unwrap();
        let error = registry.resolve(&named("reg.invalid"), "1", &anonymous()).await.unwrap_err();
        let place = format!("(through proxy http://{}): {expected}", proxy.authority());
        assert!(error.to_string().contains(&place), "{error}");
        assert_eq!((error.kind(), error.is_transient()), (Kind::Unavailable, status == 502), "{error}");
        assert_no_secret(&error);
        let received = proxy.received();
        assert_eq!(received.len(), asked, "{received:?}");
        let proved = basic(USER, PASSWORD);
        assert!(received.iter().all(|it| it.header("proxy-authorization") == Some(proved.as_str())));
    }
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_is_silent_has_as_long_as_any_answer() {
    for scheme in ["https", "http"] {
        let proxy = Fake::start(|_| Reply::silence()).await;
        let hosts = Hosts::new();
        hosts.write("reg.invalid", &format!("server = '{scheme}://reg.invalid'"));
        let url = format!("http://{}", proxy.authority());
        let environment = environment(&[("HTTP_PROXY", url.clone()), ("HTTPS_PROXY", url.clone())]);
        let response_timeout = Duration::from_secs(2);
        let registry = Registry::new(Config { response_timeout, environment, ..hosts.config() }).unwrap();
        let began = Instant::now();
        let error = registry.resolve(&named("reg.invalid"), "1", &anonymous()).await.unwrap_err();
        assert!(error.to_string().contains(&format!("(through proxy {url})")), "{error}");
        assert_eq!(error.kind(), Kind::Unavailable);
        // Five times, and the pauses between them.
        assert!(began.elapsed() < Duration::from_secs(5 * 2 + 10), "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_is_not_there_is_named() {
    let hosts = Hosts::new();
    hosts.write("reg.invalid", "server = 'https://reg.invalid'");
    let proxy = nobody().await;
    let url = format!("http://{USER}:{PASSWORD}@{proxy}");
    let environment = environment(&[("HTTPS_PROXY", url)]);
    let registry = Registry::new(Config { environment, ..hosts.config() }).unwrap();
    let error = registry.resolve(&named("reg.invalid"), "1", &anonymous()).await.unwrap_err();
    assert!(error.to_string().contains(&format!("(through proxy http://{proxy}): ")), "{error}");
    assert_no_secret(&error);
}
