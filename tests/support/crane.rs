//! `crane registry serve` on a free loopback port, plain HTTP: the registry of go-containerregistry, in memory. Keeps
//! drayd from knowing docker-registry alone.

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::peers;
use crate::process::Process;
use crate::registry::free_loopback_address;

const START: Duration = Duration::from_secs(10);

/// A running registry.
#[derive(Debug)]
pub struct Crane {
    address: String,
    _process: Process,
}

impl Crane {
    /// Starts one without images.
    pub fn start(run: &Path) -> Result<Self> {
        let address = free_loopback_address()?;
        let mut command = Command::new(peers::crane()?);
        command.args(["registry", "serve", "--address", &address]);
        let mut process = Process::spawn("crane", command, run)?;
        process
            .wait_until(&format!("listening on {address}"), START, || TcpStream::connect(&address).is_ok())?;
        Ok(Self { address, _process: process })
    }

    /// `127.0.0.1:<port>`, as it begins a reference.
    pub fn address(&self) -> &str {
        &self.address
    }
}
