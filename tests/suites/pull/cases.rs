//! One image, several snapshotters, and what can come between them: the ten cases that other pullers are known to get
//! wrong, each by its letter. Case J, a runtime handler that nobody knows, is in `handler`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use drayd_proto::cri;
use drayd_tests::bed::Bed;
use drayd_tests::containerd::{NATIVE_HANDLER, NYDUS_HANDLER, RUNC_HANDLER};
use drayd_tests::drayd::Drayd;
use drayd_tests::images::{Image, greeting};
use drayd_tests::layer::{Compression, LayerTar, Meta, digest, noise};
use drayd_tests::peers::Release;
use drayd_tests::probe::{Snapshot, State};
use drayd_tests::registry::Request;
use drayd_tests::scripted::image::{Blob, Image as Scripted, LAYER, config};
use drayd_tests::suite::Suite;
use drayd_tests::throttle::Throttle;
use drayd_tests::wait;
use tonic::Code;

use crate::stage::{self, SOON, Stage, blobs_fetched, pull};

/// Set by the nydus-snapshotter's proxy driver on a layer that it takes over.
const PROXY_MODE: &str = "containerd.io/snapshot/nydus-proxy-mode";
/// Lets nothing be unpacked on the host behind nydus.
const GUEST_PULL: &str = "[snapshotter]\nguest_pull = [\"nydus\"]\n";

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "case_a_blobs_that_are_there_are_unpacked_without_the_network", case_a);
    suite.check(release, "case_b_what_came_lazily_is_fetched_for_a_local_snapshotter", case_b);
    suite.check(release, "case_c_blobs_that_a_sibling_made_needless_are_fetched_when_needed", case_c);
    suite.check(release, "case_d_discarded_blobs_are_fetched_again_for_another_snapshotter", case_d);
    suite.check(release, "case_e_a_remote_snapshotter_that_was_wiped_is_filled_again", case_e_remote);
    suite.check(release, "case_e_a_local_snapshotter_that_was_wiped_is_filled_again", case_e_local);
    suite.check(release, "case_f_layers_on_the_host_are_left_to_the_guest_instead", case_f);
    suite.check(release, "case_f_layers_on_the_host_that_are_in_use_fail_the_pull", case_f_in_use);
    suite.check(release, "case_f_a_guest_pull_is_never_unpacked_on_the_host", case_f_mounts);
    suite.check(release, "case_g_the_sandbox_image_goes_into_every_snapshotter", case_g);
    suite.check(release, "case_g_a_snapshotter_that_fails_fails_no_pull_of_the_sandbox_image", case_g_fails);
    suite.check(
        release,
        "case_g_a_registry_that_falls_silent_fails_no_pull_of_the_sandbox_image",
        case_g_silent,
    );
    suite.check(release, "case_h_what_is_unpacked_is_known_after_a_restart_of_containerd", case_h);
    suite.check(release, "case_i_a_restarted_snapshotter_has_what_it_had", case_i);
    if release.maps_handlers() {
        for (name, keep_layers, default_first) in [
            ("two_handlers_of_one_image_run_the_default_first_layers_kept", true, true),
            ("two_handlers_of_one_image_run_the_default_last_layers_kept", true, false),
            ("two_handlers_of_one_image_run_the_default_first_layers_discarded", false, true),
            ("two_handlers_of_one_image_run_the_default_last_layers_discarded", false, false),
        ] {
            suite.check(release, name, async move |bed: Stage| {
                two_handlers(&bed, keep_layers, default_first).await
            });
        }
    }
}

fn layers_of(image: &Image) -> Vec<&str> {
    let mut digests: Vec<&str> = image.layers.iter().map(|layer| layer.blob.digest.as_str()).collect();
    digests.sort_unstable();
    digests
}

fn fetched(requests: &[Request]) -> Vec<&str> {
    let mut digests = blobs_fetched(requests);
    digests.sort_unstable();
    digests
}

