//! Clients as they are: what they name the socket, what they call and in which order, how much they send and take, and
//! how they see whether drayd is there.

#[path = "clients/acceptance.rs"]
mod acceptance;
#[path = "clients/health.rs"]
mod health;
#[path = "clients/sizes.rs"]
mod sizes;

use std::process::ExitCode;

use anyhow::Result;
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;

fn main() -> Result<ExitCode> {
    let mut suite = Suite::new()?;
    for release in Release::ALL {
        acceptance::add(&mut suite, release);
        sizes::add(&mut suite, release);
        // Last: it takes containerd away.
        health::add(&mut suite, release);
    }
    Ok(suite.run())
}
