//! One transfer for many callers, and many callers that do not harm one another.

use anyhow::{Context, Result, ensure};
use drayd_tests::containerd::{NATIVE_HANDLER, NYDUS_HANDLER};
use drayd_tests::drayd::Drayd;
use drayd_tests::images::Image;
use drayd_tests::log::Event;
use drayd_tests::peers::Release;
use drayd_tests::registry::Account;
use drayd_tests::suite::Suite;
use drayd_tests::throttle::Throttle;
use drayd_tests::wait;
use tonic::Code;

use crate::stage::{self, SOON, Stage, begin, blobs_fetched, end, ends, pull, under_way, wire_size};

/// Slow enough that a pull of some hundred kilobytes can be met in its middle.
const SLOW: u64 = 1 << 20;

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite
        .check(release, "two_pods_of_one_image_cost_one_pull", async |bed: Stage| two_pods(&bed, None).await);
    suite.check(release, "two_nydus_pods_of_one_image_cost_one_pull", async |bed: Stage| {
        two_pods(&bed, Some(NYDUS_HANDLER)).await
    });
    suite.check(release, "ten_calls_at_once_fetch_each_blob_once_and_get_the_same_id", ten_calls_at_once);
    suite.check(release, "a_layer_that_comes_twice_in_an_image_is_fetched_once", a_layer_that_comes_twice);
    suite.check(release, "a_second_snapshotter_takes_the_blobs_that_are_there", a_second_snapshotter);
    suite.check(release, "a_second_snapshotter_fetches_what_the_first_took_over", what_the_first_took_over);
    suite.check(release, "a_caller_that_leaves_does_not_take_the_others_with_it", a_caller_leaves);
    suite.check(release, "a_pull_that_everybody_left_ends_and_leaves_nothing", everybody_leaves);
    suite.check(
        release,
        "two_snapshotters_at_once_share_the_blobs_and_nothing_else",
        two_snapshotters_at_once,
    );
    suite.check(release, "bad_credentials_fail_while_good_ones_pull", bad_credentials_fail);
}

fn fetched(event: &Event) -> u64 {
    event.number("bytes_fetched").unwrap_or(u64::MAX)
}

async fn two_pods(bed: &Stage, handler: Option<&str>) -> Result<()> {
    let drayd = stage::bare(bed).await?;
    let image = &bed.images.two;
    let reference = image.reference(bed.registry.address());
    pull(bed, &drayd, image, handler).await?;
    let mark = bed.registry.mark();
    pull(bed, &drayd, image, handler).await?;
    let requests = bed.registry.requests_since(mark);
    ensure!(blobs_fetched(&requests).is_empty(), "the second call fetched {requests:#?}");
    let ends = ends(&drayd, &reference);
    let [first, second] = ends.as_slice() else { anyhow::bail!("not two ends: {ends:#?}") };
    let layers: u64 = image.layers.iter().map(|layer| layer.blob.size).sum();
    let expected = if handler.is_some() { wire_size(image) - layers } else { wire_size(image) };
    ensure!(fetched(first) == expected && first.message().contains("bytes fetched"), "{first:?}");
    ensure!(fetched(second) == 0 && second.message().contains("already present"), "{second:?}");
    Ok(())
}

/// Fault 123.
async fn ten_calls_at_once(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let image = &bed.images.busybox;
    // So slow that all ten are there before the first could be done.
    let throttle = Throttle::start(bed.registry.address(), 2 * SLOW).await?;
    let reference = image.reference(throttle.address());
    let mark = bed.registry.mark();
    let calls: Vec<_> = (0..10).map(|_| begin(&drayd.cri(), &reference)).collect();
    for call in calls {
        let id = call.await?.context("a call failed")?;
        ensure!(id == image.config.digest, "a call got {id}");
    }
    let requests = bed.registry.requests_since(mark);
    let mut fetched_blobs = blobs_fetched(&requests);
    let mut expected: Vec<&str> = image.layers.iter().map(|layer| layer.blob.digest.as_str()).collect();
    expected.push(&image.config.digest);
    fetched_blobs.sort_unstable();
    expected.sort_unstable();
    ensure!(fetched_blobs == expected, "fetched: {requests:#?}");
    let ends = ends(&drayd, &reference);
    let total: u64 = ends.iter().map(fetched).sum();
    ensure!(
        ends.len() == 10 && total == wire_size(image),
        "{total} of {} bytes: {ends:#?}",
        wire_size(image)
    );
    let joined = ends.iter().filter(|event| event.holds("joined")).count();
    ensure!(joined == 9, "{joined} joined: {ends:#?}");
    Ok(())
}

