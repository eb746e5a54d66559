//! The command line of drayd: reads it, reads the configuration, and gives both to the part that acts on them.

mod one_arena;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _, Parser, Subcommand};

use crate::api::LogLevel;
use crate::config::{self, Config, ConfigError, DEFAULT_PATH, Level};
use crate::registry::{self, Environment};
use crate::{daemon, telemetry};

/// `EX_CONFIG` of sysexits.h. A service manager can be told that a restart does not help.
const EXIT_CONFIG: u8 = 78;

const EXIT_CODES: &str = "Exit codes:
  0   done
  1   failed
  2   wrong command line
  78  the configuration file is missing or has mistakes (EX_CONFIG)";

/// Image service for Kubernetes nodes.
#[derive(Parser)]
#[command(name = "drayd", version, after_help = EXIT_CODES)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the daemon
    #[command(after_help = EXIT_CODES)]
    Serve(ConfigFile),
    /// Print the defaults, check a file, or show the settings that apply
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Print a file with every key, its text and its default
    Default,
    /// Print "FILE: ok" and the hosts of each registry, or every mistake with its file and line
    #[command(after_help = EXIT_CODES)]
    Check(ConfigFile),
    /// Print the settings that apply, defaults included
    #[command(after_help = EXIT_CODES)]
    Show(ConfigFile),
}

#[derive(Args)]
struct ConfigFile {
    /// The configuration file [default: /etc/drayd/config.toml, if it exists]
    #[arg(long = "config", value_name = "FILE")]
    path: Option<PathBuf>,
}

/// The definition of the command line, for its manual pages and completions.
pub fn command() -> clap::Command {
    CommandLine::command()
}

/// Does what the command line of this process says, and gives the exit code.
pub fn run() -> ExitCode {
    let done = match CommandLine::parse().command {
        Command::Serve(file) => serve(&file),
        Command::Config(ConfigCommand::Default) => print(&config::reference::default_file()),
        Command::Config(ConfigCommand::Check(file)) => check(&file),
        Command::Config(ConfigCommand::Show(file)) => show(&file),
    };
    done.unwrap_or_else(|error| {
        eprintln!("{error:#}");
        ExitCode::from(exit_code(&error))
    })
}

fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<ConfigError>() { EXIT_CONFIG } else { 1 }
}

fn serve(file: &ConfigFile) -> anyhow::Result<ExitCode> {
    one_arena::ensure();
    let config = Config::load(file.path.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the worker threads")?;
    let _within = runtime.enter();
    let (level, export) = telemetry::init(&config.log, &config.traces)?;
    for warning in config::warnings(&config) {
        tracing::warn!("{warning}");
    }
    // From here on standard error belongs to the log.
    let done = runtime.block_on(daemon::run(config, log_level(level)));
    if let Some(export) = export {
        export.end();
    }
    Ok(done.map_or_else(
        |error| {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    ))
}

/// The level of the log, for those who know it by its name.
fn log_level(level: telemetry::LogLevel) -> LogLevel {
    let of_get = level.clone();
    let get = move || of_get.get().name().to_owned();
    let set = move |name: &str| {
        let known = Level::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(name));
        let legal = known.is_some() || name.is_empty();
        if legal {
            level.set(known);
            tracing::info!("the level of the log is {}", level.get().name());
        }
        legal
    };
    LogLevel { get: Arc::new(get), set: Arc::new(set) }
}

fn check(file: &ConfigFile) -> anyhow::Result<ExitCode> {
    let config = Config::load(file.path.as_deref())?;
    let path = file.path.as_deref().unwrap_or(Path::new(DEFAULT_PATH));
    for warning in config::warnings(&config) {
        eprintln!("{}: warning: {warning}", path.display());
    }
    let report = registry::check(
        &config.registry.config_path,
        // Few nodes have both.
        &config::Registry::default().config_path,
        config.registry.credentials_file.as_deref(),
        &Environment::of_process(),
    );
    if report.mistakes.is_empty() {
        let absent = if path.exists() { "" } else { " (no such file, the defaults apply)" };
        print(&format!("{}: ok{absent}\n", path.display()))?;
    }
    print(&report.text)?;
    report.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    report.mistakes.iter().for_each(|mistake| eprintln!("{mistake}"));
    Ok(if report.mistakes.is_empty() { ExitCode::SUCCESS } else { EXIT_CONFIG.into() })
}

fn show(file: &ConfigFile) -> anyhow::Result<ExitCode> {
    let config = Config::load(file.path.as_deref())?;
    print(&toml::to_string(&config).context("cannot write the settings as TOML")?)
}

/// Not `print!`, which panics when the reader of a pipe is gone.
fn print(text: &str) -> anyhow::Result<ExitCode> {
    io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn every_command_takes_the_file_it_reads() {
        for line in
            ["drayd serve --config f", "drayd config check --config f", "drayd config show --config f"]
        {
            assert!(CommandLine::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
        assert!(CommandLine::try_parse_from(["drayd", "config", "default", "--config", "f"]).is_err());
    }

    #[test]
    fn a_bad_configuration_has_its_own_exit_code() {
        let file = ConfigFile { path: Some("/nonexistent/config.toml".into()) };
        for command in [serve, check, show] {
            assert_eq!(exit_code(&command(&file).unwrap_err()), 78);
        }
        assert_eq!(exit_code(&anyhow::anyhow!("no containerd")), 1);
    }

    #[test]
    fn the_help_names_the_default_path() {
        let mut command = CommandLine::command();
        let serve = command.find_subcommand_mut("serve").unwrap();
        assert!(serve.render_help().to_string().contains(DEFAULT_PATH));
    }
}
