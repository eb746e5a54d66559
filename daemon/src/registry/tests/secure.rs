//! A registry with TLS, HTTP/2 and HTTP/1.1: what its clients showed of themselves, and a script for the answers.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

type Script = dyn Fn(&Seen) -> Reply + Send + Sync;

/// An authority that issues certificates.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM and as what servers take.
pub(super) struct Issued {
    pub(super) certificate: String,
    pub(super) key: String,
    der: (CertificateDer<'static>, PrivateKeyDer<'static>),
}

pub(super) struct Secure {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    serving: tokio::task::JoinHandle<()>,
}

/// One request and the connection it came by.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) authorization: Option<String>,
    pub(super) version: http::Version,
    pub(super) server_name: Option<String>,
    /// The client's certificate.
    pub(super) client: Option<Vec<u8>>,
}

/// Status, headers and body.
pub(super) struct Reply(pub(super) u16, pub(super) Vec<(&'static str, String)>, pub(super) &'static str);

impl Authority {
    pub(super) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(super) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(super) fn issue(&self, names: &[&str]) -> Issued {
        let key = KeyPair::generate().unwrap();
        let certificate = params_of(names).signed_by(&key, &self.0).unwrap();
        Issued::new(&certificate, &key)
    }
}

fn params_of(names: &[&str]) -> CertificateParams {
    let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
    CertificateParams::new(names).unwrap()
}

impl Issued {
    fn new(certificate: &Certificate, key: &KeyPair) -> Self {
        Self {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            der: (certificate.der().clone(), PrivateKeyDer::try_from(key.serialize_der()).unwrap()),
        }
    }

    /// A certificate that is its own authority, as `openssl req -x509` makes them, until this year.
    pub(super) fn by_itself(names: &[&str], is_ca: bool, until: i32) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = params_of(names);
        params.is_ca =
            if is_ca { IsCa::Ca(rcgen::BasicConstraints::Unconstrained) } else { IsCa::ExplicitNoCa };
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        Self::new(&params.self_signed(&key).unwrap(), &key)
    }

    pub(super) fn der(&self) -> &[u8] {
        &self.der.0
    }
}

impl Secure {
    /// A server with a certificate of `authority`; of its clients it wants one of `clients`, if there is such.
    pub(super) async fn start(
        address: &str,
        issued: &Issued,
        clients: Option<&Authority>,
        script: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.0.der().clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let (certificate, key) = (issued.der.0.clone(), issued.der.1.clone_key());
        let mut config = builder.with_single_cert(vec![certificate], key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let serving = tokio::spawn(serve(
            listener,
            TlsAcceptor::from(Arc::new(config)),
            seen.clone(),
            Arc::new(script),
        ));
        Self { address, seen, serving }
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(super) fn authority(&self) -> String {
        self.address.to_string()
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Secure {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, seen: Arc<Mutex<Vec<Seen>>>, script: Arc<Script>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, seen, script) = (tls.clone(), seen.clone(), script.clone());
        connections.spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let session = stream.get_ref().1;
            let server_name = session.server_name().map(String::from);
            let client = session.peer_certificates().map(|chain| chain[0].to_vec());
            let answer = service_fn(|request: Request<Incoming>| {
                let seen_now = Seen {
                    method: request.method().to_string(),
                    path: request.uri().path().to_owned(),
                    authorization: request
                        .headers()
                        .get("authorization")
                        .map(|value| value.to_str().unwrap().to_owned()),
                    version: request.version(),
                    server_name: server_name.clone(),
                    client: client.clone(),
                };
                let Reply(status, headers, body) = script(&seen_now);
                seen.lock().unwrap().push(seen_now);
                let mut response = Response::builder().status(status);
                for (name, value) in headers {
                    response = response.header(name, value);
                }
                std::future::ready(response.body(Whole(Some(body.into()))))
            });
            let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

/// A body at hand.
struct Whole(Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Ready(
            self.0.take().filter(|bytes| !bytes.is_empty()).map(|bytes| Ok(Frame::data(bytes))),
        )
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}
