//! `pages DIRECTORY`: manual pages and shell completions of drayd and drayctl, made from their command lines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;

const SHELLS: [(Shell, &str); 3] = [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")];

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: pages DIRECTORY");
        return ExitCode::from(2);
    };
    match write(&directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pages: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn write(directory: &Path) -> Result<()> {
    for (name, command) in [("drayd", drayd::cli::command()), ("drayctl", drayd::ctl::command())] {
        man(&directory.join("man"), name, &command)?;
        for (shell, of) in SHELLS {
            let completions = directory.join("completions").join(of);
            create(&completions)?;
            clap_complete::generate_to(shell, &mut command.clone(), name, &completions)
                .with_context(|| format!("cannot write completions of {name} for {of}"))?;
        }
    }
    Ok(())
}

/// A page for the program and one for each of its commands.
fn man(directory: &Path, name: &str, command: &Command) -> Result<()> {
    create(directory)?;
    clap_mangen::generate_to(command.clone().disable_help_subcommand(true), directory)
        .with_context(|| format!("cannot write manual pages of {name}"))
}

fn create(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))
}
