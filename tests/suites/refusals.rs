//! Everything that a pull has to refuse, and how: the gRPC code and the words, within a bounded time, and nothing left
//! in containerd. Where the registry is at fault, a scripted one plays it.

#[path = "refusals/broken.rs"]
mod broken;
#[path = "refusals/credentials.rs"]
mod credentials;
#[path = "refusals/descriptors.rs"]
mod descriptors;
#[path = "refusals/downloads.rs"]
mod downloads;
#[path = "refusals/manifests.rs"]
mod manifests;
#[path = "refusals/platforms.rs"]
mod platforms;
#[path = "refusals/repair.rs"]
mod repair;
#[path = "refusals/requests.rs"]
mod requests;
#[path = "refusals/secrets.rs"]
mod secrets;
#[path = "refusals/stage.rs"]
mod stage;
#[path = "refusals/transfers.rs"]
mod transfers;

use std::process::ExitCode;

use anyhow::Result;
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;

/// For what no containerd has a part in: one of them is enough.
const ANY: Release = Release::V1_7;

fn main() -> Result<ExitCode> {
    let mut suite = Suite::new()?;
    for release in Release::ALL {
        broken::add(&mut suite, release);
        manifests::add(&mut suite, release);
        descriptors::add(&mut suite, release);
        platforms::add(&mut suite, release);
        transfers::add(&mut suite, release);
        downloads::add(&mut suite, release);
        repair::add(&mut suite, release);
        if release == ANY {
            requests::add(&mut suite, release);
            credentials::add(&mut suite, release);
            secrets::add(&mut suite, release);
        }
    }
    Ok(suite.run())
}
