//! The drayctl program.

use std::process::ExitCode;

fn main() -> ExitCode {
    drayd::ctl::run()
}