/// Fails unless every layer is in nydus as one that the guest pulls.
fn is_in_the_guest(state: &State, image: &Image) -> Result<()> {
    for chain_id in image.chain_ids() {
        let snapshot =
            state.snapshot("nydus", &chain_id).with_context(|| format!("nydus lacks {chain_id}"))?;
        let labels = ["containerd.io/snapshot/cri.image-ref", "containerd.io/snapshot/cri.layer-digest"];
        ensure!(snapshot.labels.get(PROXY_MODE).is_some_and(|value| value == "true"), "{snapshot:?}");
        ensure!(labels.iter().all(|label| snapshot.labels.contains_key(*label)), "{snapshot:?}");
    }
    Ok(())
}

/// What a snapshotter has, for comparing.
fn holdings(state: &State, snapshotter: &str) -> BTreeMap<String, Snapshot> {
    state.snapshots.get(snapshotter).cloned().unwrap_or_default()
}

async fn case_a(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let image = &bed.images.busybox;
    pull(&bed, &drayd, image, None).await?;
    let before = bed.containerd.probe().state().await?;
    let mark = bed.registry.mark();
    pull(&bed, &drayd, image, Some(NYDUS_HANDLER)).await?;
    pull(&bed, &drayd, image, Some(NATIVE_HANDLER)).await?;
    let requests = bed.registry.requests_since(mark);
    ensure!(requests.iter().all(|request| request.method == "HEAD"), "fetched: {requests:#?}");
    let state = bed.containerd.probe().state().await?;
    is_in_the_guest(&state, image)?;
    ensure!(state.snapshot("native", &image.top_chain_id()).is_some(), "not in native");
    ensure!(holdings(&state, "overlayfs") == holdings(&before, "overlayfs"), "overlayfs was touched");
    Ok(())
}

async fn case_b(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    pull(&bed, &drayd, &bed.images.pause, None).await?;
    let image = &bed.images.busybox;
    pull(&bed, &drayd, image, Some(NYDUS_HANDLER)).await?;
    let before = bed.containerd.probe().state().await?;
    let there = |digest: &&str| before.content.contains_key(*digest);
    let missing: Vec<&str> = layers_of(image).into_iter().filter(|digest| !there(digest)).collect();
    ensure!(missing.len() == 3, "nydus let layers be fetched: {missing:?} are missing");
    let mark = bed.registry.mark();
    let id = pull(&bed, &drayd, image, None).await?;
    let requests = bed.registry.requests_since(mark);
    ensure!(fetched(&requests) == missing, "not what was missing was fetched: {requests:#?}");
    let printed = bed.containerd.cri().run_pod(&id, RUNC_HANDLER, bed.run()).await?;
    ensure!(printed == greeting(), "the container printed {printed:?}");
    let state = bed.containerd.probe().state().await?;
    ensure!(holdings(&state, "nydus") == holdings(&before, "nydus"), "nydus was touched");
    Ok(())
}

