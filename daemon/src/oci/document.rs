//! The documents of an image, read from the bytes a registry or the content store holds: index, manifest and config.
//! Reading is all that is done with them; what is stored and hashed are always those bytes, never a rewritten form.
//!
//! The shapes are our own rather than `oci-spec`'s, which drops `os.version`, takes digests that cannot be verified,
//! refuses `null` where Go tools write it for an empty list, and has no word for a document that is two things at
//! once.

mod config;
mod shape;
mod time;

pub use config::Config;

use self::shape::{Object, RawDescriptor, RawDocument, RawPlatform};
use super::descriptor::Descriptor;
use super::digest::{Digest, DigestError};
use super::excerpt::excerpt;
use super::media_type::{self, Kind};
use super::platform::{IndexEntry, Platform};

/// What a tag or the digest of an index or manifest leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// Manifests by platform.
    Index(Index),
    /// One image.
    Manifest(Manifest),
}

/// Manifests, or further indexes, by platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// Its entries in their order.
    pub entries: Vec<IndexEntry>,
}

/// A config and the layers that it lists the diff IDs of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The config blob.
    pub config: Descriptor,
    /// The layers, lowest first. Whether there are as many as diff IDs only the config tells.
    pub layers: Vec<Descriptor>,
    /// What it is, if it says so; images rarely do.
    pub artifact_type: Option<String>,
}

/// Why bytes are not the document that they should be. Texts are kept as excerpts, since they come from outside.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// It is larger than any honest document.
    #[error("document of {size} bytes is too large: at most {limit} are read")]
    TooLarge {
        /// Its length in bytes.
        size: usize,
        /// [`MAX_MANIFEST`] or [`MAX_CONFIG`].
        limit: usize,
    },
    /// A web page answered in the registry's place: a login form, a proxy's error.
    #[error("got an HTML or XML page, not a manifest")]
    Html,
    /// It is not JSON, or a field has a type it cannot have.
    #[error("document is not valid: {0}")]
    Json(String),
    /// It is of the format that Docker left in 2016, without a config and with digests over other bytes.
    #[error("schema 1 not supported: the image must be pushed again by a current tool")]
    Schema1,
    /// It could be read as an index and as a manifest.
    #[error("document is ambiguous: it has `manifests` as an index and `config` or `layers` as a manifest")]
    Ambiguous,
    /// It was announced, by the registry or by itself, as something else than it is.
    #[error("document is {found} but its media type is `{claimed}`")]
    Contradiction {
        /// The media type.
        claimed: String,
        /// What its fields make it.
        found: &'static str,
    },
    /// It is JSON but no document of an image.
    #[error("document is neither an index nor a manifest: it has no `manifests`, `config` or `layers`")]
    Neither,
    /// A manifest points to no config.
    #[error("manifest has no `config`")]
    NoConfig,
    /// A descriptor points nowhere.
    #[error("descriptor `{place}` has no digest")]
    NoDigest {
        /// Which descriptor: `config`, `layers[2]`.
        place: String,
    },
    /// A descriptor's digest cannot be verified.
    #[error("descriptor `{place}` has no usable digest")]
    BadDigest {
        /// Which descriptor.
        place: String,
        /// What is wrong with its digest.
        source: DigestError,
    },
    /// A descriptor does not say how much to expect.
    #[error("descriptor `{place}` ({digest}) has no size")]
    NoSize {
        /// Which descriptor.
        place: String,
        /// Its digest.
        digest: Digest,
    },
    /// A descriptor's size is none.
    #[error("descriptor `{place}` ({digest}) has the size `{size}`: expected a whole number of bytes")]
    BadSize {
        /// Which descriptor.
        place: String,
        /// Its digest.
        digest: Digest,
        /// What stands there.
        size: String,
    },
    /// A config is that of something else than an image.
    #[error("config is not an image config: it has no `rootfs`, {found}")]
    NotAnImage {
        /// What it has instead.
        found: String,
    },
    /// A diff ID cannot be verified.
    #[error("config has no usable diff ID for layer {position}")]
    BadDiffId {
        /// Which of the diff IDs, from 0.
        position: usize,
        /// What is wrong with it.
        source: DigestError,
    },
}

impl DocumentError {
    /// Whether a digest in it is of an algorithm that nothing here can verify.
    pub fn is_of_algorithm(&self) -> bool {
        matches!(
            self,
            Self::BadDigest { source: DigestError::Algorithm(_), .. }
                | Self::BadDiffId { source: DigestError::Algorithm(_), .. }
        )
    }
}

/// The largest index or manifest that is read, in bytes: containerd's limit (4 × 1048 × 1048, its `MaxManifestSize`),
/// so that nothing it would take is refused. Registries refuse manifests above 4 MiB themselves.
pub const MAX_MANIFEST: usize = 4_393_216;
/// The largest image config that is read, in bytes. containerd has no limit for them; they carry the commands of an
/// image's whole history, so they outgrow manifests, and this many can be held in memory for each pull.
pub const MAX_CONFIG: usize = 16 << 20;

