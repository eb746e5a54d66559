//! Builds everything once from the configuration and runs it until told to stop.

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::Config;
use crate::cri::socket;

/// Serves until SIGTERM or SIGINT, then removes what it made.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle SIGINT")?;
    let cri = &config.cri;
    let (_listener, _guard) = socket::bind(&cri.socket, cri.socket_mode, cri.socket_group.as_ref()).await?;
    sd_notify::notify(&[sd_notify::NotifyState::Ready]).context("cannot tell systemd of readiness")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
