//! Checks the bed itself, with containerd's own image service: what drayd is later compared with must hold here first.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::containerd::{NATIVE_HANDLER, NYDUS_HANDLER, RUNC_HANDLER};
use drayd_tests::images::{Image, NASTY_UNDATED, greeting};
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;
use drayd_tests::tree::Tree;

/// Set by the nydus-snapshotter's proxy driver on what it takes as present without its bytes.
const GUEST_PULL_LABEL: &str = "containerd.io/snapshot/nydus-proxy-mode";

fn main() -> Result<ExitCode> {
    let mut suite = Suite::new()?;
    for release in Release::ALL {
        suite.check(release, "a_pulled_image_runs_in_a_pod", a_pulled_image_runs_in_a_pod);
        suite.check(release, "every_image_pulls_under_its_config_digest", every_image_pulls);
        suite.check(release, "a_cold_pull_fetches_each_blob_once", a_cold_pull_fetches_each_blob_once);
        suite.check(
            release,
            "the_private_registry_wants_its_account",
            the_private_registry_wants_its_account,
        );
        if release.maps_handlers() {
            suite.check(release, "the_native_handler_runs_on_native", the_native_handler_runs_on_native);
            suite.check(release, "the_nydus_handler_fetches_no_layer", the_nydus_handler_fetches_no_layer);
            suite.check(release, "two_snapshotters_hold_the_same_tree", two_snapshotters_hold_the_same_tree);
        } else {
            suite.check(release, "the_handler_of_a_pull_is_ignored", the_handler_of_a_pull_is_ignored);
        }
        suite.check(release, "a_pod_outlives_a_crash_of_containerd", a_pod_outlives_a_crash_of_containerd);
        suite.check(release, "a_removed_image_leaves_nothing", a_removed_image_leaves_nothing);
        suite.check(release, "the_tree_is_what_the_layers_say", the_tree_is_what_the_layers_say);
        suite.check(
            release,
            "a_link_into_a_lower_layer_is_too_much_for_the_differ",
            a_link_into_a_lower_layer,
        );
        suite.check(
            release,
            "the_same_image_unpacks_to_the_same_tree",
            the_same_image_unpacks_to_the_same_tree,
        );
    }
    Ok(suite.run())
}

async fn pull(bed: &Bed, image: &Image, handler: Option<&str>) -> Result<String> {
    let reference = image.reference(bed.registry.address());
    let id = bed.containerd.cri().pull(&reference, handler, None).await;
    id.with_context(|| format!("cannot pull {reference} for {handler:?}"))
}

async fn a_pulled_image_runs_in_a_pod(bed: Arc<Bed>) -> Result<()> {
    let id = pull(&bed, &bed.images.busybox, None).await?;
    let printed = bed.containerd.cri().run_pod(&id, RUNC_HANDLER, bed.run()).await?;
    ensure!(printed == greeting(), "the container printed {printed:?}");
    Ok(())
}

async fn every_image_pulls(bed: Arc<Bed>) -> Result<()> {
    let links = &bed.images.links.name;
    for image in bed.images.all().into_iter().filter(|image| image.name != *links) {
        let id = pull(&bed, image, None).await?;
        ensure!(id == image.config.digest, "{} has the id {id}, not {}", image.name, image.config.digest);
        let state = bed.containerd.probe().state().await?;
        let top = state.snapshot("overlayfs", &image.top_chain_id());
        ensure!(top.is_some_and(|top| top.kind == "committed"), "{} is not unpacked: {top:?}", image.name);
    }
    Ok(())
}

async fn a_cold_pull_fetches_each_blob_once(bed: Arc<Bed>) -> Result<()> {
    bed.empty().await?;
    let image = &bed.images.busybox;
    let mark = bed.registry.mark();
    pull(&bed, image, None).await?;
    let requests = bed.registry.requests_since(mark);
    // The sandbox image keeps the lowest layer in the store.
    let cold = image.layers[1..].iter().map(|layer| &layer.blob).chain([&image.config]);
    for blob in cold {
        let bytes: Vec<u64> = requests
            .iter()
            .filter(|request| request.fetches_blob(&blob.digest))
            .map(|request| request.bytes)
            .collect();
        ensure!(
            bytes == [blob.size],
            "{} of {} bytes came as {bytes:?}: {requests:#?}",
            blob.digest,
            blob.size
        );
    }
    Ok(())
}

