//! Descriptors: media type, digest and size, the pointer from one document to the next blob.

use std::collections::BTreeMap;

use super::digest::Digest;
use super::media_type::{self, Kind};

/// A pointer to content, as indexes, manifests and image records carry it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// What the blob is; see [`media_type`].
    pub media_type: String,
    /// Digest of the blob's bytes as they travel, that is, compressed.
    pub digest: Digest,
    /// Length of the blob in bytes.
    pub size: u64,
    /// Annotations of the descriptor; those under `containerd.io/snapshot/` become snapshot labels.
    pub annotations: BTreeMap<String, String>,
}

impl Descriptor {
    /// What the blob is to a puller, by its media type.
    pub fn kind(&self) -> Kind {
        media_type::kind(&self.media_type)
    }
}
