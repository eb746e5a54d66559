//! What is in the plain test images. The hard one is in `nasty`.

use std::env::consts::ARCH;
use std::fs;

use anyhow::{Context, Result};
use serde_json::json;

use super::{Draft, Image, write_blob};
use crate::layer::{Compression, LayerTar, Meta, noise};

/// What a container of these images prints.
pub(super) const GREETING: &str = "hello from the test bed";

const SAY_IT: [&str; 3] = ["/bin/busybox", "echo", GREETING];
const KILO: usize = 1024;

/// The layer that runs: busybox and the directories that a container needs.
fn base() -> Result<Vec<u8>> {
    let program = fs::read("/bin/busybox").context("cannot read /bin/busybox; run `make install`")?;
    let mut layer = LayerTar::default();
    for directory in ["bin", "dev", "etc", "proc", "sys", "tmp"] {
        layer.directory(directory, &Meta::mode(if directory == "tmp" { 0o1777 } else { 0o755 }))?;
    }
    layer.file("bin/busybox", &Meta::mode(0o755), &program)?;
    for name in ["cat", "echo", "ls", "sh", "sleep", "stat"] {
        layer.symlink(&format!("bin/{name}"), "busybox")?;
    }
    layer.file("etc/passwd", &Meta::mode(0o644), b"root:x:0:0:root:/:/bin/sh\n")?;
    layer.finish()
}

/// A directory of files that do not compress.
fn data(seed: u64, kilobytes: usize) -> Result<Vec<u8>> {
    let mut layer = LayerTar::default();
    layer.directory(&format!("data{seed}"), &Meta::mode(0o755))?;
    for number in 0..4 {
        let content = noise(seed * 10 + number, kilobytes * KILO / 4);
        layer.file(&format!("data{seed}/file{number}"), &Meta::mode(0o644), &content)?;
    }
    layer.finish()
}

/// As the image formats call this machine's processor.
pub(super) fn architecture() -> &'static str {
    match ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

pub(super) fn busybox(name: &str) -> Result<Image> {
    let mut draft = Draft::oci(architecture());
    draft.add(base()?, Compression::Gzip)?;
    for (seed, kilobytes) in [(1, 200), (2, 300), (3, 400)] {
        draft.add(data(seed, kilobytes)?, Compression::Gzip)?;
    }
    draft.finish(name, &SAY_IT)
}

pub(super) fn pause(name: &str) -> Result<Image> {
    let mut draft = Draft::oci(architecture());
    draft.add(base()?, Compression::Gzip)?;
    draft.finish(name, &["/bin/busybox", "sleep", "2147483647"])
}

pub(super) fn docker(name: &str) -> Result<Image> {
    let mut draft = Draft::docker(architecture());
    draft.add(base()?, Compression::Gzip)?;
    draft.add(data(4, 100)?, Compression::Gzip)?;
    draft.finish(name, &SAY_IT)
}

pub(super) fn zstd(name: &str) -> Result<Image> {
    let mut draft = Draft::oci(architecture());
    draft.add(base()?, Compression::Zstd)?;
    draft.add(data(5, 100)?, Compression::Zstd)?;
    draft.add(data(6, 20)?, Compression::Plain)?;
    draft.finish(name, &SAY_IT)
}

pub(super) fn dup(name: &str) -> Result<Image> {
    let mut draft = Draft::oci(architecture());
    draft.add(base()?, Compression::Gzip)?;
    draft.add(data(7, 50)?, Compression::Gzip)?;
    draft.add(data(7, 50)?, Compression::Gzip)?;
    draft.add(LayerTar::default().finish()?, Compression::Gzip)?;
    draft.finish(name, &SAY_IT)
}

/// The attestation comes first, so that taking the first entry is wrong.
pub(super) fn two(name: &str) -> Result<Image> {
    let other = if architecture() == "amd64" { "arm64" } else { "amd64" };
    let [own, foreign] = [(architecture(), 8), (other, 9)].map(|(architecture, seed)| {
        let mut draft = Draft::oci(architecture);
        draft.add(base()?, Compression::Gzip)?;
        draft.add(data(seed, 100)?, Compression::Gzip)?;
        draft.finish(name, &SAY_IT)
    });
    let (own, foreign) = (own?, foreign?);
    let statement =
        write_blob("application/vnd.in-toto+json", br#"{"_type":"https://in-toto.io/Statement/v0.1"}"#)?;
    let empty =
        br#"{"architecture":"unknown","os":"unknown","config":{},"rootfs":{"type":"layers","diff_ids":[]}}"#;
    let empty = write_blob("application/vnd.oci.image.config.v1+json", empty)?;
    let attestation = json!({
        "schemaVersion": 2, "mediaType": own.manifest.media_type, "config": empty.json(),
        "layers": [statement.json()],
    });
    let attestation = write_blob(&own.manifest.media_type, &serde_json::to_vec(&attestation)?)?;

    let entry = |image: &Image, architecture: &str| {
        let mut entry = image.manifest.json();
        entry["platform"] = json!({"os": "linux", "architecture": architecture});
        entry
    };
    let mut attested = attestation.json();
    attested["platform"] = json!({"os": "unknown", "architecture": "unknown"});
    attested["annotations"] = json!({
        "vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": own.manifest.digest,
    });
    let media_type = "application/vnd.oci.image.index.v1+json";
    let index = json!({
        "schemaVersion": 2, "mediaType": media_type,
        "manifests": [attested, entry(&foreign, other), entry(&own, architecture())],
    });
    let target = write_blob(media_type, &serde_json::to_vec(&index)?)?;
    let manifests = vec![attestation, foreign.manifest, own.manifest.clone(), target.clone()];
    let blobs = [own.blobs.clone(), foreign.blobs, vec![statement, empty]].concat();
    Ok(Image { target, blobs, manifests, ..own })
}

/// Half noise and half text: compresses about as well as real images do.
pub(super) fn big(name: &str, megabytes: usize, layers: usize) -> Result<Image> {
    let mut draft = Draft::oci(architecture());
    draft.add(base()?, Compression::Gzip)?;
    let size = megabytes * KILO * KILO / layers.max(1);
    for seed in (100..).take(layers.max(1)) {
        let mut layer = LayerTar::default();
        let directory = format!("big{seed}");
        layer.directory(&directory, &Meta::mode(0o755))?;
        // Files of 256 KiB: between a binary and a script, as in a language runtime's tree.
        for number in 0..(size / (256 * KILO)).max(1) {
            let mut content = noise(seed * 100_000 + number as u64, 128 * KILO);
            content.extend(b"the quick brown fox ".iter().cycle().take(128 * KILO));
            layer.file(&format!("{directory}/{number}"), &Meta::mode(0o644), &content)?;
        }
        draft.add(layer.finish()?, Compression::Gzip)?;
    }
    draft.finish(name, &SAY_IT)
}