async fn a_layer_that_comes_twice(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let image = &bed.images.dup;
    let mark = bed.registry.mark();
    pull(&bed, &drayd, image, None).await?;
    let requests = bed.registry.requests_since(mark);
    for layer in &image.layers {
        let times = blobs_fetched(&requests).iter().filter(|digest| **digest == layer.blob.digest).count();
        ensure!(times == 1, "{} was fetched {times} times: {requests:#?}", layer.blob.digest);
    }
    let end = end(&drayd, &image.reference(bed.registry.address()))?;
    ensure!(fetched(&end) == wire_size(image), "{} bytes in all: {end:?}", wire_size(image));
    Ok(())
}

async fn a_second_snapshotter(bed: Stage) -> Result<()> {
    let image = &bed.images.busybox;
    let drayd = stage::bare(&bed).await?;
    pull(&bed, &drayd, image, None).await?;
    let mark = bed.registry.mark();
    for (handler, snapshotter) in [(NATIVE_HANDLER, "native"), (NYDUS_HANDLER, "nydus")] {
        pull(&bed, &drayd, image, Some(handler)).await?;
        let state = bed.containerd.probe().state().await?;
        ensure!(state.snapshot(snapshotter, &image.top_chain_id()).is_some(), "not in {snapshotter}");
    }
    let requests = bed.registry.requests_since(mark);
    ensure!(blobs_fetched(&requests).is_empty(), "fetched again: {requests:#?}");
    let state = bed.containerd.probe().state().await?;
    let config = state.content.get(&image.config.digest).context("no config")?;
    for snapshotter in ["overlayfs", "native", "nydus"] {
        let kept = config.get(&format!("containerd.io/gc.ref.snapshot.{snapshotter}"));
        ensure!(kept == Some(&image.top_chain_id()), "in {snapshotter} the config keeps {kept:?}");
    }
    bed.containerd.probe().force_gc().await?;
    stage::unchanged(&bed, &state, "a collection took something").await
}

async fn what_the_first_took_over(bed: Stage) -> Result<()> {
    let image = &bed.images.busybox;
    let drayd = stage::bare(&bed).await?;
    pull(&bed, &drayd, image, Some(NYDUS_HANDLER)).await?;
    let mark = bed.registry.mark();
    pull(&bed, &drayd, image, None).await?;
    let requests = bed.registry.requests_since(mark);
    let mut fetched = blobs_fetched(&requests);
    let mut layers: Vec<&str> = image.layers.iter().map(|layer| layer.blob.digest.as_str()).collect();
    fetched.sort_unstable();
    layers.sort_unstable();
    ensure!(fetched == layers, "not the layers were fetched: {requests:#?}");
    let state = bed.containerd.probe().state().await?;
    for snapshotter in ["nydus", "overlayfs"] {
        ensure!(state.snapshot(snapshotter, &image.top_chain_id()).is_some(), "not in {snapshotter}");
    }
    Ok(())
}

/// Two callers of one slow pull, both under way.
struct Two {
    throttle: Throttle,
    reference: String,
    callers: [tokio::task::JoinHandle<Result<String, tonic::Status>>; 2],
}

async fn two_callers(bed: &Stage, drayd: &Drayd, image: &Image) -> Result<Two> {
    let throttle = Throttle::start(bed.registry.address(), SLOW).await?;
    let reference = image.reference(throttle.address());
    let callers = [begin(&drayd.cri(), &reference), begin(&drayd.cri(), &reference)];
    under_way(&throttle, 200_000).await?;
    let begun = format!("PullImage \"{reference}\" with snapshotter overlayfs");
    wait::until("both calls are under way", SOON, async || {
        Ok(drayd.events().iter().filter(|event| event.message() == begun).count() == 2)
    })
    .await?;
    Ok(Two { throttle, reference, callers })
}

fn given_up(drayd: &Drayd, reference: &str) -> usize {
    let beginning = format!("PullImage \"{reference}\" given up");
    drayd.events().iter().filter(|event| event.message().starts_with(&beginning)).count()
}

