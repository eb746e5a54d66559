//! Certificates, protocols and addresses, against a server with TLS.

use super::secure::{Authority, Issued, Reply, Secure, Seen};
use super::*;

/// A registry without authentication.
fn open(seen: &Seen) -> Reply {
    let manifest = seen.path.contains("/manifests/");
    let media_type = if manifest { media_type::OCI_MANIFEST } else { "application/octet-stream" };
    let digest = Digest::of(MANIFEST.as_bytes()).to_string();
    let headers = vec![("content-type", media_type.to_owned()), ("docker-content-digest", digest)];
    Reply(200, headers, if manifest { MANIFEST } else { "layer" })
}

fn anonymous() -> Credentials {
    Credentials::anonymous()
}

/// Pulls by tag, by digest, and a blob, each through `registry`.
async fn everything(registry: &Registry, repository: &Repository, login: &Credentials) -> Result<(), Error> {
    let resolved = registry.resolve(repository, "1", login).await?;
    registry.resolve(repository, resolved.target.digest.as_str(), login).await?;
    let body = read(registry, repository, &resolved.target, login).await?;
    assert_eq!(body, MANIFEST.as_bytes());
    assert_eq!(read(registry, repository, &blob_of(b"layer"), login).await?, b"layer");
    Ok(())
}

