//! References: the image names that pods ask for, parsed and normalised as CRI does. The rules are those of
//! distribution's `ParseDockerRef`, written out by hand; every place where drayd is stricter says so.

use std::fmt;
use std::net::Ipv6Addr;

use super::digest::{Digest, DigestError};
use super::excerpt::excerpt;

/// A normalised image name: where its repository lives, and the one tag or digest in it that is meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    /// Host and port, as given; Docker Hub is always `docker.io`.
    domain: String,
    /// Repository within the host, in lower case.
    path: String,
    object: Object,
}

/// What of the repository is meant. Never both: where a reference gives both, the digest alone decides and the tag is
/// not looked at, since nothing promises that it exists or points there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Object {
    Tag(String),
    Digest(Digest),
}

/// Why a text is not a reference. Texts are kept as excerpts, since they come from outside.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// There is nothing to parse.
    #[error("image reference is empty")]
    Empty,
    /// An image ID stands where a name is needed.
    #[error("`{0}` is an image ID, not an image reference")]
    ImageId(String),
    /// It was written like a web address.
    #[error("image reference `{0}` starts with a scheme: write it without")]
    Scheme(String),
    /// The host part cannot be a host.
    #[error(
        "host `{host}` of image reference `{reference}` is not a host name or address with an optional port"
    )]
    Host {
        /// The whole text.
        reference: String,
        /// What stood before the first slash.
        host: String,
    },
    /// The repository has upper-case letters.
    #[error(
        "repository `{path}` of image reference `{reference}` has upper-case letters: it must be lower case"
    )]
    UpperCase {
        /// The whole text.
        reference: String,
        /// The repository.
        path: String,
    },
    /// The repository is not well formed.
    #[error(
        "repository `{path}` of image reference `{reference}` is not valid: between slashes it needs lower-case \
         letters and digits, joined by `.`, `_`, `__` or dashes"
    )]
    Path {
        /// The whole text.
        reference: String,
        /// The repository.
        path: String,
    },
    /// The repository is too long.
    #[error(
        "repository of image reference `{reference}` has {length} characters: at most {MAX_PATH} are allowed"
    )]
    PathLength {
        /// The whole text.
        reference: String,
        /// Characters of the repository.
        length: usize,
    },
    /// The tag is not well formed.
    #[error(
        "tag `{tag}` of image reference `{reference}` is not valid: it needs 1 to {MAX_TAG} letters, digits, `_`, \
         `.` or `-`, and starts with none of the last two"
    )]
    Tag {
        /// The whole text.
        reference: String,
        /// The tag.
        tag: String,
    },
    /// What follows the `@` is not a digest that can be verified.
    #[error("image reference `{reference}` has no usable digest")]
    Digest {
        /// The whole text.
        reference: String,
        /// What is wrong with the digest.
        source: DigestError,
    },
}

/// Docker Hub, where names without a host live.
const DEFAULT_DOMAIN: &str = "docker.io";
/// Docker Hub's name in the first registry protocol; still found in old manifests.
const LEGACY_DOMAIN: &str = "index.docker.io";
/// Docker Hub's namespace for names of one part.
const OFFICIAL_PREFIX: &str = "library/";
/// What is meant where neither tag nor digest is given.
const DEFAULT_TAG: &str = "latest";
/// Longest repository, the limit of distribution's `RepositoryNameTotalLengthMax`.
const MAX_PATH: usize = 255;
/// Longest tag, from the distribution specification ("Pulling manifests").
const MAX_TAG: usize = 128;

