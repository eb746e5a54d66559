//! `testbed run`: the main job from end to end on a fresh bed, told in a dozen lines.

use std::time::Instant;

use anyhow::{Context, Result};
use drayd_tests::bed::Bed;
use drayd_tests::containerd::{NYDUS_HANDLER, RUNC_HANDLER};
use drayd_tests::drayd::Drayd;
use drayd_tests::peers::Release;
use drayd_tests::place::Place;
use drayd_tests::usage;
use serde_json::Value;

/// Not the bed that `up` leaves, so that both can be there at once.
const ID: &str = "run";

/// containerd 1.6 does not know which snapshotter a runtime uses, so drayd is told; the others need no configuration.
const HANDLERS: &str = "[snapshotter.handlers]\nnydus-handler = \"nydus\"\n";

/// Pulls `image`, or the bed's own, through drayd for two runtime handlers, and runs a container from the first pull.
pub(crate) async fn run(release: Release, image: Option<&str>) -> Result<()> {
    // What an earlier run that was interrupted left.
    Place::named(ID).clear()?;
    let bed = Bed::start(release, ID).await?;
    let told = if release.maps_handlers() { "" } else { HANDLERS };
    let drayd = Drayd::start(&bed.containerd.socket(), told)?;
    println!("containerd  {release}, with the nydus-snapshotter in front of its snapshots (proxy driver)");
    println!(
        "drayd       {} (CRI), {} KiB resident",
        drayd.socket().display(),
        usage::memory(drayd.pid(), "VmRSS:")?
    );

    let given = image.map(str::to_owned);
    let reference = given.clone().unwrap_or_else(|| bed.images.busybox.reference(bed.registry.address()));
    let id = pull(&drayd, 1, &reference, None).await?;
    pull(&drayd, 2, &reference, Some(NYDUS_HANDLER)).await?;
    if given.is_none() {
        let printed = bed.containerd.cri().run_pod(&id, RUNC_HANDLER, bed.run()).await?;
        println!("container   started by containerd from the first pull, printed: {}", printed.trim());
    } else {
        println!("container   not run: what {reference} would do is not known here");
    }
    Ok(())
}

async fn pull(drayd: &Drayd, n: u32, reference: &str, handler: Option<&str>) -> Result<String> {
    let (started, seen) = (Instant::now(), drayd.log_lines().len());
    let pulled = drayd.cri().pull(reference, handler, None).await;
    let id = pulled.with_context(|| format!("PullImage {reference} for {handler:?}"))?;
    let seconds = started.elapsed().as_secs_f64();
    let lines = drayd.log_lines();
    let events = || lines[seen..].iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let field =
        |name: &str| events().find_map(|event| event["fields"].get(name).cloned()).unwrap_or_default();
    let text = |name: &str| field(name).as_str().unwrap_or("?").to_owned();
    println!("pull {n}      {reference}, runtime handler {}", handler.unwrap_or("not named"));
    println!("  snapshotter {}: {}", text("snapshotter"), text("reason"));
    println!(
        "  bytes       {} fetched, {} already present, {} left to the snapshotter, in {seconds:.2} s",
        field("bytes_fetched"),
        field("bytes_present"),
        field("bytes_left_to_snapshotter")
    );
    println!("  image id    {id}");
    Ok(id)
}
