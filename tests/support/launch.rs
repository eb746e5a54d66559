//! drayd started the way that a check of its life needs: in a directory of its own, with any settings and environment,
//! awaited or not. `drayd` is the plain way for everything else.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cri::Cri;
use crate::drayd::program;
use crate::process::Process;

const START: Duration = Duration::from_secs(15);
const TICK: Duration = Duration::from_millis(10);

/// What a drayd is started with.
#[derive(Clone, Debug)]
pub struct Launch {
    directory: PathBuf,
    /// containerd's socket.
    containerd: PathBuf,
    /// The containerd namespace that it works in.
    pub namespace: &'static str,
    /// More keys of `[cri]`.
    pub cri: String,
    /// `text` or `json`.
    pub format: &'static str,
    /// Level of the log.
    pub level: &'static str,
    /// More sections.
    pub sections: String,
    /// Variables of the environment.
    pub environment: Vec<(&'static str, String)>,
}

impl Launch {
    /// In front of a containerd, with its files in the fresh directory `name` beside that socket.
    pub fn new(containerd: &Path, name: &str) -> Result<Self> {
        let directory = containerd.parent().unwrap_or(Path::new("/")).join(name);
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot clear {}", directory.display()));
            }
            _ => {}
        }
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        Ok(Self {
            directory,
            containerd: containerd.to_owned(),
            namespace: "k8s.io",
            cri: String::new(),
            format: "text",
            level: "info",
            sections: String::new(),
            environment: Vec::new(),
        })
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The CRI socket that it will have.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("drayd.sock")
    }

    /// The configuration file, written.
    pub fn config(&self) -> Result<PathBuf> {
        let text = format!(
            "[containerd]\naddress = \"{}\"\nnamespace = \"{}\"\n\n[cri]\nsocket = \"{}\"\n{}\n\n[api]\nsocket = \"{}\"\n\n\
             [log]\nformat = \"{}\"\nlevel = \"{}\"\n\n{}\n",
            self.containerd.display(),
            self.namespace,
            self.socket().display(),
            self.cri,
            self.directory.join("api.sock").display(),
            self.format,
            self.level,
            self.sections,
        );
        let file = self.directory.join("drayd.toml");
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }

    /// Starts it and does not wait.
    pub fn spawn(&self) -> Result<Launched> {
        self.config()?;
        self.spawn_as_written()
    }

    /// Starts it on the configuration file that is there, and does not wait.
    pub fn spawn_as_written(&self) -> Result<Launched> {
        let mut command = Command::new(program()?);
        command.arg("serve").arg("--config").arg(self.directory.join("drayd.toml"));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let process = Process::spawn("drayd", command, &self.directory)?;
        Ok(Launched { process, socket: self.socket() })
    }

    /// Starts it and waits until its socket accepts.
    pub fn start(&self) -> Result<Launched> {
        let mut launched = self.spawn()?;
        let socket = self.socket();
        launched
            .process
            .wait_until("listening on its socket", START, || UnixStream::connect(&socket).is_ok())?;
        Ok(launched)
    }
}

/// A drayd that was started.
#[derive(Debug)]
pub struct Launched {
    process: Process,
    socket: PathBuf,
}

impl Launched {
    /// The CRI socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Its CRI services.
    pub fn cri(&self) -> Cri {
        Cri::connect(&self.socket)
    }

    /// Standard error so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.process.stderr()).unwrap_or_default()
    }

    /// Both outputs so far.
    pub fn output(&self) -> String {
        self.log() + &fs::read_to_string(self.process.stdout()).unwrap_or_default()
    }

    /// Waits until the log has `count` lines with this text.
    pub async fn await_lines(&self, text: &str, count: usize, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        while self.log().lines().filter(|line| line.contains(text)).count() < count {
            if Instant::now() > deadline {
                bail!("no {count} lines with {text:?} within {within:?}:\n{}", self.log());
            }
            tokio::time::sleep(TICK).await;
        }
        Ok(())
    }

    /// SIGKILL, as a crash.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Sends SIGTERM and does not wait.
    pub fn tell_to_stop(&mut self) -> Result<()> {
        self.process.signal_term()
    }

    /// Waits for the end.
    pub async fn ended(&mut self, within: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.process.exit_status()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("drayd still runs after {within:?}:\n{}", self.log());
            }
            tokio::time::sleep(TICK).await;
        }
    }
}

/// Runs a command of drayd that ends by itself.
pub fn run(arguments: &[&str]) -> Result<Output> {
    let program = program()?;
    let output = Command::new(&program).args(arguments).output();
    output.with_context(|| format!("cannot run {}", program.display()))
}
