//! The test images: small, the same on every machine, and known by digest. Built once into the cache, under a key of
//! the recipes' own source text, so that changing a recipe builds anew.

mod hostile;
mod nasty;
mod random;
mod recipes;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::layer::{Compression, digest};
use crate::{peers, push};

pub use hostile::{bomb, hostile, large_window, mislabelled, wrapped_owner};
pub use random::random;

const SOURCES: [&str; 6] = [
    include_str!("images.rs"),
    include_str!("images/recipes.rs"),
    include_str!("images/hostile.rs"),
    include_str!("images/nasty.rs"),
    include_str!("images/random.rs"),
    include_str!("layer.rs"),
];

/// A pointer to content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// What it is.
    pub media_type: String,
    /// `sha256:…` of the bytes.
    pub digest: String,
    /// Length of the bytes.
    pub size: u64,
}

impl Descriptor {
    fn json(&self) -> Value {
        json!({"mediaType": self.media_type, "digest": self.digest, "size": self.size})
    }
}

/// One layer of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// The compressed blob.
    pub blob: Descriptor,
    /// Digest of the tar.
    pub diff_id: String,
}

/// An image that was built.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// `repository:tag`.
    pub name: String,
    /// What the tag points to: an index or a manifest.
    pub target: Descriptor,
    /// The manifest for this machine's platform.
    pub manifest: Descriptor,
    /// Its config, whose digest is the image id.
    pub config: Descriptor,
    /// Its layers, lowest first.
    pub layers: Vec<Layer>,
    /// Every blob that a push takes, other platforms' included.
    blobs: Vec<Descriptor>,
    /// Every manifest and index, children before parents.
    manifests: Vec<Descriptor>,
}

impl Image {
    /// The reference of this image in a registry.
    pub fn reference(&self, registry: &str) -> String {
        format!("{registry}/{}", self.name)
    }

    /// The reference by digest.
    pub fn digest_reference(&self, registry: &str) -> String {
        format!("{registry}/{}@{}", self.repository(), self.target.digest)
    }

    /// The name without its tag.
    pub fn repository(&self) -> &str {
        self.name.split(':').next().unwrap_or_default()
    }

    /// Chain IDs of the layers, lowest first.
    pub fn chain_ids(&self) -> Vec<String> {
        let mut chain: Vec<String> = Vec::new();
        for layer in &self.layers {
            chain.push(match chain.last() {
                None => layer.diff_id.clone(),
                Some(parent) => digest(format!("{parent} {}", layer.diff_id).as_bytes()),
            });
        }
        chain
    }

    /// The chain ID of the whole image.
    pub fn top_chain_id(&self) -> String {
        self.chain_ids().pop().unwrap_or_default()
    }

    /// Puts the image into a registry.
    pub fn push(&self, registry: &str) -> Result<()> {
        for blob in &self.blobs {
            push::blob(registry, self.repository(), &blob.digest, &read_blob(&blob.digest)?)?;
        }
        let tag = self.name.split(':').nth(1).unwrap_or("latest");
        for manifest in &self.manifests {
            let name = if manifest.digest == self.target.digest { tag } else { &manifest.digest };
            let bytes = read_blob(&manifest.digest)?;
            push::manifest(registry, self.repository(), name, &manifest.media_type, &bytes)?;
        }
        Ok(())
    }
}

/// The images that every bed has.
#[derive(Clone, Debug)]
pub struct Images {
    /// Four layers; prints [`recipes::GREETING`].
    pub busybox: Image,
    /// The sandbox image: sleeps.
    pub pause: Image,
    /// An index of two platforms after an attestation.
    pub two: Image,
    /// Everything that is hard to unpack.
    pub nasty: Image,
    /// A hard link to a file of the layer below, which containerd's differ cannot make on an overlay.
    pub links: Image,
    /// Docker's media types.
    pub docker: Image,
    /// Zstandard layers.
    pub zstd: Image,
    /// The same layer twice, and an empty one.
    pub dup: Image,
}

impl Images {
    /// Builds what the cache lacks.
    pub fn build() -> Result<Self> {
        Ok(Self {
            busybox: cached("busybox:1", recipes::busybox)?,
            pause: cached("pause:1", recipes::pause)?,
            two: cached("two:1", recipes::two)?,
            nasty: cached("nasty:1", nasty::image)?,
            links: cached("links:1", nasty::link_into_a_lower_layer)?,
            docker: cached("docker:1", recipes::docker)?,
            zstd: cached("zstd:1", recipes::zstd)?,
            dup: cached("dup:1", recipes::dup)?,
        })
    }

    /// All of them.
    pub fn all(&self) -> [&Image; 8] {
        [&self.busybox, &self.pause, &self.two, &self.nasty, &self.links, &self.docker, &self.zstd, &self.dup]
    }
}

/// The directories of nasty whose time no unpacking can know: the root, and those that a later layer puts something
/// into without an entry of their own.
pub const NASTY_UNDATED: [&str; 3] = [".", "implied", "implied/deeper"];

