//! Who may download when: lower layers before higher ones, no pull at the cost of all others, and none for longer than
//! its image can still become one.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::layer::{Compression, LayerTar, Meta, noise};
use drayd_tests::peers::Release;
use drayd_tests::scripted::image::{Blob, Image};
use drayd_tests::scripted::{Reply, Scripted};
use drayd_tests::suite::Suite;
use drayd_tests::wait;
use tonic::Code;

use crate::ANY;
use crate::stage::{Stage, reach, refused, timed};

/// Pieces of a body that comes so slowly that it never ends within a check, and often enough to be no stall.
const DRIP: (usize, Duration) = (1 << 10, Duration::from_millis(200));

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "a_layer_that_is_there_before_its_blob_is_brought_to_the_end", overtaken);
    if release == ANY {
        suite.check(release, "layers_are_asked_for_from_the_lowest_upwards", in_order);
        suite.check(release, "images_that_only_drip_let_a_small_one_through", fair);
        suite.check(release, "the_limit_on_downloads_is_one_for_all_pulls_and_holds_up_no_document", crowd);
        suite.check(release, "images_that_share_layers_pull_with_one_download_at_a_time", shared);
        suite.check(release, "a_refused_layer_ends_the_pull_while_a_lower_one_drips", refused_above);
    }
}

/// Serves a blob of an image in pieces.
fn serve_paced(registry: &Scripted, image: &Image, blob: &Blob, (piece, pause): (usize, Duration)) {
    let bytes = blob.bytes.clone();
    registry.on("GET", &blob.path(&image.repository), move |request, _| {
        Reply::ranged(request, &bytes).paced(piece, pause)
    });
}

/// The layers of the image by number, in the order in which they were first asked for.
fn order(registry: &Scripted, image: &Image) -> Vec<usize> {
    let paths: Vec<String> = image.layers.iter().map(|layer| layer.path(&image.repository)).collect();
    let mut order = Vec::new();
    for request in registry.journal() {
        let layer = paths.iter().position(|path| request.method == "GET" && request.path() == path);
        order.extend(layer.filter(|layer| !order.contains(layer)));
    }
    order
}

async fn in_order(bed: Arc<Bed>) -> Result<()> {
    for limit in [1, 3] {
        let name = format!("order-{limit}");
        let sections = format!("[pull]\nmax_concurrent_downloads = {limit}\n");
        let stage = Stage::with(Arc::clone(&bed), &name, &sections, |_| {}).await?;
        let image = Image::new(&name, 12, 16)?;
        image.serve(&stage.registry);
        for layer in &image.layers {
            serve_paced(&stage.registry, &image, layer, (4 << 10, Duration::from_millis(20)));
        }
        let id = stage.pull(&image.reference(&stage.registry)).await?;
        ensure!(id == image.config.digest, "{id}");
        let order = order(&stage.registry, &image);
        // Those that are open together are asked for at the same time.
        let early = order.iter().enumerate().filter(|(at, layer)| **layer >= at + limit).count();
        ensure!(order.len() == 12 && early == 0, "with {limit} at once: {order:?}");
        bed.empty().await?;
    }
    Ok(())
}

async fn fair(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "fair").await?;
    let mut dripping = Vec::new();
    for name in ["drips-1", "drips-2", "drips-3"] {
        let image = Image::new(name, 3, 512)?;
        image.serve(&stage.registry);
        for layer in &image.layers {
            serve_paced(&stage.registry, &image, layer, DRIP);
        }
        let (cri, reference) = (stage.drayd.cri(), image.reference(&stage.registry));
        dripping.push((image, tokio::spawn(async move { cri.pull(&reference, None, None).await })));
    }
    wait::until("all slots are taken", Duration::from_secs(10), async || {
        Ok(dripping.iter().map(|(image, _)| order(&stage.registry, image).len()).sum::<usize>() == 3)
    })
    .await?;
    let small = Image::new("small", 2, 8)?;
    small.serve(&stage.registry);
    let (pulled, took) = timed(stage.pull(&small.reference(&stage.registry))).await;
    ensure!(pulled? == small.config.digest, "another image");
    ensure!(took < Duration::from_secs(30), "the small image took {took:?}");
    // Each has had its turn by then, and goes on where it stopped.
    wait::until("every image moves", Duration::from_secs(30), async || {
        Ok(dripping.iter().all(|(image, _)| !order(&stage.registry, image).is_empty()))
    })
    .await?;
    let ranges =
        stage.registry.journal().iter().filter_map(drayd_tests::scripted::Request::range_start).count();
    ensure!(ranges > 0, "nothing was continued");
    for (_, pull) in dripping {
        pull.abort();
    }
    stage.bed.empty().await?;
    stage.left_nothing().await
}

