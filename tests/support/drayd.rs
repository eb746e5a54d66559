//! drayd as it is installed: its program, a configuration file, its sockets and its log.

use std::env;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cri::Cri;
use crate::log::Event;
use crate::process::Process;

const START: Duration = Duration::from_secs(15);

/// A running drayd.
#[derive(Debug)]
pub struct Drayd {
    process: Process,
    directory: PathBuf,
    /// Where its own log begins: an earlier drayd may have written into the same file.
    log_begins: usize,
}

impl Drayd {
    /// Starts drayd in front of a containerd, with its files in that socket's directory. `extra` is appended to the
    /// configuration, so it may add tables but not repeat one.
    pub fn start(containerd_socket: &Path, extra: &str) -> Result<Self> {
        let directory = containerd_socket.parent().unwrap_or(Path::new("/")).to_owned();
        let config = format!(
            "[containerd]\naddress = \"{}\"\n\n[cri]\nsocket = \"{directory}/drayd.sock\"\n\n\
             [api]\nsocket = \"{directory}/dray-api.sock\"\n\n[log]\nlevel = \"debug\"\nformat = \"json\"\n\n{extra}",
            containerd_socket.display(),
            directory = directory.display(),
        );
        let file = directory.join("drayd.toml");
        fs::write(&file, config).with_context(|| format!("cannot write {}", file.display()))?;
        let mut command = Command::new(program()?);
        command.arg("serve").arg("--config").arg(&file);
        let earlier = fs::metadata(directory.join("logs/drayd.log"));
        let log_begins = earlier.map_or(0, |log| usize::try_from(log.len()).unwrap_or_default());
        let mut process = Process::spawn("drayd", command, &directory)?;
        let socket = directory.join("drayd.sock");
        process.wait_until("listening on its socket", START, || UnixStream::connect(&socket).is_ok())?;
        Ok(Self { process, directory, log_begins })
    }

    /// The CRI socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("drayd.sock")
    }

    /// The socket of drayd's own API.
    pub fn api_socket(&self) -> PathBuf {
        self.directory.join("dray-api.sock")
    }

    /// Its CRI services.
    pub fn cri(&self) -> Cri {
        Cri::connect(&self.socket())
    }

    /// The log so far. A drayd that was started again in the same place goes on with the same log.
    pub fn log_lines(&self) -> Vec<String> {
        let texts = [self.process.stdout(), self.process.stderr()]
            .map(|path| fs::read_to_string(path).unwrap_or_default());
        texts.iter().flat_map(|text| text.lines()).map(str::to_owned).collect()
    }

    /// What it logged since it was started.
    pub fn events(&self) -> Vec<Event> {
        let text = fs::read_to_string(self.process.stderr()).unwrap_or_default();
        let own = text.get(self.log_begins..).unwrap_or_default();
        own.lines().filter_map(Event::parse).collect()
    }

    /// The process id, for what only `/proc` knows.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// SIGSTOP until the guard is dropped.
    pub fn freeze(&mut self) -> Result<Frozen<'_>> {
        self.process.freeze()?;
        Ok(Frozen(&mut self.process))
    }

    /// SIGKILL, as a crash.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// SIGTERM; says whether it ended by that alone.
    pub fn terminate(&mut self) -> Result<bool> {
        self.process.terminate()
    }
}

/// A drayd that stands still; goes on when this is dropped.
#[derive(Debug)]
pub struct Frozen<'a>(&'a mut Process);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.thaw() {
            eprintln!("{error:#}");
        }
    }
}

/// `DRAYD_BIN`, or the program that the same build made.
pub(crate) fn program() -> Result<PathBuf> {
    let path = match env::var_os("DRAYD_BIN").map(PathBuf::from) {
        Some(path) => path,
        None => built_beside_this()?,
    };
    ensure!(path.is_file(), "{} is missing; run `make build`, or set DRAYD_BIN", path.display());
    Ok(path)
}

/// Suites lie in `deps`, one below the programs.
fn built_beside_this() -> Result<PathBuf> {
    let own = env::current_exe().context("cannot find the running program")?;
    let mut directory = own.parent().unwrap_or(Path::new("/"));
    if directory.ends_with("deps") {
        directory = directory.parent().unwrap_or(directory);
    }
    Ok(directory.join("drayd"))
}
