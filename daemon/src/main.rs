//! The drayd program.

use std::process::ExitCode;

fn main() -> ExitCode {
    drayd::cli::run()
}