async fn a_caller_leaves(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let image = &bed.images.busybox;
    let Two { throttle, reference, callers: [leader, other] } = two_callers(&bed, &drayd, image).await?;
    leader.abort();
    wait::until("one caller is gone", SOON, async || Ok(given_up(&drayd, &reference) == 1)).await?;
    throttle.set_rate(0);
    let id = other.await?.context("the other caller's pull failed")?;
    ensure!(id == image.config.digest, "the other caller got {id}");
    let end = end(&drayd, &reference)?;
    ensure!(end.number("bytes_fetched").is_some() && end.text("image_id") == id, "{end:?}");
    Ok(())
}

async fn everybody_leaves(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let before = bed.containerd.probe().state().await?;
    let Two { throttle, reference, callers } = two_callers(&bed, &drayd, &bed.images.busybox).await?;
    for caller in callers {
        caller.abort();
    }
    wait::until("both callers are gone", SOON, async || Ok(given_up(&drayd, &reference) == 2)).await?;
    wait::until("the lease of the pull is gone", SOON, async || {
        Ok(bed.containerd.probe().state().await?.leases == before.leases)
    })
    .await?;
    // What is in the proxy's and the kernel's buffers still comes; a pull that goes on would take all of it.
    throttle.set_rate(0);
    bed.containerd.probe().force_gc().await?;
    stage::unchanged(&bed, &before, "the pull that was given up left something").await?;
    ensure!(ends(&drayd, &reference).is_empty(), "the pull went on");
    ensure!(
        throttle.passed() < wire_size(&bed.images.busybox),
        "all {} bytes went over the wire",
        throttle.passed()
    );
    Ok(())
}

/// Fault 127, on credentials.
async fn bad_credentials_fail(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let image = &bed.images.busybox;
    let throttle = Throttle::start(bed.private.address(), SLOW).await?;
    let reference = image.reference(throttle.address());
    let account = bed.private.account().context("the private registry wants no account")?;
    let (cri, good, to) = (drayd.cri(), account.clone(), reference.clone());
    let pulling = tokio::spawn(async move { cri.pull(&to, None, Some(&good)).await });
    under_way(&throttle, 200_000).await?;
    let bad = Account { password: "wrong".into(), ..account.clone() };
    let refused = drayd.cri().pull(&reference, None, Some(&bad)).await;
    let status = refused.err().context("bad credentials pulled")?;
    ensure!(status.code() == Code::Unauthenticated, "{status:?}");
    ensure!(!status.message().contains("wrong"), "the password is in the message: {status:?}");
    let anonymous = drayd.cri().pull(&reference, None, None).await;
    ensure!(
        anonymous.as_ref().err().map(tonic::Status::code) == Some(Code::Unauthenticated),
        "{anonymous:?}"
    );
    ensure!(!pulling.is_finished(), "the good pull was over before; slow it down");
    throttle.set_rate(0);
    let id = pulling.await?.context("the good pull failed")?;
    ensure!(id == image.config.digest, "the good pull got {id}");
    Ok(())
}

/// Fault 127, on snapshotters.
async fn two_snapshotters_at_once(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let image = &bed.images.busybox;
    let throttle = Throttle::start(bed.registry.address(), 2 * SLOW).await?;
    let reference = image.reference(throttle.address());
    let mark = bed.registry.mark();
    let pulls: Vec<_> = [None, Some(NATIVE_HANDLER), Some(NYDUS_HANDLER)]
        .into_iter()
        .map(|handler| {
            let (cri, reference) = (drayd.cri(), reference.clone());
            tokio::spawn(async move { cri.pull(&reference, handler, None).await })
        })
        .collect();
    for pull in pulls {
        let id = pull.await?.context("a pull failed")?;
        ensure!(id == image.config.digest, "a pull got {id}");
    }
    let state = bed.containerd.probe().state().await?;
    for snapshotter in ["overlayfs", "native", "nydus"] {
        for chain_id in image.chain_ids() {
            ensure!(state.snapshot(snapshotter, &chain_id).is_some(), "{chain_id} is not in {snapshotter}");
        }
    }
    let requests = bed.registry.requests_since(mark);
    let mut fetched = blobs_fetched(&requests);
    let times = fetched.len();
    fetched.sort_unstable();
    fetched.dedup();
    ensure!(times == fetched.len() && times == image.layers.len() + 1, "not each blob once: {requests:#?}");
    Ok(())
}
