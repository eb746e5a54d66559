//! The life of the daemon: its start and end, its command line, its log, what it passes through, and containerd's
//! coming and going under it.

#[path = "daemon/commands.rs"]
mod commands;
#[path = "daemon/ending.rs"]
mod ending;
#[path = "daemon/journal.rs"]
mod journal;
#[path = "daemon/lines.rs"]
mod lines;
#[path = "daemon/passing.rs"]
mod passing;
#[path = "daemon/restarts.rs"]
mod restarts;
#[path = "daemon/starting.rs"]
mod starting;

use std::process::ExitCode;

use anyhow::Result;
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;

/// For what no containerd has a part in: one of them is enough.
const ANY: Release = Release::V1_7;

fn main() -> Result<ExitCode> {
    let mut suite = Suite::new()?;
    commands::add(&mut suite);
    for release in Release::ALL {
        passing::add(&mut suite, release);
        lines::add(&mut suite, release);
        ending::add(&mut suite, release);
        if release == ANY {
            starting::add(&mut suite, release);
            journal::add(&mut suite, release);
        }
        // Last: they take containerd away.
        restarts::add(&mut suite, release);
    }
    Ok(suite.run())
}
