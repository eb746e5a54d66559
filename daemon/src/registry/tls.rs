//! TLS settings of one host: certificates as read from their files, so that a replaced file makes different settings
//! and with them a new HTTP client.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use webpki::{anchor_from_trusted_cert, spki_for_anchor};

use super::client_certificates::ClientCertificate;
use super::handshake::Settings;
use super::pem::{Block, BlockError, blocks};

/// What a host's TLS connections are made with. The system's authorities always count; nothing here removes them.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Tls {
    /// Further authorities.
    authorities: Vec<CertificateDer<'static>>,
    /// Client certificates, in the order of writing.
    clients: Vec<ClientCertificate>,
    /// What of their files is passed over, and where it stands.
    pub(super) passed_over: Vec<String>,
    /// Takes any certificate.
    pub(super) skip_verify: bool,
}

/// Why a certificate file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read.
    #[error("certificate file {path} cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is not what it should be.
    #[error("{path} holds no {what} in PEM form")]
    Pem {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// A block of the file is not what it says.
    #[error("{path}:{line}: {flaw}")]
    Block {
        /// The file.
        path: PathBuf,
        /// Where the block begins, counted from 1.
        line: usize,
        /// What is wrong with it.
        flaw: BlockError,
    },
    /// Certificate and key are of two pairs.
    #[error("{key}:{line}: the key is not that of the certificate in {path}")]
    Mismatch {
        /// The file of the certificate.
        path: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// Where the key begins, counted from 1.
        line: usize,
    },
}

impl Tls {
    /// Adds the authorities that the file at `path` holds. One among them that cannot be used is passed over, since
    /// bundles come from many hands, and containerd does so; a file without any that can is an error.
    pub(super) fn add_authorities(&mut self, path: &Path, pem: &[u8]) -> Result<(), TlsError> {
        let (mut usable, mut faults) = (false, Vec::new());
        for block in blocks(pem).into_iter().filter(Block::is_certificate) {
            match block.certificate() {
                Ok(certificate) => {
                    usable = true;
                    self.authorities.push(certificate);
                }
                Err(flaw) => faults.push(TlsError::at(path, &block, flaw)),
            }
        }
        if !usable {
            let none = || TlsError::Pem { path: path.into(), what: "certificate" };
            return Err(faults.into_iter().next().unwrap_or_else(none));
        }
        self.passed_over.extend(faults.iter().map(ToString::to_string));
        Ok(())
    }

    /// Adds the client certificate that the file at `path` holds, with the first key of the file `key`, or where there is
    /// none, of its own. Whether it is valid, and of which version, is for the host to judge.
    pub(super) fn add_client(
        &mut self,
        path: &Path,
        pem: &[u8],
        key: Option<(&Path, &[u8])>,
    ) -> Result<(), TlsError> {
        let missing = |path: &Path, what| TlsError::Pem { path: path.into(), what };
        let mut chain = Vec::new();
        for block in blocks(pem).into_iter().filter(Block::is_certificate) {
            chain.push(block.certificate().map_err(|flaw| TlsError::at(path, &block, flaw))?);
        }
        let certificate = chain.first().ok_or_else(|| missing(path, "client certificate"))?;
        let (key_path, key_pem) = key.unwrap_or((path, pem));
        let block = blocks(key_pem).into_iter().find(Block::is_key);
        let block = block.ok_or_else(|| missing(key_path, "private key"))?;
        let signing = block.key().map_err(|flaw| TlsError::at(key_path, &block, flaw))?;
        // Read as an authority would be, since that is the reader which knows all versions.
        let public = anchor_from_trusted_cert(certificate).map(|anchor| spki_for_anchor(&anchor)).ok();
        if signing.public_key() != public {
            let (path, key, line) = (path.into(), key_path.into(), block.line);
            return Err(TlsError::Mismatch { path, key, line });
        }
        // Not by the library's constructor that compares the two: it reads no certificate of the first version.
        self.clients.push(ClientCertificate::new(CertifiedKey::new(chain, signing)));
        Ok(())
    }

    /// What is set, for people.
    pub(super) fn notes(&self) -> Vec<&'static str> {
        [
            (self.has_authorities(), "ca"),
            (!self.clients.is_empty(), "client certificate"),
            (self.skip_verify, "certificate not verified"),
        ]
        .into_iter()
        .filter_map(|(set, note)| set.then_some(note))
        .collect()
    }

    pub(super) fn has_authorities(&self) -> bool {
        !self.authorities.is_empty()
    }

    /// What another host is met with, to which this one sent us: the same authorities, since a site's own registry
    /// and its blob storage share them, but neither our certificates nor a waived check.
    pub(super) fn elsewhere(&self) -> Self {
        Self { authorities: self.authorities.clone(), ..Self::default() }
    }

    /// The library's settings for connections that offer these application protocols.
    pub(super) fn config(&self, protocols: &[&str]) -> Result<rustls::ClientConfig, rustls::Error> {
        let Self { authorities, clients, skip_verify, .. } = self;
        Settings { authorities, clients, skip_verify: *skip_verify, protocols }.config()
    }
}

impl TlsError {
    fn at(path: &Path, block: &Block<'_>, flaw: BlockError) -> Self {
        Self::Block { path: path.into(), line: block.line, flaw }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("authorities", &self.authorities.len())
            .field("clients", &self.clients.len())
            .field("skip_verify", &self.skip_verify)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use rustls::SignatureScheme;

    use super::*;

    /// A certificate and its key in PEM form.
    fn issued() -> (rcgen::Certificate, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["node".to_owned()]).unwrap();
        (params.self_signed(&key).unwrap(), key.serialize_pem())
    }

    fn added(certificate: &str, key: &str) -> Result<Tls, TlsError> {
        let mut tls = Tls::default();
        let key = (Path::new("c.key"), key.as_bytes());
        tls.add_client(Path::new("c.pem"), certificate.as_bytes(), Some(key))?;
        Ok(tls)
    }

    #[test]
    fn each_of_two_files_gives_what_it_is_named_for_alone() {
        let ((ours, key), (other, other_key)) = (issued(), issued());
        let certificate = format!("{other_key}{}", ours.pem());
        let tls = added(&certificate, &format!("{}{key}{other_key}", other.pem())).unwrap();
        let resolver = tls.config(&[]).unwrap().client_auth_cert_resolver;
        let shown = resolver.resolve(&[], &[SignatureScheme::ECDSA_NISTP256_SHA256]).unwrap();
        assert_eq!(shown.cert, [ours.der().clone()]);
        let public = anchor_from_trusted_cert(ours.der()).map(|anchor| spki_for_anchor(&anchor)).unwrap();
        assert_eq!(shown.key.public_key().unwrap(), public);
        // The key that counts is compared, whatever else there is.
        let error = added(&format!("{key}{}", ours.pem()), &other_key).unwrap_err();
        assert!(matches!(error, TlsError::Mismatch { line: 1, .. }), "{error}");
    }

    #[test]
    fn the_same_files_make_the_same_settings_and_others_do_not() {
        let ((ours, key), (other, other_key)) = (issued(), issued());
        let one = added(&ours.pem(), &key).unwrap();
        assert!(one == added(&ours.pem(), &key).unwrap());
        assert!(one != added(&other.pem(), &other_key).unwrap());
        assert!(one != added(&format!("{}{}", ours.pem(), other.pem()), &key).unwrap());
        assert!(one != Tls::default());
    }
}
