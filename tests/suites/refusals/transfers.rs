//! Bodies that break off, stall or come from the wrong place, servers that fail once, and the limits on all of it.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use drayd_tests::bed::Bed;
use drayd_tests::peers::Release;
use drayd_tests::scripted::image::{self, Image};
use drayd_tests::scripted::{Authority, End, Reply, Scripted, Tls, Version};
use drayd_tests::suite::Suite;
use drayd_tests::wait;
use tonic::Code;

use crate::ANY;
use crate::stage::{Stage, refused, timed};

const SOON: Duration = Duration::from_secs(10);
/// Where a broken body ends: no multiple of any buffer's size.
const BREAK: usize = 300_007;

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "a_body_that_breaks_off_goes_on_at_the_very_next_byte", resumes);
    suite.check(release, "a_registry_that_ignores_ranges_is_read_from_the_start", ignores_ranges);
    suite.check(release, "a_range_of_other_bytes_is_followed_by_the_whole_alone", other_bytes);
    suite.check(release, "a_body_that_stalls_goes_on_within_the_progress_timeout", stalls);
    suite.check(release, "what_comes_over_a_slow_wire_is_stored_before_a_piece_is_full", slow_wire);
    if release == ANY {
        suite.check(release, "what_breaks_over_http2_and_tls_is_asked_for_again_where_it_broke", over_tls);
        suite.check(release, "a_layer_that_never_gets_further_is_unavailable", barren);
        suite.check(release, "a_registry_that_is_asked_too_often_is_asked_a_few_times_more", too_often);
        suite.check(release, "a_server_error_is_outlived_by_every_request", fails_once);
        suite.check(release, "one_download_at_a_time_means_one", one_at_a_time);
    }
}

async fn resumes(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::with(bed, "resumes", "", |launch| launch.format = "json").await?;
    let image = Image::new("resumes", 1, 1024)?;
    image.serve(&stage.registry);
    let layer = image.layers[0].clone();
    let path = layer.path("resumes");
    let size = layer.bytes.len();
    stage.registry.on("GET", &path, move |request, nth| {
        let reply = Reply::ranged(request, &layer.bytes);
        if nth < 2 { reply.cut_after(BREAK, End::Close) } else { reply }
    });
    let id = stage.pull(&image.reference(&stage.registry)).await?;
    ensure!(id == image.config.digest, "{id}");
    stage.holds(&image.top_chain_id()).await?;
    let ranges: Vec<Option<String>> = stage
        .registry
        .asked("GET", &path)
        .iter()
        .map(|request| request.header("range").map(str::to_owned))
        .collect();
    let expected = [None, Some(format!("bytes={BREAK}-")), Some(format!("bytes={}-", 2 * BREAK))];
    ensure!(ranges == expected, "{ranges:?}");
    let total = size + image.manifest.bytes.len() + image.config.bytes.len();
    let counted = format!("\"bytes_fetched\":{total},");
    let lines = stage.drayd.log();
    let line = lines.lines().find(|line| line.contains("Pulled image")).unwrap_or_default();
    ensure!(line.contains(&counted), "no {counted} in {line}");
    stage.bed.empty().await
}

/// Manifests come by HTTP/2, blobs by HTTP/1.1 beside it.
async fn over_tls(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "over-tls").await?;
    let authority = Authority::new("site")?;
    let registry = Scripted::start_tls(Tls::of(&authority)).await?;
    let directory = stage.bed.containerd.registry_configuration().join(registry.address());
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("site.pem"), authority.pem())?;
    let hosts = format!("server = \"{}\"\nca = \"site.pem\"\n", registry.url());
    fs::write(directory.join("hosts.toml"), hosts)?;
    let image = Image::new("over-tls", 2, 1024)?;
    image.serve(&registry);
    for (layer, end) in image.layers.iter().zip([End::Reset, End::Close]) {
        let bytes = Bytes::from(layer.bytes.clone());
        registry.on("GET", &layer.path("over-tls"), move |request, nth| {
            let reply = Reply::ranged_of(request, &bytes);
            if nth < 2 { reply.cut_after(BREAK, end) } else { reply }
        });
    }
    let manifest = Bytes::from(image.manifest.bytes.clone());
    registry.on("GET", &image.manifest.path("over-tls"), move |request, nth| {
        let reply = Reply::ranged_of(request, &manifest);
        let half = reply.length() / 2;
        match nth {
            0 => reply.cut_after(half, End::Reset),
            1 => reply.cut_after(half, End::GoAway),
            2 => Reply::nothing(End::Unprocessed),
            _ => reply,
        }
    });
    let id = stage.pull(&image.reference(&registry)).await?;
    ensure!(id == image.config.digest, "{id}");
    stage.holds(&image.top_chain_id()).await?;
    let asked = registry.asked("GET", &image.manifest.path("over-tls"));
    let size = image.manifest.bytes.len();
    let (half, more) = (size / 2, size / 2 + (size - size / 2) / 2);
    let starts: Vec<_> = asked.iter().map(drayd_tests::scripted::Request::range_start).collect();
    ensure!(starts == [None, Some(half), Some(more), Some(more)], "{starts:?}");
    ensure!(asked.iter().all(|request| request.version == Version::Http2), "{asked:?}");
    // A stream that is reset leaves its connection as it is; one that went away is replaced.
    let kept: Vec<_> = asked.windows(2).map(|pair| pair[0].from == pair[1].from).collect();
    ensure!(kept == [true, false, false], "{asked:?}");
    for layer in &image.layers {
        let requests = registry.asked("GET", &layer.path("over-tls"));
        let starts: Vec<_> = requests.iter().map(drayd_tests::scripted::Request::range_start).collect();
        ensure!(starts == [None, Some(BREAK), Some(2 * BREAK)], "{starts:?}");
        ensure!(requests.iter().all(|request| request.secure), "{requests:?}");
    }
    stage.bed.empty().await
}

