//! The socket and what tells of it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::launch::{Launch, run};
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;
use tokio::net::UnixDatagram;
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(10);

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "a_stale_socket_is_replaced", stale_socket);
    suite.check(release, "a_live_socket_is_refused_and_its_daemon_works_on", live_socket);
    suite.check(release, "what_is_no_socket_is_left_alone", no_socket);
    suite.check(release, "mode_and_group_are_as_configured_and_the_socket_goes_at_the_end", mode_and_group);
    suite.check(
        release,
        "systemd_hears_ready_when_the_socket_accepts_and_stopping_on_sigterm",
        notifications,
    );
    suite.check(release, "the_default_configuration_starts_a_daemon", default_configuration);
}

async fn stale_socket(bed: Arc<Bed>) -> Result<()> {
    let launch = Launch::new(&bed.containerd.socket(), "stale")?;
    // Bound and dropped: the file stays, and nobody listens.
    drop(UnixListener::bind(launch.socket())?);
    let refused = UnixStream::connect(launch.socket()).err().map(|error| error.kind());
    ensure!(refused == Some(ErrorKind::ConnectionRefused), "{refused:?}");
    let drayd = launch.start()?;
    ensure!(drayd.cri().list().await.is_ok(), "{}", drayd.log());
    Ok(())
}

async fn live_socket(bed: Arc<Bed>) -> Result<()> {
    let launch = Launch::new(&bed.containerd.socket(), "live")?;
    let first = launch.start()?;
    let before = fs::symlink_metadata(launch.socket())?.ino();
    let second = run(&["serve", "--config", &launch.config()?.display().to_string()])?;
    ensure!(second.status.code() == Some(1), "{second:?}");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    // The first of its sockets that it binds.
    let taken = launch.directory().join("api.sock");
    let expected = format!("ERROR socket {} is in use by another process\n", taken.display());
    ensure!(said.ends_with(&expected), "{said}");
    ensure!(fs::symlink_metadata(launch.socket())?.ino() == before, "the socket was replaced");
    ensure!(first.cri().list().await.is_ok(), "{}", first.log());
    Ok(())
}

async fn no_socket(bed: Arc<Bed>) -> Result<()> {
    let launch = Launch::new(&bed.containerd.socket(), "no-socket")?;
    fs::write(launch.socket(), "precious")?;
    let refused = run(&["serve", "--config", &launch.config()?.display().to_string()])?;
    ensure!(refused.status.code() == Some(1), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(said.ends_with(&format!("{} exists and is not a socket\n", launch.socket().display())), "{said}");
    ensure!(fs::read_to_string(launch.socket())? == "precious", "the file was touched");
    Ok(())
}

async fn mode_and_group(bed: Arc<Bed>) -> Result<()> {
    for (name, keys, mode, group) in [
        ("modes-default", "", 0o660, 0),
        ("modes-number", "socket_mode = \"0600\"\nsocket_group = \"4242\"\n", 0o600, 4242),
        // Debian's group of that name and number.
        ("modes-name", "socket_mode = \"0666\"\nsocket_group = \"daemon\"\n", 0o666, 1),
    ] {
        let mut launch = Launch::new(&bed.containerd.socket(), name)?;
        launch.cri = keys.to_owned();
        let mut drayd = launch.start()?;
        let found = fs::symlink_metadata(launch.socket())?;
        ensure!(
            (found.mode() & 0o7777, found.gid()) == (mode, group),
            "{name}: {:o} {}",
            found.mode(),
            found.gid()
        );
        drayd.tell_to_stop()?;
        let status = drayd.ended(SOON).await?;
        ensure!(status.code() == Some(0), "{name}: {status}");
        ensure!(!launch.socket().exists(), "{name}: the socket is still there");
    }
    Ok(())
}

async fn notifications(bed: Arc<Bed>) -> Result<()> {
    let mut launch = Launch::new(&bed.containerd.socket(), "notify")?;
    let path = launch.directory().join("notify.sock");
    let systemd = UnixDatagram::bind(&path).context("cannot bind the socket of the notifications")?;
    launch.environment = vec![("NOTIFY_SOCKET", path.display().to_string())];
    let mut drayd = launch.spawn()?;
    ensure!(heard(&systemd).await? == "READY=1\n", "something else before READY=1");
    // Not later: whoever is told so may connect at once.
    UnixStream::connect(launch.socket()).context("READY=1 came before the socket accepts")?;
    drayd.tell_to_stop()?;
    ensure!(heard(&systemd).await? == "STOPPING=1\n", "something else before STOPPING=1");
    ensure!(drayd.ended(SOON).await?.code() == Some(0), "{}", drayd.log());

    // A daemon that does not get its socket is never ready.
    let holder = launch.start()?;
    ensure!(heard(&systemd).await? == "READY=1\n", "the second start");
    let mut refused = launch.spawn()?;
    ensure!(refused.ended(SOON).await?.code() == Some(1), "{}", refused.log());
    ensure!(
        timeout(Duration::ZERO, heard(&systemd)).await.is_err(),
        "a refused daemon told systemd something"
    );
    drop(holder);
    Ok(())
}

async fn heard(systemd: &UnixDatagram) -> Result<String> {
    let mut buffer = [0; 256];
    let length = timeout(SOON, systemd.recv(&mut buffer)).await.context("systemd hears nothing")??;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// With nothing changed but the three paths that belong to the machine's own installation.
async fn default_configuration(bed: Arc<Bed>) -> Result<()> {
    let launch = Launch::new(&bed.containerd.socket(), "default")?;
    let socket = launch.socket();
    let printed = run(&["config", "default"])?;
    let text = String::from_utf8(printed.stdout)?;
    let mut replaced = text;
    for (default, own) in [
        ("/run/containerd/containerd.sock", bed.containerd.socket()),
        ("/run/drayd/drayd.sock", socket.clone()),
        ("/run/drayd/api.sock", launch.directory().join("api.sock")),
    ] {
        let value = |path: &str| format!(" = \"{path}\"\n");
        ensure!(replaced.matches(&value(default)).count() == 1, "no single {default} in\n{replaced}");
        replaced = replaced.replace(&value(default), &value(&own.display().to_string()));
    }
    let file = launch.config()?;
    fs::write(&file, replaced)?;
    let mut drayd = launch.spawn_as_written()?;
    drayd.await_lines("connected to containerd", 1, SOON).await?;
    UnixStream::connect(&socket).with_context(|| drayd.log())?;
    drayd.tell_to_stop()?;
    ensure!(drayd.ended(SOON).await?.code() == Some(0), "{}", drayd.log());
    Ok(())
}
