//! An authority of the test's own, and the TLS that a scripted registry speaks with a certificate of it.

use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// What a server's certificate is good for.
const NAMES: [&str; 5] = ["localhost", "*.test", "127.0.0.1", "127.0.0.2", "::1"];

/// A certificate authority.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate with its key, both in PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// Its key (PKCS #8).
    pub key: String,
}

/// How a registry speaks TLS.
#[derive(Clone, Copy)]
pub struct Tls<'a> {
    /// Signs the server's certificate.
    pub authority: &'a Authority,
    /// Offers HTTP/2 before HTTP/1.1.
    pub http2: bool,
}

impl Authority {
    /// A fresh authority.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self { issuer })
    }

    /// Its own certificate in PEM, for `ca` in hosts.toml.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for servers at these names and addresses.
    pub fn server(&self, names: &[&str]) -> Result<Identity> {
        self.signed(names, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate for a client, for `client` in hosts.toml.
    pub fn client(&self, name: &str) -> Result<Identity> {
        self.signed(&[name], ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn signed(&self, names: &[&str], usage: ExtendedKeyUsagePurpose) -> Result<Identity> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).context("a name no certificate can have")?;
        params.extended_key_usages.push(usage);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Identity { certificate, key: key.serialize_pem() })
    }
}

impl<'a> Tls<'a> {
    /// HTTP/2 and HTTP/1.1.
    pub fn of(authority: &'a Authority) -> Self {
        Self { authority, http2: true }
    }

    pub(super) fn acceptor(self) -> Result<TlsAcceptor> {
        let identity = self.authority.server(&NAMES)?;
        let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes())?;
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        if self.http2 {
            config.alpn_protocols.push(b"h2".to_vec());
        }
        config.alpn_protocols.push(b"http/1.1".to_vec());
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}