/// Fault 132, on several images.
async fn crowd(bed: Arc<Bed>) -> Result<()> {
    let sections = "[pull]\nmax_concurrent_downloads = 3\n";
    let stage = Stage::with(bed, "crowd", sections, |_| {}).await?;
    // Layers come from a server of their own, which can be counted on its own.
    let store = Scripted::start_at("127.0.0.2").await?;
    let mut pulls = Vec::new();
    for number in 0..4 {
        let image = Image::new(&format!("crowd-{number}"), 10, 16)?;
        image.serve(&stage.registry);
        for layer in &image.layers {
            let (target, bytes) = (format!("{}/{}", store.url(), layer.digest), layer.bytes.clone());
            stage.registry.on("GET", &layer.path(&image.repository), move |_, _| Reply::redirect(&target));
            store.on("GET", &format!("/{}", layer.digest), move |request, _| {
                Reply::ranged(request, &bytes).paced(4 << 10, Duration::from_millis(50))
            });
        }
        let (cri, reference) = (stage.drayd.cri(), image.reference(&stage.registry));
        pulls.push((image, tokio::spawn(async move { cri.pull(&reference, None, None).await })));
    }
    wait::until("every image's config is asked for", Duration::from_secs(10), async || {
        let asked =
            |image: &Image| !stage.registry.asked("GET", &image.config.path(&image.repository)).is_empty();
        Ok(pulls.iter().all(|(image, _)| asked(image)))
    })
    .await?;
    let over = pulls.iter().filter(|(_, pull)| pull.is_finished()).count();
    ensure!(over == 0, "{over} pulls were over before the last had its config");
    for (image, pull) in &mut pulls {
        let id = tokio::time::timeout(Duration::from_secs(60), pull).await.context("no end")???;
        ensure!(id == image.config.digest, "{id}");
    }
    let most = store.most_open_requests();
    ensure!(most == 3, "{most} layers were open at once");
    stage.bed.empty().await
}

/// Fault 132, on layers that images share.
async fn shared(bed: Arc<Bed>) -> Result<()> {
    let sections = "[pull]\nmax_concurrent_downloads = 1\n";
    let stage = Stage::with(bed, "shared", sections, |_| {}).await?;
    let one = Image::new("shared", 6, 16)?;
    let mut pulls = Vec::new();
    for turn in 0..4 {
        let mut image = one.clone();
        // Each in another order, so that every layer is somebody's first.
        image.repository = format!("shared-{turn}");
        image.layers.rotate_left(turn);
        image.diff_ids.rotate_left(turn);
        image.config = drayd_tests::scripted::image::config(&image.diff_ids);
        image.manifest = image.manifest_with(&image.config.descriptor());
        image.serve(&stage.registry);
        for layer in &image.layers {
            serve_paced(&stage.registry, &image, layer, (4 << 10, Duration::from_millis(20)));
        }
        let (cri, reference) = (stage.drayd.cri(), image.reference(&stage.registry));
        pulls.push((image, tokio::spawn(async move { cri.pull(&reference, None, None).await })));
    }
    for (image, pull) in &mut pulls {
        let id = tokio::time::timeout(Duration::from_secs(30), pull).await.context("no end")???;
        ensure!(id == image.config.digest, "{id}");
    }
    let layers = |request: &&drayd_tests::scripted::Request| {
        request.method == "GET" && one.layers.iter().any(|layer| request.path().ends_with(&layer.digest))
    };
    let asked = stage.registry.journal().iter().filter(layers).count();
    ensure!(asked == 6, "six layers were asked for {asked} times");
    stage.bed.empty().await
}

