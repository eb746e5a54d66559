//! One containerd with its own store, sockets and nydus-snapshotter. Its shims outlive `kill`, as they must in life;
//! clearing the place ends them.

mod config;

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::time::{Instant, sleep};

use crate::cri::Cri;
use crate::peers::{self, Release};
use crate::place::Place;
use crate::probe::Probe;
use crate::process::Process;

pub use config::{NATIVE_HANDLER, NYDUS_HANDLER, PLAIN_HANDLER, RUNC_HANDLER};

const START: Duration = Duration::from_secs(20);
/// Below the bed's `run`.
const CONFIGURATION: &str = "containerd.toml";

/// What a containerd has otherwise than those of most beds.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where it looks for programs besides its own directory; this program's `PATH` if there is none. Of a program to
    /// inflate layers with, it takes the first that it finds there.
    pub path: Option<Vec<PathBuf>>,
    /// Level of the log.
    pub level: &'static str,
    /// More keys of the transfer service, which 2.1 pulls by.
    pub transfer: &'static str,
}

impl Default for Setup {
    fn default() -> Self {
        Self { path: None, level: "debug", transfer: "" }
    }
}

/// A running containerd.
#[derive(Debug)]
pub struct Containerd {
    release: Release,
    place: Place,
    /// For the next start of it.
    setup: Setup,
    /// Changed by `kill` and `restart`, which checks call on a bed that they share.
    process: Mutex<Process>,
    /// As above.
    nydus: Mutex<Process>,
}

impl Containerd {
    /// Starts containerd and nydus-snapshotter in `place`. Registries in `plain_http` are reached without TLS; the
    /// sandbox image is `pause`.
    pub async fn start(release: Release, place: &Place, plain_http: &[&str], pause: &str) -> Result<Self> {
        Self::start_with(release, place, plain_http, pause, Setup::default()).await
    }

    /// The same, set up otherwise.
    pub async fn start_with(
        release: Release,
        place: &Place,
        plain_http: &[&str],
        pause: &str,
        setup: Setup,
    ) -> Result<Self> {
        let nydus = start_nydus(place)?;
        write(&place.run().join(CONFIGURATION), &config::containerd(release, place, pause, &setup))?;
        write(&place.run().join("cni/10-bed.conflist"), config::CNI)?;
        let decoder = config::decoder_path(place);
        write(&decoder, &config::decoder(place))?;
        fs::set_permissions(&decoder, fs::Permissions::from_mode(0o755))?;
        for registry in plain_http {
            let hosts = place.run().join("certs.d").join(registry).join("hosts.toml");
            write(&hosts, &format!("server = \"http://{registry}\"\n"))?;
        }
        let process = Mutex::new(start_containerd(release, place, &setup)?);
        let containerd = Self { release, place: place.clone(), setup, process, nydus: Mutex::new(nydus) };
        containerd.await_ready().await?;
        Ok(containerd)
    }

    /// Its release line.
    pub fn release(&self) -> Release {
        self.release
    }

    /// Its configuration as it understands it, defaults included.
    pub fn effective_configuration(&self) -> Result<String> {
        let program = peers::containerd_directory(self.release)?.join("containerd");
        let file = self.place.run().join(CONFIGURATION);
        let output = Command::new(program).arg("--config").arg(file).args(["config", "dump"]).output();
        let output = output.context("cannot run containerd")?;
        ensure!(
            output.status.success(),
            "containerd config dump: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        String::from_utf8(output.stdout).context("containerd's configuration is not text")
    }

    /// Removes every image but the one with this id, with all that only they held.
    pub async fn empty(&self, but: &str) -> Result<()> {
        let cri = self.cri();
        for image in cri.list().await.context("cannot list the images of containerd's CRI")? {
            if image.id != but {
                cri.remove(&image.id).await.with_context(|| format!("cannot remove {}", image.id))?;
            }
        }
        self.probe().force_gc().await
    }

    /// The gRPC socket: CRI and the native API.
    pub fn socket(&self) -> PathBuf {
        self.place.run().join("containerd.sock")
    }

    /// What the last decoder of an encrypted layer was told: `payload` and `media-type`.
    pub fn decoder_records(&self) -> PathBuf {
        config::decoder_records(&self.place)
    }

    /// The directory of `<host>/hosts.toml` files.
    pub fn registry_configuration(&self) -> PathBuf {
        self.place.run().join("certs.d")
    }

    /// The log.
    pub fn log(&self) -> PathBuf {
        locked(&self.process).stderr().to_owned()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        locked(&self.process).pid()
    }

    /// Its CRI services.
    pub fn cri(&self) -> Cri {
        Cri::connect(&self.socket())
    }

    /// Its native API.
    pub fn probe(&self) -> Probe {
        Probe::connect(&self.socket())
    }

    /// SIGKILL, as a crash: pods keep running under their shims.
    pub fn kill(&self) -> Result<()> {
        locked(&self.process).kill()
    }

    /// SIGSTOP until the guard is dropped.
    pub fn freeze(&self) -> Result<Frozen<'_>> {
        locked(&self.process).freeze()?;
        Ok(Frozen(self))
    }

