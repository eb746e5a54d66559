//! Pulls that are watched, cancelled and begun through drayctl.

use std::collections::HashMap;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drayd_tests::drayctl;
use drayd_tests::launch::Launch;
use drayd_tests::peers::Release;
use drayd_tests::scripted::Scripted;
use drayd_tests::scripted::image::Image;
use drayd_tests::stage;
use drayd_tests::suite::Suite;
use serde_json::Value;
use tokio::process::Command;
use tonic::Code;

use crate::{Stage, await_listed, begin, request, slow, total};

const PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "a_watched_pull_is_seen_from_its_begin_to_the_manifests_total", watched);
    suite.check(release, "a_cancelled_pull_tells_all_that_wait_and_all_that_watch", cancelled);
    suite.check(release, "a_pull_by_drayctl_shows_bars_on_a_terminal_and_lines_elsewhere", terminal);
    suite.check(release, "a_pull_by_drayctl_that_fails_shows_why", failed);
    suite.check(release, "a_stop_waits_for_a_pull_by_drayctl_until_it_is_told_again", stopping);
    suite.check(release, "whoever_watches_all_pulls_sees_each_that_begins", all);
}

/// Fails unless bytes only rise, and each layer goes through its states in their order.
fn check(messages: &[Value], image: &Image) -> Result<()> {
    let order = ["waiting", "fetching", "unpacking", "done"];
    let mut last = 0;
    let mut seen: HashMap<String, Vec<String>> = HashMap::new();
    for message in messages {
        let done = message["bytes_done"].as_u64().context("no bytes")?;
        ensure!(done >= last, "bytes fell from {last} to {done}");
        last = done;
        for layer in message["layers"].as_array().context("no layers")? {
            let (digest, state) = (layer["digest"].as_str(), layer["state"].as_str());
            let states = seen.entry(digest.unwrap_or_default().into()).or_default();
            let state = state.unwrap_or_default().to_owned();
            if states.last() != Some(&state) {
                states.push(state);
            }
        }
    }
    let end = messages.last().context("no message")?;
    ensure!(last == total(image) && end["bytes_total"] == total(image), "ended at {last}: {end}");
    ensure!(end["ended"]["success"] == true && end["ended"]["result"] == "fetched", "{end}");
    ensure!(end["ended"]["image_id"] == image.config.digest.as_str(), "{end}");
    for layer in &image.layers {
        let states = &seen[&layer.digest];
        let ranks: Vec<_> =
            states.iter().map(|state| order.iter().position(|known| known == state)).collect();
        ensure!(ranks.iter().all(Option::is_some) && ranks.is_sorted(), "{states:?}");
        ensure!(
            states.contains(&order[1].to_owned()) && states.last() == Some(&order[3].to_owned()),
            "{states:?}"
        );
    }
    Ok(())
}

async fn watched(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let registry = Scripted::start().await?;
    let image = Image::new("watched", 4, 256)?;
    image.serve(&registry);
    slow(&registry, 16 << 10, PAUSE);
    let reference = image.reference(&registry);
    let call = begin(&drayd.cri(), request(&reference, &[]));
    let pull = await_listed(&drayd, &reference, |_| true).await?;
    ensure!(pull["snapshotter"] == "overlayfs", "{pull}");
    ensure!(
        pull["waiting"][0]["pod_name"] == "pod" && pull["waiting"][0]["pod_namespace"] == "team",
        "{pull}"
    );
    let id = pull["id"].to_string();
    let answer = drayctl::run(&drayd, &["watch", &id, "--json"]).await?;
    ensure!(answer.code == 0, "{answer:?}");
    let messages = answer.json()?;
    check(&messages, &image)?;
    let middle = messages.iter().filter(|message| {
        let done = message["bytes_done"].as_u64().unwrap_or_default();
        done > 0 && done < total(&image)
    });
    ensure!(middle.count() >= 3, "next to nothing was seen between begin and end: {messages:#?}");
    let layer = &messages.last().context("no message")?["layers"][0];
    ensure!(layer["engine"] == "direct" && layer["host"] == registry.address(), "{layer}");
    call.await??;
    Ok(())
}

async fn cancelled(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let registry = Scripted::start().await?;
    let image = Image::new("cancelled", 2, 256)?;
    image.serve(&registry);
    slow(&registry, 1 << 10, Duration::from_secs(1));
    let reference = image.reference(&registry);
    let calls = [0, 1].map(|_| begin(&drayd.cri(), request(&reference, &[])));
    let fits = |pull: &Value| pull["waiting"].as_array().is_some_and(|waiting| waiting.len() == 2);
    let id = await_listed(&drayd, &reference, fits).await?["id"].to_string();
    let watch = drayctl::start(&drayd, &["watch", &id, "--json"])?;
    let answer = drayctl::run(&drayd, &["cancel", &id]).await?;
    ensure!(answer.code == 0 && answer.out.contains(&reference), "{answer:?}");
    for call in calls {
        let status = call.await?.expect_err("it was cancelled");
        ensure!(status.code() == Code::Aborted, "{status:?}");
        ensure!(status.message().contains("cancelled by a request to drayd's API"), "{status:?}");
    }
    let seen = drayctl::end(watch).await?;
    let ended = seen.json()?.pop().map(|message| message["ended"]["result"].clone());
    // It may have come after the end.
    let late = ended.is_none() && seen.err.contains("no pull with the number");
    ensure!(seen.code == 1 && (late || ended.is_some_and(|result| result == "cancelled")), "{seen:?}");
    let again = drayctl::run(&drayd, &["cancel", &id]).await?;
    ensure!(again.code == 1 && again.err.contains("no pull with the number"), "{again:?}");
    Ok(())
}

