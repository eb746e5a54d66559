//! What images take on disk: kubelet reads the first filesystem, and cannot start without an answer.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drayd_proto::cri::{FilesystemUsage, ImageFsInfoRequest};
use drayd_tests::bed::Bed;
use drayd_tests::containerd::NATIVE_HANDLER;
use drayd_tests::cri::Cri;
use drayd_tests::ctr;
use drayd_tests::launch::Launch;
use drayd_tests::peers::Release;
use drayd_tests::stage::{self, Stage, pull};
use drayd_tests::suite::Suite;
use drayd_tests::wait;
use tonic::{Code, Status};

/// The type of its plugins.
const SNAPSHOTTERS: &str = "io.containerd.snapshotter.v1";
/// For a sample to follow what others did, and containerd to collect what they left.
const FOLLOWED: Duration = Duration::from_secs(30);

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "the_default_snapshotter_comes_first_and_the_content_store_last", order);
    suite.check(release, "space_moves_with_what_drayd_and_others_pull_and_remove", moves);
    suite.check(release, "calls_in_a_row_have_the_same_sample", one_sample);
    suite.check(release, "a_call_before_containerd_is_up_is_answered_once_it_is", before_containerd);
}

/// One filesystem of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Use {
    directory: String,
    bytes: u64,
    inodes: u64,
    timestamp: i64,
}

impl TryFrom<FilesystemUsage> for Use {
    type Error = anyhow::Error;

    fn try_from(usage: FilesystemUsage) -> Result<Self> {
        Ok(Self {
            directory: usage.fs_id.context("no directory")?.mountpoint,
            bytes: usage.used_bytes.context("no bytes")?.value,
            inodes: usage.inodes_used.context("no inodes")?.value,
            timestamp: usage.timestamp,
        })
    }
}

async fn uses(cri: &Cri) -> Result<Vec<Use>> {
    let answer = cri.images.clone().image_fs_info(ImageFsInfoRequest {}).await?.into_inner();
    let uses: Vec<Use> = answer.image_filesystems.into_iter().map(Use::try_from).collect::<Result<_>>()?;
    let of_containers: Vec<Use> =
        answer.container_filesystems.into_iter().map(Use::try_from).collect::<Result<_>>()?;
    ensure!(of_containers == uses[..1], "containers are on {of_containers:?}");
    Ok(uses)
}

/// The directory that a plugin of containerd says it has.
async fn root(bed: &Bed, kind: &str, id: &str) -> Result<Option<String>> {
    let plugins = bed.containerd.probe().plugins().await?;
    let plugin = plugins.into_iter().find(|plugin| plugin.kind == kind && plugin.id == id);
    Ok(plugin.with_context(|| format!("no plugin {kind} {id}"))?.exports.remove("root"))
}

async fn order(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let cri = drayd.cri();
    let overlayfs = bed.containerd.cri().images_on_disk().await?.0;
    let native = root(&bed, SNAPSHOTTERS, "native").await?;
    let content = root(&bed, "io.containerd.content.v1", "content").await?;
    let directories = async || Ok::<_, anyhow::Error>(uses(&cri).await?.into_iter().map(|of| of.directory));
    let expected: Vec<String> = [Some(&overlayfs), content.as_ref()].into_iter().flatten().cloned().collect();
    let found: Vec<String> = directories().await?.collect();
    ensure!(found == expected, "without images: {found:?}, not {expected:?}");
    pull(&bed, &drayd, &bed.images.two, Some(NATIVE_HANDLER)).await?;
    let all = [Some(&overlayfs), native.as_ref(), content.as_ref()];
    let expected: Vec<String> = all.into_iter().flatten().cloned().collect();
    let found: Vec<String> = directories().await?.collect();
    ensure!(found == expected, "with an image in native: {found:?}, not {expected:?}");
    // containerd 1.6 keeps the native one's directory to itself.
    let told = native.is_some() != (bed.containerd.release() == Release::V1_6) && content.is_some();
    ensure!(told, "what containerd says of directories has changed: {native:?} {content:?}");
    for of in uses(&cri).await? {
        ensure!(Path::new(&of.directory).is_dir(), "{} is no directory", of.directory);
        ensure!(of.timestamp > 0, "{of:?}");
    }
    Ok(())
}

