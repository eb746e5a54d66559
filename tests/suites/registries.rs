//! The registries that others wrote, docker-registry and that of go-containerregistry: who is let in, which of several
//! is asked, and in which way. A pull from them goes through drayd into a real containerd.

#[path = "registries/mirrors.rs"]
mod mirrors;
#[path = "registries/passwords.rs"]
mod passwords;
#[path = "registries/plain.rs"]
mod plain;
#[path = "registries/stage.rs"]
mod stage;
#[path = "registries/tls.rs"]
mod tls;
#[path = "registries/tokens.rs"]
mod tokens;

use std::process::ExitCode;

use anyhow::Result;
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;

/// No containerd has a part in who sends the bytes.
const ANY: Release = Release::V1_7;

fn main() -> Result<ExitCode> {
    let mut suite = Suite::new()?;
    plain::add(&mut suite, ANY);
    passwords::add(&mut suite, ANY);
    tokens::add(&mut suite, ANY);
    mirrors::add(&mut suite, ANY);
    tls::add(&mut suite, ANY);
    Ok(suite.run())
}
