//! The direct engine beside its trees: what it leaves when it is killed, what it refuses, and what labels are to it.

use std::path::Path;
use std::time::Instant;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use drayd_tests::drayd::Drayd;
use drayd_tests::images;
use drayd_tests::log::Event;
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;
use drayd_tests::wait;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tonic::Code;

use crate::stage::{self, SOON, Stage, begin, big, pull};
use crate::trees;

/// The settings that these trials are about.
pub(crate) const DIRECT: &str = "[unpack]\nengine = \"direct\"\n";
/// How many files of a layer are there when drayd is killed; the layer has many more.
const MOMENTS: [usize; 4] = [1, 20, 60, 100];
/// How often drayd is killed at a moment of no choice, unless `DRAYD_TEST_KILLS` says so.
const KILLS: u32 = 6;
/// The fractions of its multiples lie evenly between 0 and 1.
const GOLDEN: f64 = 0.618_033_988_75;

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "a_kill_in_the_middle_of_a_direct_unpack_leaves_nothing", killed);
    let sentence = "a_kill_at_any_moment_of_a_direct_unpack_leaves_nothing_and_the_next_pull_is_right";
    suite.check(release, sentence, killed_at_any_moment);
    suite.check(release, "a_direct_unpack_that_every_caller_leaves_leaves_nothing", left_alone);
    suite.check(release, "an_owner_that_would_become_root_is_refused_and_leaves_nothing", wrapped_owner);
    let sentence = "a_layer_that_wants_much_memory_is_left_to_the_differ_with_its_blob_kept_or_not";
    suite.check(release, sentence, large_window);
    suite.check(release, "a_layer_that_would_fill_the_disk_is_refused_and_leaves_nothing", bomb);
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
        reclaim(&bed).await?;
        stage::unchanged(&bed, &before, &format!("after {files} files")).await?;
    }
    let drayd = stage::start(&bed, DIRECT, &[])?;
    let id = pull(&bed, &drayd, &image, None).await?;
    drayd.cri().remove(&id).await?;
    probe.force_gc().await?;
    stage::unchanged(&bed, &before, "after the pull that was left alone").await
}

/// Does what the end of the leases would do, for which a trial does not wait.
async fn reclaim(bed: &Stage) -> Result<()> {
    let probe = bed.containerd.probe();
    for lease in probe.state().await?.leases.keys() {
        probe.delete_lease(lease).await?;
    }
    probe.force_gc().await
}

