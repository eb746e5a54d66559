//! The plan of a pull: which layers become which snapshots, with every label, as a value. Pure.

use std::collections::HashMap;

use super::resolve::Resolved;
use crate::containerd::labels;
use crate::oci::{ChainId, Descriptor, DiffId, Digest, Reference};
use crate::unpack::Layer;

/// What is going to be unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Digest of the image config, which is the image's ID in CRI.
    pub image_id: Digest,
    /// Layers, lowest first.
    pub layers: Vec<Layer>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Manifest and config disagree.
    #[error("the manifest lists {layers} layers, the image config {diff_ids} diff IDs: the image is broken")]
    Counts {
        /// Layers of the manifest.
        layers: usize,
        /// Diff IDs of the config.
        diff_ids: usize,
    },
    /// The config describes a filesystem that is not made of layers.
    #[error("the image config's rootfs type is {0:?}; only `layers` can be unpacked")]
    RootfsType(String),
}

impl Plan {
    /// Plans the unpack of a resolved image.
    pub fn new(reference: &Reference, resolved: &Resolved) -> Result<Self, PlanError> {
        let (blobs, diff_ids) = (&resolved.layers, &resolved.config.diff_ids);
        if let Some(kind) =
            resolved.config.rootfs_type.as_deref().filter(|kind| !matches!(*kind, "" | "layers"))
        {
            return Err(PlanError::RootfsType(kind.into()));
        }
        if blobs.len() != diff_ids.len() {
            return Err(PlanError::Counts { layers: blobs.len(), diff_ids: diff_ids.len() });
        }
        let chain = ChainId::of_stack(diff_ids);
        let layers = (0..blobs.len()).map(|index| {
            let (chain_id, parent) =
                (chain[index].clone(), index.checked_sub(1).map(|below| chain[below].clone()));
            let mut labels = layer_labels(&reference.to_string(), &resolved.manifest.digest, &blobs[index..]);
            labels.extend(stack_labels(&diff_ids[index], &chain_id, parent.as_ref()));
            Layer { blob: blobs[index].clone(), diff_id: diff_ids[index].clone(), chain_id, parent, labels }
        });
        Ok(Self { image_id: resolved.config_digest.clone(), layers: layers.collect() })
    }

    /// Name of the snapshot that containers are made on; `None` for an image without layers.
    pub fn top(&self) -> Option<&ChainId> {
        self.layers.last().map(|layer| &layer.chain_id)
    }
}

/// Labels by which remote snapshotters find the layer at the registry, and what the layer's own annotations say to
/// the snapshotter. `stack` is the layer and all above it.
fn layer_labels(reference: &str, manifest: &Digest, stack: &[Descriptor]) -> HashMap<String, String> {
    let mut all = HashMap::new();
    let Some(layer) = stack.first() else { return all };
    let for_snapshotter = |key: &&String| key.starts_with(labels::SNAPSHOT_PREFIX);
    for (key, value) in &layer.annotations {
        // An annotation over the limit would make containerd refuse the whole prepare.
        if for_snapshotter(&key) && key.len() + value.len() <= labels::MAX_LABEL {
            all.insert(key.clone(), value.clone());
        }
    }
    all.insert(labels::CRI_IMAGE_REF.into(), reference.into());
    all.insert(labels::CRI_MANIFEST_DIGEST.into(), manifest.to_string());
    all.insert(labels::CRI_LAYER_DIGEST.into(), layer.digest.to_string());
    all.insert(labels::CRI_IMAGE_LAYERS.into(), upward(stack));
    all
}

/// Digests from the layer upwards, as many as the label limit allows: snapshotters use them only to look ahead.
fn upward(stack: &[Descriptor]) -> String {
    let mut list = String::new();
    for layer in stack {
        let more = layer.digest.as_str().len() + usize::from(!list.is_empty());
        if labels::CRI_IMAGE_LAYERS.len() + list.len() + more > labels::MAX_LABEL {
            break;
        }
        if !list.is_empty() {
            list.push(',');
        }
        list.push_str(layer.digest.as_str());
    }
    list
}

fn stack_labels(
    diff_id: &DiffId,
    chain_id: &ChainId,
    parent: Option<&ChainId>,
) -> impl Iterator<Item = (String, String)> {
    let of_parent = parent.map(|parent| (labels::SNAPSHOT_PARENT.to_owned(), parent.to_string()));
    [
        (labels::SNAPSHOT_REF.to_owned(), chain_id.to_string()),
        (labels::SNAPSHOT_DIFF_ID.to_owned(), diff_id.to_string()),
    ]
    .into_iter()
    .chain(of_parent)
}