async fn the_private_registry_wants_its_account(bed: Arc<Bed>) -> Result<()> {
    let reference = bed.images.docker.reference(bed.private.address());
    let cri = bed.containerd.cri();
    let refused = cri.pull(&reference, None, None).await;
    ensure!(refused.is_err(), "{reference} came without an account");
    let id = cri.pull(&reference, None, bed.private.account()).await.context("the account was refused")?;
    ensure!(id == bed.images.docker.config.digest, "the account brought {id}");
    Ok(())
}

async fn the_native_handler_runs_on_native(bed: Arc<Bed>) -> Result<()> {
    let image = &bed.images.docker;
    let id = pull(&bed, image, Some(NATIVE_HANDLER)).await?;
    let state = bed.containerd.probe().state().await?;
    ensure!(state.snapshot("native", &image.top_chain_id()).is_some(), "{} is not in native", image.name);
    let printed = bed.containerd.cri().run_pod(&id, NATIVE_HANDLER, bed.run()).await?;
    ensure!(printed == greeting(), "the container printed {printed:?}");
    Ok(())
}

async fn the_nydus_handler_fetches_no_layer(bed: Arc<Bed>) -> Result<()> {
    bed.empty().await?;
    let image = &bed.images.busybox;
    let mark = bed.registry.mark();
    pull(&bed, image, Some(NYDUS_HANDLER)).await?;
    let requests = bed.registry.requests_since(mark);
    let fetched = |digest: &str| requests.iter().any(|request| request.fetches_blob(digest));
    ensure!(fetched(&image.config.digest), "the config was not fetched: {requests:#?}");
    let state = bed.containerd.probe().state().await?;
    for (layer, chain_id) in image.layers.iter().zip(image.chain_ids()) {
        ensure!(!fetched(&layer.blob.digest), "the layer {} was fetched", layer.blob.digest);
        let snapshot =
            state.snapshot("nydus", &chain_id).with_context(|| format!("nydus lacks {chain_id}"))?;
        let mode = snapshot.labels.get(GUEST_PULL_LABEL).map(String::as_str);
        ensure!(mode == Some("true"), "{chain_id} is no guest pull: {snapshot:?}");
    }
    Ok(())
}

async fn the_handler_of_a_pull_is_ignored(bed: Arc<Bed>) -> Result<()> {
    bed.empty().await?;
    pull(&bed, &bed.images.busybox, Some(NYDUS_HANDLER)).await?;
    let state = bed.containerd.probe().state().await?;
    let top = bed.images.busybox.top_chain_id();
    ensure!(state.snapshot("overlayfs", &top).is_some(), "the image is not in the default snapshotter");
    ensure!(state.snapshot("nydus", &top).is_none(), "this release chose the handler's snapshotter");
    Ok(())
}

async fn a_pod_outlives_a_crash_of_containerd(bed: Arc<Bed>) -> Result<()> {
    let id = pull(&bed, &bed.images.busybox, None).await?;
    let cri = bed.containerd.cri();
    let pod = cri.start_pod(RUNC_HANDLER, bed.run()).await?;
    bed.containerd.kill()?;
    bed.containerd.restart().await?;
    let printed = cri.run_container(&pod, &id).await?;
    ensure!(printed == greeting(), "the container printed {printed:?}");
    cri.stop_pod(&pod).await
}

async fn a_removed_image_leaves_nothing(bed: Arc<Bed>) -> Result<()> {
    bed.empty().await?;
    let probe = bed.containerd.probe();
    let before = probe.state().await?;
    pull(&bed, &bed.images.two, None).await?;
    let pulled = probe.state().await?;
    ensure!(!pulled.difference_from(&before).is_empty(), "a pull changed nothing");
    bed.empty().await?;
    let left = probe.state().await?.difference_from(&before);
    ensure!(left.is_empty(), "removal left\n{}", left.join("\n"));
    Ok(())
}

