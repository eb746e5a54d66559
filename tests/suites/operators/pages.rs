//! Manual pages and completions that a package brings.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use drayd_tests::drayctl;
use drayd_tests::suite::Suite;

pub(crate) fn add(suite: &mut Suite) {
    suite.check_alone("manual_pages_and_completions_are_made_of_the_command_lines", pages);
}

async fn pages() -> Result<()> {
    let program = drayctl::path()?.with_file_name("pages");
    let directory = std::env::temp_dir().join(format!("drayd-pages-{}", std::process::id()));
    let output = Command::new(&program).arg(&directory).output();
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for (page, text) in [
        ("drayctl.1", "drayd cannot be reached"),
        ("drayctl-history.1", "calls=N transfers=M"),
        ("drayd.1", "Image service"),
        ("drayd-serve.1", "configuration file"),
    ] {
        let found = read(&directory.join("man").join(page))?;
        ensure!(found.contains(".TH") && found.contains(text), "{page}: {found}");
    }
    for name in ["drayd", "drayctl"] {
        let file = directory.join("completions/bash").join(format!("{name}.bash"));
        let line = format!("source {} && complete -p {name}", file.display());
        let loaded = Command::new("bash").args(["-ec", &line]).output()?;
        ensure!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
        for (shell, file) in [("zsh", format!("_{name}")), ("fish", format!("{name}.fish"))] {
            ensure!(!read(&directory.join("completions").join(shell).join(file))?.is_empty(), "{shell}");
        }
    }
    fs::remove_dir_all(directory)?;
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
