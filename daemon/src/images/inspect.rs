//! What an image's documents say: read from the content store once per target, since a digest never changes what it
//! means.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use crate::containerd::{self, Containerd, Kind};
use crate::oci::document::{Config, Document, MAX_CONFIG, MAX_MANIFEST};
use crate::oci::platform::{self, NoPlatform, Platform};
use crate::oci::{Descriptor, Digest, DocumentError};

/// What drayd tells of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// Digest of the image config.
    pub id: Digest,
    /// Bytes of the platform's manifest, its config and its layers as they travel, and of the index above them.
    pub size: u64,
    /// The config's `User`: a name or number, with an optional group after a colon.
    pub user: String,
}

/// Why an image's documents cannot be told.
#[derive(Debug, thiserror::Error)]
pub(super) enum InspectError {
    /// containerd does not give them.
    #[error(transparent)]
    Containerd(#[from] containerd::Error),
    /// They cannot be read.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// There is none for this machine.
    #[error(transparent)]
    Platform(#[from] NoPlatform),
    /// Indexes in indexes without end.
    #[error("too many indexes in one another")]
    Nesting,
}

#[derive(Debug)]
pub(super) struct Inspector {
    containerd: Containerd,
    platform: Platform,
    /// By target digest. Guards the map only; never held across an await.
    known: Mutex<HashMap<Digest, Inspected>>,
}

impl InspectError {
    /// Whether containerd itself is not there, as opposed to this one image being broken.
    pub(super) fn is_away(&self) -> bool {
        matches!(self, Self::Containerd(error) if matches!(error.kind(), Kind::Unavailable | Kind::Deadline))
    }

    /// The containerd error of one that [is away](Self::is_away).
    pub(super) fn into_away(self) -> super::Error {
        match self {
            Self::Containerd(error) => error.into(),
            _ => unreachable!("only a containerd error is away"),
        }
    }
}

impl Inspector {
    pub(super) fn new(containerd: Containerd) -> Self {
        Self { containerd, platform: Platform::host(), known: Mutex::default() }
    }

    pub(super) async fn inspect(&self, target: &Descriptor) -> Result<Inspected, InspectError> {
        if let Some(inspected) = self.known().get(&target.digest) {
            return Ok(inspected.clone());
        }
        let inspected = self.read(target).await?;
        self.known().insert(target.digest.clone(), inspected.clone());
        Ok(inspected)
    }

    /// Forgets all targets but these.
    pub(super) fn retain(&self, targets: &HashSet<Digest>) {
        self.known().retain(|digest, _| targets.contains(digest));
    }

    async fn read(&self, target: &Descriptor) -> Result<Inspected, InspectError> {
        let mut next = target.clone();
        let mut size = 0;
        // As deep as a pull goes.
        for _ in 0..5 {
            let bytes = self.containerd.read_blob(&next.digest, MAX_MANIFEST).await?;
            size += bytes.len() as u64;
            match Document::parse(Some(&next.media_type), &bytes)? {
                Document::Index(index) => {
                    next = platform::select(&index.entries, &self.platform)?.descriptor.clone();
                }
                Document::Manifest(manifest) => {
                    let config = self.containerd.read_blob(&manifest.config.digest, MAX_CONFIG).await?;
                    let layers: u64 = manifest.layers.iter().map(|layer| layer.size).sum();
                    let size = size + manifest.config.size + layers;
                    return Ok(Inspected {
                        id: manifest.config.digest,
                        size,
                        user: Config::parse(&config)?.user,
                    });
                }
            }
        }
        Err(InspectError::Nesting)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<Digest, Inspected>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
