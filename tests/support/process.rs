//! A child process that ends with its guard, by its pid and nothing else. Its output goes to files, and its pid is
//! recorded, so that a bed whose owner was killed can be cleared later.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// How long a process may take to end on SIGTERM before it gets SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Between two looks at something that is awaited.
const TICK: Duration = Duration::from_millis(20);
/// Log lines that an error shows.
const TAIL: usize = 15;

/// A running child process.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    record: PathBuf,
    identity: Identity,
}

impl Process {
    /// Starts `command`. Output goes to `<run>/logs/<name>.out` and `.log`, the pid to `<run>/pids/<name>`.
    pub fn spawn(name: &str, mut command: Command, run: &Path) -> Result<Self> {
        use std::os::unix::process::CommandExt as _;

        let (logs, pids) = (run.join("logs"), run.join("pids"));
        for directory in [&logs, &pids] {
            fs::create_dir_all(directory)
                .with_context(|| format!("cannot create {}", directory.display()))?;
        }
        let stdout = logs.join(format!("{name}.out"));
        let stderr = logs.join(format!("{name}.log"));
        let child = command
            .stdin(Stdio::null())
            .stdout(appending(&stdout)?)
            .stderr(appending(&stderr)?)
            // A Ctrl-C at the terminal is for the suite, which then ends its children in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name} ({})", command.get_program().display()))?;
        let record = pids.join(name);
        let identity = Identity::of(child.id()).with_context(|| format!("{name} was gone at once"))?;
        fs::write(&record, identity.written())
            .with_context(|| format!("cannot record the pid of {name} in {}", record.display()))?;
        Ok(Self { name: name.to_owned(), child, stdout, stderr, record, identity })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The file that holds standard output.
    pub fn stdout(&self) -> &Path {
        &self.stdout
    }

    /// The file that holds standard error.
    pub fn stderr(&self) -> &Path {
        &self.stderr
    }

    /// Waits until `ready` says so. Fails with the end of the log when the process ends first or `within` passes.
    pub fn wait_until(&mut self, what: &str, within: Duration, ready: impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + within;
        while !ready() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended with {status} before {what}:\n{}", self.name, self.tail());
            }
            if Instant::now() > deadline {
                bail!("{}: not {what} within {within:?}:\n{}", self.name, self.tail());
            }
            thread::sleep(TICK);
        }
        Ok(())
    }

    /// Whether the process still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("cannot kill {}", self.name))?;
        self.child.wait().with_context(|| format!("cannot await the end of {}", self.name))?;
        Ok(())
    }

    /// SIGTERM, then SIGKILL after a grace period; says whether SIGTERM was enough.
    pub fn terminate(&mut self) -> Result<bool> {
        self.signal_term()?;
        let deadline = Instant::now() + GRACE;
        while self.runs() {
            if Instant::now() > deadline {
                self.kill()?;
                return Ok(false);
            }
            thread::sleep(TICK);
        }
        Ok(true)
    }

    /// SIGTERM, without waiting for what comes of it.
    pub fn signal_term(&mut self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// SIGSTOP: it keeps its sockets and does nothing, as on a disk that hangs.
    pub fn freeze(&mut self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    pub fn thaw(&mut self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed())
            && self.runs()
        {
            kill_process(pid, signal).with_context(|| format!("cannot send {signal:?} to {}", self.name))?;
        }
        Ok(())
    }

    /// How it ended, if it has.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("cannot ask for the end of {}", self.name))
    }

    /// Gives the process up: it runs on after this program, and its pid record stays for whoever ends it.
    pub fn leave(self) {
        std::mem::forget(self);
    }

    fn tail(&self) -> String {
        let text =
            [&self.stdout, &self.stderr].map(|path| fs::read_to_string(path).unwrap_or_default()).concat();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.terminate() {
            eprintln!("{error:#}");
        }
        // A successor of the same name may have recorded itself there already.
        if Identity::read(&self.record).as_ref() == Some(&self.identity) {
            let _ = fs::remove_file(&self.record);
        }
    }
}

/// A pid together with its start time, because the number alone may have been given to another process since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pid: u32,
    started: String,
}

impl Identity {
    /// The identity of the process that has this pid now.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The second field is the name in brackets and may hold anything; the 22nd is the start time.
        let (_, after_name) = stat.rsplit_once(')')?;
        let mut fields = after_name.split_whitespace();
        let state = fields.next()?;
        let started = fields.nth(18)?.to_owned();
        (state != "Z").then_some(Self { pid, started })
    }

    /// As it stands in a pid record.
    pub fn written(&self) -> String {
        format!("{} {}\n", self.pid, self.started)
    }

    /// Reads a pid record.
    pub fn read(record: &Path) -> Option<Self> {
        let text = fs::read_to_string(record).ok()?;
        let (pid, started) = text.trim().split_once(' ')?;
        Some(Self { pid: pid.parse().ok()?, started: started.to_owned() })
    }

    /// Whether that very process still runs.
    pub fn runs(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    /// Ends the process: SIGTERM, then SIGKILL after `grace`.
    pub fn end(&self, grace: Duration) {
        let Some(pid) = Pid::from_raw(self.pid.cast_signed()) else { return };
        let deadline = Instant::now() + grace;
        if self.runs() {
            let _ = kill_process(pid, Signal::TERM);
        }
        while self.runs() {
            if Instant::now() > deadline {
                let _ = kill_process(pid, Signal::KILL);
            }
            thread::sleep(TICK);
        }
    }
}

fn appending(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot open the log {}", path.display()))
}
