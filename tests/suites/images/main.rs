//! What drayd says of images, on every containerd that it serves: to kubelet, crictl and kruise-daemon, whoever else
//! makes and removes images, and wherever these are unpacked.

mod answers;
mod calls;
mod conformance;
mod presence;
mod space;
mod store;
mod uptime;

use std::process::ExitCode;

use anyhow::Result;
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;

fn main() -> Result<ExitCode> {
    let mut suite = Suite::new()?;
    for release in Release::ALL {
        answers::add(&mut suite, release);
        conformance::add(&mut suite, release);
        store::add(&mut suite, release);
        uptime::add(&mut suite, release);
        presence::add(&mut suite, release);
        space::add(&mut suite, release);
        calls::add(&mut suite, release);
    }
    Ok(suite.run())
}
