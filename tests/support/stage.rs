//! What most suites begin with: drayd on a bed without images, and a store that must be what it was.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::bed::Bed;
use crate::containerd::{NATIVE_HANDLER, NYDUS_HANDLER};
use crate::drayd::Drayd;
use crate::images::Image;
use crate::probe::State;

/// The bed as a trial gets it.
pub type Stage = Arc<Bed>;

/// For what needs one round trip, on a busy machine.
pub const SOON: Duration = Duration::from_secs(10);

/// Clears the bed of all images and starts drayd. Every release then knows the same handlers: where containerd does not
/// tell their snapshotters, drayd's configuration does.
pub async fn bare(bed: &Bed) -> Result<Drayd> {
    configured(bed, "", &[]).await
}

/// As [`bare`], with more settings (whole tables) and more handlers.
pub async fn configured(bed: &Bed, settings: &str, handlers: &[(&str, &str)]) -> Result<Drayd> {
    let probe = bed.containerd.probe();
    // A trial that failed may have left some.
    for lease in probe.state().await?.leases.keys() {
        probe.delete_lease(lease).await?;
    }
    bed.bare().await?;
    start(bed, settings, handlers)
}

/// Starts drayd on the bed as it is.
pub fn start(bed: &Bed, settings: &str, handlers: &[(&str, &str)]) -> Result<Drayd> {
    Drayd::start(&bed.containerd.socket(), &format!("{settings}\n{}", handler_section(bed, handlers)))
}

/// drayd's `[snapshotter.handlers]` for this bed, with these ones more.
pub fn handler_section(bed: &Bed, handlers: &[(&str, &str)]) -> String {
    let untold: &[(&str, &str)] = if bed.containerd.release().maps_handlers() {
        &[]
    } else {
        &[(NYDUS_HANDLER, "nydus"), (NATIVE_HANDLER, "native")]
    };
    let lines = untold
        .iter()
        .chain(handlers)
        .map(|(handler, snapshotter)| format!("{handler} = \"{snapshotter}\"\n"));
    format!("[snapshotter.handlers]\n{}", lines.collect::<String>())
}

/// Pulls from the open registry through drayd, and checks the id that comes back.
pub async fn pull(bed: &Bed, drayd: &Drayd, image: &Image, handler: Option<&str>) -> Result<String> {
    let reference = image.reference(bed.registry.address());
    let id = drayd.cri().pull(&reference, handler, None).await;
    let id = id.with_context(|| format!("drayd cannot pull {reference} for {handler:?}"))?;
    ensure!(id == image.config.digest, "{reference} has the id {id}, not {}", image.config.digest);
    Ok(id)
}

/// Fails if the store is not exactly what it was.
pub async fn unchanged(bed: &Bed, before: &State, what: &str) -> Result<()> {
    let difference = bed.containerd.probe().state().await?.difference_from(before);
    ensure!(difference.is_empty(), "{what}:\n{}", difference.join("\n"));
    Ok(())
}
