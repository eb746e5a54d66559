//! Crashes in the middle of a pull: containerd's, and drayd's own.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;
use drayd_tests::throttle::Throttle;
use drayd_tests::tree::Tree;
use drayd_tests::wait;
use tonic::Code;

use crate::stage::{self, SOON, Stage, begin, big, end, pull, under_way, wire_size};

const MEGABYTE: u64 = 1 << 20;
/// A call that fails because containerd is gone fails within this.
const AT_ONCE: Duration = Duration::from_secs(5);

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(
        release,
        "a_crash_of_containerd_ends_the_pull_at_once_and_the_next_one_succeeds",
        containerd_crashes,
    );
    suite.check(release, "a_crash_of_containerd_is_seen_at_once_while_bytes_only_trickle", trickle);
    if release == Release::V1_7 {
        // It takes the deadlines' time, and they do not depend on the release.
        suite.check(release, "a_frozen_containerd_ends_the_pull_in_bounded_time", containerd_freezes);
    }
    suite.check(release, "a_pull_goes_on_where_a_crashed_drayd_stopped", drayd_crashes);
}

async fn containerd_crashes(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let before = bed.containerd.probe().state().await?;
    let image = big(&bed, 12, 1)?;
    let throttle = Throttle::start(bed.registry.address(), 4 * MEGABYTE).await?;
    let reference = image.reference(throttle.address());
    let pulling = begin(&drayd.cri(), &reference);
    under_way(&throttle, 2 * MEGABYTE).await?;
    bed.containerd.kill()?;
    let killed = Instant::now();
    let ended = pulling.await?;
    let took = killed.elapsed();
    bed.containerd.restart().await?;
    let status = ended.err().context("the pull succeeded without containerd")?;
    ensure!(status.code() == Code::Unavailable && took < AT_ONCE, "after {took:?}: {status:?}");
    throttle.set_rate(0);
    let id = drayd.cri().pull(&reference, None, None).await.context("the next pull failed")?;
    ensure!(id == image.config.digest, "the next pull got {id}");
    let state = bed.containerd.probe().state().await?;
    ensure!(
        state.leases.is_empty() && state.ingests.is_empty(),
        "left: {:?} {:?}",
        state.leases,
        state.ingests
    );
    ensure!(state.snapshot("overlayfs", &image.top_chain_id()).is_some(), "the image is not unpacked");
    drayd.cri().remove(&id).await?;
    bed.containerd.probe().force_gc().await?;
    stage::unchanged(&bed, &before, "the broken pull left something").await
}

async fn trickle(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let image = big(&bed, 12, 1)?;
    let throttle = Throttle::start(bed.registry.address(), 0).await?;
    let reference = image.reference(throttle.address());
    let probe = bed.containerd.probe();
    throttle.set_rate(10_000);
    let pulling = begin(&drayd.cri(), &reference);
    wait::until("layers are under way", 2 * SOON, async || Ok(!probe.state().await?.ingests.is_empty()))
        .await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    ensure!(throttle.passed() < MEGABYTE, "{} bytes: a piece may be full", throttle.passed());
    bed.containerd.kill()?;
    let killed = Instant::now();
    let ended = pulling.await?;
    let took = killed.elapsed();
    bed.containerd.restart().await?;
    let status = ended.err().context("the pull succeeded without containerd")?;
    ensure!(
        status.code() == Code::Unavailable && took < Duration::from_secs(1),
        "after {took:?}: {status:?}"
    );
    throttle.set_rate(0);
    let id = drayd.cri().pull(&reference, None, None).await.context("the next pull failed")?;
    ensure!(id == image.config.digest, "the next pull got {id}");
    Ok(())
}

