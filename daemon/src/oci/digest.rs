//! Content digests: `algorithm:hex`, checked when parsed, so that a `Digest` is always one that can be verified.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256, Sha384, Sha512};

use super::excerpt::excerpt;

/// The name of a blob: the hash of its bytes, written `sha256:<64 lower-case hex digits>` (or sha384, sha512).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest {
    text: String,
    algorithm: Algorithm,
}

/// The hash functions registered by the OCI image specification ("Registered algorithms") and sha384, which Docker's
/// reference grammar knows too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// SHA-256, the one in use nearly everywhere.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

/// Why a text is not a digest. Texts are kept as excerpts, since they come from outside.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// There is no `algorithm:hex` form.
    #[error("`{0}` is not a digest: expected `sha256:` and 64 lower-case hex digits")]
    Form(String),
    /// The algorithm is not one that drayd can verify.
    #[error("digest algorithm `{0}` is not supported: use sha256, sha384 or sha512")]
    Algorithm(String),
    /// The hex part has the wrong length or alphabet.
    #[error("`{text}` is not a {algorithm} digest: expected {expected} lower-case hex digits")]
    Hex {
        /// The text that was given.
        text: String,
        /// Its algorithm's name.
        algorithm: &'static str,
        /// How many hex digits that algorithm has.
        expected: usize,
    },
}

impl Digest {
    /// The sha256 digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new(Algorithm::Sha256);
        hasher.update(bytes);
        hasher.finish()
    }

    /// The digest as text, `algorithm:hex`.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The hash function it was made with.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Whether `bytes` hash to this digest.
    pub fn matches(&self, bytes: &[u8]) -> bool {
        let mut hasher = Hasher::new(self.algorithm);
        hasher.update(bytes);
        hasher.finish() == *self
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let (name, hex) = text.split_once(':').ok_or_else(|| DigestError::Form(excerpt(text)))?;
        let algorithm = match name {
            "sha256" => Algorithm::Sha256,
            "sha384" => Algorithm::Sha384,
            "sha512" => Algorithm::Sha512,
            _ => return Err(DigestError::Algorithm(excerpt(name))),
        };
        let expected = algorithm.hex_length();
        if hex.len() != expected || !hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(DigestError::Hex { text: excerpt(text), algorithm: algorithm.name(), expected });
        }
        Ok(Self { text: text.into(), algorithm })
    }
}

impl Algorithm {
    /// The algorithm's name as it stands in a digest.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    fn hex_length(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha384 => 96,
            Self::Sha512 => 128,
        }
    }
}

/// A running hash that ends in a [`Digest`].
#[derive(Clone, Debug)]
pub struct Hasher(State);

#[derive(Clone, Debug)]
enum State {
    Sha256(Sha256),
    Sha384(Sha384),
    Sha512(Sha512),
}

impl Hasher {
    /// A hash of nothing yet.
    pub fn new(algorithm: Algorithm) -> Self {
        Self(match algorithm {
            Algorithm::Sha256 => State::Sha256(Sha256::new()),
            Algorithm::Sha384 => State::Sha384(Sha384::new()),
            Algorithm::Sha512 => State::Sha512(Sha512::new()),
        })
    }

    /// Takes in the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Sha256(state) => state.update(bytes),
            State::Sha384(state) => state.update(bytes),
            State::Sha512(state) => state.update(bytes),
        }
    }

    /// The digest of all bytes taken in.
    pub fn finish(self) -> Digest {
        let (algorithm, hash) = match self.0 {
            State::Sha256(state) => (Algorithm::Sha256, state.finalize().to_vec()),
            State::Sha384(state) => (Algorithm::Sha384, state.finalize().to_vec()),
            State::Sha512(state) => (Algorithm::Sha512, state.finalize().to_vec()),
        };
        let mut text = format!("{}:", algorithm.name());
        for byte in hash {
            text.push(char::from(HEX[usize::from(byte >> 4)]));
            text.push(char::from(HEX[usize::from(byte & 15)]));
        }
        Digest { text, algorithm }
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_of_known_bytes_is_the_published_one() {
        // FIPS 180-4 example for the message "abc".
        let digest = Digest::of(b"abc");
        assert_eq!(
            digest.as_str(),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert!(digest.matches(b"abc"));
        assert!(!digest.matches(b"abd"));
    }

    #[test]
    fn every_supported_algorithm_parses_back() {
        for algorithm in [Algorithm::Sha256, Algorithm::Sha384, Algorithm::Sha512] {
            let mut hasher = Hasher::new(algorithm);
            hasher.update(b"abc");
            let digest = hasher.finish();
            assert_eq!(digest.as_str().parse::<Digest>(), Ok(digest.clone()));
            assert_eq!(digest.algorithm(), algorithm);
        }
    }

    #[test]
    fn what_is_not_a_digest_is_refused() {
        let upper = format!("sha256:{}", "A".repeat(64));
        let short = format!("sha256:{}", "a".repeat(63));
        for text in ["", "sha256", "sha256:", "md5:abc", "sha999:00", "sha256:../../etc", &upper, &short] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }
}
