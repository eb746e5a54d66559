//! A secret that can be compared and used as a cache key, and that no formatting ever shows.

use std::fmt;
use std::hash::{Hash, Hasher};

use secrecy::{ExposeSecret, SecretSlice};

use super::redaction::REDACTED;

/// A password, a token, or a file that may hold a private key: bytes, since the passwords that registries take need not
/// be UTF-8. `secrecy` wipes it on drop; equality and hash are added because credentials key the token cache: two
/// callers with different passwords must never share a token.
#[derive(Clone)]
pub(super) struct Secret(SecretSlice<u8>);

impl Secret {
    pub(super) fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(SecretSlice::from(bytes.into()))
    }

    /// The secret itself, for a request header or body only.
    pub(super) fn expose(&self) -> &[u8] {
        self.0.expose_secret()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl Eq for Secret {}

impl Hash for Secret {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.expose().hash(state);
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}