/// Fault 48.
#[tokio::test]
async fn a_waived_check_holds_for_every_request_to_the_host_and_for_its_token_server() {
    let issued = Authority::new("unknown").issue(&["other.test"]);
    let realm: Arc<std::sync::OnceLock<String>> = Arc::default();
    let told = realm.clone();
    let secure = Secure::start("127.0.0.1:0", &issued, None, move |seen| {
        match (seen.path.as_str(), seen.authorization.as_deref()) {
            ("/token", _) => Reply(200, Vec::new(), r#"{"token":"canary-token"}"#),
            (_, Some("Bearer canary-token")) => open(seen),
            _ => {
                let challenge = format!(r#"Bearer realm="{}",service="s""#, told.get().unwrap());
                Reply(401, vec![("www-authenticate", challenge)], "")
            }
        }
    })
    .await;
    realm.set(format!("https://{}/token", secure.authority())).unwrap();
    let hosts = Hosts::new();
    // A name, since checks are waived on the node itself by default.
    hosts.write("reg.test", &format!("server = 'https://{}'\nskip_verify = true", secure.authority()));
    let registry = hosts.registry();
    let repository = Repository { domain: "reg.test".into(), path: "a/b".into() };
    everything(&registry, &repository, &anonymous()).await.unwrap();
    assert_eq!(secure.seen().iter().filter(|seen| seen.path == "/token").count(), 1);

    hosts.write("reg.test", &format!("server = 'https://{}'", secure.authority()));
    let error = registry.resolve(&repository, "1", &anonymous()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
}

/// Fault 49.
#[tokio::test]
async fn authorities_of_the_file_are_added_by_paths_beside_it() {
    let (authority, unrelated) = (Authority::new("site"), Authority::new("unrelated"));
    let issued = authority.issue(&["127.0.0.1"]);
    let secure = Secure::start("127.0.0.1:0", &issued, None, open).await;
    let hosts = Hosts::new();
    let repository = Repository { domain: "reg.test".into(), path: "a/b".into() };
    let directory = hosts.write("reg.test", "");
    std::fs::write(directory.join("reg.crt"), authority.pem()).unwrap();
    std::fs::write(directory.join("unrelated.crt"), unrelated.pem()).unwrap();
    let registry = hosts.registry();
    for (ca, trusted) in [
        ("'reg.crt'".to_owned(), true),
        ("['unrelated.crt', 'reg.crt']".to_owned(), true),
        (format!("'{}'", directory.join("reg.crt").display()), true),
        ("'unrelated.crt'".to_owned(), false),
    ] {
        hosts.write("reg.test", &format!("server = 'https://{}'\nca = {ca}", secure.authority()));
        let resolved = registry.resolve(&repository, "1", &anonymous()).await;
        assert_eq!(resolved.is_ok(), trusted, "{ca}: {resolved:?}");
    }
    hosts.write("reg.test", &format!("server = 'https://{}'\nca = 'no.crt'", secure.authority()));
    let error = registry.resolve(&repository, "1", &anonymous()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Configuration);
    let text = crate::cause::chain(&error);
    assert!(text.contains("hosts.toml:2: ") && text.contains("reg.test/no.crt cannot be read"), "{text}");
}

/// Fault 51.
#[tokio::test]
async fn a_refused_certificate_names_the_host_and_the_setting_and_each_level_covers_its_own() {
    let issued = Authority::new("unknown").issue(&["127.0.0.1"]);
    let mirror = Secure::start("127.0.0.1:0", &issued, None, open).await;
    let server = Secure::start("127.0.0.1:0", &issued, None, open).await;
    let hosts = Hosts::new();
    let repository = Repository { domain: "reg.test".into(), path: "a/b".into() };
    for (root, at_mirror) in [(true, true), (true, false), (false, true), (false, false)] {
        hosts.write(
            "reg.test",
            &format!(
                "server = 'https://{}'\nskip_verify = {root}\n[host.'https://{}']\nskip_verify = {at_mirror}",
                server.authority(),
                mirror.authority()
            ),
        );
        let resolved = hosts.registry().resolve(&repository, "1", &anonymous()).await;
        match (root, at_mirror) {
            (_, true) => assert_eq!(resolved.unwrap().host, mirror.authority()),
            (true, false) => assert_eq!(resolved.unwrap().host, server.authority()),
            (false, false) => {
                let error = resolved.unwrap_err();
                let text = error.to_string();
                for host in [&mirror, &server] {
                    let refused = format!("mirror {}: https://{}/", host.authority(), host.authority());
                    assert!(text.contains(&refused) && text.contains("invalid peer certificate"), "{text}");
                }
                assert!(text.contains("set `ca` (or `skip_verify`) for it in its hosts.toml"), "{text}");
                assert!(!error.is_transient());
            }
        }
    }
}

/// Fault 53.
#[tokio::test]
async fn a_missing_tag_on_a_plain_host_comes_before_the_tls_failure_of_the_registry() {
    let plain = Fake::start(|_| fake::Reply::status(404)).await;
    let deaf = Fake::start(|_| fake::Reply::hang_up()).await;
    let hosts = Hosts::new();
    let text = format!("server = 'https://{}'\n[host.'http://{}']\n", deaf.authority(), plain.authority());
    hosts.write("reg.test", &text);
    let repository = Repository { domain: "reg.test".into(), path: "a/b".into() };
    let error = hosts.registry().resolve(&repository, "1", &anonymous()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    let text = error.to_string();
    let (missing, tls) = (text.find("404 Not Found"), text.find(&format!("https://{}", deaf.authority())));
    assert!(missing.unwrap() < tls.unwrap(), "{text}");
}

#[tokio::test]
async fn a_client_certificate_is_shown_to_the_host_that_it_is_configured_for() {
    let (site, clients) = (Authority::new("site"), Authority::new("clients"));
    let issued = site.issue(&["127.0.0.1"]);
    let (client, other) = (clients.issue(&["node"]), clients.issue(&["node"]));
    let secure = Secure::start("127.0.0.1:0", &issued, Some(&clients), open).await;
    let hosts = Hosts::new();
    let directory = hosts.write("reg.test", "");
    let repository = Repository { domain: "reg.test".into(), path: "a/b".into() };
    for (name, contents) in [
        ("ca.pem", site.pem()),
        ("c.pem", client.certificate.clone()),
        ("c.key", client.key.clone()),
        ("both.pem", format!("{}{}", client.certificate, client.key)),
        ("mixed.pem", format!("{}{}", other.key, client.certificate)),
        ("mixed.key", format!("{}{}", other.certificate, client.key)),
    ] {
        std::fs::write(directory.join(name), contents).unwrap();
    }
    for pair in [
        "[['c.pem', 'c.key']]",
        "'both.pem'",
        "['both.pem']",
        "[['both.pem', '']]",
        "[['mixed.pem', 'mixed.key']]",
    ] {
        let text = format!("server = 'https://{}'\nca = 'ca.pem'\nclient = {pair}", secure.authority());
        hosts.write("reg.test", &text);
        // Anew, so that each makes a handshake of its own.
        everything(&hosts.registry(), &repository, &anonymous()).await.unwrap();
    }
    // No connection outlives the settings that it was made with.
    let registry = hosts.registry();
    everything(&registry, &repository, &anonymous()).await.unwrap();
    assert!(secure.seen().iter().all(|seen| seen.client.as_deref() == Some(client.der())));
    hosts.write("reg.test", &format!("server = 'https://{}'\nca = 'ca.pem'", secure.authority()));
    let error = registry.resolve(&repository, "1", &anonymous()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    hosts.write("reg.test", "client = 'ca.pem'");
    let error = registry.resolve(&repository, "1", &anonymous()).await.unwrap_err();
    let text = crate::cause::chain(&error);
    assert!(text.contains("ca.pem holds no private key in PEM form"), "{text}");
}

#[tokio::test]
async fn a_self_signed_certificate_is_trusted_where_it_is_configured_itself() {
    let repository = Repository { domain: "reg.test".into(), path: "a/b".into() };
    for (is_ca, names, until, problem) in [
        (true, "127.0.0.1", 4000, None),
        (false, "127.0.0.1", 4000, None),
        (true, "other.test", 4000, Some(["not valid for name", "needs a certificate that names it"])),
        (false, "other.test", 4000, Some(["not valid for name", "needs a certificate that names it"])),
        (true, "127.0.0.1", 2001, Some(["expired", "needs a valid certificate"])),
        (false, "127.0.0.1", 2001, Some(["expired", "needs a valid certificate"])),
    ] {
        let issued = Issued::by_itself(&[names], is_ca, until);
        let another = Issued::by_itself(&[names], is_ca, until);
        let secure = Secure::start("127.0.0.1:0", &issued, None, open).await;
        let hosts = Hosts::new();
        let text = format!("server = 'https://{}'\nca = 'ca.pem'", secure.authority());
        let directory = hosts.write("reg.test", &text);
        std::fs::write(directory.join("ca.pem"), &issued.certificate).unwrap();
        let result = everything(&hosts.registry(), &repository, &anonymous()).await;
        match problem {
            None => result.unwrap(),
            Some(texts) => {
                let error = result.unwrap_err().to_string();
                assert!(texts.iter().all(|text| error.contains(text)), "{error}");
                assert!(!error.contains("set `ca`"), "{error}");
            }
        }
        // One that only looks like it is no authority for it.
        std::fs::write(directory.join("ca.pem"), &another.certificate).unwrap();
        let error = everything(&hosts.registry(), &repository, &anonymous()).await.unwrap_err().to_string();
        assert!(error.contains("invalid peer certificate") && !error.contains("set `ca`"), "{error}");
    }
}

/// The files that a broken certificate may lie in, and what is told of each.
#[tokio::test]
async fn a_certificate_file_that_cannot_be_used_fails_the_pull_and_the_check_with_its_line() {
    let clients = Authority::new("clients");
    let (client, other) = (clients.issue(&["node"]), clients.issue(&["node"]));
    let broken = "-----BEGIN CERTIFICATE-----\nY2FuYXJ5\n-----END CERTIFICATE-----\n";
    let mirror = Fake::start(|_| manifest()).await;
    let fake = Fake::start(|_| manifest()).await;
    let hosts = Hosts::new();
    let directory = hosts.write("reg.test", "");
    for (name, contents) in [
        ("c.pem", client.certificate.clone()),
        ("other.key", other.key.clone()),
        ("broken.pem", format!("\n{broken}")),
        ("broken.key", client.key.replace("\nM", "\n!")),
        ("both.pem", format!("{}{}", client.certificate, other.key)),
        ("text.pem", "no certificate".to_owned()),
    ] {
        std::fs::write(directory.join(name), contents).unwrap();
    }
    let repository = Repository { domain: "reg.test".into(), path: "a/b".into() };
    let key_line = client.certificate.lines().count() + 1;
    for (keys, expected) in [
        ("ca = 'broken.pem'", "broken.pem:2: the block is no certificate".to_owned()),
        ("ca = 'text.pem'", "text.pem holds no certificate in PEM form".to_owned()),
        (
            "client = [['c.pem', 'other.key']]",
            "other.key:1: the key is not that of the certificate in".to_owned(),
        ),
        ("client = 'both.pem'", format!("both.pem:{key_line}: the key is not that of the certificate in")),
        ("client = [['c.pem', 'broken.key']]", "broken.key:1: the private key cannot be read".to_owned()),
        ("client = [['broken.pem', 'other.key']]", "broken.pem:2: the block is no certificate".to_owned()),
        ("client = [['c.pem', 'text.pem']]", "text.pem holds no private key in PEM form".to_owned()),
    ] {
        let (server, mirror) = (plain(&fake), mirror.authority());
        hosts.write("reg.test", &format!("server = '{server}'\n[host.'https://{mirror}']\n{keys}"));
        let error = hosts.registry().resolve(&repository, "1", &anonymous()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Configuration, "{keys}: {error}");
        let text = crate::cause::chain(&error);
        assert!(text.contains("hosts.toml:3: ") && text.contains(&expected), "{keys}: {text}");
        let report = check(&[hosts.0.path().into()], &[], None, &Environment::default());
        assert!(report.mistakes[0].contains(&expected), "{keys}: {:?}", report.mistakes);
    }
    assert_eq!(fake.received().len(), 0);
}

#[tokio::test]
async fn a_broken_authority_beside_a_good_one_is_passed_over_with_a_warning() {
    let authority = Authority::new("site");
    let secure = Secure::start("127.0.0.1:0", &authority.issue(&["127.0.0.1"]), None, open).await;
    let hosts = Hosts::new();
    let directory =
        hosts.write("reg.test", &format!("server = 'https://{}'\nca = 'ca.pem'", secure.authority()));
    let broken = "-----BEGIN CERTIFICATE-----\nY2FuYXJ5\n-----END CERTIFICATE-----\n";
    std::fs::write(directory.join("ca.pem"), format!("{broken}{}", authority.pem())).unwrap();
    let repository = Repository { domain: "reg.test".into(), path: "a/b".into() };
    everything(&hosts.registry(), &repository, &anonymous()).await.unwrap();
    let report = check(&[hosts.0.path().into()], &[], None, &Environment::default());
    assert!(report.mistakes.is_empty(), "{:?}", report.mistakes);
    let expected = format!("{}:1: the block is no certificate", directory.join("ca.pem").display());
    assert!(report.warnings[0].starts_with(&expected), "{:?}", report.warnings);
}

#[tokio::test]
async fn of_several_client_certificates_a_host_is_shown_one_of_its_own_authority() {
    let site = Authority::new("site");
    let issued = site.issue(&["127.0.0.1"]);
    let authorities = [Authority::new("one"), Authority::new("two")];
    let hosts = Hosts::new();
    let directory = hosts.write("reg.test", "");
    std::fs::write(directory.join("ca.pem"), site.pem()).unwrap();
    let clients = authorities.each_ref().map(|authority| authority.issue(&["node"]));
    for (number, client) in clients.iter().enumerate() {
        std::fs::write(directory.join(format!("{number}.pem")), &client.certificate).unwrap();
        std::fs::write(directory.join(format!("{number}.key")), &client.key).unwrap();
    }
    let repository = Repository { domain: "reg.test".into(), path: "a/b".into() };
    for (authority, client) in authorities.iter().zip(&clients) {
        let secure = Secure::start("127.0.0.1:0", &issued, Some(authority), open).await;
        for pairs in ["[['0.pem', '0.key'], ['1.pem', '1.key']]", "[['1.pem', '1.key'], ['0.pem', '0.key']]"]
        {
            let text = format!("server = 'https://{}'\nca = 'ca.pem'\nclient = {pairs}", secure.authority());
            hosts.write("reg.test", &text);
            everything(&hosts.registry(), &repository, &anonymous()).await.unwrap();
        }
        assert!(secure.seen().iter().all(|seen| seen.client.as_deref() == Some(client.der())));
        // Without any.
        hosts.write("reg.test", &format!("server = 'https://{}'\nca = 'ca.pem'", secure.authority()));
        let error = hosts.registry().resolve(&repository, "1", &anonymous()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    }
}

#[tokio::test]
async fn small_documents_go_by_http2_and_blobs_by_connections_of_their_own() {
    let authority = Authority::new("site");
    let secure = Secure::start("127.0.0.1:0", &authority.issue(&["localhost"]), None, open).await;
    let hosts = Hosts::new();
    let repository = Repository { domain: "reg.test".into(), path: "a/b".into() };
    let directory = hosts.write("reg.test", "");
    std::fs::write(directory.join("ca.pem"), authority.pem()).unwrap();
    hosts.write("reg.test", &format!("server = 'https://localhost:{}'\nca = 'ca.pem'", secure.port()));
    everything(&hosts.registry(), &repository, &anonymous()).await.unwrap();
    for seen in secure.seen() {
        let blob = seen.path.contains("/blobs/");
        let version = if blob { http::Version::HTTP_11 } else { http::Version::HTTP_2 };
        assert_eq!(seen.version, version, "{} {}", seen.method, seen.path);
        assert_eq!(seen.server_name.as_deref(), Some("localhost"));
    }
}

#[tokio::test]
async fn an_ipv6_address_is_a_host_like_any_other() {
    let Ok(_) = tokio::net::TcpListener::bind("[::1]:0").await else { return };
    let issued = Authority::new("unknown").issue(&["::1"]);
    let secure = Secure::start("[::1]:0", &issued, None, open).await;
    let repository = Repository { domain: secure.authority(), path: "a/b".into() };
    assert!(repository.domain.starts_with("[::1]:"));
    everything(&registry(), &repository, &anonymous()).await.unwrap();
    assert!(secure.seen().iter().all(|seen| seen.server_name.is_none()));
}