async fn case_c(bed: Stage) -> Result<()> {
    let registry = drayd_tests::scripted::Scripted::start().await?;
    let directory = bed.containerd.registry_configuration().join(registry.address());
    std::fs::create_dir_all(&directory)?;
    std::fs::write(directory.join("hosts.toml"), format!("server = \"{}\"\n", registry.url()))?;
    let hosts = bed.containerd.registry_configuration();
    let settings = format!("[registry]\nconfig_path = [\"{}\"]\n", hosts.display());
    let drayd = stage::configured(&bed, &settings, &[]).await?;
    // The same files in both, and not one blob.
    let mut first = Scripted::new("case-c", 3, 16)?;
    let mut sibling = first.clone();
    sibling.repository = "case-c-sibling".into();
    for number in 0..3 {
        let mut tar = LayerTar::default();
        tar.file(&format!("file{number}"), &Meta::mode(0o644), &noise(number as u64, 16 << 10))?;
        let tar = tar.finish()?;
        first.diff_ids[number] = digest(&tar);
        first.layers[number] = Blob::new(LAYER, Compression::Gzip.of(tar.clone())?);
        sibling.layers[number] = Blob::new("application/vnd.oci.image.layer.v1.tar", tar);
    }
    sibling.diff_ids.clone_from(&first.diff_ids);
    for image in [&mut first, &mut sibling] {
        image.config = config(&image.diff_ids);
        image.manifest = image.manifest_with(&image.config.descriptor());
    }
    first.serve(&registry);
    sibling.serve(&registry);
    let layers_asked = |image: &Scripted| {
        let asked = |layer: &&Blob| !registry.asked("GET", &layer.path(&image.repository)).is_empty();
        image.layers.iter().filter(asked).count()
    };
    drayd.cri().pull(&first.reference(&registry), None, None).await?;
    drayd.cri().pull(&sibling.reference(&registry), None, None).await?;
    ensure!((layers_asked(&first), layers_asked(&sibling)) == (3, 0), "{:#?}", registry.journal());
    registry.take_journal();
    let id = drayd.cri().pull(&sibling.reference(&registry), Some(NATIVE_HANDLER), None).await?;
    ensure!(id == sibling.config.digest, "{id}");
    ensure!((layers_asked(&first), layers_asked(&sibling)) == (0, 3), "{:#?}", registry.journal());
    let state = bed.containerd.probe().state().await?;
    ensure!(state.snapshot("native", &sibling.top_chain_id()).is_some(), "not in native");
    Ok(())
}

async fn case_d(bed: Stage) -> Result<()> {
    let drayd = stage::configured(&bed, "[unpack]\nkeep_layers = false\n", &[]).await?;
    let (image, probe) = (&bed.images.busybox, bed.containerd.probe());
    let mut handlers = [(None, "overlayfs"), (Some(NATIVE_HANDLER), "native")];
    for _ in 0..2 {
        let [(first, of_first), (second, of_second)] = handlers;
        pull(&bed, &drayd, image, first).await?;
        probe.force_gc().await?;
        let before = probe.state().await?;
        let left: Vec<&str> =
            layers_of(image).into_iter().filter(|digest| before.content.contains_key(*digest)).collect();
        ensure!(left.is_empty(), "{of_first}: layers are kept: {left:?}");
        let mark = bed.registry.mark();
        pull(&bed, &drayd, image, second).await?;
        let requests = bed.registry.requests_since(mark);
        ensure!(fetched(&requests) == layers_of(image), "{of_second} after {of_first}: {requests:#?}");
        probe.force_gc().await?;
        let state = probe.state().await?;
        ensure!(holdings(&state, of_first) == holdings(&before, of_first), "{of_first} was touched");
        ensure!(state.snapshot(of_second, &image.top_chain_id()).is_some(), "not in {of_second}");
        bed.bare().await?;
        handlers.reverse();
    }
    Ok(())
}

/// Waits until containerd is connected to a nydus-snapshotter that was started again; it takes its time.
async fn nydus_is_back(bed: &Bed) -> Result<()> {
    let probe = bed.containerd.probe();
    wait::until("containerd reaches nydus", 3 * SOON, async || {
        let answered = probe.prepare("nydus", "is-it-back", "").await.is_ok();
        if answered {
            probe.remove_snapshot("nydus", "is-it-back").await?;
        }
        Ok(answered)
    })
    .await
}

/// Pulls an image that shares its lowest layer with others, and lets a collection take it. containerd then still has it
/// down as a child of that layer, and refuses to remove the layer alone.
async fn leave_a_mark(bed: &Bed, drayd: &Drayd, handler: Option<&str>) -> Result<()> {
    let image = &bed.images.two;
    pull(bed, drayd, image, handler).await?;
    drayd.cri().remove(&image.config.digest).await?;
    bed.containerd.probe().force_gc().await
}

