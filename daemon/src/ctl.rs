//! The command line of drayctl, which talks to drayd over its API socket and does nothing else.

mod connect;
mod display;
mod text;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use drayd_proto::dray::dray_client::DrayClient;
use drayd_proto::dray::{
    CancelRequest, DiagnoseRequest, ExplainRequest, HistoryRequest, ListImagesRequest, ListPullsRequest,
    PullProgress, PullRequest, SetLogLevelRequest, StatusRequest, Verdict, WatchRequest,
};
use serde::Serialize;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use connect::ConnectError;
use display::Display;

/// `EX_UNAVAILABLE` of sysexits.h.
const EXIT_UNAVAILABLE: u8 = 69;
/// `EX_NOPERM`.
const EXIT_NO_ACCESS: u8 = 77;

const EXIT_CODES: &str = "Exit codes:
  0   done
  1   failed: the pull did not end in an image, there is no such pull, or a check found a failure
  2   wrong command line
  69  drayd cannot be reached (EX_UNAVAILABLE)
  77  this user has no access to its socket (EX_NOPERM)";

/// Looks at drayd's pulls and steers them.
#[derive(Parser)]
#[command(name = "drayctl", version, after_help = EXIT_CODES)]
struct CommandLine {
    /// The socket of drayd's API
    #[arg(
        long,
        global = true,
        value_name = "SOCKET",
        default_value = "/run/drayd/api.sock",
        env = "DRAYCTL_ADDRESS"
    )]
    address: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Pull an image and show how far it is
    Pull {
        #[command(flatten)]
        wanted: Wanted,
        #[command(flatten)]
        json: Json,
    },
    /// List the pulls under way
    Ps {
        #[command(flatten)]
        json: Json,
    },
    /// Show how far pulls are: one until it has ended, or all that are under way or begin
    Watch {
        /// The number of a pull, as `ps` shows it
        id: Option<u64>,
        #[command(flatten)]
        json: Json,
    },
    /// End a pull for all that wait for it
    Cancel {
        /// The number of the pull, as `ps` shows it
        id: u64,
    },
    /// Show what a pull would do, without doing it
    Explain {
        #[command(flatten)]
        wanted: Wanted,
        #[command(flatten)]
        json: Json,
    },
    /// Show what became of the pulls since drayd was started
    History {
        /// Of this image alone
        #[arg(long, default_value = "")]
        image: String,
        /// Of this snapshotter alone
        #[arg(long, default_value = "")]
        snapshotter: String,
        /// Print calls=N transfers=M, and nothing else
        #[arg(long, conflicts_with = "json")]
        count: bool,
        #[command(flatten)]
        json: Json,
    },
    /// List the images of the node, with the snapshotters that they are unpacked in
    Images {
        #[command(flatten)]
        json: Json,
    },
    /// Look over everything that a pull depends on, and say what to do
    Doctor {
        #[command(flatten)]
        json: Json,
    },
    /// Show what drayd is and what it is connected to
    Status {
        #[command(flatten)]
        json: Json,
    },
    /// Change what drayd logs, until it is restarted
    LogLevel {
        /// error, warn, info, debug or trace; none is that of the configuration
        #[arg(default_value = "")]
        level: String,
    },
}

#[derive(Args)]
struct Wanted {
    /// The image, such as busybox or registry.example.com/team/app:1
    image: String,
    /// The runtime handler of the pods that it is for
    #[arg(long, value_name = "HANDLER", default_value = "")]
    runtime_handler: String,
    /// The Kubernetes namespace of those pods
    #[arg(long, value_name = "NAMESPACE", default_value = "")]
    namespace: String,
    /// An annotation as the pod's sandbox would have it; may be given several times
    #[arg(long = "annotation", value_name = "KEY=VALUE")]
    annotations: Vec<Pair>,
    /// A label, the same
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<Pair>,
}

#[derive(Args, Clone, Copy)]
struct Json {
    /// Print JSON: one object on a line for each thing
    #[arg(long)]
    json: bool,
}

