//! containerd's diff service: applies a layer blob from the content store onto mounts.

use std::time::Duration;

use containerd_client::services::v1::ApplyRequest;
use containerd_client::services::v1::diff_client::DiffClient;
use containerd_client::types::Mount;

use super::{Containerd, Error, content};
use crate::oci::{Descriptor, DiffId, Digest};

/// A bound on one layer, far above any real one (100 GB at 30 MB/s), so that a hung differ ends some day.
const APPLY_DEADLINE: Duration = Duration::from_secs(3600);

impl Containerd {
    /// Applies `layer` onto `mounts` and returns the digest of the uncompressed tar that was applied.
    pub async fn apply(&self, layer: &Descriptor, mounts: Vec<Mount>) -> Result<DiffId, Error> {
        const OPERATION: &str = "apply layer";
        let message = ApplyRequest {
            diff: Some(content::wire_descriptor(layer)),
            mounts,
            payloads: std::collections::HashMap::new(),
            sync_fs: false,
        };
        let subject = layer.digest.as_str();
        let mut client = DiffClient::new(self.channel());
        let response = client
            .apply(self.request_within(APPLY_DEADLINE, message))
            .await
            .map_err(|status| Error::new(OPERATION, subject, &status))?;
        let applied = response
            .into_inner()
            .applied
            .ok_or_else(|| Error::unexpected(OPERATION, subject, "the answer names no applied layer"))?;
        let digest: Digest = applied
            .digest
            .parse()
            .map_err(|error| Error::unexpected(OPERATION, subject, format!("bad diff ID: {error}")))?;
        Ok(DiffId(digest))
    }
}
