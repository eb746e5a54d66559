//! `testbed memory`: what one large layer costs drayd in resident memory, measured on a fresh bed.

use anyhow::{Context, Result};
use drayd_tests::bed::Bed;
use drayd_tests::drayd::Drayd;
use drayd_tests::images::big;
use drayd_tests::peers::Release;
use drayd_tests::place::Place;
use drayd_tests::usage;

const ID: &str = "memory";
/// Size of the layer in megabytes.
const LAYER: usize = 700;

/// Prints resident memory idle and at its peak during one pull.
pub(crate) async fn measure(release: Release) -> Result<()> {
    Place::named(ID).clear()?;
    let bed = Bed::start(release, ID).await?;
    let image = big(LAYER, 1)?;
    image.push(bed.registry.address())?;
    let drayd = Drayd::start(&bed.containerd.socket(), "")?;
    let cri = drayd.cri();
    // Once through every path, so that what stays for good is not counted as the layer's.
    let small = bed.images.busybox.reference(bed.registry.address());
    cri.pull(&small, None, None).await.context("the small image")?;
    let idle = usage::memory(drayd.pid(), "VmRSS:")?;
    cri.pull(&image.reference(bed.registry.address()), None, None).await.context("the large image")?;
    let (peak, after) = (usage::memory(drayd.pid(), "VmHWM:")?, usage::memory(drayd.pid(), "VmRSS:")?);
    println!(
        "containerd {release}, one layer of {LAYER} MB: idle {idle} KiB, peak {peak} KiB, after {after} KiB"
    );
    println!("the layer added {} KiB at its peak", peak.saturating_sub(idle));
    Ok(())
}
