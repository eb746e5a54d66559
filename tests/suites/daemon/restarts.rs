//! containerd comes late, goes, and comes back with another configuration; drayd runs through all of it.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use drayd_proto::cri;
use drayd_tests::bed::Bed;
use drayd_tests::launch::Launch;
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;
use tonic::Code;

const SOON: Duration = Duration::from_secs(10);
/// A handler that containerd's first configuration does not have.
const ADDED: &str = "added-handler";

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "drayd_may_start_before_containerd", before_containerd);
    suite.check(release, "a_restarted_containerd_is_followed_with_its_new_runtimes", restarted);
}

async fn before_containerd(bed: Arc<Bed>) -> Result<()> {
    bed.empty().await?;
    bed.containerd.kill()?;
    let outcome = while_away(&bed).await;
    // Whatever happened: the bed is shared.
    bed.containerd.restart().await?;
    let drayd = outcome?;
    let reference = bed.images.busybox.reference(bed.registry.address());
    let id =
        drayd.cri().pull(&reference, None, None).await.context("the first pull after containerd came")?;
    ensure!(id == bed.images.busybox.config.digest, "{id}");
    let waits = drayd.log().lines().filter(|line| line.contains("waiting for containerd on")).count();
    ensure!(waits == 1, "told {waits} times that it waits:\n{}", drayd.log());
    bed.empty().await
}

async fn while_away(bed: &Bed) -> Result<drayd_tests::launch::Launched> {
    let socket = bed.containerd.socket();
    let drayd = Launch::new(&socket, "early")?.start()?;
    let reference = bed.images.busybox.reference(bed.registry.address());
    let started = Instant::now();
    let status = drayd.cri().pull(&reference, None, None).await.err().context("pulled without containerd")?;
    ensure!(status.code() == Code::Unavailable, "{status:?}");
    ensure!(status.message().contains(&socket.display().to_string()), "{status:?}");
    ensure!(started.elapsed() < SOON, "took {:?}", started.elapsed());

    // Every other call of kubelet's is answered at once, so that its status loop does not hang.
    let started = Instant::now();
    let version = cri::VersionRequest::default();
    let status = drayd.cri().runtime.version(version).await.err().context("a version without containerd")?;
    ensure!(status.code() == Code::Unavailable, "{status:?}");
    ensure!(status.message().starts_with("containerd does not answer: "), "{status:?}");
    let status = drayd.cri().list().await.err().context("images without containerd")?;
    ensure!(status.code() == Code::Unavailable, "{status:?}");
    ensure!(started.elapsed() < Duration::from_secs(2), "took {:?}", started.elapsed());
    Ok(drayd)
}

async fn restarted(bed: Arc<Bed>) -> Result<()> {
    bed.empty().await?;
    let file = bed.run().join("containerd.toml");
    let original = fs::read_to_string(&file)?;
    let followed = follow(&bed, &original).await;
    fs::write(&file, original)?;
    bed.containerd.restart().await?;
    followed?;
    bed.empty().await
}

async fn follow(bed: &Bed, original: &str) -> Result<()> {
    let drayd = Launch::new(&bed.containerd.socket(), "follow")?.start()?;
    let (cri, image) = (drayd.cri(), &bed.images.busybox);
    let reference = image.reference(bed.registry.address());
    let status =
        cri.pull(&reference, Some(ADDED), None).await.err().context("pulled for an unknown handler")?;
    ensure!(status.code() == Code::Unknown, "{status:?}");
    cri.pull(&reference, None, None).await?;

    bed.containerd.kill()?;
    bed.containerd.restart().await?;
    let id = cri.pull(&reference, None, None).await.context("the pull after a restart")?;
    ensure!(id == image.config.digest, "{id}");

    let release = bed.containerd.release();
    let plugin = match release {
        Release::V1_6 | Release::V1_7 => "io.containerd.grpc.v1.cri",
        Release::V2_1 => "io.containerd.cri.v1.runtime",
    };
    let table = format!(
        "\n[plugins.\"{plugin}\".containerd.runtimes.{ADDED}]\nruntime_type = \"io.containerd.runc.v2\"\n\
         snapshotter = \"native\"\n"
    );
    fs::write(bed.run().join("containerd.toml"), format!("{original}{table}"))?;
    bed.containerd.restart().await?;
    let id = cri.pull(&reference, Some(ADDED), None).await.context("the pull for the handler that came")?;
    ensure!(id == image.config.digest, "{id}");
    // 1.6 knows the handler, but creates every container on the default snapshotter.
    let expected = if release.maps_handlers() { "native" } else { "overlayfs" };
    let line = format!("PullImage \"{reference}\" with snapshotter {expected} runtime_handler=\"{ADDED}\"");
    ensure!(
        drayd.log().lines().filter(|shown| shown.contains(&line)).count() == 1,
        "{line}:\n{}",
        drayd.log()
    );
    let state = bed.containerd.probe().state().await?;
    let native = state.snapshot("native", &image.top_chain_id()).is_some();
    ensure!(native == release.maps_handlers(), "in native: {native}");
    Ok(())
}
