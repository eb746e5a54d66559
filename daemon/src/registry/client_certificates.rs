//! Which of a host's client certificates a server is shown: the first that it can accept, as Go's TLS chooses.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;

/// A client certificate, with those that vouch for it and its key. The key is that of the certificate, so the
/// certificates alone tell one from another, and no hash is made of the key.
#[derive(Clone, Debug)]
pub(super) struct ClientCertificate(
    /// Shared with the connections, so that the key is in memory once.
    Arc<CertifiedKey>,
);

/// The client certificates of a host, in the order of its file.
#[derive(Debug)]
pub(super) struct ClientCertificates(Vec<ClientCertificate>);

impl ClientCertificate {
    /// The caller has made sure that the key is that of the first certificate.
    pub(super) fn new(certified: CertifiedKey) -> Self {
        Self(Arc::new(certified))
    }
}

impl PartialEq for ClientCertificate {
    fn eq(&self, other: &Self) -> bool {
        self.0.cert == other.0.cert
    }
}

impl Eq for ClientCertificate {}

impl Hash for ClientCertificate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.cert.hash(state);
    }
}

impl ClientCertificates {
    pub(super) fn new(certificates: Vec<ClientCertificate>) -> Self {
        Self(certificates)
    }
}

impl ResolvesClientCert for ClientCertificates {
    /// A server that can accept none is shown the first: it may list its authorities wrongly, and its refusal says more
    /// than that a certificate is missing.
    fn resolve(&self, authorities: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let fits = |certificate: &&Arc<CertifiedKey>| {
            certificate.key.choose_scheme(schemes).is_some() && is_of(certificate, authorities)
        };
        let mut certificates = self.0.iter().map(|certificate| &certificate.0);
        certificates.clone().find(fits).or(certificates.next()).cloned()
    }

    fn has_certs(&self) -> bool {
        !self.0.is_empty()
    }
}

/// Whether a certificate of the chain was issued by one of these; a server that names nobody takes any (RFC 5246,
/// section 7.4.4; RFC 8446, section 4.2.4).
fn is_of(certificate: &CertifiedKey, authorities: &[&[u8]]) -> bool {
    authorities.is_empty()
        || certificate.cert.iter().any(|der| issuer(der).is_some_and(|issuer| authorities.contains(&issuer)))
}

/// The issuer's name in a certificate of any version (RFC 5280, section 4.1). Read here, since the TLS library reads
/// nothing of the first version, which `openssl x509 -req` makes and servers take.
fn issuer(certificate: &[u8]) -> Option<&[u8]> {
    let (_, certificate, _) = element(certificate)?;
    let (_, mut rest, _) = element(certificate)?;
    // The version, which the first one leaves out; serial number and signature's algorithm.
    let before = if rest.first() == Some(&VERSION) { 3 } else { 2 };
    for _ in 0..before {
        let (_, _, end) = element(rest)?;
        rest = &rest[end..];
    }
    let (_, _, end) = element(rest)?;
    rest.get(..end)
}

/// The tag of a certificate's version.
const VERSION: u8 = 0xa0;

