//! What is counted: calls, transfers and bytes, in the log, in metrics and in drayctl's history.

use std::time::Duration;

use anyhow::{Result, ensure};
use drayd_tests::containerd::NYDUS_HANDLER;
use drayd_tests::drayctl;
use drayd_tests::metrics;
use drayd_tests::peers::Release;
use drayd_tests::scripted::image::Image;
use drayd_tests::scripted::{Reply, Scripted};
use drayd_tests::stage;
use drayd_tests::suite::Suite;
use drayd_tests::wait;

use crate::{SOON, Stage, await_listed, begin, request, slow, total};

const TAGS: &str = "io.kubernetes.image.metrics.tags";

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "two_pods_and_one_transfer_are_told_in_three_ways", three_ways);
    suite.check(release, "every_call_is_counted_once_and_by_its_end", exact);
    suite.check(release, "a_transfer_is_counted_once_though_its_first_caller_left", first_left);
    suite.check(release, "tags_of_the_sandbox_reach_metrics_and_log", tags);
    suite.check(release, "hostile_metadata_does_no_harm", hostile);
}

/// The question of the confidential-containers test: was the image pulled once for two pods?
async fn three_ways(bed: Stage) -> Result<()> {
    let drayd = stage::configured(&bed, metrics::SETTINGS, &[]).await?;
    let image = &bed.images.two;
    let reference = image.reference(bed.registry.address());
    for _ in 0..2 {
        stage::pull(&bed, &drayd, image, Some(NYDUS_HANDLER)).await?;
    }
    let events = drayd.events();
    let lines = |text: &str| events.iter().filter(|event| event.message().contains(text)).count();
    ensure!(lines(&format!("PullImage \"{reference}\" with snapshotter nydus")) == 2);
    ensure!(lines(&format!("Pulled image \"{reference}\": already present, 0 bytes fetched")) == 1);
    ensure!(lines(&format!("Pulled image \"{reference}\": ")) == 2);

    let page = metrics::read(&drayd).await?;
    let pulls = |result: &str| {
        page.sum("drayd_pulls_total", &[&format!("result=\"{result}\""), "snapshotter=\"nydus\""])
    };
    ensure!((pulls("fetched"), pulls("present")) == (1, 1), "{}", page.0);
    ensure!(page.sum("drayd_pulls_total", &[]) == 2, "{}", page.0);

    let history = ["history", "--image", &reference, "--snapshotter", "nydus", "--count"];
    let answer = drayctl::run(&drayd, &history).await?;
    ensure!(answer.out == "calls=2 transfers=1\n", "{answer:?}");
    let other = ["history", "--image", &reference, "--snapshotter", "overlayfs", "--count"];
    ensure!(drayctl::run(&drayd, &other).await?.out == "calls=0 transfers=0\n");
    Ok(())
}

/// Fault 174.
async fn exact(bed: Stage) -> Result<()> {
    let drayd = stage::configured(&bed, metrics::SETTINGS, &[]).await?;
    let registry = Scripted::start().await?;
    let images: Vec<Image> =
        ["one", "two", "three"].iter().map(|name| Image::new(name, 2, 64)).collect::<Result<_>>()?;
    let held = Image::new("held", 1, 64)?;
    for image in images.iter().chain([&held]) {
        image.serve(&registry);
    }
    registry.gate(|request| {
        if request.repository() == Some("limited") {
            return Some(Reply::error(429, "TOOMANYREQUESTS", "slow down").header("Retry-After", "0"));
        }
        (request.repository() == Some("denied")).then(|| Reply::error(403, "DENIED", "not you"))
    });
    registry.change(|request, reply: Reply| {
        let held = request.repository() == Some("held") && request.fetches_blob() && reply.length() > 4096;
        if held { reply.paced(1024, Duration::from_secs(1)) } else { reply }
    });
    let cri = drayd.cri();
    for image in &images {
        cri.pull_as(request(&image.reference(&registry), &[])).await?;
    }
    for image in &images[..2] {
        cri.pull_as(request(&image.reference(&registry), &[])).await?;
    }
    for repository in ["none", "denied"] {
        let reference = format!("{}/{repository}:1", registry.address());
        ensure!(cri.pull_as(request(&reference, &[])).await.is_err(), "{repository}");
    }
    ensure!(cri.pull_as(request("registry.test/UPPER", &[])).await.is_err());
    let reference = held.reference(&registry);
    for _ in 0..2 {
        let call = begin(&cri, request(&reference, &[]));
        let id = await_listed(&drayd, &reference, |_| true).await?["id"].to_string();
        ensure!(drayctl::run(&drayd, &["cancel", &id]).await?.code == 0);
        ensure!(call.await?.is_err());
    }
    // A client that goes away with its connection.
    let gone = drayd.cri();
    let call = begin(&gone, request(&reference, &[]));
    await_listed(&drayd, &reference, |_| true).await?;
    let one = metrics::read(&drayd).await?;
    ensure!(one.sum("drayd_pulls_in_progress", &[]) == 1, "{}", one.0);
    call.abort();
    drop(gone);
    wait::until("no pull is in progress", SOON, async || {
        Ok(metrics::read(&drayd).await?.sum("drayd_pulls_in_progress", &[]) == 0)
    })
    .await?;

    let page = metrics::read(&drayd).await?;
    for (result, expected) in [
        ("fetched", 3),
        ("present", 2),
        ("not_found", 1),
        ("denied", 1),
        ("bad_request", 1),
        ("cancelled", 2),
        ("given_up", 1),
    ] {
        let counted = page.sum("drayd_pulls_total", &[&format!("result=\"{result}\"")]);
        ensure!(counted == expected, "{result}: {counted} and not {expected}\n{}", page.0);
    }
    ensure!(page.sum("drayd_pulls_total", &[]) == 11, "{}", page.0);
    let cri = |status: &str| page.sum("containerd_cri_image_pulls_total", &[status]);
    ensure!((cri("status=\"success\""), cri("status=\"failure\"")) == (5, 6), "{}", page.0);
    ensure!(page.sum("containerd_cri_in_progress_image_pulls_total", &[]) == 0, "{}", page.0);
    // Cached pulls have no throughput.
    ensure!(page.sum("containerd_cri_image_pulling_throughput_count", &[]) == 3, "{}", page.0);
    let host = format!("host=\"{}\"", registry.address());
    let received = page.sum("drayd_registry_received_bytes_total", &[&host]);
    let layers: u64 = images.iter().map(total).sum();
    let documents: u64 =
        images.iter().map(|image| (image.manifest.bytes.len() + image.config.bytes.len()) as u64).sum();
    // The held one began three times, and brought its documents at least once.
    ensure!(
        (layers + documents..layers + documents + total(&held) + 8192).contains(&received),
        "{received} for {layers} and {documents}"
    );
    ensure!(!page.0.contains("sha256:") && !page.0.contains("/one"), "a label holds an image: {}", page.0);
    Ok(())
}