/// Checks that pulls of two images that share their lowest layer bring back all of both, and that the rest of the
/// store is as it was.
async fn is_filled_again(bed: &Bed, drayd: &Drayd, handler: Option<&str>, before: &State) -> Result<()> {
    for image in [&bed.images.pause, &bed.images.busybox] {
        let reference = image.reference(bed.registry.address());
        let pulled = drayd.cri().pull(&reference, handler, None).await;
        pulled.with_context(|| format!("{} was not filled again", image.name))?;
    }
    bed.containerd.probe().force_gc().await?;
    stage::unchanged(bed, before, "not all is as before").await
}

async fn case_e_remote(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    for image in [&bed.images.pause, &bed.images.busybox] {
        pull(&bed, &drayd, image, Some(NYDUS_HANDLER)).await?;
    }
    leave_a_mark(&bed, &drayd, Some(NYDUS_HANDLER)).await?;
    let before = bed.containerd.probe().state().await?;
    bed.containerd.wipe_nydus()?;
    nydus_is_back(&bed).await?;
    let lost = bed.containerd.probe().state().await?;
    ensure!(holdings(&lost, "nydus").is_empty(), "nydus was not wiped: {:#?}", holdings(&lost, "nydus"));
    is_filled_again(&bed, &drayd, Some(NYDUS_HANDLER), &before).await
}

async fn case_e_local(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    for image in [&bed.images.pause, &bed.images.busybox] {
        pull(&bed, &drayd, image, None).await?;
        pull(&bed, &drayd, image, Some(NATIVE_HANDLER)).await?;
    }
    leave_a_mark(&bed, &drayd, Some(NATIVE_HANDLER)).await?;
    let before = bed.containerd.probe().state().await?;
    bed.containerd.wipe_snapshotter("native").await?;
    let lost = bed.containerd.probe().state().await?;
    ensure!(holdings(&lost, "native").is_empty(), "native was not wiped: {:#?}", holdings(&lost, "native"));
    is_filled_again(&bed, &drayd, Some(NATIVE_HANDLER), &before).await
}

/// An image whose layers containerd has put into nydus as it does when it makes a container of an image that nydus never
/// saw: without a word of what they are. A drayd that was not told of guest pulls takes them for the image.
async fn on_the_host(bed: &Bed, image: &Image) -> Result<Drayd> {
    let drayd = stage::bare(bed).await?;
    let probe = bed.containerd.probe();
    let mut parent = String::new();
    // Nothing asks for a collection before the image is there to keep them.
    for chain_id in image.chain_ids() {
        let key = format!("on-the-host {chain_id}");
        probe.prepare("nydus", &key, &parent).await?;
        probe.commit("nydus", &key, &chain_id).await?;
        parent = chain_id;
    }
    pull(bed, &drayd, image, Some(NYDUS_HANDLER)).await?;
    Ok(drayd)
}