/// What busybox, two, docker, zstd and dup print when they run.
pub fn greeting() -> &'static str {
    recipes::GREETING
}

/// An image of about `megabytes` in `layers` layers, half of it compressible, built on demand.
pub fn big(megabytes: usize, layers: usize) -> Result<Image> {
    let name = format!("big:{megabytes}m{layers}l");
    cached(&name, |name| recipes::big(name, megabytes, layers))
}

fn cached(name: &str, build: impl FnOnce(&str) -> Result<Image>) -> Result<Image> {
    let record = store().join(format!("{name}.json"));
    if let Some(image) = fs::read(&record).ok().and_then(|text| serde_json::from_slice(&text).ok()) {
        return Ok(image);
    }
    let image = build(name).with_context(|| format!("cannot build the image {name}"))?;
    write_whole(&record, &serde_json::to_vec_pretty(&image)?)?;
    Ok(image)
}

fn store() -> PathBuf {
    let key = digest(SOURCES.concat().as_bytes());
    peers::cache().join("images").join(&key["sha256:".len()..][..12])
}

fn blob_path(digest: &str) -> PathBuf {
    store().join("blobs").join(digest.replace(':', "-"))
}

fn read_blob(digest: &str) -> Result<Vec<u8>> {
    let path = blob_path(digest);
    fs::read(&path).with_context(|| format!("cannot read {}; remove its cache directory", path.display()))
}

fn write_blob(media_type: &str, bytes: &[u8]) -> Result<Descriptor> {
    let digest = digest(bytes);
    write_whole(&blob_path(&digest), bytes)?;
    Ok(Descriptor { media_type: media_type.to_owned(), digest, size: bytes.len() as u64 })
}

/// Appears complete or not at all, because suites may build at the same time.
fn write_whole(path: &std::path::Path, bytes: &[u8]) -> Result<()> {
    let directory = path.parent().context("the cache has no root")?;
    let scratch = directory.join(format!(".new-{}", std::process::id()));
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(&scratch, bytes))
        .and_then(|()| fs::rename(&scratch, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// An image for one platform in the making; the recipes fill it.
struct Draft {
    manifest_type: &'static str,
    config_type: &'static str,
    architecture: &'static str,
    layers: Vec<Layer>,
}

impl Draft {
    fn oci(architecture: &'static str) -> Self {
        Self {
            manifest_type: "application/vnd.oci.image.manifest.v1+json",
            config_type: "application/vnd.oci.image.config.v1+json",
            architecture,
            layers: Vec::new(),
        }
    }

    fn docker(architecture: &'static str) -> Self {
        Self {
            manifest_type: "application/vnd.docker.distribution.manifest.v2+json",
            config_type: "application/vnd.docker.container.image.v1+json",
            architecture,
            layers: Vec::new(),
        }
    }

    fn add(&mut self, tar: Vec<u8>, compression: Compression) -> Result<()> {
        self.add_labelled(tar, compression, compression)
    }

    /// A layer whose media type may tell of another compression than it has.
    fn add_labelled(&mut self, tar: Vec<u8>, compression: Compression, label: Compression) -> Result<()> {
        let docker = self.manifest_type.contains("docker");
        let media_type = match label {
            Compression::Plain if docker => "application/vnd.docker.image.rootfs.diff.tar",
            Compression::Gzip if docker => "application/vnd.docker.image.rootfs.diff.tar.gzip",
            Compression::Plain => "application/vnd.oci.image.layer.v1.tar",
            Compression::Gzip => "application/vnd.oci.image.layer.v1.tar+gzip",
            Compression::Zstd | Compression::ZstdLong => "application/vnd.oci.image.layer.v1.tar+zstd",
        };
        let diff_id = digest(&tar);
        let blob = write_blob(media_type, &compression.of(tar)?)?;
        self.layers.push(Layer { blob, diff_id });
        Ok(())
    }

    fn finish(self, name: &str, command: &[&str]) -> Result<Image> {
        let diff_ids: Vec<&String> = self.layers.iter().map(|layer| &layer.diff_id).collect();
        let config = json!({
            "architecture": self.architecture, "os": "linux", "created": "2020-09-13T12:26:40Z",
            "config": {"Env": ["PATH=/bin"], "Cmd": command},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = write_blob(self.config_type, &serde_json::to_vec(&config)?)?;
        let layers: Vec<Value> = self.layers.iter().map(|layer| layer.blob.json()).collect();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": self.manifest_type, "config": config.json(), "layers": layers,
        });
        let manifest = write_blob(self.manifest_type, &serde_json::to_vec(&manifest)?)?;
        let blobs = self.layers.iter().map(|layer| layer.blob.clone()).chain([config.clone()]).collect();
        Ok(Image {
            name: name.to_owned(),
            target: manifest.clone(),
            manifests: vec![manifest.clone()],
            manifest,
            config,
            layers: self.layers,
            blobs,
        })
    }
}
