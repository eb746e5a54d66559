//! The TLS library's settings, made here rather than by the HTTP library for one reason: so that the beginning of a
//! handshake is seen. A host whose system takes connections while it hangs itself never ends one, and that is silence,
//! not a connection in the making.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Resumption, Tls12ClientSessionValue,
    Tls13ClientSessionValue, verify_server_name,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, NamedGroup, OtherError, SignatureScheme,
};
use rustls_platform_verifier::Verifier;
use webpki::{EndEntityCert, KeyUsage};

use super::client_certificates::{ClientCertificate, ClientCertificates};
use super::dial;

/// Sessions remembered for resumption; the library's own figure.
const SESSIONS: usize = 256;

/// What the settings are made from, besides the system's authorities.
#[derive(Clone, Copy)]
pub(super) struct Settings<'a> {
    /// Further authorities.
    pub(super) authorities: &'a [CertificateDer<'static>],
    /// Client certificates, in the order of preference.
    pub(super) clients: &'a [ClientCertificate],
    /// Takes any certificate.
    pub(super) skip_verify: bool,
    /// The application protocols that are offered, best first.
    pub(super) protocols: &'a [&'a str],
}

impl Settings<'_> {
    pub(super) fn config(self) -> Result<ClientConfig, Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = if self.skip_verify {
            Arc::new(AnyCertificate(provider.clone()))
        } else {
            let authorities = self.authorities.to_vec();
            let system = Verifier::new_with_extra_roots(authorities.clone(), provider.clone())?;
            Arc::new(Configured { system, authorities })
        };
        let clients = ClientCertificates::new(self.clients.to_vec());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(Arc::new(clients));
        config.alpn_protocols = self.protocols.iter().map(|&protocol| protocol.into()).collect();
        config.resumption = Resumption::store(Arc::new(Sessions(ClientSessionMemoryCache::new(SESSIONS))));
        Ok(config)
    }
}

/// The sessions to resume. A handshake begins with asking for one, which is the only sign of it that the library
/// gives.
#[derive(Debug)]
struct Sessions(ClientSessionMemoryCache);

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, name: ServerName<'static>, group: NamedGroup) {
        self.0.set_kx_hint(name, group);
    }

    fn kx_hint(&self, name: &ServerName<'_>) -> Option<NamedGroup> {
        dial::connected();
        self.0.kx_hint(name)
    }

    fn set_tls12_session(&self, name: ServerName<'static>, session: Tls12ClientSessionValue) {
        self.0.set_tls12_session(name, session);
    }

    fn tls12_session(&self, name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.0.tls12_session(name)
    }

    fn remove_tls12_session(&self, name: &ServerName<'static>) {
        self.0.remove_tls12_session(name);
    }

    fn insert_tls13_ticket(&self, name: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        self.0.insert_tls13_ticket(name, ticket);
    }

    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.0.take_tls13_ticket(name)
    }
}

/// Trusts what the system's authorities and the configured ones have issued, and the configured certificates
/// themselves: a registry's self-signed certificate is its own authority, though it says of itself that it is one.
#[derive(Debug)]
struct Configured {
    system: Verifier,
    authorities: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Configured {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.authorities.contains(end_entity) {
            return itself(end_entity, server_name, now);
        }
        self.system.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.system.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.system.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.system.supported_verify_schemes()
    }
}

/// Whether a certificate that needs no issuer is valid for this name, at this time and for a server.
fn itself(
    certificate: &CertificateDer<'_>,
    server_name: &ServerName<'_>,
    now: UnixTime,
) -> Result<ServerCertVerified, Error> {
    let parsed = EndEntityCert::try_from(certificate).map_err(|_| CertificateError::BadEncoding)?;
    // Without any authority a path is never found, but what is to be known of the certificate alone is checked before
    // one is looked for.
    let path = parsed.verify_for_usage(&[], &[], &[], now, KeyUsage::server_auth(), None, None);
    match path.err() {
        None | Some(webpki::Error::UnknownIssuer | webpki::Error::CaUsedAsEndEntity) => {}
        Some(webpki::Error::CertExpired { time, not_after }) => {
            return Err(CertificateError::ExpiredContext { time, not_after }.into());
        }
        Some(webpki::Error::CertNotValidYet { time, not_before }) => {
            return Err(CertificateError::NotValidYetContext { time, not_before }.into());
        }
        Some(other) => return Err(CertificateError::Other(OtherError(Arc::new(other))).into()),
    }
    verify_server_name(&ParsedCertificate::try_from(certificate)?, server_name)?;
    Ok(ServerCertVerified::assertion())
}

/// Checks nothing, for hosts with `skip_verify`.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        // The old ones too: whoever waives the check has an old host.
        let mut schemes = self.0.signature_verification_algorithms.supported_schemes();
        schemes.extend([SignatureScheme::RSA_PKCS1_SHA1, SignatureScheme::ECDSA_SHA1_Legacy]);
        schemes
    }
}