async fn slow_wire(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "slow-wire").await?;
    // Less than drayd hands on at once.
    let image = Image::new("slow-wire", 1, 600)?;
    image.serve(&stage.registry);
    let layer = image.layers[0].clone();
    let (digest, size) = (layer.digest.clone(), layer.bytes.len());
    stage.registry.on("GET", &layer.path("slow-wire"), move |request, _| {
        Reply::ranged(request, &layer.bytes).paced(8 << 10, Duration::from_millis(80))
    });
    let (cri, reference) = (stage.drayd.cri(), image.reference(&stage.registry));
    let pulling = tokio::spawn(async move { cri.pull(&reference, None, None).await });
    // What a pull that is broken off here would not lose.
    let probe = stage.bed.containerd.probe();
    wait::until("some of the layer is in the store before the rest has come", SOON, async || {
        let stored =
            probe.state().await?.ingests.get(&format!("layer-{digest}")).copied().unwrap_or_default();
        Ok((1..size).contains(&usize::try_from(stored)?))
    })
    .await?;
    let id = pulling.await??;
    ensure!(id == image.config.digest, "{id}");
    stage.bed.empty().await
}

async fn ignores_ranges(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "ignores-ranges").await?;
    let image = Image::new("ignores", 1, 1024)?;
    image.serve(&stage.registry);
    let layer = image.layers[0].clone();
    let path = layer.path("ignores");
    stage.registry.on("GET", &path, move |_, nth| {
        let reply = Reply::ok("application/octet-stream", &layer.bytes);
        if nth == 0 { reply.cut_after(BREAK, End::Close) } else { reply }
    });
    let id = stage.pull(&image.reference(&stage.registry)).await?;
    ensure!(id == image.config.digest, "{id}");
    stage.holds(&image.top_chain_id()).await?;
    let starts: Vec<Option<usize>> =
        stage.registry.asked("GET", &path).iter().map(drayd_tests::scripted::Request::range_start).collect();
    ensure!(starts == [None, Some(BREAK)], "{starts:?}");
    stage.bed.empty().await
}

async fn other_bytes(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "other-bytes").await?;
    let image = Image::new("others", 1, 1024)?;
    image.serve(&stage.registry);
    let layer = image.layers[0].clone();
    let path = layer.path("others");
    let others = vec![0; layer.bytes.len()];
    stage.registry.on("GET", &path, move |request, nth| match (request.range_start(), nth) {
        (Some(_), _) => Reply::ranged(request, &others),
        // The second whole breaks as well, and its rest may not come as a range again.
        (None, 0) => Reply::ranged(request, &layer.bytes).cut_after(BREAK, End::Close),
        (None, 2) => Reply::ranged(request, &layer.bytes).cut_after(2 * BREAK, End::Close),
        (None, _) => Reply::ranged(request, &layer.bytes),
    });
    let id = stage.pull(&image.reference(&stage.registry)).await?;
    ensure!(id == image.config.digest, "{id}");
    stage.holds(&image.top_chain_id()).await?;
    let starts: Vec<Option<usize>> =
        stage.registry.asked("GET", &path).iter().map(drayd_tests::scripted::Request::range_start).collect();
    ensure!(starts == [None, Some(BREAK), None, None], "{starts:?}");
    stage.bed.empty().await
}

