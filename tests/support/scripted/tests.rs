use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::image::{Blob, LAYER};
use super::tokens::{Rules, Tokens};
use super::*;

/// Sends this text and reads until the end, or until the connection breaks.
async fn said(address: &str, text: &str) -> (String, std::io::Result<usize>) {
    let mut connection = TcpStream::connect(address).await.expect("a connection");
    connection.write_all(text.as_bytes()).await.expect("a request");
    let mut answer = Vec::new();
    let ended = connection.read_to_end(&mut answer).await;
    (String::from_utf8_lossy(&answer).into_owned(), ended)
}

async fn got(address: &str, target: &str, headers: &str) -> String {
    let request = format!("GET {target} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
    said(address, &request).await.0
}

#[tokio::test]
async fn one_connection_carries_one_request_after_another() {
    let registry = Scripted::start().await.expect("a registry");
    let other = registry.listen("127.0.0.2", None).await.expect("another address");
    registry.on("GET", "/a", |request, nth| {
        Reply::ok("text/plain", format!("{}{nth};", request.to.ip()).as_bytes())
    });
    let twice = "GET /a HTTP/1.1\r\n\r\nGET /a HTTP/1.1\r\nConnection: close\r\n\r\n";
    let (answer, ended) = said(registry.address(), twice).await;
    assert!(ended.is_ok() && answer.contains("127.0.0.10;") && answer.contains("127.0.0.11;"), "{answer}");
    assert!(got(&other, "/a", "").await.contains("127.0.0.22;"));
    let journal = registry.journal();
    assert_eq!(journal.len(), 3);
    assert_eq!(journal[0].from, journal[1].from);
    assert_eq!((registry.open_requests(), registry.most_open_requests()), (0, 1));
}

#[tokio::test]
async fn a_body_ends_as_its_script_says() {
    let registry = Scripted::start().await.expect("a registry");
    let body = || Reply::ok("text/plain", b"0123456789");
    registry.on("GET", "/fin", move |_, _| body().cut_after(3, End::Close));
    registry.on("GET", "/rst", move |_, _| body().cut_after(3, End::Reset));
    registry.on("GET", "/more", move |_, _| body().announcing(5).ending(End::Close));
    registry.on("GET", "/chunks", move |_, _| body().chunked());
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n");
    let (answer, ended) = said(registry.address(), &request("/fin")).await;
    assert!(ended.is_ok() && answer.ends_with("Content-Length: 10\r\n\r\n012"), "{answer}");
    let (answer, ended) = said(registry.address(), &request("/rst")).await;
    assert!(ended.is_err() && answer.ends_with("\r\n\r\n012"), "{ended:?} {answer}");
    assert!(got(registry.address(), "/more", "").await.ends_with("Content-Length: 5\r\n\r\n0123456789"));
    assert!(got(registry.address(), "/chunks", "").await.ends_with("\r\n\r\na\r\n0123456789\r\n0\r\n\r\n"));
}

#[tokio::test]
async fn a_stream_of_http2_is_reset_and_a_connection_goes_away() {
    let authority = Authority::new("test").expect("an authority");
    let registry = Scripted::start_tls(Tls::of(&authority)).await.expect("a registry");
    let body = || Reply::ok("text/plain", b"0123456789");
    registry.on("GET", "/whole", move |_, _| body());
    registry.on("GET", "/rst", move |_, _| body().cut_after(3, End::Reset));
    registry.on("GET", "/away", move |_, _| body().cut_after(3, End::GoAway));
    registry.on("GET", "/unprocessed", |_, _| Reply::nothing(End::Unprocessed));
    let (client, driver) = connected(&registry, &authority).await;
    let mut endings = Vec::new();
    for path in ["/whole", "/rst", "/away"] {
        let mut answer = get(client.clone(), path).await.expect("a head").into_body();
        let mut bytes = Vec::new();
        let ended = loop {
            match answer.data().await {
                Some(Ok(piece)) => bytes.extend_from_slice(&piece),
                Some(Err(error)) => break Some(error.is_reset()),
                None => break None,
            }
        };
        endings.push((bytes.len(), ended));
    }
    // Only a connection that was told to go ends without an error.
    assert!(driver.await.expect("a task").is_ok());
    assert_eq!(endings, [(10, None), (3, Some(true)), (3, Some(false))]);

    let (client, driver) = connected(&registry, &authority).await;
    let answer = get(client, "/unprocessed").await.expect_err("no answer");
    // A client may send such a request again, whatever it is.
    assert!(
        answer.is_go_away() && answer.is_remote() && answer.reason() == Some(h2::Reason::NO_ERROR),
        "{answer:?}"
    );
    assert!(driver.await.expect("a task").is_ok());
    assert!(registry.journal().iter().all(|request| request.version == Version::Http2 && request.secure));
}

type Client = h2::client::SendRequest<Bytes>;

/// A connection with HTTP/2, and the task that drives it.
async fn connected(
    registry: &Scripted,
    authority: &Authority,
) -> (Client, tokio::task::JoinHandle<Result<(), h2::Error>>) {
    let stream = TcpStream::connect(registry.address()).await.expect("a connection");
    let stream = connector(authority).connect(ServerName::try_from("127.0.0.1").expect("a name"), stream);
    let (client, connection) = h2::client::handshake(stream.await.expect("TLS")).await.expect("HTTP/2");
    (client, tokio::spawn(connection))
}

async fn get(client: Client, path: &str) -> Result<http::Response<h2::RecvStream>, h2::Error> {
    let mut client = client.ready().await.expect("a connection that takes streams");
    let request = http::Request::get(format!("https://127.0.0.1{path}")).body(()).expect("a request");
    client.send_request(request, true).expect("a stream").0.await
}

fn connector(authority: &Authority) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).expect("PEM"))
        .expect("an authority");
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = config.expect("versions").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config))
}