async fn first_left(bed: Stage) -> Result<()> {
    let drayd = stage::configured(&bed, metrics::SETTINGS, &[]).await?;
    let registry = Scripted::start().await?;
    let image = Image::new("left", 1, 256)?;
    image.serve(&registry);
    slow(&registry, 16 << 10, Duration::from_millis(50));
    let reference = image.reference(&registry);
    let first = begin(&drayd.cri(), request(&reference, &[]));
    await_listed(&drayd, &reference, |_| true).await?;
    let second = begin(&drayd.cri(), request(&reference, &[]));
    let both =
        |pull: &serde_json::Value| pull["waiting"].as_array().is_some_and(|waiting| waiting.len() == 2);
    await_listed(&drayd, &reference, both).await?;
    first.abort();
    second.await??;
    let page = metrics::read(&drayd).await?;
    for (result, expected) in [("fetched", 1), ("given_up", 1), ("joined", 0)] {
        let counted = page.sum("drayd_pulls_total", &[&format!("result=\"{result}\"")]);
        ensure!(counted == expected, "{result}: {counted}\n{}", page.0);
    }
    let history = drayctl::run(&drayd, &["history", "--image", &reference, "--count"]).await?;
    ensure!(history.out == "calls=2 transfers=1\n", "{history:?}");
    Ok(())
}

async fn tags(bed: Stage) -> Result<()> {
    let settings = "[metrics]\naddress = \"127.0.0.1:0\"\ntag_keys = [\"app\"]\ntag_values = 2\n";
    let drayd = stage::configured(&bed, settings, &[]).await?;
    let reference = bed.images.two.reference(bed.registry.address());
    for app in ["a", "b", "c", "d"] {
        drayd.cri().pull_as(request(&reference, &[(TAGS, &format!("app={app},team=x"))])).await?;
    }
    drayd.cri().pull_as(request(&reference, &[])).await?;
    let page = metrics::read(&drayd).await?;
    for (value, expected) in [("a", 1), ("b", 1), ("other", 2), ("", 1)] {
        let counted = page.sum("drayd_pulls_total", &[&format!("tag_app=\"{value}\"")]);
        ensure!(counted == expected, "{value:?}: {counted}\n{}", page.0);
    }
    ensure!(!page.0.contains("team"), "{}", page.0);
    let events = drayd.events();
    let told = events.iter().filter(|event| event.text("tags") == "app=c,team=x").count();
    ensure!(told == 2, "{told} lines tell of the tags");
    Ok(())
}

async fn hostile(bed: Stage) -> Result<()> {
    let settings = "[metrics]\naddress = \"127.0.0.1:0\"\ntag_keys = [\"app\"]\n";
    let drayd = stage::configured(&bed, settings, &[]).await?;
    let reference = bed.images.two.reference(bed.registry.address());
    let cri = drayd.cri();
    let long = "x".repeat(200 << 10);
    let control = "app=a\nERROR forged \u{1b}[31m\u{2028}\0b";
    for annotations in
        [vec![(TAGS, long.as_str()), ("other", &long)], vec![(TAGS, control), ("io.kubernetes\n", control)]]
    {
        cri.pull_as(request(&reference, &annotations)).await?;
    }
    let (mut number, calls) = (0, 500);
    while number < calls {
        let batch: Vec<_> = (0..100)
            .map(|offset| {
                begin(&cri, request(&reference, &[(TAGS, &format!("app=value-{}", number + offset))]))
            })
            .collect();
        for call in batch {
            call.await??;
        }
        number += 100;
    }
    let page = metrics::read(&drayd).await?;
    ensure!(page.sum("drayd_pulls_total", &[]) == calls + 2, "{}", page.count("drayd_pulls_total"));
    // 50 values, none, and other; each with a few results.
    ensure!(page.count("drayd_pulls_total") <= 52 * 3, "{} series", page.count("drayd_pulls_total"));
    ensure!(page.0.len() < 256 << 10, "{} bytes of metrics", page.0.len());
    let lines = drayd.log_lines();
    ensure!(lines.iter().all(|line| line.len() < 16 << 10), "a line has more than 16 KiB");
    ensure!(lines.iter().all(|line| !line.starts_with("ERROR forged")), "a line was forged");
    let state = bed.containerd.probe().state().await?;
    ensure!(!format!("{state:?}").contains("value-"), "metadata is in containerd");
    Ok(())
}
