//! Tokens that docker-registry can read: JSON Web Tokens signed with ES256, with their certificate in the header.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, SigningKey as _};
use serde_json::{Value, json};

use super::tokens::SERVICE;

/// Who signs, as the registry is configured.
pub const ISSUER: &str = "bed";
/// Bytes of each of the two numbers in a signature of P-256.
const HALF: usize = 32;
/// Seconds that docker-registry still takes a token after its end, for clocks that differ.
const LEEWAY: u64 = 60;

/// A key with its certificate.
#[derive(Clone)]
pub struct Signer {
    key: Arc<KeyPair>,
    certificate: rcgen::Certificate,
}

impl Signer {
    /// A fresh one.
    pub fn new() -> Result<Self> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = CertificateParams::new([ISSUER.to_owned()])?.self_signed(&key)?;
        Ok(Self { key: Arc::new(key), certificate })
    }

    /// The certificate in PEM, for `rootcertbundle`.
    pub fn certificate(&self) -> String {
        self.certificate.pem()
    }

    /// A token for these scopes that docker-registry takes for so many seconds.
    pub(super) fn token(&self, scopes: &[String], number: usize, seconds: u64) -> Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let header = json!({"typ": "JWT", "alg": "ES256", "x5c": [STANDARD.encode(self.certificate.der())]});
        let access: Vec<Value> = scopes.iter().filter_map(|scope| access(scope)).collect();
        let claims = json!({
            "iss": ISSUER, "sub": "", "aud": SERVICE, "iat": now, "nbf": now.saturating_sub(5),
            "exp": now + seconds - LEEWAY, "jti": number.to_string(), "access": access,
        });
        let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let signed = format!("{header}.{claims}");
        let signature = self.key.sign(signed.as_bytes())?;
        let signature = plain(&signature).context("a signature of another form")?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signer")
    }
}

/// `repository:a/b:pull,push` as a registry reads it.
fn access(scope: &str) -> Option<Value> {
    let (kind, rest) = scope.split_once(':')?;
    let (name, actions) = rest.rsplit_once(':')?;
    Some(json!({"type": kind, "name": name, "actions": actions.split(',').collect::<Vec<_>>()}))
}

/// The two numbers side by side, out of their DER: a sequence (0x30) of two integers (0x02), each without leading
/// zeros but one that keeps it positive.
fn plain(der: &[u8]) -> Option<Vec<u8>> {
    let mut rest = der.strip_prefix(&[0x30])?.get(1..)?;
    let mut plain = Vec::new();
    for _ in 0..2 {
        let (length, bytes) = rest.strip_prefix(&[0x02])?.split_first()?;
        let number = bytes.get(..usize::from(*length))?;
        let digits = number.get(number.len().saturating_sub(HALF)..)?;
        plain.resize(plain.len() + HALF.checked_sub(digits.len())?, 0);
        plain.extend_from_slice(digits);
        rest = bytes.get(usize::from(*length)..)?;
    }
    Some(plain)
}
