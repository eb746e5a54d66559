//! Whose turn it is: pods before pulls that are made before the need, by order and not by time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use drayd_tests::drayctl;
use drayd_tests::peers::Release;
use drayd_tests::scripted::image::Image;
use drayd_tests::scripted::{Reply, Scripted};
use drayd_tests::stage;
use drayd_tests::suite::Suite;
use drayd_tests::wait;

use crate::{SOON, Stage, await_listed, begin, listed, request, slow};

/// What OpenKruise's daemon sets.
const PULLED_BEFORE: (&str, &str) = ("apps.kruise.io/pulling-image-by", "ImagePullJob");
const PULLS: usize = 30;

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "a_pod_is_served_before_thirty_pulls_that_were_asked_for_earlier", a_pod_first);
    suite.check(release, "a_pull_that_waits_shows_its_place_and_a_pod_that_joins_moves_it", its_place);
    suite.check(release, "what_is_on_the_node_waits_for_nobody", present);
    suite.check(release, "rules_on_metadata_choose_priority_and_snapshotter", rules);
}

async fn a_pod_first(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let registry = Scripted::start().await?;
    let large: Vec<Image> =
        (0..PULLS).map(|number| Image::new(&format!("large{number}"), 2, 512)).collect::<Result<_>>()?;
    let small = Image::new("small", 1, 16)?;
    for image in large.iter().chain([&small]) {
        image.serve(&registry);
    }
    slow(&registry, 32 << 10, Duration::from_millis(20));
    let calls: Vec<_> = large
        .iter()
        .map(|image| begin(&drayd.cri(), request(&image.reference(&registry), &[PULLED_BEFORE])))
        .collect();
    wait::until("all pulls are under way", SOON, async || Ok(listed(&drayd).await?.len() == PULLS)).await?;
    let of_pod = small.reference(&registry);
    drayd.cri().pull_as(request(&of_pod, &[])).await?;
    for call in calls {
        call.await??;
    }
    let ends: Vec<String> = drayd
        .events()
        .iter()
        .filter(|event| event.message().starts_with("Pulled image"))
        .map(|event| event.message().to_owned())
        .collect();
    let place = ends.iter().position(|end| end.contains(&of_pod));
    // Some may have been nearly done; but for those that ran already, none ends before it.
    ensure!(
        ends.len() == PULLS + 1 && place.is_some_and(|place| place < PULLS / 2),
        "{place:?} of {ends:#?}"
    );
    Ok(())
}

/// Answers no blob until it is opened.
fn gate(registry: &Scripted) -> Arc<AtomicBool> {
    let open = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&open);
    registry.change(move |request, reply: Reply| {
        let layer = request.fetches_blob() && reply.length() > 4096;
        if layer && !seen.load(Ordering::SeqCst) {
            reply.paced(1024, Duration::from_millis(100))
        } else {
            reply
        }
    });
    open
}

async fn its_place(bed: Stage) -> Result<()> {
    let drayd = stage::configured(&bed, "[pull]\nmax_concurrent_pulls = 1\n", &[]).await?;
    let registry = Scripted::start().await?;
    let images = [("first", 64), ("second", 8), ("third", 8)].map(|(name, size)| Image::new(name, 1, size));
    let [first, second, third] = images;
    let images = [first?, second?, third?];
    for image in &images {
        image.serve(&registry);
    }
    gate(&registry);
    let [first, second, third] = images.each_ref().map(|image| image.reference(&registry));
    let mut calls = vec![begin(&drayd.cri(), request(&first, &[PULLED_BEFORE]))];
    await_listed(&drayd, &first, |pull| pull["stage"] == "unpacking").await?;
    for (reference, place) in [(&second, 1), (&third, 2)] {
        calls.push(begin(&drayd.cri(), request(reference, &[PULLED_BEFORE])));
        await_listed(&drayd, reference, |pull| pull["stage"] == "queued" && pull["queue_place"] == place)
            .await?;
    }
    let status = drayctl::run(&drayd, &["status", "--json"]).await?.json()?;
    ensure!(status[0]["pulls_queued"] == 2 && status[0]["pulls_running"] == 1, "{status:?}");
    calls.push(begin(&drayd.cri(), request(&third, &[])));
    let moved = await_listed(&drayd, &third, |pull| pull["queue_place"] == 1).await?;
    ensure!(moved["priority"] == "normal", "{moved}");
    for call in calls {
        call.await??;
    }
    let events = drayd.events();
    let end = |reference: &str| {
        let is = |event: &drayd_tests::log::Event| {
            event.message().starts_with("Pulled image") && event.message().contains(reference)
        };
        events.iter().position(is)
    };
    ensure!(end(&third) < end(&second), "the pod's image came later");
    Ok(())
}

async fn present(bed: Stage) -> Result<()> {
    let drayd = stage::configured(&bed, "[pull]\nmax_concurrent_pulls = 1\n", &[]).await?;
    stage::pull(&bed, &drayd, &bed.images.two, None).await?;
    let registry = Scripted::start().await?;
    let image = Image::new("busy", 1, 256)?;
    image.serve(&registry);
    gate(&registry);
    let reference = image.reference(&registry);
    let call = begin(&drayd.cri(), request(&reference, &[]));
    await_listed(&drayd, &reference, |pull| pull["stage"] == "unpacking").await?;
    stage::pull(&bed, &drayd, &bed.images.two, None).await?;
    ensure!(!call.is_finished(), "nothing was under way");
    call.abort();
    Ok(())
}

async fn rules(bed: Stage) -> Result<()> {
    let settings = "[pull]\nrules = [{ annotations = { team = \"ml-*\" }, priority = \"high\", snapshotter = \"native\" }]\n";
    let drayd = stage::configured(&bed, settings, &[]).await?;
    let image = &bed.images.two;
    let reference = image.reference(bed.registry.address());
    let explain = async |team: &str| {
        let annotation = format!("team={team}");
        let answer =
            drayctl::run(&drayd, &["explain", &reference, "--annotation", &annotation, "--json"]).await?;
        answer.json()
    };
    let fits = explain("ml-one").await?;
    ensure!(fits[0]["priority"] == "high" && fits[0]["snapshotter"] == "native", "{fits:?}");
    ensure!(fits[0]["priority_reason"] == "rule 1 of [pull] rules", "{fits:?}");
    // As a pod's request would say it.
    let annotation = format!("io.containerd.cri.runtime-handler={}", drayd_tests::containerd::NYDUS_HANDLER);
    let handler =
        drayctl::run(&drayd, &["explain", &reference, "--annotation", &annotation, "--json"]).await?;
    ensure!(handler.json()?[0]["snapshotter"] == "nydus", "{handler:?}");
    let other = explain("web").await?;
    ensure!(other[0]["priority"] == "normal" && other[0]["snapshotter"] == "overlayfs", "{other:?}");
    drayd.cri().pull_as(request(&reference, &[("team", "ml-two")])).await?;
    let state = bed.containerd.probe().state().await?;
    ensure!(state.snapshot("native", &image.top_chain_id()).is_some(), "it is not in native");
    ensure!(state.snapshot("overlayfs", &image.top_chain_id()).is_none(), "it is in overlayfs");
    Ok(())
}
