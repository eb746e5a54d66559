//! What the trials share: pulls that are under way, and what drayd's log says of them.

use anyhow::Result;
use drayd_tests::bed::Bed;
use drayd_tests::cri::Cri;
use drayd_tests::drayd::Drayd;
use drayd_tests::images::{self, Descriptor, Image};
use drayd_tests::log::Event;
use drayd_tests::registry::Request;
pub(crate) use drayd_tests::stage::{SOON, Stage, bare, configured, pull, start, unchanged};
use drayd_tests::throttle::Throttle;
use drayd_tests::wait;
use tokio::task::JoinHandle;
use tonic::Status;

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