async fn tree(bed: &Bed, image: &Image, snapshotter: &str) -> Result<Tree> {
    Tree::of(&bed.containerd.probe(), snapshotter, &image.top_chain_id(), bed.run()).await
}

async fn the_tree_is_what_the_layers_say(bed: Arc<Bed>) -> Result<()> {
    let image = &bed.images.nasty;
    pull(&bed, image, None).await?;
    let tree = tree(&bed, image, "overlayfs").await?;
    for gone in ["whiteout-me", "gone", "opaque/old", "opaque/file", "hard/two", "was-directory/child"] {
        ensure!(tree.get(gone).is_none(), "{gone} is still there: {:?}", tree.get(gone));
    }
    let entry = |path: &str| tree.get(path).with_context(|| format!("{path} is missing"));
    ensure!(
        entry("times/nanoseconds")?.mtime == (1_234_567_890, 123_456_789),
        "{:?}",
        entry("times/nanoseconds")
    );
    ensure!(entry("bin/ping")?.xattrs.contains_key("security.capability"), "{:?}", entry("bin/ping"));
    ensure!(entry("bin/both")?.mode == 0o6711, "{:?}", entry("bin/both"));
    ensure!(entry("owned/file")?.owner == (70_000, 70_001), "{:?}", entry("owned/file"));
    ensure!(entry("owned")?.owner == (2000, 2001), "{:?}", entry("owned"));
    ensure!(entry("dev/block-like")?.kind == "block", "{:?}", entry("dev/block-like"));
    ensure!(entry("dev/pipe")?.kind == "fifo", "{:?}", entry("dev/pipe"));
    ensure!(entry("was-link")?.kind == "file", "{:?}", entry("was-link"));
    ensure!(entry("hard/three")?.content == entry("hard/one")?.content, "the hard link holds something else");
    let implied = entry("implied")?;
    ensure!((implied.mode, implied.owner) == (0o711, (33, 44)), "{implied:?}");
    Ok(())
}

async fn a_link_into_a_lower_layer(bed: Arc<Bed>) -> Result<()> {
    let image = &bed.images.links;
    let overlay = pull(&bed, image, None).await;
    ensure!(overlay.is_err(), "containerd can do it now; links:1 may join nasty:1");
    if bed.containerd.release().maps_handlers() {
        pull(&bed, image, Some(NATIVE_HANDLER)).await?;
        let tree = tree(&bed, image, "native").await?;
        ensure!(tree.get("hard/two").is_some_and(|two| two.links == 2), "{:?}", tree.get("hard/two"));
    }
    Ok(())
}

async fn two_snapshotters_hold_the_same_tree(bed: Arc<Bed>) -> Result<()> {
    let image = &bed.images.nasty;
    pull(&bed, image, None).await?;
    pull(&bed, image, Some(NATIVE_HANDLER)).await?;
    let overlay = tree(&bed, image, "overlayfs").await?.without_directory_times();
    let native = tree(&bed, image, "native").await?.without_directory_times();
    let difference = native.difference_from(&overlay);
    ensure!(difference.is_empty(), "native differs from overlayfs:\n{}", difference.join("\n"));
    Ok(())
}

async fn the_same_image_unpacks_to_the_same_tree(bed: Arc<Bed>) -> Result<()> {
    let image = &bed.images.nasty;
    pull(&bed, image, None).await?;
    let first = tree(&bed, image, "overlayfs").await?;
    bed.empty().await?;
    pull(&bed, image, None).await?;
    let second = tree(&bed, image, "overlayfs").await?;
    ensure!(
        second != first,
        "the first unpacking is still there, or {NASTY_UNDATED:?} can be known after all"
    );
    let [first, second] = [first, second].map(|tree| tree.without_times_of(&NASTY_UNDATED));
    let difference = second.difference_from(&first);
    ensure!(difference.is_empty(), "unpacked again, it differs:\n{}", difference.join("\n"));
    Ok(())
}
