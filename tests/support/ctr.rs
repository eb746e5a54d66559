//! containerd's own client for the command line.

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use crate::containerd::Containerd;
use crate::peers::{self, Release};

/// Pulls by the client itself, which resolves, fetches and unpacks as every program does that is built on containerd's
/// client.
pub async fn pull(containerd: &Containerd, namespace: &str, reference: &str) -> Result<()> {
    let release = containerd.release();
    let mut command = Command::new(peers::ctr(release)?);
    command.arg("--address").arg(containerd.socket()).args(["--namespace", namespace, "images", "pull"]);
    command.arg("--hosts-dir").arg(containerd.registry_configuration());
    if release != Release::V1_6 {
        // Else containerd's transfer service does the pull.
        command.arg("--local");
    }
    let output = command.arg(reference).kill_on_drop(true).output().await.context("cannot run ctr")?;
    ensure!(output.status.success(), "ctr: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
