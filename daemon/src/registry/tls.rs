//! TLS settings of one host: certificates as read from their files, so that a replaced file makes different settings
//! and with them a new HTTP client.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use reqwest::{Certificate, Identity};

use super::handshake::Settings;

/// What a host's TLS connections are made with. The system's authorities always count; nothing here removes them.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Tls {
    /// PEM bundles of further authorities.
    authorities: Vec<Vec<u8>>,
    /// PEM of each client certificate with its key, in the order of writing.
    clients: Vec<Vec<u8>>,
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
}

impl Tls {
    /// Adds the authorities that the file at `path` holds.
    pub(super) fn add_authorities(&mut self, path: &Path, pem: Vec<u8>) -> Result<(), TlsError> {
        match Certificate::from_pem_bundle(&pem) {
            Ok(certificates) if !certificates.is_empty() => {}
            _ => return Err(TlsError::Pem { path: path.into(), what: "certificate" }),
        }
        self.authorities.push(pem);
        Ok(())
    }

    /// Adds the client certificate that the file at `path` holds, its key either in the same file or in `key`.
    pub(super) fn add_client(
        &mut self,
        path: &Path,
        mut pem: Vec<u8>,
        key: Option<Vec<u8>>,
    ) -> Result<(), TlsError> {
        if let Some(mut key) = key {
            pem.push(b'\n');
            pem.append(&mut key);
        }
        if Identity::from_pem(&pem).is_err() {
            return Err(TlsError::Pem { path: path.into(), what: "client certificate and key" });
        }
        self.clients.push(pem);
        Ok(())
    }

    /// What is set, for people.
    pub(super) fn notes(&self) -> Vec<&'static str> {
        [
            (!self.authorities.is_empty(), "ca"),
            (!self.clients.is_empty(), "client certificate"),
            (self.skip_verify, "certificate not verified"),
        ]
        .into_iter()
        .filter_map(|(set, note)| set.then_some(note))
        .collect()
    }

    /// What another host is met with, to which this one sent us: the same authorities, since a site's own registry
    /// and its blob storage share them, but neither our certificates nor a waived check.
    pub(super) fn elsewhere(&self) -> Self {
        Self { authorities: self.authorities.clone(), clients: Vec::new(), skip_verify: false }
    }

    /// The library's settings for connections that offer these application protocols.
    pub(super) fn config(&self, protocols: &[&str]) -> Result<rustls::ClientConfig, rustls::Error> {
        let Self { authorities, clients, skip_verify } = self;
        Settings { authorities, clients, skip_verify: *skip_verify, protocols }.config()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("authorities", &self.authorities.len())
            .field("clients", &self.clients.len())
            .field("skip_verify", &self.skip_verify)
            .finish()
    }
}