/// Fault 156, access denied.
async fn refused_above(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "refused-above").await?;
    let image = Image::new("refused-above", 3, 512)?;
    image.serve(&stage.registry);
    serve_paced(&stage.registry, &image, &image.layers[0], DRIP);
    stage.registry.on("GET", &image.layers[2].path("refused-above"), |_, _| Reply::status(403));
    let (pulled, took) = timed(stage.pull(&image.reference(&stage.registry))).await;
    refused("a layer", pulled, Code::PermissionDenied, &[&image.layers[2].digest, "403"])?;
    ensure!(took < Duration::from_secs(5), "it took {took:?}");
    stage.left_nothing().await
}

/// Two images of the same files, compressed otherwise: while one comes slowly, containerd unpacks the other by itself.
async fn overtaken(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::with(bed, "overtaken", "", |launch| launch.format = "json").await?;
    // containerd 1.7 takes a server for one with TLS unless it stands there as a host, too.
    let keys = format!("[host.\"http://{}\"]\n", stage.registry.address());
    reach(&stage.bed, stage.registry.address(), &keys)?;
    let mut slow = Image::new("slow", 2, 64)?;
    let mut fast = slow.clone();
    fast.repository = "fast".into();
    for (number, layer) in fast.layers.iter_mut().enumerate() {
        let mut tar = LayerTar::default();
        tar.file(&format!("file{number}"), &Meta::mode(0o644), &noise(number as u64, 64 << 10))?;
        let tar = tar.finish()?;
        slow.diff_ids[number] = drayd_tests::layer::digest(&tar);
        slow.layers[number] = Blob::new(&layer.media_type, Compression::Gzip.of(tar.clone())?);
        *layer = Blob::new("application/vnd.oci.image.layer.v1.tar", tar);
    }
    fast.diff_ids.clone_from(&slow.diff_ids);
    for image in [&mut slow, &mut fast] {
        image.config = drayd_tests::scripted::image::config(&image.diff_ids);
        image.manifest = image.manifest_with(&image.config.descriptor());
        image.serve(&stage.registry);
    }
    // The lower one takes three seconds, the upper one six.
    serve_paced(&stage.registry, &slow, &slow.layers[0], (4 << 10, Duration::from_millis(180)));
    serve_paced(&stage.registry, &slow, &slow.layers[1], (4 << 10, Duration::from_millis(360)));
    let (cri, reference) = (stage.drayd.cri(), slow.reference(&stage.registry));
    let pulling = tokio::spawn(async move { cri.pull(&reference, None, None).await });
    stage.registry.await_get(&slow.layers[1].path("slow")).await;
    stage.bed.containerd.cri().pull(&fast.reference(&stage.registry), None, None).await?;
    let id = pulling.await??;
    ensure!(id == slow.config.digest, "{id}");
    // The same layers and the same config: one image under two names, of which this takes the fast one only.
    let probe = stage.bed.containerd.probe();
    probe.force_gc().await?;
    let held = probe.state().await?;
    for layer in &slow.layers {
        ensure!(held.content.contains_key(&layer.digest), "the blob {} is not kept", layer.digest);
    }
    stage.holds(&slow.top_chain_id()).await?;
    let blobs = slow.layers.iter().chain([&slow.manifest, &slow.config]);
    let total: usize = blobs.map(|blob| blob.bytes.len()).sum();
    let lines = stage.drayd.log();
    let line = lines.lines().find(|line| line.contains("Pulled image")).unwrap_or_default();
    // containerd may have brought the config before.
    let without_config = total - slow.config.bytes.len();
    let counted = [total, without_config].map(|bytes| format!("\"bytes_fetched\":{bytes},"));
    ensure!(counted.iter().any(|counted| line.contains(counted)), "no {counted:?} in {line}");
    stage.bed.empty().await
}