async fn case_f(bed: Stage) -> Result<()> {
    let image = &bed.images.busybox;
    let drayd = on_the_host(&bed, image).await?;
    // It is nothing but the lowest layer.
    pull(&bed, &drayd, &bed.images.pause, Some(NYDUS_HANDLER)).await?;
    drop(drayd);
    let drayd = stage::start(&bed, GUEST_PULL, &[])?;
    // A container that was on it, and of which a collection leaves a mark.
    bed.containerd.probe().prepare("nydus", "a-stopped-container", &image.chain_ids()[1]).await?;
    bed.containerd.probe().force_gc().await?;
    // Else kubelet would not ask for the pull that mends it.
    let for_the_guest = cri::ImageSpec {
        image: image.reference(bed.registry.address()),
        runtime_handler: NYDUS_HANDLER.into(),
        ..cri::ImageSpec::default()
    };
    let shown = drayd.cri().image_for(for_the_guest.clone()).await?;
    ensure!(shown.is_none(), "it is there for the guest: {shown:?}");
    let mark = bed.registry.mark();
    pull(&bed, &drayd, image, Some(NYDUS_HANDLER)).await?;
    let requests = bed.registry.requests_since(mark);
    ensure!(requests.iter().all(|request| request.method == "HEAD"), "fetched: {requests:#?}");
    let shown = drayd.cri().image_for(for_the_guest).await?;
    ensure!(shown.is_some(), "it is not there for the guest");
    is_in_the_guest(&bed.containerd.probe().state().await?, image)?;
    let warned =
        drayd.events().iter().any(|event| event.level == "WARN" && event.text("snapshotter") == "nydus");
    ensure!(warned, "nothing was said of it");
    // And now it is right, and kept: nothing is touched again.
    bed.containerd.probe().force_gc().await?;
    let right = bed.containerd.probe().state().await?;
    is_in_the_guest(&right, image)?;
    is_in_the_guest(&right, &bed.images.pause)?;
    let pause = right.content.get(&bed.images.pause.config.digest).context("no config")?;
    let kept = pause.get("containerd.io/gc.ref.snapshot.nydus");
    ensure!(kept == Some(&bed.images.pause.top_chain_id()), "the other image's config keeps {kept:?}");
    pull(&bed, &drayd, image, Some(NYDUS_HANDLER)).await?;
    stage::unchanged(&bed, &right, "the second pull changed something").await
}

async fn case_f_in_use(bed: Stage) -> Result<()> {
    let (image, probe) = (&bed.images.busybox, bed.containerd.probe());
    drop(on_the_host(&bed, image).await?);
    let drayd = stage::start(&bed, GUEST_PULL, &[])?;
    probe.view("nydus", "a-container", &image.top_chain_id()).await?;
    let before = probe.state().await?;
    let reference = image.reference(bed.registry.address());
    let pulled = drayd.cri().pull(&reference, Some(NYDUS_HANDLER), None).await;
    let status = pulled.err().context("the pull succeeded")?;
    ensure!(status.code() == Code::FailedPrecondition, "{status:?}");
    for words in ["guest_pull", "unpacked on the host", "a-container"] {
        ensure!(status.message().contains(words), "{words} is not in {status:?}");
    }
    stage::unchanged(&bed, &before, "the failed pull left something").await?;
    probe.remove_snapshot("nydus", "a-container").await?;
    pull(&bed, &drayd, image, Some(NYDUS_HANDLER)).await?;
    is_in_the_guest(&probe.state().await?, image)
}

async fn case_f_mounts(bed: Stage) -> Result<()> {
    // As a nydus-snapshotter whose driver is not the one that was meant.
    let drayd = stage::configured(&bed, "[snapshotter]\nguest_pull = [\"native\"]\n", &[]).await?;
    let (image, before) = (&bed.images.busybox, bed.containerd.probe().state().await?);
    let reference = image.reference(bed.registry.address());
    let mark = bed.registry.mark();
    let pulled = drayd.cri().pull(&reference, Some(NATIVE_HANDLER), None).await;
    let status = pulled.err().context("the pull succeeded")?;
    ensure!(status.code() == Code::FailedPrecondition, "{status:?}");
    for words in ["native", "guest_pull", "fs_driver"] {
        ensure!(status.message().contains(words), "{words} is not in {status:?}");
    }
    let requests = bed.registry.requests_since(mark);
    ensure!(blobs_fetched(&requests) == [image.config.digest.as_str()], "fetched: {requests:#?}");
    stage::unchanged(&bed, &before, "the failed pull left something").await
}

