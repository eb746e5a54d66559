//! What an image's documents say: read from the content store once per target, since a digest never changes what it
//! means.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use crate::containerd::{self, Containerd};
use crate::oci::walk::{Documents, Step};
use crate::oci::{ChainId, Descriptor, Digest, Platform, Walk, WalkError};

/// Bytes of the longest user that is told: kernel and tools end at 32, and a config may have 16 MiB of them, which every
/// list would carry.
const MAX_USER: usize = 1024;

/// What drayd tells of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// Digest of the image config.
    pub id: Digest,
    /// Bytes of the platform's manifest, its config and its layers as they travel, and of the index above them.
    pub size: u64,
    /// The config's `User`: a name or number, with an optional group after a colon. Empty for one that is too long to be
    /// either.
    pub user: String,
    /// Name of the snapshot that containers are made on, in every snapshotter; `None` for an image without layers.
    pub chain: Option<ChainId>,
}

/// Why an image's documents cannot be told.
#[derive(Debug, thiserror::Error)]
pub(super) enum InspectError {
    /// containerd does not give them.
    #[error(transparent)]
    Containerd(#[from] containerd::Error),
    /// They lead to no image for this machine.
    #[error(transparent)]
    Walk(#[from] WalkError),
}

#[derive(Debug)]
pub(super) struct Inspector {
    containerd: Containerd,
    platform: Platform,
    /// By target digest. Guards the map only; never held across an await.
    known: Mutex<HashMap<Digest, Inspected>>,
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

    /// Forgets a target: whose record goes may lose its documents.
    pub(super) fn forget(&self, target: &Digest) {
        self.known().remove(target);
    }

    /// Forgets all targets but these.
    pub(super) fn retain(&self, targets: &HashSet<Digest>) {
        self.known().retain(|digest, _| targets.contains(digest));
    }

    async fn read(&self, target: &Descriptor) -> Result<Inspected, InspectError> {
        let mut walk = Walk::new(target.clone(), self.platform.clone());
        loop {
            let bytes = self.containerd.read_blob(&walk.wanted().digest, walk.limit()).await?;
            match walk.read(bytes)? {
                Step::Next(next) => walk = next,
                Step::End(documents) => return Ok(inspected(documents)),
            }
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<Digest, Inspected>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn inspected(documents: Documents) -> Inspected {
    let Documents { indexes, manifest, config } = documents;
    let length = |bytes: &[u8]| bytes.len() as u64;
    let documents: u64 = indexes.iter().map(|index| length(&index.bytes)).sum();
    let layers: u64 = manifest.document.layers.iter().map(|layer| layer.size).sum();
    Inspected {
        id: config.descriptor.digest,
        size: documents + length(&manifest.bytes) + length(&config.bytes) + layers,
        user: Some(config.document.user).filter(|user| user.len() <= MAX_USER).unwrap_or_default(),
        chain: ChainId::of_stack(&config.document.diff_ids).pop(),
    }
}
