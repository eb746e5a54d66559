//! drayd's own pulls, on every containerd that it serves.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::containerd::RUNC_HANDLER;
use drayd_tests::drayd::Drayd;
use drayd_tests::images::greeting;
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;

fn main() -> Result<ExitCode> {
    let mut suite = Suite::new()?;
    for release in Release::ALL {
        suite.check(release, "a_pod_runs_from_images_that_only_drayd_pulled", a_pod_runs);
    }
    Ok(suite.run())
}

async fn a_pod_runs(bed: Arc<Bed>) -> Result<()> {
    bed.empty().await?;
    let drayd = Drayd::start(&bed.containerd.socket(), "")?;
    let reference = bed.images.busybox.reference(bed.registry.address());
    let pulled = drayd.cri().pull(&reference, None, None).await;
    for line in drayd.log_lines() {
        println!("{line}");
    }
    let id = pulled?;
    let printed = bed.containerd.cri().run_pod(&id, RUNC_HANDLER, bed.run()).await?;
    ensure!(printed == greeting(), "the container printed {printed:?}");
    Ok(())
}