/// The first element of DER: its tag, its contents, and where it ends.
fn element(der: &[u8]) -> Option<(u8, &[u8], usize)> {
    let (&tag, &first) = (der.first()?, der.get(1)?);
    let (length, start) = if first < 0x80 {
        (usize::from(first), 2)
    } else {
        // Longer lengths than of four bytes are no certificate's.
        let end = 2 + usize::from(first & 0x7f).min(5);
        let bytes = der.get(2..end).filter(|bytes| bytes.len() <= 4)?;
        (bytes.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)), end)
    };
    let end = start.checked_add(length)?;
    Some((tag, der.get(start..end)?, end))
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519,
        SignatureAlgorithm,
    };
    use rustls::DistinguishedName;
    use rustls::crypto::aws_lc_rs;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use webpki::EndEntityCert;

    use super::super::tls::Tls;
    use super::*;

    struct Issuer(CertifiedIssuer<'static, KeyPair>);

    impl Issuer {
        fn new(name: &str) -> Self {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            params.distinguished_name.push(DnType::CommonName, name);
            Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
        }

        /// Its name as a server lists it: that of what it signed itself.
        fn name(&self) -> Vec<u8> {
            let parsed = EndEntityCert::try_from(self.0.der()).unwrap();
            DistinguishedName::in_sequence(parsed.subject()).as_ref().to_vec()
        }

        fn issue(&self, algorithm: &'static SignatureAlgorithm) -> CertifiedKey {
            let key = KeyPair::generate_for(algorithm).unwrap();
            let params = CertificateParams::new(["node".to_owned()]).unwrap();
            let chain = vec![params.signed_by(&key, &self.0).unwrap().der().clone()];
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).unwrap()
        }
    }

    #[test]
    fn the_first_that_the_server_can_accept_is_chosen() {
        let (one, two, other) = (Issuer::new("one"), Issuer::new("two"), Issuer::new("other"));
        let mut below_two = two.issue(&PKCS_ED25519);
        // An intermediate's issuer counts as well.
        let certificate = one.issue(&PKCS_ED25519);
        below_two.cert.splice(0..0, certificate.cert.iter().cloned());
        let certificates = [one.issue(&PKCS_ECDSA_P256_SHA256), one.issue(&PKCS_ED25519), below_two];
        let ours = ClientCertificates::new(certificates.map(ClientCertificate::new).into());
        let (p256, ed25519) = (SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ED25519);
        let rsa = SignatureScheme::RSA_PSS_SHA256;
        for (authorities, schemes, chosen) in [
            (vec![], vec![ed25519, p256], 0),
            (vec![], vec![ed25519], 1),
            (vec![one.name()], vec![p256, ed25519], 0),
            (vec![two.name()], vec![p256, ed25519], 2),
            (vec![other.name(), two.name()], vec![ed25519], 2),
            (vec![two.name()], vec![p256], 0),
            (vec![other.name()], vec![ed25519], 0),
            (vec![], vec![rsa], 0),
        ] {
            let names: Vec<&[u8]> = authorities.iter().map(Vec::as_slice).collect();
            let found = ours.resolve(&names, &schemes).unwrap();
            assert!(Arc::ptr_eq(&found, &ours.0[chosen].0), "{authorities:?} {schemes:?}");
        }
        // One of the first version is read as any other.
        let below_two = two.issue(&PKCS_ED25519);
        let below_two = CertifiedKey::new(vec![of_the_first_version(&below_two.cert[0])], below_two.key);
        let certificates = [one.issue(&PKCS_ED25519), below_two];
        let old = ClientCertificates::new(certificates.map(ClientCertificate::new).into());
        let found = old.resolve(&[&two.name()], &[ed25519]).unwrap();
        assert!(Arc::ptr_eq(&found, &old.0[1].0));
        let none = ClientCertificates::new(Vec::new());
        assert!(!none.has_certs() && none.resolve(&[], &[p256]).is_none());
    }

    /// The same certificate without its version and extensions. Its signature is no longer right, which nobody looks
    /// at here.
    fn of_the_first_version(der: &[u8]) -> CertificateDer<'static> {
        let (_, certificate, _) = element(der).unwrap();
        let (_, signed, end) = element(certificate).unwrap();
        let (_, _, version) = element(signed).unwrap();
        let mut fields = &signed[version..];
        // Serial number, algorithm, issuer, validity, subject and key.
        for _ in 0..6 {
            fields = &fields[element(fields).unwrap().2..];
        }
        let kept = &signed[version..signed.len() - fields.len()];
        let signed = sequence(kept);
        sequence(&[&signed, &certificate[end..]].concat()).into()
    }

    fn sequence(contents: &[u8]) -> Vec<u8> {
        let [high, low] = u16::try_from(contents.len()).unwrap().to_be_bytes();
        let head = match (high, low) {
            (0, 0..0x80) => vec![0x30, low],
            (0, _) => vec![0x30, 0x81, low],
            _ => vec![0x30, 0x82, high, low],
        };
        [&head, contents].concat()
    }

    #[test]
    fn a_certificate_of_the_first_version_is_shown_as_it_is() {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["node".to_owned()]).unwrap();
        let der = of_the_first_version(params.self_signed(&key).unwrap().der());
        let encode = |der: &[u8]| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, der);
        let pem = format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", encode(&der));
        let path = std::path::Path::new("c.pem");
        let mut tls = Tls::default();
        let file = format!("{pem}{}", key.serialize_pem());
        tls.add_client(path, file.as_bytes(), None).unwrap();
        let config = tls.config(&["http/1.1"]).unwrap();
        let shown = config.client_auth_cert_resolver.resolve(&[], &[SignatureScheme::ECDSA_NISTP256_SHA256]);
        assert_eq!(shown.unwrap().cert, [der]);
        // The key is compared in this version too.
        let other = KeyPair::generate().unwrap();
        let file = format!("{pem}{}", other.serialize_pem());
        let error = tls.add_client(path, file.as_bytes(), None).unwrap_err();
        assert!(error.to_string().contains("the key is not that of the certificate"), "{error}");
    }

    #[test]
    fn what_is_no_certificate_has_no_issuer() {
        let der = Issuer::new("one").issue(&PKCS_ED25519).cert[0].to_vec();
        assert!(issuer(&der).is_some());
        for end in 0..der.len() {
            assert_eq!(issuer(&der[..end]), None);
        }
        assert_eq!(issuer(&[0x30, 0xff, 1, 1, 1, 1, 1, 1]), None);
    }
}
