//! SIGTERM in the middle of a pull, and SIGKILL.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::launch::Launch;
use drayd_tests::peers::Release;
use drayd_tests::scripted::image::Image;
use drayd_tests::scripted::{Reply, Scripted};
use drayd_tests::suite::Suite;

const SOON: Duration = Duration::from_secs(10);

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "sigterm_lets_a_running_pull_end_and_takes_no_new_caller", drains);
    suite.check(release, "sigkill_in_a_pull_does_not_keep_the_next_daemon_from_it", killed);
}

/// An image whose layer takes about this long to come.
async fn slow(name: &str, time: Duration) -> Result<(Scripted, Image, String)> {
    const PIECES: u32 = 20;
    let registry = Scripted::start().await?;
    let image = Image::new(name, 1, 256)?;
    image.serve(&registry);
    let layer = image.layers[0].clone();
    let path = layer.path(name);
    let piece = layer.bytes.len() / PIECES as usize + 1;
    registry
        .on("GET", &path, move |request, _| Reply::ranged(request, &layer.bytes).paced(piece, time / PIECES));
    Ok((registry, image, path))
}

async fn drains(bed: Arc<Bed>) -> Result<()> {
    bed.empty().await?;
    let (registry, image, layer) = slow("drains", Duration::from_secs(2)).await?;
    let launch = Launch::new(&bed.containerd.socket(), "drains")?;
    let mut drayd = launch.start()?;
    let (cri, reference) = (drayd.cri(), image.reference(&registry));
    let pull = tokio::spawn(async move { cri.pull(&reference, None, None).await });
    registry.await_get(&layer).await;
    let leases = bed.containerd.probe().state().await?.leases;
    ensure!(leases.keys().any(|id| id.starts_with("drayd-")), "no lease during the pull: {leases:?}");
    drayd.tell_to_stop()?;
    let told = Instant::now();
    while UnixStream::connect(launch.socket()).is_ok() {
        ensure!(told.elapsed() < Duration::from_secs(1), "new connections are still taken");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    ensure!(!pull.is_finished(), "the pull ended before it could be drained");
    let id = pull.await?.with_context(|| format!("the pull was not let end:\n{}", drayd.log()))?;
    ensure!(id == image.config.digest, "{id}");
    let status = drayd.ended(SOON).await?;
    ensure!(status.code() == Some(0), "{status}");
    ensure!(!launch.socket().exists(), "the socket is still there");
    let state = bed.containerd.probe().state().await?;
    ensure!(state.leases.is_empty() && state.ingests.is_empty(), "{:?} {:?}", state.leases, state.ingests);
    let top = state.snapshot("overlayfs", &image.top_chain_id());
    ensure!(top.is_some_and(|top| top.kind == "committed"), "{top:?}");
    ensure!(
        drayd.log().lines().last().is_some_and(|line| line.ends_with(" INFO stopped")),
        "{}",
        drayd.log()
    );
    bed.empty().await
}

async fn killed(bed: Arc<Bed>) -> Result<()> {
    bed.empty().await?;
    let (registry, image, layer) = slow("killed", Duration::from_secs(1)).await?;
    let launch = Launch::new(&bed.containerd.socket(), "killed")?;
    let mut drayd = launch.start()?;
    let (cri, reference) = (drayd.cri(), image.reference(&registry));
    let pull = tokio::spawn(async move { cri.pull(&reference, None, None).await });
    registry.await_get(&layer).await;
    drayd.kill()?;
    ensure!(pull.await?.is_err(), "a killed daemon answered");
    ensure!(launch.socket().exists(), "the check is blind: a killed daemon leaves its socket");
    let shown = bed.containerd.cri().image(&image.reference(&registry)).await?;
    ensure!(shown.is_none(), "half an image is shown: {shown:?}");
    let drayd = launch.start()?;
    let id = drayd.cri().pull(&image.reference(&registry), None, None).await?;
    ensure!(id == image.config.digest, "{id}");
    // The lease of the killed pull is left to its expiry; it must hold nothing that the new one needs.
    let state = bed.containerd.probe().state().await?;
    ensure!(state.ingests.is_empty(), "{:?}", state.ingests);
    ensure!(state.leases.len() <= 1, "{:?}", state.leases);
    for id in state.leases.keys() {
        bed.containerd.probe().delete_lease(id).await?;
    }
    bed.empty().await
}