async fn containerd_freezes(bed: Stage) -> Result<()> {
    // So short that the registry would be accused first, were the wait for containerd counted as its.
    let drayd = stage::configured(&bed, "[pull]\nprogress_timeout = \"5s\"\n", &[]).await?;
    let image = big(&bed, 12, 1)?;
    let throttle = Throttle::start(bed.registry.address(), 4 * MEGABYTE).await?;
    let reference = image.reference(throttle.address());
    let pulling = begin(&drayd.cri(), &reference);
    // The small layer below is in the store by then, so that what freezes is the writing of the large one.
    under_way(&throttle, 6 * MEGABYTE).await?;
    let frozen = bed.containerd.freeze()?;
    let since = Instant::now();
    let ended = tokio::time::timeout(Duration::from_secs(240), pulling).await;
    let took = since.elapsed();
    drop(frozen);
    let status = ended.context("the call never ended")??.err().context("pulled by a frozen containerd")?;
    ensure!(
        status.code() == Code::Unavailable && status.message().contains("no answer within 60 s"),
        "after {took:?}: {status:?}"
    );
    // One write, then what is tried to clean up: the snapshot and the lease.
    ensure!(took < Duration::from_secs(60 + 2 * 30 + 10), "it took {took:?}");
    throttle.set_rate(0);
    let id = drayd.cri().pull(&reference, None, None).await.context("the next pull failed")?;
    ensure!(id == image.config.digest, "the next pull got {id}");
    let state = bed.containerd.probe().state().await?;
    ensure!(
        state.leases.is_empty() && state.ingests.is_empty(),
        "left: {:?} {:?}",
        state.leases,
        state.ingests
    );
    Ok(())
}

async fn drayd_crashes(bed: Stage) -> Result<()> {
    let mut drayd = stage::bare(&bed).await?;
    let probe = bed.containerd.probe();
    let image = big(&bed, 12, 1)?;
    let throttle = Throttle::start(bed.registry.address(), 4 * MEGABYTE).await?;
    let reference = image.reference(throttle.address());
    let pulling = begin(&drayd.cri(), &reference);
    under_way(&throttle, 4 * MEGABYTE).await?;
    drayd.kill()?;
    ensure!(pulling.await?.is_err(), "the pull outlived drayd");
    throttle.set_rate(0);

    // containerd notices the end of the stream in its own time; only then the offset stands.
    let mut last = None;
    wait::until("the ingest of the layer stands still", SOON, async || {
        let ingests = probe.state().await?.ingests;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let standing = last.replace(ingests.clone()).as_ref() == Some(&ingests);
        Ok(standing)
    })
    .await?;
    let left = probe.state().await?;
    let mut missing = 0;
    for layer in &image.layers {
        let ingest = left.ingests.get(&format!("layer-{}", layer.blob.digest)).copied().unwrap_or_default();
        if !left.content.contains_key(&layer.blob.digest) {
            missing += layer.blob.size - u64::try_from(ingest)?;
        }
    }
    let big_layer = image.layers.last().context("no layer")?.blob.size;
    ensure!(missing < big_layer - MEGABYTE, "nothing was kept: {missing} are missing, {:?}", left.ingests);

    drop(drayd);
    let drayd = stage::start(&bed, "", &[])?;
    let passed = throttle.passed();
    let id = drayd.cri().pull(&reference, None, None).await.context("the next pull failed")?;
    ensure!(id == image.config.digest, "the next pull got {id}");
    let wire = throttle.passed() - passed;
    ensure!((missing..missing + 64_000).contains(&wire), "{wire} bytes went over the wire for {missing}");
    let end = end(&drayd, &reference)?;
    ensure!(end.number("bytes_fetched") == Some(missing), "{missing} were missing: {end:?}");
    ensure!(end.number("bytes_present") == Some(wire_size(&image) - missing), "{end:?}");
    let resumed = Tree::of(&probe, "overlayfs", &image.top_chain_id(), bed.run()).await?;

    // The crashed drayd's lease stays until it expires; here it would keep what the next trials must not find.
    let leases: Vec<String> = probe.state().await?.leases.into_keys().collect();
    ensure!(leases.len() == 1, "{leases:?}");
    probe.delete_lease(&leases[0]).await?;
    drayd.cri().remove(&id).await?;
    probe.force_gc().await?;
    pull(&bed, &drayd, &image, None).await?;
    let whole = Tree::of(&probe, "overlayfs", &image.top_chain_id(), bed.run()).await?;
    let difference = resumed.without_times_of(&["."]).difference_from(&whole.without_times_of(&["."]));
    ensure!(difference.is_empty(), "the continued pull holds something else:\n{}", difference.join("\n"));
    Ok(())
}