async fn case_g(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (pause, probe) = (&bed.images.pause, bed.containerd.probe());
    pull(&bed, &drayd, pause, None).await?;
    let state = probe.state().await?;
    is_in_the_guest(&state, pause)?;
    let config = state.content.get(&pause.config.digest).context("no config")?;
    for snapshotter in ["overlayfs", "native", "nydus"] {
        ensure!(state.snapshot(snapshotter, &pause.top_chain_id()).is_some(), "not in {snapshotter}");
        let kept = config.get(&format!("containerd.io/gc.ref.snapshot.{snapshotter}"));
        ensure!(kept == Some(&pause.top_chain_id()), "in {snapshotter} the config keeps {kept:?}");
    }
    probe.force_gc().await?;
    stage::unchanged(&bed, &state, "a collection took something").await?;
    // Others go where they are asked for.
    pull(&bed, &drayd, &bed.images.two, None).await?;
    let state = probe.state().await?;
    for snapshotter in ["native", "nydus"] {
        let found = state.snapshot(snapshotter, &bed.images.two.top_chain_id());
        ensure!(found.is_none(), "{} is in {snapshotter}, too", bed.images.two.name);
    }
    if bed.containerd.release().maps_handlers() {
        let id = pull(&bed, &drayd, &bed.images.two, Some(NATIVE_HANDLER)).await?;
        let mark = bed.registry.mark();
        let printed = bed.containerd.cri().run_pod(&id, NATIVE_HANDLER, bed.run()).await?;
        ensure!(printed == greeting(), "the container printed {printed:?}");
        ensure!(bed.registry.requests_since(mark).is_empty(), "containerd pulled something itself");
    }
    Ok(())
}

async fn case_g_fails(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    bed.containerd.kill_nydus()?;
    let pulled = pull(&bed, &drayd, &bed.images.pause, None).await;
    bed.containerd.restart_nydus()?;
    nydus_is_back(&bed).await?;
    pulled?;
    let state = bed.containerd.probe().state().await?;
    for snapshotter in ["overlayfs", "native"] {
        let there = state.snapshot(snapshotter, &bed.images.pause.top_chain_id()).is_some();
        ensure!(there, "not in {snapshotter}");
    }
    let warned = |drayd: &Drayd| {
        let events = drayd.events();
        events.iter().any(|event| event.level == "WARN" && event.text("snapshotter") == "nydus")
    };
    ensure!(warned(&drayd), "nothing was said of it");
    // The next pull makes good for it.
    pull(&bed, &drayd, &bed.images.pause, None).await?;
    is_in_the_guest(&bed.containerd.probe().state().await?, &bed.images.pause)
}

async fn case_g_silent(bed: Stage) -> Result<()> {
    let (pause, probe) = (&bed.images.pause, bed.containerd.probe());
    let throttle = Throttle::start(bed.registry.address(), 0).await?;
    let hosts = bed.run().join("silent-hosts");
    let directory = hosts.join(bed.registry.address());
    std::fs::create_dir_all(&directory)?;
    std::fs::write(directory.join("hosts.toml"), format!("server = \"http://{}\"\n", throttle.address()))?;
    let settings = format!(
        "[registry]\nconfig_path = [\"{}\"]\n[pull]\nprogress_timeout = \"2s\"\n[unpack]\nkeep_layers = false\n",
        hosts.display()
    );
    let drayd = stage::configured(&bed, &settings, &[]).await?;
    pull(&bed, &drayd, pause, None).await?;
    // Its layer is to come again for one snapshotter alone.
    for chain_id in pause.chain_ids().iter().rev() {
        probe.remove_snapshot("native", chain_id).await?;
    }
    probe.force_gc().await?;
    // The name is still told. After that nothing comes for minutes.
    throttle.set_rate(1);
    pull(&bed, &drayd, pause, None).await?;
    let warned = drayd.events().into_iter().any(|event| {
        event.level == "WARN"
            && event.text("snapshotter") == "native"
            && event.text("cause").contains("no byte came")
    });
    ensure!(warned, "nothing was said of it");
    throttle.set_rate(0);
    pull(&bed, &drayd, pause, None).await?;
    let there = probe.state().await?.snapshot("native", &pause.top_chain_id()).is_some();
    ensure!(there, "it never came to native");
    Ok(())
}

