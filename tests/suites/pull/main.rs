//! drayd's own pulls, on every containerd that it serves: what they leave behind, what they cost, and what they survive.

mod again;
mod cases;
mod collection;
mod crash;
mod direct;
mod handler;
mod listing;
mod pods;
mod records;
mod sharing;
mod stage;
mod trees;

use std::process::ExitCode;

use anyhow::Result;
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;

fn main() -> Result<ExitCode> {
    let mut suite = Suite::new()?;
    for release in Release::ALL {
        pods::add(&mut suite, release);
        handler::add(&mut suite, release);
        sharing::add(&mut suite, release);
        again::add(&mut suite, release);
        cases::add(&mut suite, release);
        collection::add(&mut suite, release);
        trees::add(&mut suite, release);
        records::add(&mut suite, release);
        listing::add(&mut suite, release);
        crash::add(&mut suite, release);
        direct::add(&mut suite, release);
    }
    Ok(suite.run())
}
