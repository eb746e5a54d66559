//! Traces: what a collector gets of a pull.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use drayd_tests::collector::{Collector, attribute};
use drayd_tests::peers::Release;
use drayd_tests::stage;
use drayd_tests::suite::Suite;
use drayd_tests::wait;

use crate::{SOON, Stage, request};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "every_stage_of_a_pull_is_in_the_trace_of_its_caller", stages);
    suite.check(release, "a_collector_that_is_away_harms_no_pull", away);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

async fn stages(bed: Stage) -> Result<()> {
    let collector = Collector::start().await?;
    let settings = format!("[traces]\nendpoint = \"{}\"\n", collector.endpoint());
    let mut drayd = stage::configured(&bed, &settings, &[]).await?;
    let image = &bed.images.two;
    let reference = image.reference(bed.registry.address());
    let tags = [("io.kubernetes.image.metrics.tags", "app=foo")];
    let mut call = tonic::Request::new(request(&reference, &tags));
    call.metadata_mut().insert("traceparent", format!("00-{TRACE}-{CALLER}-01").parse()?);
    drayd.cri().images.pull_image(call).await?;
    // One without a caller's span begins a trace of its own.
    drayd.cri().pull_as(request(&reference, &[])).await?;
    // What is collected is sent at the latest when it ends.
    drayd.terminate()?;
    let count = |name: &str| collector.spans().iter().filter(|span| span.name == name).count();
    wait::until("both calls are collected", SOON, async || Ok(count("PullImage") == 2)).await?;

    let all = collector.spans();
    let own: Vec<_> = all.iter().filter(|span| hex(&span.trace_id) == TRACE).collect();
    let names: BTreeSet<&str> = own.iter().map(|span| span.name.as_str()).collect();
    let expected =
        ["PullImage", "admit", "documents", "fetch", "layer", "pull", "record", "resolve", "unpack"];
    ensure!(names == BTreeSet::from(expected), "{names:?}");
    let root = own.iter().find(|span| span.name == "PullImage").context("no root")?;
    ensure!(hex(&root.parent_span_id) == CALLER, "{root:?}");
    ensure!(attribute(root, "reference") == reference, "{root:?}");
    ensure!(attribute(root, "snapshotter") == "overlayfs", "{root:?}");
    ensure!(attribute(root, "result") == "fetched" && attribute(root, "tags") == "app=foo", "{root:?}");
    for span in &own {
        let mut at = *span;
        while at.name != "PullImage" {
            at = own
                .iter()
                .find(|above| above.span_id == at.parent_span_id)
                .with_context(|| format!("{at:?} is nobody's"))?;
        }
    }
    for layer in &image.layers {
        for name in ["layer", "fetch"] {
            let found =
                own.iter().filter(|span| span.name == name && attribute(span, "digest") == layer.blob.digest);
            ensure!(found.count() == 1, "{name} of {}", layer.blob.digest);
        }
    }
    let stages = own.iter().filter(|span| !["layer", "fetch"].contains(&span.name.as_str()));
    for span in stages {
        ensure!(
            attribute(span, "reference") == reference && attribute(span, "snapshotter") == "overlayfs",
            "{span:?}"
        );
    }
    let other = all.iter().find(|span| span.name == "PullImage" && hex(&span.trace_id) != TRACE);
    let other = other.context("no second trace")?;
    ensure!(other.parent_span_id.is_empty() && attribute(other, "result") == "present", "{other:?}");
    Ok(())
}

async fn away(bed: Stage) -> Result<()> {
    let mut drayd = stage::configured(&bed, "[traces]\nendpoint = \"http://127.0.0.1:1\"\n", &[]).await?;
    stage::pull(&bed, &drayd, &bed.images.two, None).await?;
    ensure!(drayd.terminate()?, "it does not end by itself");
    let events = drayd.events();
    let loud: Vec<_> =
        events.iter().filter(|event| ["ERROR", "WARN"].contains(&event.level.as_str())).collect();
    ensure!(loud.len() <= 3, "the log is full of it: {loud:#?}");
    Ok(())
}