#[derive(Clone)]
struct Pair(String, String);

impl FromStr for Pair {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (key, value) = text.split_once('=').ok_or("it is not KEY=VALUE")?;
        Ok(Self(key.into(), value.into()))
    }
}

/// Why a command did not do what it should.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// drayd said so.
    #[error("{}", .0.message())]
    Call(Status),
    #[error("drayd went away before it had told the end: see its log")]
    Lost,
    #[error(
        "{} is not drayd's API socket, though something answers there: give the path of [api] socket of its configuration",
        .0.display()
    )]
    Foreign(PathBuf),
    /// What it was about has failed, and that is shown already.
    #[error("")]
    Shown,
    #[error("cannot write the answer: {0}")]
    Output(#[from] io::Error),
    #[error("cannot write the answer as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        // What has a source is not drayd's word but a connection that broke.
        if std::error::Error::source(&status).is_some() { Self::Lost } else { Self::Call(status) }
    }
}

/// The definition of the command line, for its manual pages and completions.
pub fn command() -> clap::Command {
    CommandLine::command()
}

/// Does what the command line of this process says, and gives the exit code.
pub fn run() -> ExitCode {
    let line = CommandLine::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(line.run()),
        Err(error) => Err(Error::Output(error)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads our output has had enough.
        Err(Error::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            if !matches!(error, Error::Shown) {
                eprintln!("drayctl: {error}");
            }
            ExitCode::from(exit_code(&error))
        }
    }
}

fn exit_code(error: &Error) -> u8 {
    match error {
        Error::Connect(ConnectError::Denied { .. }) => EXIT_NO_ACCESS,
        Error::Connect(_) | Error::Lost | Error::Foreign(_) => EXIT_UNAVAILABLE,
        Error::Call(status) if status.code() == Code::Unavailable => EXIT_UNAVAILABLE,
        _ => 1,
    }
}

impl CommandLine {
    async fn run(self) -> Result<(), Error> {
        let mut drayd = connect::connect(&self.address).await?;
        match self.command.run(&mut drayd).await {
            Err(Error::Call(status)) if status.code() == Code::Unimplemented => {
                Err(Error::Foreign(self.address))
            }
            done => done,
        }
    }
}

impl Command {
    async fn run(self, drayd: &mut DrayClient<Channel>) -> Result<(), Error> {
        match self {
            Command::Pull { wanted, json } => pull(drayd, wanted, json).await,
            Command::Ps { json } => {
                let pulls = drayd.list_pulls(ListPullsRequest {}).await?.into_inner().pulls;
                each(json, &pulls, || text::pulls(&pulls))
            }
            Command::Watch { id, json } => {
                let request = WatchRequest { id: id.unwrap_or_default(), interval_ms: 0 };
                let messages = drayd.watch(request).await?.into_inner();
                let last = show(messages, json, id.is_some()).await?;
                if id.is_some() { ended(last) } else { Err(Error::Lost) }
            }
            Command::Cancel { id } => {
                let cancelled = drayd.cancel(CancelRequest { id }).await?.into_inner();
                print(&format!("cancelled the pull of {}\n", cancelled.reference))
            }
            Command::Explain { wanted, json } => {
                let Wanted { image, runtime_handler, namespace: pod_namespace, annotations, labels } = wanted;
                let (annotations, labels) = (pairs(annotations), pairs(labels));
                let request = ExplainRequest { image, runtime_handler, annotations, labels, pod_namespace };
                let explained = drayd.explain(request).await?.into_inner();
                one(json, &explained, || text::explanation(&explained))
            }
            Command::History { image, snapshotter, count, json } => {
                let history = drayd.history(HistoryRequest { image, snapshotter }).await?.into_inner();
                if count {
                    return print(&text::count(&history));
                }
                each(json, &history.entries, || text::history(&history))
            }
            Command::Images { json } => {
                let images = drayd.list_images(ListImagesRequest {}).await?.into_inner().images;
                each(json, &images, || text::images(&images))
            }
            Command::Doctor { json } => {
                let checks = drayd.diagnose(DiagnoseRequest {}).await?.into_inner().checks;
                each(json, &checks, || text::checks(&checks, io::stdout().is_terminal()))?;
                let failed = checks.iter().any(|check| check.verdict() == Verdict::Failure);
                if failed { Err(Error::Shown) } else { Ok(()) }
            }
            Command::Status { json } => {
                let status = drayd.status(StatusRequest {}).await?.into_inner();
                one(json, &status, || text::status(&status))
            }
            Command::LogLevel { level } => {
                let previous = drayd.set_log_level(SetLogLevelRequest { level }).await?.into_inner().previous;
                print(&format!("it was {previous}\n"))
            }
        }
    }
}

