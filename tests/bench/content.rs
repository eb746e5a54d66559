//! The images that are pulled: made once of the machine's files, and kept in a registry's storage in the cache.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write, copy};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use drayd_tests::images::Images;
use drayd_tests::layer::LayerTar;
use drayd_tests::registry::Registry;
use drayd_tests::scripted::image::{self, Blob, MANIFEST};
use drayd_tests::{peers, push};
use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::digesting::Digesting;
use crate::trees::{Held, Trees};

/// Changes with what images are made of or how: those of another number are made anew.
const RECIPE: u32 = 1;
/// What most images come with.
const GZIP_LEVEL: u32 = 6;
/// zstd's own default, which builders keep.
const ZSTD_LEVEL: i32 = 3;
const MEGABYTE: u64 = 1_000_000;

/// The names of all images, in the order in which they are shown.
pub(crate) const NAMES: [&str; 5] = ["typical", "fat", "many", "typical-zstd", "busybox"];

/// An image in the registry's storage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Content {
    pub(crate) name: String,
    repository: String,
    /// Digest of its config.
    pub(crate) id: String,
    pub(crate) layers: Vec<Layer>,
    /// Bytes of the layers' tars.
    pub(crate) unpacked: u64,
    /// Of all layers' tars; 0 if nobody counted.
    pub(crate) entries: u64,
}

/// A compressed layer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Layer {
    media_type: String,
    pub(crate) digest: String,
    /// Bytes.
    pub(crate) size: u64,
}

#[derive(Clone, Copy)]
enum Packing {
    Gzip,
    Zstd,
}

impl Content {
    /// The image of this name, made if the registry, which is on [`storage`], does not have it.
    pub(crate) async fn ready(name: &str, registry: &Registry) -> Result<Self> {
        if name == "busybox" {
            return busybox(registry);
        }
        let record = directory().join(format!("{name}.json"));
        if let Some(content) = fs::read(&record).ok().and_then(|text| serde_json::from_slice(&text).ok()) {
            return Ok(content);
        }
        eprintln!("bench-pull: making the image {name}");
        // Both from the same files, which may be others later.
        let pair: &[(&str, Packing)] = &[("typical", Packing::Gzip), ("typical-zstd", Packing::Zstd)];
        match name {
            "typical" | "typical-zstd" => make(pair, &sizes(name), registry).await?,
            _ => make(&[(name, Packing::Gzip)], &sizes(name), registry).await?,
        }
        let text = fs::read(&record).with_context(|| format!("there is no image {name}"))?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Its reference in a registry at this address.
    pub(crate) fn reference(&self, registry: &str) -> String {
        format!("{registry}/{}:1", self.repository)
    }

    /// The path of a layer in a registry's API.
    pub(crate) fn path(&self, layer: &Layer) -> String {
        format!("/v2/{}/blobs/{}", self.repository, layer.digest)
    }

    /// Bytes of all layers as they are transferred.
    pub(crate) fn compressed(&self) -> u64 {
        self.layers.iter().map(|layer| layer.size).sum()
    }
}

/// Where the registry keeps the images, without those of other recipes.
pub(crate) fn storage() -> Result<PathBuf> {
    let own = directory();
    let all = own.parent().context("the cache has no root")?;
    for other in fs::read_dir(all).into_iter().flatten().flatten().filter(|entry| entry.path() != own) {
        fs::remove_dir_all(other.path())
            .with_context(|| format!("cannot remove {}", other.path().display()))?;
    }
    let storage = own.join("registry");
    fs::create_dir_all(&storage).with_context(|| format!("cannot create {}", storage.display()))?;
    Ok(storage)
}

fn directory() -> PathBuf {
    peers::cache().join("bench").join(RECIPE.to_string())
}

/// Bytes of the files in each layer, as uneven as those of real images.
fn sizes(name: &str) -> Vec<u64> {
    let megabytes: Vec<u64> = match name {
        "fat" => vec![1900],
        "many" => (0..60).map(|number| 4 + number * 7 % 13).collect(),
        _ => vec![120, 280, 600, 180, 70, 50],
    };
    megabytes.into_iter().map(|size| size * MEGABYTE).collect()
}

fn busybox(registry: &Registry) -> Result<Content> {
    let image = Images::build()?.busybox;
    image.push(registry.address())?;
    let layers = image.layers.iter().map(|layer| Layer {
        media_type: layer.blob.media_type.clone(),
        digest: layer.blob.digest.clone(),
        size: layer.blob.size,
    });
    Ok(Content {
        name: "busybox".to_owned(),
        repository: image.repository().to_owned(),
        id: image.config.digest.clone(),
        layers: layers.collect(),
        unpacked: 0,
        entries: 0,
    })
}

/// Makes images of the same content, each packed in its way.
async fn make(images: &[(&str, Packing)], sizes: &[u64], registry: &Registry) -> Result<()> {
    let scratch = directory().join(format!("layer-{}", std::process::id()));
    let made = make_in(&scratch, images, sizes, registry).await;
    for packing in [Packing::Gzip, Packing::Zstd] {
        // Only one of the two may be there.
        let _ = fs::remove_file(packing.file(&scratch));
    }
    made
}

async fn make_in(
    scratch: &Path,
    images: &[(&str, Packing)],
    sizes: &[u64],
    registry: &Registry,
) -> Result<()> {
    let mut trees = Trees::walk()?;
    let mut layers = vec![Vec::new(); images.len()];
    let (mut diff_ids, mut unpacked, mut entries) = (Vec::new(), 0, 0);
    for size in sizes {
        let (diff_id, length, held) = write_gzip(&mut trees, *size, &Packing::Gzip.file(scratch))?;
        diff_ids.push(diff_id);
        (unpacked, entries) = (unpacked + length, entries + held.entries);
        for ((name, packing), layers) in images.iter().zip(&mut layers) {
            let file = packing.file(scratch);
            if matches!(packing, Packing::Zstd) {
                repack(&Packing::Gzip.file(scratch), &file)?;
            }
            layers.push(push_layer(&file, *packing, &repository(name), registry)?);
        }
        // Lets a caller give up between two layers.
        tokio::task::yield_now().await;
    }
    for ((name, _), layers) in images.iter().zip(layers) {
        let id = push_manifest(&layers, &diff_ids, &repository(name), registry)?;
        let name = (*name).to_owned();
        let content = Content { repository: repository(&name), name, id, layers, unpacked, entries };
        let record = directory().join(format!("{}.json", content.name));
        fs::write(&record, serde_json::to_vec_pretty(&content)?)
            .with_context(|| format!("cannot write {}", record.display()))?;
    }
    Ok(())
}

fn repository(name: &str) -> String {
    format!("bench/{name}")
}

impl Packing {
    fn media_type(self) -> &'static str {
        match self {
            Self::Gzip => "application/vnd.oci.image.layer.v1.tar+gzip",
            Self::Zstd => "application/vnd.oci.image.layer.v1.tar+zstd",
        }
    }