async fn stalls(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::with(bed, "stalls", "[pull]\nprogress_timeout = \"2s\"\n", |_| {}).await?;
    let image = Image::new("stalls", 2, 512)?;
    image.serve(&stage.registry);
    let layer = image.layers[1].clone();
    stage.registry.on("GET", &layer.path("stalls"), move |request, _| {
        Reply::ranged(request, &layer.bytes).cut_after(BREAK, End::Stall)
    });
    let reference = image.reference(&stage.registry);
    let (pulled, took) = timed(stage.pull(&reference)).await;
    pulled?;
    // Half of the timeout for each body that stood still.
    ensure!(took.as_secs_f64() > 0.9, "took {took:?}");
    Ok(())
}

async fn barren(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "barren").await?;
    let image = Image::new("barren", 1, 512)?;
    image.serve(&stage.registry);
    let layer = image.layers[0].clone();
    let path = layer.path("barren");
    stage.registry.on("GET", &path, move |request, nth| {
        let reply = Reply::ranged(request, &layer.bytes);
        if nth == 0 { reply.cut_after(BREAK, End::Close) } else { reply.cut_after(0, End::Close) }
    });
    let (pulled, took) = timed(stage.pull(&image.reference(&stage.registry))).await;
    refused("barren", pulled, Code::Unavailable, &[])?;
    // Between them a pause of half a second, doubled each time.
    ensure!((3.0..12.0).contains(&took.as_secs_f64()), "took {took:?}");
    // One that brought something, and five in a row that did not.
    let asked = stage.registry.asked("GET", &path).len();
    ensure!(asked == 6, "asked {asked} times");
    stage.left_nothing().await
}

/// Fault 156, a rate limit.
async fn too_often(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "too-often").await?;
    let image = Image::new("too-often", 1, 8)?;
    image.serve(&stage.registry);
    let path = image.layers[0].path("too-often");
    stage.registry.on("GET", &path, |_, _| Reply::status(429));
    let pulled = stage.pull(&image.reference(&stage.registry)).await;
    refused("too often", pulled, Code::ResourceExhausted, &["429", "after 5 tries"])?;
    let asked = stage.registry.asked("GET", &path).len();
    ensure!(asked == 5, "asked {asked} times");
    stage.left_nothing().await
}

async fn fails_once(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "fails-once").await?;
    let image = Image::new("once-layer", 1, 8)?;
    image.serve(&stage.registry);
    let layer = image.layers[0].clone();
    stage.registry.on("GET", &layer.path("once-layer"), move |request, nth| {
        if nth == 0 { Reply::status(500) } else { Reply::ranged(request, &layer.bytes) }
    });
    let id = stage.pull(&image.reference(&stage.registry)).await?;
    ensure!(id == image.config.digest, "{id}");
    stage.bed.empty().await?;

    for (name, of_tag) in [("once-tag", true), ("once-config", false)] {
        let image = Image::new(name, 1, 8)?;
        image.serve(&stage.registry);
        let (path, blob) = if of_tag {
            // HEAD fails always, so that GET of the tag is what counts.
            stage.registry.on("HEAD", &image.tag_path(), |_, _| Reply::status(500));
            (image.tag_path(), image.manifest.clone())
        } else {
            (image.config.path(name), image.config.clone())
        };
        stage.registry.on("GET", &path, move |_, nth| {
            if nth == 0 { Reply::status(500) } else { image::manifest_reply(&blob) }
        });
        let id = stage.pull(&image.reference(&stage.registry)).await?;
        ensure!(id == image.config.digest, "{name}: {id}");
        stage.bed.empty().await?;
    }
    Ok(())
}

/// Fault 132.
async fn one_at_a_time(bed: Arc<Bed>) -> Result<()> {
    for (limit, most) in [(1, 1), (3, 3)] {
        let name = format!("limit-{limit}");
        let sections = format!("[pull]\nmax_concurrent_downloads = {limit}\n");
        let stage = Stage::with(Arc::clone(&bed), &name, &sections, |_| {}).await?;
        let image = Image::new(&name, 6, 16)?;
        image.serve(&stage.registry);
        for layer in image.layers.clone() {
            // Long enough open that two would be seen together.
            stage.registry.on("GET", &layer.path(&name), move |request, _| {
                Reply::ranged(request, &layer.bytes).paced(4 << 10, Duration::from_millis(30))
            });
        }
        let id = stage.pull(&image.reference(&stage.registry)).await?;
        ensure!(id == image.config.digest, "{id}");
        stage.holds(&image.top_chain_id()).await?;
        let seen = stage.registry.most_open_blobs();
        ensure!(seen == most, "{seen} layers were open at once under a limit of {limit}");
        bed.empty().await?;
    }
    Ok(())
}