#[tokio::test]
async fn tokens_are_for_those_who_are_known_and_for_their_scope() {
    let registry = Scripted::start().await.expect("a registry");
    let account = Some(("user".to_owned(), "p w+".to_owned()));
    let tokens = Tokens::at(&registry, "/token", Rules { account, anonymous: false, ..Rules::default() });
    tokens.guard(&registry);
    registry.on("GET", "/v2/a/b/manifests/1", |_, _| Reply::ok("text/plain", b"served"));
    let at = registry.address();
    let refused = got(at, "/v2/a/b/manifests/1", "").await;
    assert!(
        refused.starts_with("HTTP/1.1 401") && refused.contains(&tokens.challenge("repository:a/b:pull"))
    );
    assert!(got(at, "/token?service=scripted", "").await.starts_with("HTTP/1.1 401"));
    let form =
        "grant_type=password&service=scripted&scope=repository%3Aa%2Fb%3Apull&username=user&password=p+w%2B";
    let post =
        format!("POST /token HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{form}", form.len());
    let answer = said(at, &post).await.0;
    assert!(answer.contains("\"token\":\"token-2\"") && answer.contains("\"expires_in\":300"), "{answer}");
    let bearer = "Authorization: Bearer token-2\r\n";
    assert!(got(at, "/v2/a/b/manifests/1", bearer).await.ends_with("served"));
    assert!(got(at, "/v2/a/c/manifests/1", bearer).await.starts_with("HTTP/1.1 401"));
    tokens.revoke();
    assert!(got(at, "/v2/a/b/manifests/1", bearer).await.starts_with("HTTP/1.1 401"));
    assert_eq!((tokens.orders().len(), tokens.issued()), (2, 1));
    let order = &tokens.orders()[1];
    assert_eq!(
        (order.proof, order.scopes.as_slice()),
        ("password", ["repository:a/b:pull".to_owned()].as_slice())
    );
}

#[tokio::test]
async fn a_signed_url_wears_out() {
    let registry = Scripted::start().await.expect("a registry");
    let store = Scripted::start_at("127.0.0.2").await.expect("a store");
    let blob = Blob::new(LAYER, b"0123456789".to_vec());
    storage::redirect(&registry, &store, "a", &blob, "secret", 1);
    let answer = got(registry.address(), &blob.path("a"), "").await;
    let location = answer.lines().find_map(|line| line.strip_prefix("Location: ")).expect("a redirect");
    let target = location.strip_prefix(&store.url()).expect("the store");
    assert!(target.contains("?X-Amz-Signature=secret&n=0"), "{target}");
    let part = got(store.address(), target, "Range: bytes=4-6\r\n").await;
    assert!(
        part.starts_with("HTTP/1.1 206") && part.contains("bytes 4-6/10") && part.ends_with("456"),
        "{part}"
    );
    assert!(got(store.address(), target, "").await.starts_with("HTTP/1.1 403"));
    assert!(got(store.address(), "/store/x", "").await.starts_with("HTTP/1.1 404"));
}

#[test]
fn blobs_are_shared_and_not_copied() {
    let blob = Bytes::from(vec![7; 100]);
    let request = Request {
        method: "GET".into(),
        target: "/v2/a/b/blobs/x?q=1".into(),
        headers: vec![("range".into(), "bytes=10-".into())],
        body: String::new(),
        to: ([127, 0, 0, 1], 1).into(),
        from: ([127, 0, 0, 1], 2).into(),
        version: Version::Http1,
        secure: false,
    };
    let reply = Reply::ranged_of(&request, &blob);
    assert_eq!((reply.status_code(), reply.length()), (206, 90));
    assert_eq!((request.repository(), request.query()), (Some("a/b"), "q=1"));
}
