//! Images made in memory, whole or broken on purpose, and the routes that serve them.

use std::env::consts::ARCH;

use anyhow::Result;
use bytes::Bytes;
use serde_json::{Value, json};

use super::{Reply, Scripted};
use crate::layer::{Compression, LayerTar, Meta, digest, noise};

/// Media type of manifests.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of indexes.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Media type of configs.
pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Media type of layers.
pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Bytes with their media type.
#[derive(Clone, Debug)]
pub struct Blob {
    /// What it is.
    pub media_type: String,
    /// `sha256:…` of the bytes.
    pub digest: String,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl Blob {
    /// A blob of these bytes.
    pub fn new(media_type: &str, bytes: Vec<u8>) -> Self {
        Self { media_type: media_type.to_owned(), digest: digest(&bytes), bytes }
    }

    /// A blob of this JSON.
    pub fn json(media_type: &str, value: &Value) -> Self {
        Self::new(media_type, value.to_string().into_bytes())
    }

    /// The descriptor that points to it.
    pub fn descriptor(&self) -> Value {
        json!({"mediaType": self.media_type, "digest": self.digest, "size": self.bytes.len()})
    }

    /// Its path in a repository.
    pub fn path(&self, repository: &str) -> String {
        let collection =
            if matches!(self.media_type.as_str(), MANIFEST | INDEX) { "manifests" } else { "blobs" };
        format!("/v2/{repository}/{collection}/{}", self.digest)
    }
}

/// A small image. Its parts may be changed before it is served; `manifest` is to be made anew then.
#[derive(Clone, Debug)]
pub struct Image {
    /// Repository that serves it.
    pub repository: String,
    /// The manifest.
    pub manifest: Blob,
    /// The config.
    pub config: Blob,
    /// The layers, lowest first.
    pub layers: Vec<Blob>,
    /// Digests of the layers' tars.
    pub diff_ids: Vec<String>,
    /// Digest of the one file in each layer: `file0`, `file1`, …
    pub files: Vec<String>,
}

impl Image {
    /// Layers of about `kilobytes` of noise each; the repository's name makes them unlike any other image's.
    pub fn new(repository: &str, layers: usize, kilobytes: usize) -> Result<Self> {
        let seed =
            repository.bytes().fold(7_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        let mut blobs = Vec::new();
        let (mut diff_ids, mut files) = (Vec::new(), Vec::new());
        for number in 0..layers {
            let mut tar = LayerTar::default();
            let content = noise(seed.wrapping_add(number as u64 * 7919), kilobytes << 10);
            tar.file(&format!("file{number}"), &Meta::mode(0o644), &content)?;
            files.push(digest(&content));
            let tar = tar.finish()?;
            diff_ids.push(digest(&tar));
            blobs.push(Blob::new(LAYER, Compression::Gzip.of(tar)?));
        }
        let mut image = Self {
            repository: repository.to_owned(),
            manifest: Blob::new(MANIFEST, Vec::new()),
            config: config(&diff_ids),
            layers: blobs,
            diff_ids,
            files,
        };
        image.manifest = image.manifest_with(&image.config.descriptor());
        Ok(image)
    }

    /// The manifest over the present layers with this descriptor of the config.
    pub fn manifest_with(&self, config: &Value) -> Blob {
        let layers: Vec<Value> = self.layers.iter().map(Blob::descriptor).collect();
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers});
        Blob::json(MANIFEST, &manifest)
    }

    /// `<registry>/<repository>:1`.
    pub fn reference(&self, registry: &Scripted) -> String {
        format!("{}/{}:1", registry.address(), self.repository)
    }

    /// Path of the tag.
    pub fn tag_path(&self) -> String {
        format!("/v2/{}/manifests/1", self.repository)
    }

    /// Chain ID of the whole image.
    pub fn top_chain_id(&self) -> String {
        let chain = |below: String, diff_id: &String| digest(format!("{below} {diff_id}").as_bytes());
        let mut diff_ids = self.diff_ids.iter();
        let lowest = diff_ids.next().cloned().unwrap_or_default();
        diff_ids.fold(lowest, chain)
    }

    /// Serves all of it as a good registry does.
    pub fn serve(&self, registry: &Scripted) {
        let target = self.manifest.clone();
        registry.on("GET", &self.tag_path(), move |_, _| manifest_reply(&target));
        serve_blob(registry, &self.repository, &self.manifest);
        for blob in self.layers.iter().chain([&self.config]) {
            serve_blob(registry, &self.repository, blob);
        }
    }
}

/// The config of an image of these layers for this machine.
pub fn config(diff_ids: &[String]) -> Blob {
    let config = json!({
        "architecture": architecture(), "os": "linux", "config": {"Cmd": ["/none"]},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    Blob::json(CONFIG, &config)
}

/// As the image formats call this machine's processor.
pub fn architecture() -> &'static str {
    if ARCH == "aarch64" { "arm64" } else { "amd64" }
}

/// Serves a blob, manifest or index under its digest, ranges included.
pub fn serve_blob(registry: &Scripted, repository: &str, blob: &Blob) {
    let path = blob.path(repository);
    if matches!(blob.media_type.as_str(), MANIFEST | INDEX) {
        let reply = manifest_reply(blob);
        registry.on("GET", &path, move |_, _| reply.clone());
    } else {
        let bytes = Bytes::from(blob.bytes.clone());
        registry.on("GET", &path, move |request, _| Reply::ranged_of(request, &bytes));
    }
}

/// 200 with a manifest or index and its digest.
pub fn manifest_reply(blob: &Blob) -> Reply {
    Reply::ok(&blob.media_type, &blob.bytes).header("Docker-Content-Digest", &blob.digest)
}