    /// The file of a blob in its content store.
    pub fn blob_file(&self, digest: &str) -> PathBuf {
        let blobs = "containerd/io.containerd.content.v1.content/blobs";
        self.place.root().join(blobs).join(digest.replace(':', "/"))
    }

    /// Starts it again on the same store, ending it first if it still runs.
    pub async fn restart(&self) -> Result<()> {
        restart(&self.process, || start_containerd(self.release, &self.place, &self.setup))?;
        self.await_ready().await
    }

    /// SIGKILL to the nydus-snapshotter; containerd's calls to that snapshotter fail from here on.
    pub fn kill_nydus(&self) -> Result<()> {
        locked(&self.nydus).kill()
    }

    /// Starts the nydus-snapshotter again on its store, ending it first if it still runs.
    pub fn restart_nydus(&self) -> Result<()> {
        restart(&self.nydus, || start_nydus(&self.place))
    }

    /// Deletes everything that the nydus-snapshotter has, behind containerd's back.
    pub fn wipe_nydus(&self) -> Result<()> {
        self.kill_nydus()?;
        remove(&self.place.root().join("nydus"))?;
        self.restart_nydus()
    }

    /// Deletes everything that a snapshotter of its own has, behind its back.
    pub async fn wipe_snapshotter(&self, name: &str) -> Result<()> {
        locked(&self.process).terminate()?;
        remove(&self.place.root().join(format!("containerd/io.containerd.snapshotter.v1.{name}")))?;
        self.restart().await
    }

    /// Gives both processes up, for a bed that stays; returns containerd's pid.
    pub fn leave(self) -> u32 {
        let [process, nydus] = [self.process, self.nydus]
            .map(|process| process.into_inner().unwrap_or_else(PoisonError::into_inner));
        let pid = process.pid();
        process.leave();
        nydus.leave();
        pid
    }

    async fn await_ready(&self) -> Result<()> {
        let socket = self.socket();
        locked(&self.process)
            .wait_until("listening on its socket", START, || UnixStream::connect(&socket).is_ok())?;
        let (cri, deadline) = (self.cri(), Instant::now() + START);
        // The CRI plugin answers only some time after the socket listens.
        while let Err(status) = cri.conditions().await {
            if Instant::now() > deadline || !locked(&self.process).runs() {
                let log = self.log();
                return Err(status)
                    .with_context(|| format!("containerd's CRI does not come up; see {}", log.display()));
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

/// A containerd that stands still; goes on when this is dropped.
#[derive(Debug)]
pub struct Frozen<'a>(&'a Containerd);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(error) = locked(&self.0.process).thaw() {
            eprintln!("{error:#}");
        }
    }
}

fn locked(process: &Mutex<Process>) -> MutexGuard<'_, Process> {
    process.lock().unwrap_or_else(PoisonError::into_inner)
}

fn restart(process: &Mutex<Process>, start: impl FnOnce() -> Result<Process>) -> Result<()> {
    let mut process = locked(process);
    process.terminate()?;
    *process = start()?;
    Ok(())
}

fn start_containerd(release: Release, place: &Place, setup: &Setup) -> Result<Process> {
    let programs = peers::containerd_directory(release)?;
    let mut command = Command::new(programs.join("containerd"));
    command.arg("--config").arg(place.run().join(CONFIGURATION));
    let others = match &setup.path {
        Some(path) => path.clone(),
        None => env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect(),
    };
    // containerd looks for its shim on the PATH first, where another release's may be.
    let path = env::join_paths([programs].into_iter().chain(others))?;
    command.env("PATH", path);
    Process::spawn("containerd", command, place.run())
}

fn start_nydus(place: &Place) -> Result<Process> {
    let file = place.run().join("nydus.toml");
    write(&file, &config::nydus(place))?;
    let mut command = Command::new(peers::nydus_snapshotter()?);
    command.arg("--config").arg(&file);
    let socket = config::nydus_socket(place);
    // A socket file left by a killed one would look like a listener to nobody, and it refuses to replace it.
    let _ = fs::remove_file(&socket);
    let mut process = Process::spawn("nydus", command, place.run())?;
    process.wait_until("listening on its socket", START, || UnixStream::connect(&socket).is_ok())?;
    Ok(process)
}

fn remove(directory: &Path) -> Result<()> {
    fs::remove_dir_all(directory).with_context(|| format!("cannot delete {}", directory.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(path, text))
        .with_context(|| format!("cannot write {}", path.display()))
}