    fn file(self, scratch: &Path) -> PathBuf {
        scratch.with_extension(match self {
            Self::Gzip => "gz",
            Self::Zstd => "zst",
        })
    }
}

/// Writes a layer; returns the digest and length of its tar, and what is in it.
fn write_gzip(trees: &mut Trees, size: u64, file: &Path) -> Result<(String, u64, Held)> {
    let output = BufWriter::new(create(file)?);
    let mut tar = LayerTar::onto(Digesting::new(GzEncoder::new(output, Compression::new(GZIP_LEVEL))));
    let held = trees.fill(&mut tar, size)?;
    let (gzip, diff_id, length) = tar.finish()?.done();
    gzip.finish()?.flush()?;
    Ok((diff_id, length, held))
}

fn repack(from: &Path, to: &Path) -> Result<()> {
    let mut tar = MultiGzDecoder::new(BufReader::new(open(from)?));
    let mut zstd = zstd::Encoder::new(BufWriter::new(create(to)?), ZSTD_LEVEL)?;
    copy(&mut tar, &mut zstd)?;
    zstd.finish()?.flush()?;
    Ok(())
}

fn push_layer(file: &Path, packing: Packing, repository: &str, registry: &Registry) -> Result<Layer> {
    let mut digesting = Digesting::new(std::io::sink());
    copy(&mut open(file)?, &mut digesting)?;
    let (_, digest, size) = digesting.done();
    push::blob_from(registry.address(), repository, &digest, size, open(file)?)?;
    Ok(Layer { media_type: packing.media_type().to_owned(), digest, size })
}

/// Returns the image's ID.
fn push_manifest(
    layers: &[Layer],
    diff_ids: &[String],
    repository: &str,
    registry: &Registry,
) -> Result<String> {
    let config = image::config(diff_ids);
    let layers: Vec<_> = layers
        .iter()
        .map(|Layer { media_type, digest, size }| {
            json!({"mediaType": media_type, "digest": digest, "size": size})
        })
        .collect();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "config": config.descriptor(), "layers": layers,
    });
    let manifest = Blob::json(MANIFEST, &manifest);
    push::blob(registry.address(), repository, &config.digest, &config.bytes)?;
    push::manifest(registry.address(), repository, "1", MANIFEST, &manifest.bytes)?;
    Ok(config.digest)
}

fn create(file: &Path) -> Result<File> {
    File::create(file).with_context(|| format!("cannot create {}", file.display()))
}

fn open(file: &Path) -> Result<File> {
    File::open(file).with_context(|| format!("cannot open {}", file.display()))
}
