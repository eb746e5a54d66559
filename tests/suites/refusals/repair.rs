//! What an earlier writer or a loss of power left in the content store, and how a pull gets over it.

use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::peers::Release;
use drayd_tests::scripted::image::Image;
use drayd_tests::suite::Suite;

use crate::stage::Stage;

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "a_document_that_lost_its_bytes_is_written_anew", lost_bytes);
    suite.check(release, "a_document_without_its_file_is_written_anew", lost_files);
    suite.check(
        release,
        "a_layer_that_the_store_has_wrongly_is_fetched_anew_for_another_snapshotter",
        wrong_layers,
    );
    suite.check(release, "an_ingest_full_of_other_bytes_is_written_anew", other_bytes);
}

async fn lost_bytes(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "lost-bytes").await?;
    let image = Image::new("lost-bytes", 2, 8)?;
    image.serve(&stage.registry);
    let reference = image.reference(&stage.registry);
    let id = stage.pull(&reference).await?;
    let probe = stage.bed.containerd.probe();
    let whole = probe.state().await?;
    for (what, blob, left) in
        [("config", &image.config, 10), ("config", &image.config, 0), ("manifest", &image.manifest, 100)]
    {
        let file = stage.bed.containerd.blob_file(&blob.digest);
        fs::write(&file, &blob.bytes[..left]).with_context(|| format!("cannot cut {}", file.display()))?;
        let again = stage.pull(&reference).await.with_context(|| format!("with a broken {what}"))?;
        ensure!(again == id, "{again}");
        let stored = fs::read(&file).with_context(|| format!("no {}", file.display()))?;
        ensure!(stored == blob.bytes, "the {what} has {} bytes", stored.len());
        probe.force_gc().await?;
        let changes = probe.state().await?.difference_from(&whole);
        ensure!(changes.is_empty(), "after a broken {what}:\n{}", changes.join("\n"));
    }
    // The same length, too: nothing but the digest tells.
    let file = stage.bed.containerd.blob_file(&image.config.digest);
    let mut flipped = image.config.bytes.clone();
    flipped[20] ^= 1;
    fs::write(&file, &flipped)?;
    ensure!(stage.pull(&reference).await? == id, "another image");
    ensure!(fs::read(&file)? == image.config.bytes, "the flipped bit is still there");
    stage.bed.empty().await
}

async fn lost_files(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "lost-files").await?;
    let image = Image::new("lost-files", 2, 8)?;
    image.serve(&stage.registry);
    let reference = image.reference(&stage.registry);
    let id = stage.pull(&reference).await?;
    for blob in [&image.config, &image.manifest] {
        let file = stage.bed.containerd.blob_file(&blob.digest);
        fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        ensure!(stage.pull(&reference).await? == id, "another image");
        let stored = fs::read(&file).with_context(|| format!("still no {}", file.display()))?;
        ensure!(stored == blob.bytes, "{} has {} bytes", blob.digest, stored.len());
    }
    ensure!(stage.bed.containerd.cri().image(&reference).await?.is_some(), "containerd does not see it");
    stage.bed.empty().await
}

/// What happens to a layer's file.
type Damage = fn(&Path, &[u8]) -> io::Result<()>;

async fn wrong_layers(bed: Arc<Bed>) -> Result<()> {
    let handlers = "[snapshotter.handlers]\nnative-handler = \"native\"\n";
    let stage = Stage::with(bed, "wrong-layers", handlers, |_| {}).await?;
    let damages: [(&str, Damage); 4] = [
        ("removed", |file, _| fs::remove_file(file)),
        ("emptied", |file, _| fs::write(file, b"")),
        ("cut", |file, bytes| fs::write(file, &bytes[..bytes.len() / 2])),
        ("flipped", |file, bytes| {
            let mut bytes = bytes.to_vec();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(file, bytes)
        }),
    ];
    for (what, damage) in damages {
        let image = Image::new(&format!("wrong-layer-{what}"), 2, 64)?;
        image.serve(&stage.registry);
        let reference = image.reference(&stage.registry);
        let id = stage.pull(&reference).await?;
        let layer = &image.layers[1];
        let file = stage.bed.containerd.blob_file(&layer.digest);
        damage(&file, &layer.bytes).with_context(|| format!("cannot damage {}", file.display()))?;
        let pulled = stage.drayd.cri().pull(&reference, Some("native-handler"), None).await;
        ensure!(pulled.with_context(|| format!("with a layer {what}"))? == id, "another image");
        ensure!(fs::read(&file)? == layer.bytes, "the layer {what} is not whole again");
    }
    stage.bed.empty().await
}

async fn other_bytes(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "other-bytes").await?;
    let image = Image::new("other-bytes", 1, 8)?;
    image.serve(&stage.registry);
    let probe = stage.bed.containerd.probe();
    for (kind, blob) in
        [("manifest", &image.manifest), ("config", &image.config), ("layer", &image.layers[0])]
    {
        let zeros = vec![0; blob.bytes.len()];
        probe.leave_ingest(&format!("{kind}-{}", blob.digest), &blob.digest, &zeros).await?;
    }
    ensure!(probe.state().await?.ingests.len() == 3, "{:?}", probe.state().await?.ingests);
    let id = stage.pull(&image.reference(&stage.registry)).await?;
    ensure!(id == image.config.digest, "{id}");
    stage.holds(&image.top_chain_id()).await?;
    stage.bed.empty().await
}
