//! The log of the process: where events go and what they look like. Only the configuration decides, no variable of
//! the environment. Whatever an event contains, in text it stays one line.

mod line;

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};
use tracing_subscriber::{Layer, Registry, reload};

use crate::config::{Format, Level, Log, Traces};
use crate::trace::{self, Export, ExportError};
use line::Line;

/// Libraries that tell of each frame and connection at levels which are meant for drayd's own stages.
const INTERNALS: [&str; 9] = [
    "h2",
    "hyper",
    "hyper_util",
    "opentelemetry",
    "opentelemetry_sdk",
    "reqwest",
    "rustls",
    "tonic",
    "tower",
];

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The process has a subscriber already.
    #[error("the log is set up already")]
    Twice(#[source] TryInitError),
    /// Traces cannot be sent.
    #[error(transparent)]
    Traces(#[from] ExportError),
}

/// Sets up the log of the whole process, and traces if they are wanted; to be called once, within the runtime. What comes
/// back changes the level of the log, and ends the traces.
pub fn init(log: &Log, traces: &Traces) -> Result<(LogLevel, Option<Export>), TelemetryError> {
    let (levels, handle) = reload::Layer::new(levels(log.level));
    let (collector, export) = match &traces.endpoint {
        Some(endpoint) => {
            let (layer, export) = trace::export(endpoint.as_str())?;
            (
                Some(layer.with_filter(Targets::new().with_target(trace::TARGET, LevelFilter::TRACE))),
                Some(export),
            )
        }
        None => (None, None),
    };
    tracing_subscriber::registry()
        .with(output(log.format).with_filter(levels))
        .with(collector)
        .try_init()
        .map_err(TelemetryError::Twice)?;
    Ok((LogLevel { handle, configured: log.level, now: Arc::new(Mutex::new(log.level)) }, export))
}

/// The level of the log, which may be changed while it is written.
#[derive(Clone)]
pub struct LogLevel {
    handle: reload::Handle<Targets, Registry>,
    configured: Level,
    /// Guards what is logged now.
    now: Arc<Mutex<Level>>,
}

impl LogLevel {
    /// What is logged now.
    pub fn get(&self) -> Level {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes it; `None` is what the configuration said at the start.
    pub fn set(&self, level: Option<Level>) {
        let level = level.unwrap_or(self.configured);
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        // It fails only when the log is gone, with the process.
        if self.handle.reload(levels(level)).is_ok() {
            *now = level;
        }
    }
}

type Output<S> = Box<dyn Layer<S> + Send + Sync>;

fn output(format: Format) -> Output<Registry> {
    match format {
        Format::Auto => journal().unwrap_or_else(|| text(io::stderr, io::stderr().is_terminal())),
        Format::Text => text(io::stderr, io::stderr().is_terminal()),
        Format::Json => json(io::stderr),
    }
}

fn text<S, W>(writer: W, colour: bool) -> Output<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    // `Line` colours the level itself and escapes everything else, so the fields come to it without colour.
    tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(false)
        .event_format(Line { colour })
        .boxed()
}

/// Fields stay in an object of their own, because some bear names that the event itself has, such as `target`.
fn json<S, W>(writer: W) -> Output<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    tracing_subscriber::fmt::layer().json().with_writer(writer).boxed()
}

/// The journal, if standard error is connected to it and its socket answers.
fn journal<S>() -> Option<Output<S>>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let stream = std::env::var("JOURNAL_STREAM").ok()?;
    let stderr = File::from(io::stderr().as_fd().try_clone_to_owned().ok()?).metadata().ok()?;
    if !is_stream(&stream, stderr.dev(), stderr.ino()) {
        return None;
    }
    let layer = tracing_journald::layer().ok()?;
    Some(
        layer
            // Without a prefix a field called `priority` would be a second PRIORITY of the journal.
            .with_field_prefix(Some("DRAYD".into()))
            .with_syslog_identifier("drayd".into())
            // The crate's own mapping makes every info line a notice.
            .with_priority_mappings(PriorityMappings {
                error: Priority::Error,
                warn: Priority::Warning,
                info: Priority::Informational,
                debug: Priority::Debug,
                trace: Priority::Debug,
            })
            .boxed(),
    )
}

/// Whether `JOURNAL_STREAM`, `DEVICE:INODE` in decimal (systemd.exec(5)), names this file. A child whose standard
/// error was redirected inherits the variable, so its presence alone says nothing.
fn is_stream(variable: &str, device: u64, inode: u64) -> bool {
    variable == format!("{device}:{inode}")
}

fn levels(level: Level) -> Targets {
    let own = match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => {
            return Targets::new()
                .with_default(LevelFilter::TRACE)
                .with_target(trace::TARGET, LevelFilter::OFF);
        }
    };
    let internals = INTERNALS.map(|target| (target, own.min(LevelFilter::WARN)));
    Targets::new().with_default(own).with_targets(internals).with_target(trace::TARGET, LevelFilter::OFF)
}

#[cfg(test)]
mod tests;