async fn case_h(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let image = &bed.images.busybox;
    pull(&bed, &drayd, image, Some(NATIVE_HANDLER)).await?;
    bed.containerd.restart().await?;
    // It takes drayd a moment to notice.
    wait::until("the same pull works again", SOON, async || {
        let reference = image.reference(bed.registry.address());
        Ok(drayd.cri().pull(&reference, Some(NATIVE_HANDLER), None).await.is_ok())
    })
    .await?;
    let before = bed.containerd.probe().state().await?;
    ensure!(before.snapshot("overlayfs", &image.top_chain_id()).is_none(), "in overlayfs already");
    let mark = bed.registry.mark();
    pull(&bed, &drayd, image, Some(NATIVE_HANDLER)).await?;
    stage::unchanged(&bed, &before, "the second pull changed something").await?;
    pull(&bed, &drayd, image, None).await?;
    let requests = bed.registry.requests_since(mark);
    ensure!(requests.iter().all(|request| request.method == "HEAD"), "fetched: {requests:#?}");
    let state = bed.containerd.probe().state().await?;
    ensure!(state.snapshot("overlayfs", &image.top_chain_id()).is_some(), "not in overlayfs");
    ensure!(holdings(&state, "native") == holdings(&before, "native"), "native was touched");
    Ok(())
}

async fn case_i(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let image = &bed.images.busybox;
    pull(&bed, &drayd, image, Some(NYDUS_HANDLER)).await?;
    let before = bed.containerd.probe().state().await?;
    bed.containerd.kill_nydus()?;
    let reference = image.reference(bed.registry.address());
    let pulled = drayd.cri().pull(&reference, Some(NYDUS_HANDLER), None).await;
    bed.containerd.restart_nydus()?;
    nydus_is_back(&bed).await?;
    let status = pulled.err().context("pulled into a snapshotter that is not there")?;
    ensure!(status.code() == Code::Unavailable && status.message().contains("nydus"), "{status:?}");
    let mark = bed.registry.mark();
    pull(&bed, &drayd, image, Some(NYDUS_HANDLER)).await?;
    let requests = bed.registry.requests_since(mark);
    ensure!(requests.iter().all(|request| request.method == "HEAD"), "fetched: {requests:#?}");
    bed.containerd.probe().force_gc().await?;
    stage::unchanged(&bed, &before, "not all is as before").await
}

/// One image in the snapshotters of two handlers: a pod of each runs, and needs nothing that was not pulled for it.
async fn two_handlers(bed: &Stage, keep_layers: bool, default_first: bool) -> Result<()> {
    let settings = format!("[unpack]\nkeep_layers = {keep_layers}\n");
    let drayd = stage::configured(bed, &settings, &[]).await?;
    pull(bed, &drayd, &bed.images.pause, None).await?;
    let (image, probe) = (&bed.images.busybox, bed.containerd.probe());
    let mut handlers = [(None, RUNC_HANDLER), (Some(NATIVE_HANDLER), NATIVE_HANDLER)];
    if !default_first {
        handlers.reverse();
    }
    for (handler, _) in handlers {
        pull(bed, &drayd, image, handler).await?;
        probe.force_gc().await?;
    }
    let state = probe.state().await?;
    let kept = layers_of(image).iter().filter(|digest| state.content.contains_key(**digest)).count();
    ensure!(kept == if keep_layers { image.layers.len() } else { 0 }, "{kept} layers are kept");
    let mark = bed.registry.mark();
    for (_, handler) in handlers {
        let printed = bed.containerd.cri().run_pod(&image.config.digest, handler, bed.run()).await?;
        ensure!(printed == greeting(), "in a pod of {handler} it printed {printed:?}");
    }
    let requests = bed.registry.requests_since(mark);
    ensure!(requests.is_empty(), "containerd pulled something itself: {requests:#?}");
    stage::unchanged(bed, &state, "running pods changed something").await
}