async fn moves(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, registry) = (drayd.cri(), bed.registry.address());
    let image = &bed.images.busybox;
    let layers: u64 = image.layers.iter().map(|layer| layer.blob.size).sum();
    let empty = uses(&cri).await?;
    let [snapshots, content] = [0, 1];
    let grown = |now: &[Use]| {
        now.last().is_some_and(|last| {
            let blobs = last.bytes.saturating_sub(empty[content].bytes);
            // Noise does not compress, so the files are at least as large as their layers.
            now[snapshots].bytes >= empty[snapshots].bytes + layers
                && now[snapshots].inodes > empty[snapshots].inodes + 12
                && blobs == layers + image.manifest.size + image.config.size
                && last.inodes == empty[content].inodes + image.layers.len() as u64 + 2
        })
    };
    let same = |now: &[Use]| {
        let taken = |uses: &[Use]| uses.iter().map(|of| (of.bytes, of.inodes)).collect::<Vec<_>>();
        taken(now) == taken(&empty)
    };
    pull(&bed, &drayd, image, None).await?;
    let pulled = uses(&cri).await?;
    ensure!(grown(&pulled), "after drayd's pull {pulled:#?}, before it {empty:#?}");
    cri.remove(&image.config.digest).await?;
    let after = uses(&cri).await?;
    ensure!(same(&after), "after drayd's removal {after:#?}, at first {empty:#?}");

    pull(&bed, &drayd, image, Some(NATIVE_HANDLER)).await?;
    let native = uses(&cri).await?;
    ensure!(native[0].bytes == empty[0].bytes, "the default one grew, too: {native:#?}");
    if root(&bed, SNAPSHOTTERS, "native").await?.is_some() {
        ensure!(native.len() == 3 && native[1].bytes >= layers && native[1].inodes > 12, "{native:#?}");
    }
    cri.remove(&image.config.digest).await?;

    let reference = image.reference(registry);
    bed.containerd.cri().pull(&reference, None, None).await?;
    wait::until("the pull of containerd's CRI is counted", FOLLOWED, async || Ok(grown(&uses(&cri).await?)))
        .await?;
    bed.containerd.cri().remove(&image.config.digest).await?;
    wait::until("its removal is counted", FOLLOWED, async || Ok(same(&uses(&cri).await?))).await?;

    ctr::pull(&bed.containerd, "k8s.io", &reference).await?;
    wait::until("the pull of ctr is counted", FOLLOWED, async || Ok(grown(&uses(&cri).await?))).await
}

/// A sample is all that a call costs containerd; two calls that have the time of one sample asked for no snapshot.
async fn one_sample(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let cri = drayd.cri();
    pull(&bed, &drayd, &bed.images.busybox, None).await?;
    let first = uses(&cri).await?;
    // A machine that takes seconds from one call to the next may see two samples.
    wait::until("two calls in a row have one sample", FOLLOWED, async || {
        Ok(uses(&cri).await? == uses(&cri).await?)
    })
    .await?;
    pull(&bed, &drayd, &bed.images.docker, None).await?;
    let second = uses(&cri).await?;
    ensure!(second[0].timestamp > first[0].timestamp, "a pull is not counted: {second:?}");
    Ok(())
}

async fn before_containerd(bed: Stage) -> Result<()> {
    drop(stage::bare(&bed).await?);
    bed.containerd.kill()?;
    let begun = async {
        let drayd = Launch::new(&bed.containerd.socket(), "before-containerd")?.start()?;
        let cri = drayd.cri();
        let waiting = tokio::spawn(async move { cri.images_on_disk().await });
        // What has nothing to wait for is refused meanwhile.
        let listed: Result<_, Status> = drayd.cri().list().await;
        let status = listed.err().context("images are listed without containerd")?;
        ensure!(status.code() == Code::Unavailable, "{status:?}");
        ensure!(!waiting.is_finished(), "answered without containerd: {:?}", waiting.await);
        Ok((drayd, waiting))
    };
    let begun = begun.await;
    bed.containerd.restart().await?;
    let (drayd, waiting) = begun?;
    let (directory, ..) = waiting.await?.context("the call that waited failed")?;
    ensure!(Path::new(&directory).is_dir(), "{directory} is no directory");
    // It was there: from here on its absence is told within seconds.
    bed.containerd.kill()?;
    let refused = tokio::time::timeout(FOLLOWED, drayd.cri().images_on_disk()).await;
    bed.containerd.restart().await?;
    let status = refused.context("still waiting")?.err().context("answered without containerd")?;
    ensure!(status.code() == Code::Unavailable, "{status:?}");
    Ok(())
}
