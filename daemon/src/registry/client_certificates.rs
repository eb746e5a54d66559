//! Which of a host's client certificates a server is shown: the first that it can accept, as Go's TLS chooses.

use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use rustls::{DistinguishedName, SignatureScheme};
use webpki::EndEntityCert;

/// The client certificates of a host, in the order of its file.
#[derive(Debug)]
pub(super) struct ClientCertificates(Vec<Arc<CertifiedKey>>);

impl ClientCertificates {
    pub(super) fn new(certificates: Vec<CertifiedKey>) -> Self {
        Self(certificates.into_iter().map(Arc::new).collect())
    }
}

impl ResolvesClientCert for ClientCertificates {
    /// A server that can accept none is shown the first: it may list its authorities wrongly, and its refusal says more
    /// than that a certificate is missing.
    fn resolve(&self, authorities: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let fits = |certificate: &&Arc<CertifiedKey>| {
            certificate.key.choose_scheme(schemes).is_some() && is_of(certificate, authorities)
        };
        self.0.iter().find(fits).or(self.0.first()).cloned()
    }

    fn has_certs(&self) -> bool {
        !self.0.is_empty()
    }
}

/// Whether a certificate of the chain was issued by one of these; a server that names nobody takes any (RFC 5246,
/// section 7.4.4; RFC 8446, section 4.2.4).
fn is_of(certificate: &CertifiedKey, authorities: &[&[u8]]) -> bool {
    authorities.is_empty()
        || certificate.cert.iter().any(|der| {
            EndEntityCert::try_from(der).is_ok_and(|parsed| {
                let issuer = DistinguishedName::in_sequence(parsed.issuer());
                authorities.contains(&issuer.as_ref())
            })
        })
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519,
        SignatureAlgorithm,
    };
    use rustls::crypto::aws_lc_rs;
    use rustls::pki_types::PrivateKeyDer;

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
        let ours = ClientCertificates::new(vec![
            one.issue(&PKCS_ECDSA_P256_SHA256),
            one.issue(&PKCS_ED25519),
            below_two,
        ]);
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
            assert!(Arc::ptr_eq(&found, &ours.0[chosen]), "{authorities:?} {schemes:?}");
        }
        let none = ClientCertificates::new(Vec::new());
        assert!(!none.has_certs() && none.resolve(&[], &[p256]).is_none());
    }
}