impl Document {
    /// Reads an index or a manifest.
    ///
    /// What it is follows from its fields alone. Every media type that names a kind, the one it was served under
    /// (`media_type`) and the one it states, must then agree: a document that two readers take for two different
    /// things has a digest that stands for two images (CVE-2021-41190). Docker's and OCI's types of one kind are
    /// equals. A type that names no kind, such as `application/octet-stream`, says nothing.
    pub fn parse(media_type: Option<&str>, bytes: &[u8]) -> Result<Self, DocumentError> {
        let served = media_type.map(without_parameters);
        if served.is_some_and(|served| served.eq_ignore_ascii_case("text/html")) {
            return Err(DocumentError::Html);
        }
        let raw: RawDocument = read(bytes, MAX_MANIFEST)?;
        let types = || [served, raw.media_type.as_deref()].into_iter().flatten();
        if raw.is_schema_1() || types().any(media_type::is_schema_1) {
            return Err(DocumentError::Schema1);
        }
        let kind = raw.kind()?;
        if let Some(claimed) =
            types().find(|claimed| ![kind, Kind::Unknown].contains(&media_type::kind(claimed)))
        {
            let found = if kind == Kind::Index { "an index" } else { "a manifest" };
            return Err(DocumentError::Contradiction { claimed: excerpt(claimed), found });
        }
        if kind == Kind::Index {
            let entries = numbered(raw.manifests, "manifests", entry)?;
            return Ok(Self::Index(Index { entries }));
        }
        let config = raw.config.ok_or(DocumentError::NoConfig)?;
        Ok(Self::Manifest(Manifest {
            config: descriptor(config, "config".to_owned())?,
            layers: numbered(raw.layers, "layers", descriptor)?,
            artifact_type: raw.artifact_type.filter(|name| !name.is_empty()),
        }))
    }
}

fn without_parameters(media_type: &str) -> &str {
    media_type.split(';').next().unwrap_or_default().trim()
}

/// Reads one JSON object of bounded size, or says what stands there instead.
fn read<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8], limit: usize) -> Result<T, DocumentError> {
    if bytes.len() > limit {
        return Err(DocumentError::TooLarge { size: bytes.len(), limit });
    }
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    if text.starts_with(b"<") {
        return Err(DocumentError::Html);
    }
    let Object(value) =
        serde_json::from_slice(bytes).map_err(|error| DocumentError::Json(json_fault(&error)))?;
    Ok(value)
}

/// What is wrong with a JSON text, in words that quote no value of it: a registry may have put a secret there that it
/// was sent.
fn json_fault(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let names_a_field = ["missing field", "duplicate field"].iter().any(|start| text.starts_with(start));
    if !error.is_data() || names_a_field {
        return text;
    }
    // "invalid type: string \"…\", expected u64 at line 1 column 9": the last part is the reader's own.
    match text.rfind(", expected ") {
        Some(at) => format!("wrong value{}", &text[at..]),
        None => format!("wrong value at line {} column {}", error.line(), error.column()),
    }
}

/// Reads every element of a list that may be missing, telling each where it stands.
fn numbered<T>(
    list: Option<Vec<Object<RawDescriptor>>>,
    name: &str,
    read: impl Fn(Object<RawDescriptor>, String) -> Result<T, DocumentError>,
) -> Result<Vec<T>, DocumentError> {
    let list = list.unwrap_or_default();
    list.into_iter().enumerate().map(|(position, raw)| read(raw, format!("{name}[{position}]"))).collect()
}

/// A descriptor that points nowhere is no fault of the index: it may be for others. But a size that is no whole number
/// is: containerd reads nothing of such an index.
fn entry(Object(mut raw): Object<RawDescriptor>, place: String) -> Result<IndexEntry, DocumentError> {
    let platform = raw.platform.take().map(|Object(raw)| platform(raw));
    let artifact_type = raw.artifact_type.take();
    let unreadable = raw.size.as_ref().is_some_and(|size| size.as_i64().is_none());
    let descriptor = descriptor(Object(raw), place);
    match descriptor {
        Err(error @ DocumentError::BadSize { .. }) if unreadable => Err(error),
        descriptor => Ok(IndexEntry { descriptor, platform, artifact_type }),
    }
}

fn descriptor(Object(raw): Object<RawDescriptor>, place: String) -> Result<Descriptor, DocumentError> {
    let digest = match raw.digest.as_deref().map(str::parse::<Digest>) {
        None => return Err(DocumentError::NoDigest { place }),
        Some(Err(source)) => return Err(DocumentError::BadDigest { place, source }),
        Some(Ok(digest)) => digest,
    };
    // The size may be 0, but not missing: without it a short transfer cannot be told from a whole one.
    let Some(size) = raw.size else { return Err(DocumentError::NoSize { place, digest }) };
    let Some(bytes) = size.as_u64().filter(|bytes| i64::try_from(*bytes).is_ok()) else {
        return Err(DocumentError::BadSize { place, digest, size: excerpt(&size.to_string()) });
    };
    let annotations = raw.annotations.unwrap_or_default();
    Ok(Descriptor {
        media_type: raw.media_type.unwrap_or_default(),
        digest,
        size: bytes,
        annotations: annotations.into_iter().map(|(key, value)| (key, value.unwrap_or_default())).collect(),
        urls: raw.urls.unwrap_or_default(),
    })
}

fn platform(raw: RawPlatform) -> Platform {
    Platform {
        os: raw.os.unwrap_or_default(),
        architecture: raw.architecture.unwrap_or_default(),
        variant: raw.variant.filter(|variant| !variant.is_empty()),
        os_version: raw.os_version.filter(|version| !version.is_empty()),
        os_features: raw.os_features.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
