//! The walk from what a name points to, through indexes and the platform's manifest, down to the image config. Pure: it
//! says which document it wants next, and whoever walks brings the bytes, from a registry or from the content store.

use super::descriptor::Descriptor;
use super::digest::Digest;
use super::document::{Config, Document, DocumentError, Index, MAX_CONFIG, MAX_MANIFEST, Manifest};
use super::excerpt::excerpt;
use super::media_type::{self, Kind};
use super::platform::{self, NoPlatform, Platform};

/// A walk that wants its next document.
#[derive(Debug)]
pub struct Walk {
    platform: Platform,
    wanted: Descriptor,
    /// Whether the index entry that led here names no platform, so that only the config tells it. Not for a manifest
    /// that the name points to: who names it means it, whatever it runs on (containerd does not look either).
    unnamed: bool,
    /// Read so far, outermost first.
    indexes: Vec<Parsed<Index>>,
    /// Once this is read, what is wanted is its config.
    manifest: Option<Parsed<Manifest>>,
}

/// What a document leads to.
#[derive(Debug)]
pub enum Step {
    /// The next document.
    Next(Walk),
    /// Nothing: it was the config.
    End(Documents),
}

/// All documents of an image, from the target of its name down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Documents {
    /// What stands above the manifest, outermost first; empty where the name points to a manifest.
    pub indexes: Vec<Parsed<Index>>,
    /// The platform's manifest.
    pub manifest: Parsed<Manifest>,
    /// The image config.
    pub config: Parsed<Config>,
}

/// A document with the bytes it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed<T> {
    /// What pointed to it.
    pub descriptor: Descriptor,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What they say.
    pub document: T,
}

/// Why a target does not lead to an image for the platform.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WalkError {
    /// A document is not what it should be.
    #[error("the image's {what} {digest} cannot be used")]
    Malformed {
        /// `index`, `manifest` or `config`.
        what: &'static str,
        /// Its digest.
        digest: Digest,
        /// What is wrong with it.
        source: Box<DocumentError>,
    },
    /// It is no image, and says so itself.
    #[error("{digest} is not an image but an artifact of type `{artifact_type}`")]
    Artifact {
        /// Digest of the manifest.
        digest: Digest,
        /// What it says that it is.
        artifact_type: String,
    },
    /// There is no image for the platform.
    #[error(transparent)]
    Platform(#[from] NoPlatform),
    /// There is one that containerd would not find.
    #[error(
        "the index {digest} names an artifact of type `{artifact_type}` before the image {image}: containerd takes the \
         first entry for the platform, and finds no image; the index must name the image first, or its platform"
    )]
    Shadowed {
        /// Digest of the index.
        digest: Digest,
        /// Digest of the image's manifest.
        image: Digest,
        /// What the first entry says that it is.
        artifact_type: String,
    },
    /// Indexes point to indexes without end.
    #[error("the image nests more than {limit} indexes in one another")]
    Nesting {
        /// The bound.
        limit: usize,
    },
}

/// Indexes in indexes: one level is in use (an index of variants); more is a mistake or an attack.
const MAX_NESTING: usize = 4;
/// Media types of a config that do not say what it is the config of.
const NAMES_NOTHING: [&str; 4] =
    ["", "application/octet-stream", "application/json", "application/vnd.oci.empty.v1+json"];

impl Walk {
    /// A walk from `target` to the image for `platform`.
    pub fn new(target: Descriptor, platform: Platform) -> Self {
        Self { platform, wanted: target, unnamed: false, indexes: Vec::new(), manifest: None }
    }

    /// The document that is wanted next.
    pub fn wanted(&self) -> &Descriptor {
        &self.wanted
    }

    /// The manifest, once it is read.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref().map(|manifest| &manifest.document)
    }

    /// What that document is, for messages: `index`, `manifest` or `config`.
    pub fn what(&self) -> &'static str {
        match (&self.manifest, self.wanted.kind()) {
            (Some(_), _) => "config",
            (None, Kind::Index) => "index",
            (None, _) => "manifest",
        }
    }

    /// The most bytes that it may have.
    pub fn limit(&self) -> usize {
        if self.manifest.is_some() { MAX_CONFIG } else { MAX_MANIFEST }
    }

    /// Goes on with the bytes of the document that was wanted.
    pub fn read(mut self, bytes: Vec<u8>) -> Result<Step, WalkError> {
        let Some(manifest) = self.manifest.take() else { return self.read_document(bytes) };
        let document = Config::parse(&bytes).map_err(|source| match artifact_type(&manifest.document) {
            Some(artifact_type) => {
                let digest = manifest.descriptor.digest.clone();
                WalkError::Artifact { digest, artifact_type: excerpt(artifact_type) }
            }
            None => self.malformed("config", source),
        })?;
        self.confirm(&document)?;
        let config = Parsed { descriptor: self.wanted, bytes, document };
        Ok(Step::End(Documents { indexes: self.indexes, manifest, config }))
    }

    fn read_document(mut self, bytes: Vec<u8>) -> Result<Step, WalkError> {
        let document = Document::parse(Some(&self.wanted.media_type), &bytes)
            .map_err(|source| self.malformed(self.what(), source))?;
        match document {
            Document::Manifest(document) => {
                let descriptor = std::mem::replace(&mut self.wanted, document.config.clone());
                self.manifest = Some(Parsed { descriptor, bytes, document });
            }
            Document::Index(_) if self.indexes.len() == MAX_NESTING => {
                return Err(WalkError::Nesting { limit: MAX_NESTING });
            }
            Document::Index(document) => {
                let entry = platform::select(&document.entries, &self.platform)?;
                let next = entry.descriptor.clone().map_err(|source| self.malformed("index", source))?;
                if let Some(taken) = platform::shadow(&document.entries, &self.platform, entry) {
                    return Err(WalkError::Shadowed {
                        digest: self.wanted.digest,
                        image: next.digest,
                        artifact_type: excerpt(taken.artifact().unwrap_or_default()),
                    });
                }
                self.unnamed = entry.platform.is_none();
                let descriptor = std::mem::replace(&mut self.wanted, next);
                self.indexes.push(Parsed { descriptor, bytes, document });
            }
        }
        Ok(Step::Next(self))
    }

    fn confirm(&self, config: &Config) -> Result<(), NoPlatform> {
        match self.indexes.last() {
            Some(index) if self.unnamed => {
                platform::confirm(&config.platform, &self.platform, &index.document.entries)
            }
            _ => Ok(()),
        }
    }

    fn malformed(&self, what: &'static str, source: DocumentError) -> WalkError {
        WalkError::Malformed { what, digest: self.wanted.digest.clone(), source: Box::new(source) }
    }
}

/// What a manifest says that it is, if that is no image. Asked only once its config turned out to be none: images of old
/// tools have configs under any type.
fn artifact_type(manifest: &Manifest) -> Option<&str> {
    let by_config = &manifest.config.media_type;
    let own = manifest.artifact_type.as_deref();
    own.or_else(|| (!NAMES_NOTHING.contains(&by_config.as_str())).then_some(by_config))
        .filter(|name| media_type::kind(name) != Kind::Config)
}

#[cfg(test)]
mod tests;