impl Reference {
    /// Parses and normalises the name of an image.
    ///
    /// Stricter than distribution in three points, none of which refuses an image that could be pulled: an image ID
    /// with its algorithm (`sha256:<64 digits>`) is not taken for the tag of a repository `sha256`, a port must be a
    /// number that ports can have, and what stands in brackets must be an IPv6 address.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        if text.is_empty() {
            return Err(ReferenceError::Empty);
        }
        if is_image_id(text) {
            return Err(ReferenceError::ImageId(excerpt(text)));
        }
        if text.split(['/', '@']).next().is_some_and(|first| first.ends_with(':')) && text.contains("://") {
            return Err(ReferenceError::Scheme(excerpt(text)));
        }
        let (domain, rest) = split_domain(text);
        let (name, digest) = split_off(rest, '@');
        let (path, tag) = split_off(name, ':');

        check_domain(text, domain)?;
        let path = if domain == DEFAULT_DOMAIN && !path.contains('/') {
            format!("{OFFICIAL_PREFIX}{path}")
        } else {
            path.to_owned()
        };
        check_path(text, &path)?;
        if let Some(tag) = tag {
            check_tag(text, tag)?;
        }
        let object = match digest {
            Some(digest) => Object::Digest(
                digest
                    .parse()
                    .map_err(|source| ReferenceError::Digest { reference: excerpt(text), source })?,
            ),
            None => Object::Tag(tag.unwrap_or(DEFAULT_TAG).to_owned()),
        };
        Ok(Self { domain: domain.to_owned(), path, object })
    }

    /// Host and port of the registry, spelled as it was given; `docker.io` for Docker Hub.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The repository within the registry, `library/busybox`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The tag, where that is what was asked for.
    pub fn tag(&self) -> Option<&str> {
        match &self.object {
            Object::Tag(tag) => Some(tag),
            Object::Digest(_) => None,
        }
    }

    /// The digest, where one was given.
    pub fn digest(&self) -> Option<&Digest> {
        match &self.object {
            Object::Tag(_) => None,
            Object::Digest(digest) => Some(digest),
        }
    }

    /// The tag or digest, as it stands in `/manifests/<object>`.
    pub fn object(&self) -> &str {
        match &self.object {
            Object::Tag(tag) => tag,
            Object::Digest(digest) => digest.as_str(),
        }
    }

    /// The name of `digest` in this repository, `docker.io/library/busybox@sha256:…`.
    pub fn with_digest(&self, digest: &Digest) -> String {
        format!("{}/{}@{digest}", self.domain, self.path)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.path)?;
        match &self.object {
            Object::Tag(tag) => write!(f, ":{tag}"),
            Object::Digest(digest) => write!(f, "@{digest}"),
        }
    }
}

/// Whether the text is what PullImage returns, with or without its algorithm.
fn is_image_id(text: &str) -> bool {
    text.parse::<Digest>().is_ok() || format!("sha256:{text}").parse::<Digest>().is_ok()
}

/// The registry's host and what follows it. A first part is a host if no Docker Hub namespace could look like it; a
/// name without a slash is never one, not even `localhost` or `example.com:5000`.
fn split_domain(text: &str) -> (&str, &str) {
    let Some((first, rest)) = text.split_once('/') else { return (DEFAULT_DOMAIN, text) };
    if first.eq_ignore_ascii_case(DEFAULT_DOMAIN) || first.eq_ignore_ascii_case(LEGACY_DOMAIN) {
        return (DEFAULT_DOMAIN, rest);
    }
    let is_host = first == "localhost" || first.contains(['.', ':']) || first.contains(char::is_uppercase);
    if is_host { (first, rest) } else { (DEFAULT_DOMAIN, text) }
}

fn split_off(text: &str, separator: char) -> (&str, Option<&str>) {
    match text.split_once(separator) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

fn check_domain(reference: &str, domain: &str) -> Result<(), ReferenceError> {
    let (host, port) = match domain.rfind(']') {
        Some(end) => domain.split_at(end + 1),
        None => domain.split_at(domain.find(':').unwrap_or(domain.len())),
    };
    if is_host(host) && is_port(port) {
        return Ok(());
    }
    Err(ReferenceError::Host { reference: excerpt(reference), host: excerpt(domain) })
}

fn is_host(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        // Without the dotted form of IPv4-mapped addresses, which distribution does not read back.
        return !address.contains('.') && address.parse::<Ipv6Addr>().is_ok();
    }
    host.split('.').all(|label| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    })
}

/// Whether the text is nothing, or a colon and a port.
fn is_port(text: &str) -> bool {
    let Some(port) = text.strip_prefix(':') else { return text.is_empty() };
    port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

fn check_path(reference: &str, path: &str) -> Result<(), ReferenceError> {
    if path.contains(char::is_uppercase) {
        return Err(ReferenceError::UpperCase { reference: excerpt(reference), path: excerpt(path) });
    }
    if !path.split('/').all(is_path_component) {
        return Err(ReferenceError::Path { reference: excerpt(reference), path: excerpt(path) });
    }
    if path.len() > MAX_PATH {
        return Err(ReferenceError::PathLength { reference: excerpt(reference), length: path.len() });
    }
    Ok(())
}

/// Whether the text is runs of lower-case letters and digits, with one separator between two runs.
fn is_path_component(text: &str) -> bool {
    let is_alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends_well = text.bytes().next().is_some_and(is_alphanumeric)
        && text.bytes().next_back().is_some_and(is_alphanumeric);
    ends_well
        && text
            .split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            .all(|gap| matches!(gap, "" | "." | "_" | "__") || gap.bytes().all(|b| b == b'-'))
}

fn check_tag(reference: &str, tag: &str) -> Result<(), ReferenceError> {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let valid = tag.len() <= MAX_TAG
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|b| is_word(b) || b == b'.' || b == b'-');
    if valid {
        return Ok(());
    }
    Err(ReferenceError::Tag { reference: excerpt(reference), tag: excerpt(tag) })
}

#[cfg(test)]
mod tests;
