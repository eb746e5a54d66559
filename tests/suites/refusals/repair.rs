//! What an earlier writer or a loss of power left in the content store, and how a pull gets over it.

use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::peers::Release;
use drayd_tests::scripted::image::Image;
use drayd_tests::suite::Suite;

use crate::stage::Stage;

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "a_document_that_lost_its_bytes_is_written_anew", lost_bytes);
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