async fn pull(drayd: &mut DrayClient<Channel>, wanted: Wanted, json: Json) -> Result<(), Error> {
    let Wanted { image, runtime_handler, namespace: pod_namespace, annotations, labels } = wanted;
    let (annotations, labels) = (pairs(annotations), pairs(labels));
    let request = PullRequest { image, runtime_handler, annotations, labels, interval_ms: 0, pod_namespace };
    let messages = drayd.pull(request).await?.into_inner();
    match show(messages, json, true).await {
        // The pull ends with us, whoever has stopped to read.
        Err(Error::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Err(Error::Shown),
        shown => ended(shown?),
    }
}

/// Shows messages as they come, and gives the last one. `one` says that they are about one pull.
async fn show(
    mut messages: Streaming<PullProgress>,
    json: Json,
    one: bool,
) -> Result<Option<PullProgress>, Error> {
    let mut display = if json.json { Display::json() } else { Display::for_this_terminal(one) };
    let mut last = None;
    while let Some(message) = messages.message().await? {
        display.show(&message)?;
        last = Some(message);
    }
    Ok(last)
}

/// Whether the pull that was looked at has ended in an image; the display has said so.
fn ended(last: Option<PullProgress>) -> Result<(), Error> {
    match last.map(|message| message.ended) {
        Some(Some(ended)) if ended.success => Ok(()),
        Some(Some(_)) => Err(Error::Shown),
        Some(None) | None => Err(Error::Lost),
    }
}

fn pairs(pairs: Vec<Pair>) -> std::collections::BTreeMap<String, String> {
    pairs.into_iter().map(|Pair(key, value)| (key, value)).collect()
}

fn one(json: Json, answer: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Error> {
    if json.json { print(&(serde_json::to_string(answer)? + "\n")) } else { print(&text()) }
}

fn each(json: Json, answers: &[impl Serialize], text: impl FnOnce() -> String) -> Result<(), Error> {
    if !json.json {
        return print(&text());
    }
    answers.iter().try_for_each(|answer| print(&(serde_json::to_string(answer)? + "\n")))
}

/// Not `print!`, which panics when the reader of a pipe is gone.
fn print(text: &str) -> Result<(), Error> {
    Ok(io::stdout().write_all(text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn an_annotation_is_a_pair_and_may_be_empty() {
        for (text, expected) in [("a=b=c", Some(("a", "b=c"))), ("a=", Some(("a", ""))), ("a", None)] {
            let pair = text.parse::<Pair>().ok();
            assert_eq!(pair.as_ref().map(|Pair(key, value)| (key.as_str(), value.as_str())), expected);
        }
    }

    #[test]
    fn whoever_cannot_reach_drayd_learns_it_by_the_exit_code() {
        let denied = ConnectError::Denied { address: "/s".into(), group: "0".into() };
        for (error, code) in [
            (Error::Connect(denied), 77),
            (Error::Connect(ConnectError::Absent { address: "/s".into() }), 69),
            (Error::Call(Status::unavailable("it is stopping")), 69),
            (Error::Call(Status::not_found("no pull")), 1),
            (Error::Shown, 1),
        ] {
            assert_eq!(exit_code(&error), code, "{error:?}");
        }
    }
}
