//! PEM files block by block, each with the line where it begins, so that a mistake in one is told with its place.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::SigningKey;
use secrecy::zeroize::Zeroize as _;
use webpki::anchor_from_trusted_cert;

/// From one line `-----BEGIN …` up to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block<'a> {
    /// Counted from 1.
    pub(super) line: usize,
    /// What it says that it holds.
    label: &'a str,
    text: &'a [u8],
}

/// Why a block is not what it says. Of a key nothing is told, since any of it could show some of the key.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The block is not PEM to its end, or not base64.
    #[error("the certificate cannot be read: {0}")]
    Encoding(pem::Error),
    /// What it holds is no certificate of any version. Boxed, since the reason is large.
    #[error("the block is no certificate: {0}")]
    Certificate(Box<webpki::Error>),
    /// The key needs a password.
    #[error("the private key is encrypted, and nobody is there to tell its password")]
    Encrypted,
    /// The key cannot be read, or signs in a way that TLS does not know.
    #[error("the private key cannot be read, or is of a kind that is not supported")]
    Key,
}

/// The blocks of a file. What stands before and between them is for people.
pub(super) fn blocks(pem: &[u8]) -> Vec<Block<'_>> {
    let mut begun: Vec<(usize, usize, &str)> = Vec::new();
    let mut at = 0;
    for (number, line) in pem.split_inclusive(|&byte| byte == b'\n').enumerate() {
        let label = std::str::from_utf8(line).ok().and_then(|line| {
            let line = line.trim_end();
            Some(line.strip_prefix("-----BEGIN ")?.strip_suffix("-----").unwrap_or_default())
        });
        begun.extend(label.map(|label| (number + 1, at, label)));
        at += line.len();
    }
    let ends = begun.iter().skip(1).map(|&(_, at, _)| at).chain([pem.len()]);
    let block = |(&(line, at, label), end)| Block { line, label, text: &pem[at..end] };
    begun.iter().zip(ends).map(block).collect()
}

impl Block<'_> {
    pub(super) fn is_certificate(&self) -> bool {
        self.label == "CERTIFICATE"
    }

    pub(super) fn is_key(&self) -> bool {
        self.label.ends_with("PRIVATE KEY")
    }

    /// The certificate, if it is one; of any version.
    pub(super) fn certificate(&self) -> Result<CertificateDer<'static>, BlockError> {
        let der = CertificateDer::from_pem_slice(self.text).map_err(BlockError::Encoding)?;
        anchor_from_trusted_cert(&der).map_err(|error| BlockError::Certificate(error.into()))?;
        Ok(der)
    }

    /// The private key, if it is one that can sign. Never shows any of it.
    pub(super) fn key(&self) -> Result<Arc<dyn SigningKey>, BlockError> {
        let encrypted = self.label.starts_with("ENCRYPTED")
            || self.text.windows(ENCRYPTED.len()).any(|text| text == ENCRYPTED);
        if encrypted {
            return Err(BlockError::Encrypted);
        }
        let mut key = PrivateKeyDer::from_pem_slice(self.text).map_err(|_| BlockError::Key)?;
        let signing = any_supported_type(&key).map_err(|_| BlockError::Key);
        key.zeroize();
        signing
    }
}

/// In the head of a key that the older way of OpenSSL encrypts.
const ENCRYPTED: &[u8] = b"Proc-Type: 4,ENCRYPTED";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_begin_where_the_file_says_whatever_stands_between() {
        let pem = b"Bag Attributes\n-----BEGIN CERTIFICATE-----\r\nAA==\r\n-----END CERTIFICATE-----\r\n\n\
                    -----BEGIN EC PARAMETERS-----\n-----END EC PARAMETERS-----\n-----BEGIN EC PRIVATE KEY-----";
        let found: Vec<_> = blocks(pem).iter().map(|block| (block.line, block.label)).collect();
        assert_eq!(found, [(2, "CERTIFICATE"), (6, "EC PARAMETERS"), (8, "EC PRIVATE KEY")]);
        assert!(blocks(pem)[0].text.ends_with(b"-----\r\n\n"));
        assert!(blocks(pem)[2].is_key() && !blocks(pem)[1].is_key());
        assert_eq!(blocks(b"no block"), []);
    }

    #[test]
    fn a_block_that_is_not_what_it_says_is_told_without_its_contents() {
        for (text, expected) in [
            ("-----BEGIN CERTIFICATE-----\nY2FuYXJ5\n-----END CERTIFICATE-----", "is no certificate"),
            ("-----BEGIN CERTIFICATE-----\ncanary!\n-----END CERTIFICATE-----", "cannot be read"),
            ("-----BEGIN CERTIFICATE-----\nY2FuYXJ5\n", "cannot be read"),
        ] {
            let error = blocks(text.as_bytes())[0].certificate().unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("anary"), "{error}");
        }
        for (text, expected) in [
            ("-----BEGIN PRIVATE KEY-----\nY2FuYXJ5\n-----END PRIVATE KEY-----", "cannot be read"),
            ("-----BEGIN ENCRYPTED PRIVATE KEY-----\nY2FuYXJ5\n", "is encrypted"),
            ("-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nY2FuYXJ5\n", "is encrypted"),
        ] {
            let error = blocks(text.as_bytes())[0].key().unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("anary"), "{error}");
        }
    }
}
