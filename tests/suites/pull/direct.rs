//! The direct engine beside its trees: what it leaves when it is killed, what it refuses, and what labels are to it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use drayd_tests::drayd::Drayd;
use drayd_tests::images;
use drayd_tests::log::Event;
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;
use drayd_tests::wait;
use tonic::Code;

use crate::stage::{self, SOON, Stage, begin, big, pull};

/// The settings that these trials are about.
pub(crate) const DIRECT: &str = "[unpack]\nengine = \"direct\"\n";
/// How many files of a layer are there when drayd is killed; the layer has many more.
const MOMENTS: [usize; 4] = [1, 20, 60, 100];

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "a_kill_in_the_middle_of_a_direct_unpack_leaves_nothing", killed);
    suite.check(release, "a_direct_unpack_that_every_caller_leaves_leaves_nothing", left_alone);
    suite.check(release, "an_owner_that_would_become_root_is_refused_and_leaves_nothing", wrapped_owner);
    suite.check(release, "a_layer_is_taken_for_what_it_is_whatever_its_label_says", labels);
}

async fn killed(bed: Stage) -> Result<()> {
    drop(stage::bare(&bed).await?);
    let probe = bed.containerd.probe();
    let before = probe.state().await?;
    let image = big(&bed, 64, 1)?;
    let reference = image.reference(bed.registry.address());
    for files in MOMENTS {
        let mut drayd = stage::start(&bed, DIRECT, &[])?;
        let pulling = begin(&drayd.cri(), &reference);
        files_are_there(&drayd, files).await?;
        drayd.kill()?;
        ensure!(pulling.await?.is_err(), "the pull had ended before {files} files were seen");
        let state = probe.state().await?;
        ensure!(state.snapshot("overlayfs", &image.top_chain_id()).is_none(), "a part was committed");
        // The lease would expire; the trial does not wait for that.
        for lease in state.leases.keys() {
            probe.delete_lease(lease).await?;
        }
        probe.force_gc().await?;
        stage::unchanged(&bed, &before, &format!("after {files} files")).await?;
    }
    let drayd = stage::start(&bed, DIRECT, &[])?;
    let id = pull(&bed, &drayd, &image, None).await?;
    drayd.cri().remove(&id).await?;
    probe.force_gc().await?;
    stage::unchanged(&bed, &before, "after the pull that was left alone").await
}

async fn left_alone(bed: Stage) -> Result<()> {
    let drayd = stage::configured(&bed, DIRECT, &[]).await?;
    let probe = bed.containerd.probe();
    let before = probe.state().await?;
    let image = big(&bed, 64, 1)?;
    let pulling = begin(&drayd.cri(), &image.reference(bed.registry.address()));
    let root = files_are_there(&drayd, MOMENTS[0]).await?;
    pulling.abort();
    wait::until("the lease and the files are gone", SOON, async || {
        let gone = probe.state().await?.leases.is_empty();
        probe.force_gc().await?;
        Ok(gone && !Path::new(&root).exists())
    })
    .await?;
    stage::unchanged(&bed, &before, "a pull that was left has left something").await
}

/// Waits until so many files of the large layer are written, and says where.
async fn files_are_there(drayd: &Drayd, files: usize) -> Result<String> {
    let mut found = None;
    wait::until("files of the layer are there", SOON, async || {
        let roots = drayd.events().into_iter().filter(is_direct).map(|event| event.text("root").to_owned());
        let there =
            |root: &String| fs::read_dir(format!("{root}/big100")).map_or(0, Iterator::count) >= files;
        found = roots.into_iter().find(there);
        Ok(found.is_some())
    })
    .await?;
    found.context("it was found")
}

/// Fault 122.
async fn wrapped_owner(bed: Stage) -> Result<()> {
    let drayd = stage::configured(&bed, DIRECT, &[]).await?;
    let before = bed.containerd.probe().state().await?;
    let image = images::wrapped_owner()?;
    image.push(bed.registry.address())?;
    let reference = image.reference(bed.registry.address());
    let status = drayd.cri().pull(&reference, None, None).await.err().context("it was pulled")?;
    let digest = &image.layers[1].blob.digest;
    for text in ["owner or group is none that a file can have", "`d/roots`", digest] {
        ensure!(status.message().contains(text), "{text} is not in {status:?}");
    }
    ensure!(status.code() == Code::Unknown, "{status:?}");
    stage::unchanged(&bed, &before, "the refused image left something").await
}

/// Fault 115.
async fn labels(bed: Stage) -> Result<()> {
    let drayd = stage::configured(&bed, DIRECT, &[]).await?;
    let mut layers = 0;
    for image in images::mislabelled()? {
        layers += image.layers.len();
        image.push(bed.registry.address())?;
        pull(&bed, &drayd, &image, None).await.context(image.name.clone())?;
        let state = bed.containerd.probe().state().await?;
        ensure!(state.snapshot("overlayfs", &image.top_chain_id()).is_some(), "{} is not there", image.name);
    }
    let directly = drayd.events().into_iter().filter(is_direct).count();
    ensure!(directly >= layers, "{directly} of {layers} layers were written directly");
    Ok(())
}

/// Whether it says that drayd writes a layer itself; its field `root` says where.
pub(crate) fn is_direct(event: &Event) -> bool {
    event.message() == "a layer is written directly"
}
