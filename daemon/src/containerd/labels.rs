//! Label and annotation keys that containerd, its garbage collector and its snapshotters agree on. Each stands here
//! once.

use std::collections::HashMap;

/// On a lease: RFC 3339 time after which the collector ignores it (containerd `docs/garbage-collection.md`).
pub const GC_EXPIRE: &str = "containerd.io/gc.expire";
/// On a config: `<this>.<snapshotter>` holds the top chain ID and keeps that snapshot alive.
pub const GC_REF_SNAPSHOT: &str = "containerd.io/gc.ref.snapshot";
/// On a manifest: its config.
pub const GC_REF_CONFIG: &str = "containerd.io/gc.ref.content.config";
/// On a manifest: `<this>.<n>` is the n-th layer.
pub const GC_REF_LAYER: &str = "containerd.io/gc.ref.content.l";
/// On an index: `<this>.<n>` is the n-th manifest.
pub const GC_REF_MANIFEST: &str = "containerd.io/gc.ref.content.m";
/// On a manifest or index: `<this>.<n>` is the n-th child of another kind.
pub const GC_REF_OTHER: &str = "containerd.io/gc.ref.content";
/// On a blob: `<this>.<registry host without port>` lists the repositories it came from.
pub const DISTRIBUTION_SOURCE: &str = "containerd.io/distribution.source";
/// On a layer blob: the digest of its uncompressed form.
pub const UNCOMPRESSED: &str = "containerd.io/uncompressed";

/// On a snapshot: the chain ID it is prepared for; marks a prepare as part of a pull.
pub const SNAPSHOT_REF: &str = "containerd.io/snapshot.ref";
/// Labels under this prefix reach the snapshotter; layer annotations under it are handed on.
pub const SNAPSHOT_PREFIX: &str = "containerd.io/snapshot/";
/// On a snapshot: the normalised reference.
pub const CRI_IMAGE_REF: &str = "containerd.io/snapshot/cri.image-ref";
/// On a snapshot: digest of the platform's manifest.
pub const CRI_MANIFEST_DIGEST: &str = "containerd.io/snapshot/cri.manifest-digest";
/// On a snapshot: digest of the layer's blob.
pub const CRI_LAYER_DIGEST: &str = "containerd.io/snapshot/cri.layer-digest";
/// On a snapshot: blob digests of this layer and those above it, comma-separated.
pub const CRI_IMAGE_LAYERS: &str = "containerd.io/snapshot/cri.image-layers";
/// On a snapshot: `true` if the nydus-snapshotter's proxy driver took the layer over, to be pulled in the guest.
const GUEST_PULL: &str = "containerd.io/snapshot/nydus-proxy-mode";
/// On a snapshot: the layer's diff ID (set by containerd from 2.3 on).
pub const SNAPSHOT_DIFF_ID: &str = "containerd.io/snapshot/diff-id";
/// On a snapshot: the chain ID below (set by containerd from 2.3 on).
pub const SNAPSHOT_PARENT: &str = "containerd.io/snapshot/parent-chain-id";

/// On an image record: containerd's CRI owns it.
pub const CRI_MANAGED: (&str, &str) = ("io.cri-containerd.image", "managed");
/// On an image record: kubelet's image collection must leave it.
pub const CRI_PINNED: (&str, &str) = ("io.cri-containerd.pinned", "pinned");

/// containerd refuses a label whose key and value together are longer (`labels/validate.go`).
pub const MAX_LABEL: usize = 4096;

/// Whether a snapshot with these labels is one whose layer is pulled in the guest.
pub(crate) fn is_guest_pull(labels: &HashMap<String, String>) -> bool {
    labels.get(GUEST_PULL).is_some_and(|value| value == "true")
}
