//! What the trials share: drayd on a bed without images, pulls that are under way, and what drayd's log says of them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::containerd::{NATIVE_HANDLER, NYDUS_HANDLER};
use drayd_tests::cri::Cri;
use drayd_tests::drayd::Drayd;
use drayd_tests::images::{self, Descriptor, Image};
use drayd_tests::log::Event;
use drayd_tests::probe::State;
use drayd_tests::registry::Request;
use drayd_tests::throttle::Throttle;
use drayd_tests::wait;
use tokio::task::JoinHandle;
use tonic::Status;

/// For what needs one round trip, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// Clears the bed of all images and starts drayd. Every release then knows the same handlers: where containerd does not
/// tell their snapshotters, drayd's configuration does.
pub(crate) async fn bare(bed: &Bed) -> Result<Drayd> {
    configured(bed, "", &[]).await
}

/// As [`bare`], with more settings (whole tables) and more handlers.
pub(crate) async fn configured(bed: &Bed, settings: &str, handlers: &[(&str, &str)]) -> Result<Drayd> {
    let probe = bed.containerd.probe();
    // A trial that failed may have left some.
    for lease in probe.state().await?.leases.keys() {
        probe.delete_lease(lease).await?;
    }
    bed.bare().await?;
    start(bed, settings, handlers)
}

/// Starts drayd on the bed as it is.
pub(crate) fn start(bed: &Bed, settings: &str, handlers: &[(&str, &str)]) -> Result<Drayd> {
    let untold: &[(&str, &str)] = if bed.containerd.release().maps_handlers() {
        &[]
    } else {
        &[(NYDUS_HANDLER, "nydus"), (NATIVE_HANDLER, "native")]
    };
    let lines = untold
        .iter()
        .chain(handlers)
        .map(|(handler, snapshotter)| format!("{handler} = \"{snapshotter}\"\n"));
    let handlers = lines.collect::<String>();
    Drayd::start(&bed.containerd.socket(), &format!("{settings}\n[snapshotter.handlers]\n{handlers}"))
}

/// Pulls from the open registry through drayd, and checks the id that comes back.
pub(crate) async fn pull(bed: &Bed, drayd: &Drayd, image: &Image, handler: Option<&str>) -> Result<String> {
    let reference = image.reference(bed.registry.address());
    let id = drayd.cri().pull(&reference, handler, None).await;
    let id = id.with_context(|| format!("drayd cannot pull {reference} for {handler:?}"))?;
    ensure!(id == image.config.digest, "{reference} has the id {id}, not {}", image.config.digest);
    Ok(id)
}

/// An image of some megabytes, in the registry.
pub(crate) fn big(bed: &Bed, megabytes: usize, layers: usize) -> Result<Image> {
    let image = images::big(megabytes, layers)?;
    image.push(bed.registry.address())?;
    Ok(image)
}

/// A pull that is under way; leaving it is `abort`.
pub(crate) fn begin(cri: &Cri, reference: &str) -> JoinHandle<Result<String, Status>> {
    let (cri, reference) = (cri.clone(), reference.to_owned());
    tokio::spawn(async move { cri.pull(&reference, None, None).await })
}

/// Waits until so many bytes of answers went over the wire.
pub(crate) async fn under_way(throttle: &Throttle, bytes: u64) -> Result<()> {
    wait::until("a pull is in the middle of its bytes", SOON, async || Ok(throttle.passed() > bytes)).await
}

/// What the whole image takes on the wire: its documents and each of its blobs once.
pub(crate) fn wire_size(image: &Image) -> u64 {
    let mut parts: Vec<&Descriptor> = vec![&image.target, &image.manifest, &image.config];
    parts.extend(image.layers.iter().map(|layer| &layer.blob));
    parts.sort_by_key(|part| &part.digest);
    parts.dedup_by_key(|part| &part.digest);
    parts.iter().map(|part| part.size).sum()
}

/// Digests of the blobs that these requests fetched, as often as they did.
pub(crate) fn blobs_fetched(requests: &[Request]) -> Vec<&str> {
    let blobs = requests.iter().filter(|request| request.method == "GET" && request.path.contains("/blobs/"));
    blobs.filter_map(|request| request.path.rsplit('/').next()).collect()
}

/// The lines that tell the end of a pull of this reference that succeeded.
pub(crate) fn ends(drayd: &Drayd, reference: &str) -> Vec<Event> {
    let beginning = format!("Pulled image \"{reference}\": ");
    drayd.events().into_iter().filter(|event| event.message().starts_with(&beginning)).collect()
}

/// The only such line, which comes with the answer or just after it.
pub(crate) fn end(drayd: &Drayd, reference: &str) -> Result<Event> {
    let ends = ends(drayd, reference);
    let [end] = ends.as_slice() else {
        anyhow::bail!("not one line tells the end of {reference}, but {ends:#?}");
    };
    Ok(end.clone())
}

/// Fails if the store is not exactly what it was.
pub(crate) async fn unchanged(bed: &Bed, before: &State, what: &str) -> Result<()> {
    let difference = bed.containerd.probe().state().await?.difference_from(before);
    ensure!(difference.is_empty(), "{what}:\n{}", difference.join("\n"));
    Ok(())
}

/// The bed as a trial gets it.
pub(crate) type Stage = Arc<Bed>;
