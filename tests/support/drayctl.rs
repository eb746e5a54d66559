//! drayctl as people and scripts run it.

use std::path::PathBuf;
use std::process::{Output, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::process::{Child, Command};

use crate::drayd::{Drayd, program};

/// What a drayctl that has ended left.
#[derive(Debug)]
pub struct Answer {
    /// Its exit code.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Answer {
    fn of(output: &Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Each line of standard output as JSON.
    pub fn json(&self) -> Result<Vec<Value>> {
        let parse = |line| serde_json::from_str(line).with_context(|| format!("{line} is no JSON"));
        self.out.lines().map(parse).collect()
    }
}

/// Where the program is.
pub fn path() -> Result<PathBuf> {
    let path = program()?.with_file_name("drayctl");
    ensure!(path.is_file(), "{} is missing; run `make build`", path.display());
    Ok(path)
}

/// A command line, to be run.
pub fn command(drayd: &Drayd, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(path()?);
    command.arg("--address").arg(drayd.api_socket()).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    Ok(command)
}

/// Runs one to its end.
pub async fn run(drayd: &Drayd, arguments: &[&str]) -> Result<Answer> {
    Ok(Answer::of(&command(drayd, arguments)?.output().await.context("cannot run drayctl")?))
}

/// Starts one, to be ended with [`end`] or by dropping it.
pub fn start(drayd: &Drayd, arguments: &[&str]) -> Result<Child> {
    command(drayd, arguments)?.spawn().context("cannot run drayctl")
}

/// Waits for the end of one that was started.
pub async fn end(child: Child) -> Result<Answer> {
    Ok(Answer::of(&child.wait_with_output().await.context("cannot wait for drayctl")?))
}
