//! Pods from images that only drayd pulled, the sandbox image among them.

use anyhow::{Result, ensure};
use drayd_tests::containerd::{NATIVE_HANDLER, RUNC_HANDLER};
use drayd_tests::cri::Cri;
use drayd_tests::images::greeting;
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;

use crate::stage::{self, Stage, pull};

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "a_pod_runs_from_images_that_only_drayd_pulled", async |bed: Stage| {
        pod_runs(&bed, None, |bed, _| bed.containerd.cri()).await
    });
    suite.check(release, "the_same_pod_runs_through_drayds_own_socket", async |bed: Stage| {
        pod_runs(&bed, None, |_, drayd| drayd.cri()).await
    });
    if release.maps_handlers() {
        suite.check(release, "a_pod_runs_on_the_snapshotter_of_its_handler", async |bed: Stage| {
            pod_runs(&bed, Some(NATIVE_HANDLER), |bed, _| bed.containerd.cri()).await
        });
    }
}

/// Pulls pause and an image through drayd, and runs the image by each of its names through the runtime of `side`.
async fn pod_runs(
    bed: &Stage,
    handler: Option<&str>,
    side: impl Fn(&drayd_tests::bed::Bed, &drayd_tests::drayd::Drayd) -> Cri,
) -> Result<()> {
    let drayd = stage::bare(bed).await?;
    pull(bed, &drayd, &bed.images.pause, handler).await?;
    let image = &bed.images.busybox;
    let id = pull(bed, &drayd, image, handler).await?;
    let mark = bed.registry.mark();
    let registry = bed.registry.address();
    for name in [id, image.reference(registry), image.digest_reference(registry)] {
        let runtime = side(bed, &drayd);
        let printed = runtime.run_pod(&name, handler.unwrap_or(RUNC_HANDLER), bed.run()).await?;
        ensure!(printed == greeting(), "{name} printed {printed:?}");
    }
    let requests = bed.registry.requests_since(mark);
    ensure!(requests.is_empty(), "containerd pulled something itself: {requests:#?}");
    Ok(())
}