/// Of several layers that are written at once, with their blobs kept and not; `DRAYD_TEST_KILLS` says how often.
async fn killed_at_any_moment(bed: Stage) -> Result<()> {
    let kills: u32 = env::var("DRAYD_TEST_KILLS").map_or(Ok(KILLS), |text| text.parse())?;
    drop(stage::bare(&bed).await?);
    let (probe, containerd) = (bed.containerd.probe(), bed.containerd.cri());
    let before = probe.state().await?;
    let image = big(&bed, 12, 4)?;
    let reference = image.reference(bed.registry.address());
    containerd.pull(&reference, None, None).await?;
    let expected = trees::tree(&bed, &image, &["."], "overlayfs").await?;
    containerd.remove(&image.config.digest).await?;
    probe.force_gc().await?;
    let drayd = stage::start(&bed, DIRECT, &[])?;
    let begun = Instant::now();
    pull(&bed, &drayd, &image, None).await?;
    let whole = begun.elapsed();
    drop(drayd);
    containerd.remove(&image.config.digest).await?;
    probe.force_gc().await?;
    stage::unchanged(&bed, &before, "before the first kill").await?;
    let mut killed = 0;
    for kill in 0..kills {
        let keep_layers = kill % 2 == 0;
        let settings = format!("{DIRECT}keep_layers = {keep_layers}\n");
        let mut drayd = stage::start(&bed, &settings, &[])?;
        let pulling = begin(&drayd.cri(), &reference);
        // Spread evenly over what a pull takes, however many there are.
        tokio::time::sleep(whole.mul_f64((f64::from(kill) * GOLDEN).fract())).await;
        drayd.kill()?;
        let what = format!("after kill {kill}, with keep_layers = {keep_layers}");
        if pulling.await?.is_err() {
            killed += 1;
        }
        let drayd = stage::start(&bed, &settings, &[])?;
        if kill % 5 == 4 {
            // The next pull goes on from what is there.
            pull(&bed, &drayd, &image, None).await.with_context(|| what.clone())?;
            let tree = trees::tree(&bed, &image, &["."], "overlayfs").await?;
            let difference = tree.difference_from(&expected);
            ensure!(difference.is_empty(), "{what}, the trees differ:\n{}", difference.join("\n"));
        }
        drop(drayd);
        containerd.remove(&image.config.digest).await?;
        reclaim(&bed).await?;
        stage::unchanged(&bed, &before, &what).await?;
    }
    ensure!(killed * 4 >= kills, "only {killed} of {kills} kills came before the end of the pull");
    Ok(())
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

/// The snapshots are on a small disk for once, and containerd's records of them are not.
async fn bomb(bed: Stage) -> Result<()> {
    let image = images::bomb()?;
    image.push(bed.registry.address())?;
    let reference = image.reference(bed.registry.address());
    for keep_layers in [true, false] {
        let drayd = stage::configured(&bed, &format!("{DIRECT}keep_layers = {keep_layers}\n"), &[]).await?;
        let before = bed.containerd.probe().state().await?;
        let snapshots = bed.root().join("containerd/io.containerd.snapshotter.v1.overlayfs/snapshots");
        let disk = SmallDisk::over(&snapshots)?;
        let status = drayd.cri().pull(&reference, None, None).await.err().context("it was pulled")?;
        ensure!(status.code() == Code::ResourceExhausted, "{status:?}");
        for text in ["cannot write `large`: the disk has ", &image.layers[1].blob.digest] {
            ensure!(status.message().contains(text), "{text} is not in {status:?}");
        }
        stage::unchanged(&bed, &before, "the refused image left something").await?;
        let left: Vec<_> = fs::read_dir(&snapshots)?.collect();
        ensure!(left.is_empty(), "on the disk there is {left:?}");
        drop(disk);
        pull(&bed, &drayd, &bed.images.two, None).await.context("with room again")?;
    }
    Ok(())
}

/// A filesystem of 200 MiB in the place of a directory.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn over(directory: &'a Path) -> Result<Self> {
        let options = c"size=200m,mode=0700";
        mount("tmpfs", directory, "tmpfs", MountFlags::empty(), options).context("cannot mount a tmpfs")?;
        Ok(Self(directory))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        if let Err(error) = unmount(self.0, UnmountFlags::DETACH) {
            eprintln!("{} stays mounted: {error}", self.0.display());
        }
    }
}

/// Fault 114, windows.
async fn large_window(bed: Stage) -> Result<()> {
    for keep_layers in [true, false] {
        let drayd = stage::configured(&bed, &format!("{DIRECT}keep_layers = {keep_layers}\n"), &[]).await?;
        let image = images::large_window()?;
        image.push(bed.registry.address())?;
        pull(&bed, &drayd, &image, None).await?;
        let reasons: Vec<Event> = drayd.events().into_iter().filter(is_left).collect();
        let [reason] = reasons.as_slice() else { bail!("one layer was to be left, not {reasons:?}") };
        ensure!(reason.text("digest") == image.layers[1].blob.digest, "{reason:?}");
        ensure!(reason.message().ends_with("its zstd data has a window of more than 8 MiB"), "{reason:?}");
        let tree = trees::tree(&bed, &image, &["."], "overlayfs").await?;
        ensure!(tree.get("below").is_some() && tree.get("above").is_some(), "{tree:?}");
        drayd.cri().remove(&image.config.digest).await?;
        bed.containerd.probe().force_gc().await?;
    }
    Ok(())
}

/// Whether it says why a layer is left to containerd's differ.
fn is_left(event: &Event) -> bool {
    event.message().starts_with("a layer is left to containerd's differ")
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