async fn terminal(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let registry = Scripted::start().await?;
    slow(&registry, 16 << 10, PAUSE);
    let images = [Image::new("lines", 2, 256)?, Image::new("bars", 2, 256)?];
    for image in &images {
        image.serve(&registry);
    }
    let lines = drayctl::run(&drayd, &["pull", &images[0].reference(&registry)]).await?;
    ensure!(lines.code == 0 && lines.out.lines().last() == Some(&images[0].config.digest), "{lines:?}");
    ensure!(lines.out.contains(" fetching 2") && lines.out.contains(" done (direct)"), "{}", lines.out);
    ensure!(!lines.out.contains('\x1b') && lines.err.is_empty(), "{lines:?}");

    // A terminal of its own, whose screen is what comes out.
    let line = format!(
        "{} --address {} pull {}",
        drayctl::path()?.display(),
        drayd.api_socket().display(),
        images[1].reference(&registry)
    );
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]).stdin(Stdio::null());
    let output = script.env("TERM", "xterm").output().await.context("cannot run script(1)")?;
    let screen = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{screen}");
    ensure!(screen.contains("[==") && screen.contains("fetching from"), "no bar: {screen}");
    ensure!(screen.contains(&images[1].config.digest), "no image id: {screen}");
    Ok(())
}

async fn failed(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let registry = Scripted::start().await?;
    let reference = format!("{}/none:1", registry.address());
    let lines = drayctl::run(&drayd, &["pull", &reference]).await?;
    ensure!(lines.code == 1 && lines.out.contains("not_found") && lines.out.contains("404"), "{lines:?}");
    let json = drayctl::run(&drayd, &["pull", &reference, "--json"]).await?;
    let end = json.json()?.pop().context("no message")?;
    ensure!(json.code == 1 && end["ended"]["result"] == "not_found", "{json:?}");
    let unknown = drayctl::run(&drayd, &["pull", &reference, "--runtime-handler", "nobody"]).await?;
    ensure!(unknown.code == 1 && unknown.out.contains("no_snapshotter"), "{unknown:?}");
    let bad = drayctl::run(&drayd, &["pull", "registry.test/UPPER"]).await?;
    ensure!(bad.code == 1 && bad.err.contains("cannot read the image reference"), "{bad:?}");
    Ok(())
}

async fn stopping(bed: Stage) -> Result<()> {
    bed.bare().await?;
    let mut drayd = Launch::new(&bed.containerd.socket(), "stopping")?.start()?;
    let api = drayd.socket().with_file_name("api.sock");
    let registry = Scripted::start().await?;
    let image = Image::new("stopping", 1, 256)?;
    image.serve(&registry);
    slow(&registry, 1 << 10, Duration::from_secs(1));
    let mut drayctl = Command::new(drayctl::path()?);
    drayctl.arg("--address").arg(&api).args(["pull", &image.reference(&registry), "--json"]);
    let pull = drayctl.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn()?;
    registry.await_get(&image.layers[0].path("stopping")).await;
    drayd.tell_to_stop()?;
    drayd.await_lines("stopping: calls in progress", 1, crate::SOON).await?;
    drayd.tell_to_stop()?;
    ensure!(drayd.ended(crate::SOON).await?.success(), "{}", drayd.log());
    let output = tokio::time::timeout(crate::SOON, pull.wait_with_output()).await??;
    ensure!(!output.status.success(), "a pull that was given up is none that succeeded: {output:?}");
    ensure!(!api.exists(), "its socket is still there");
    let leases = bed.containerd.probe().state().await?.leases;
    ensure!(leases.is_empty(), "{leases:?}");
    Ok(())
}

async fn all(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let registry = Scripted::start().await?;
    slow(&registry, 16 << 10, PAUSE);
    let images = [Image::new("early", 1, 512)?, Image::new("late", 1, 64)?];
    for image in &images {
        image.serve(&registry);
    }
    let [early, late] = images.each_ref().map(|image| image.reference(&registry));
    let first = begin(&drayd.cri(), request(&early, &[]));
    await_listed(&drayd, &early, |_| true).await?;
    // By an interface of this interval the early one is seen before the late one begins.
    let mut watch = drayctl::command(&drayd, &["watch", "--json"])?;
    let mut watch = watch.spawn()?;
    let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(
        watch.stdout.take().context("no output")?,
    ));
    let mut ends = Vec::new();
    let mut second = None;
    while ends.len() < 2 {
        let line = tokio::time::timeout(crate::SOON, lines.next_line()).await??.context("it ended")?;
        let message: Value = serde_json::from_str(&line)?;
        if second.is_none() {
            ensure!(message["reference"] == early.as_str(), "{message}");
            second = Some(begin(&drayd.cri(), request(&late, &[])));
        }
        if message["ended"]["success"] == true {
            ends.push(message["reference"].as_str().unwrap_or_default().to_owned());
        }
    }
    ends.sort();
    let mut expected = [early, late];
    expected.sort();
    ensure!(ends == expected, "{ends:?}");
    watch.kill().await?;
    first.await??;
    second.context("it was begun")?.await??;
    Ok(())
}
