//! The command line, which needs no containerd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::{Context, Result, ensure};
use drayd_tests::launch::run;
use drayd_tests::suite::Suite;

/// `EX_CONFIG` of sysexits.h.
const EX_CONFIG: i32 = 78;

pub(crate) fn add(suite: &mut Suite) {
    suite.check_alone("the_printed_and_the_packaged_file_pass_the_check_and_mean_the_same", default_file);
    suite.check_alone("show_prints_what_applies", show);
    suite.check_alone("an_unknown_key_is_refused_with_its_place_and_the_nearest_name", unknown_key);
    suite.check_alone("the_check_says_ok_only_where_all_that_it_reads_is", not_ok);
    suite.check_alone("a_missing_file_is_a_mistake_of_the_configuration", missing_file);
}

async fn default_file() -> Result<()> {
    let printed = run(&["config", "default"])?;
    ensure!(printed.status.success(), "{printed:?}");
    let printed = Scratch::with("default", &stdout(&printed))?;
    let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/config.toml");
    let mut shown = Vec::new();
    for file in [printed.path(), packaged.display().to_string()] {
        let checked = run(&["config", "check", "--config", &file])?;
        ensure!(checked.status.success() && checked.stderr.is_empty(), "{checked:?}");
        // After it come the registries that this machine has a configuration for.
        ensure!(stdout(&checked).starts_with(&format!("{file}: ok\n")), "{checked:?}");
        shown.push(stdout(&run(&["config", "show", "--config", &file])?));
    }
    ensure!(shown[0] == shown[1] && shown[0].contains("[containerd]\n"), "{shown:?}");
    // The packaged one holds the same texts, with every key commented out.
    let uncommented =
        |text: &str| text.lines().map(|line| line.trim_start_matches('#').to_owned()).collect::<Vec<_>>();
    let [printed, packaged] = [fs::read_to_string(printed.path())?, fs::read_to_string(&packaged)?];
    ensure!(uncommented(&printed) == uncommented(&packaged), "`config default` is not packaging/config.toml");
    Ok(())
}

async fn show() -> Result<()> {
    let file = Scratch::with(
        "show",
        "[pull]\nprogress_timeout = \"90s\"\n\n[snapshotter.handlers]\nkata = \"nydus\"\n",
    )?;
    let shown_text = run(&["config", "show", "--config", &file.path()])?;
    ensure!(shown_text.status.success(), "{shown_text:?}");
    let text = stdout(&shown_text);
    for line in ["progress_timeout = \"1m30s\"", "kata = \"nydus\"", "max_concurrent_downloads = 3"] {
        ensure!(text.lines().any(|shown| shown == line), "no {line} in\n{text}");
    }
    // What is shown is itself a file that says the same.
    let again = Scratch::with("again", &text)?;
    ensure!(stdout(&run(&["config", "show", "--config", &again.path()])?) == text, "not the same again");
    Ok(())
}

async fn unknown_key() -> Result<()> {
    let file = Scratch::with("unknown", "[pull]\n\n  progres_timeout = \"5m\"\n")?;
    let expected = format!(
        "{}:3:3: unknown key `progres_timeout` in [pull]: did you mean `progress_timeout`?\n",
        file.path()
    );
    for command in [&["config", "check"][..], &["config", "show"], &["serve"]] {
        let refused = run(&[command, &["--config", &file.path()]].concat())?;
        ensure!(refused.status.code() == Some(EX_CONFIG), "{command:?}: {refused:?}");
        ensure!(String::from_utf8_lossy(&refused.stderr) == expected, "{command:?}: {refused:?}");
        ensure!(refused.stdout.is_empty(), "{command:?}: {refused:?}");
    }
    Ok(())
}

async fn not_ok() -> Result<()> {
    let file = Scratch::with("not-ok", "[registry]\nconfig_path = [\"/etc/passwd\"]\n")?;
    let checked = run(&["config", "check", "--config", &file.path()])?;
    ensure!(checked.status.code() == Some(EX_CONFIG) && checked.stdout.is_empty(), "{checked:?}");
    let stderr = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(stderr(&checked).starts_with("/etc/passwd cannot be read: "), "{checked:?}");
    let file = Scratch::with("colons", "[registry]\nconfig_path = [\"/none/a:/none/b\"]\n")?;
    let checked = run(&["config", "check", "--config", &file.path()])?;
    ensure!(stdout(&checked) == format!("{}: ok\n", file.path()), "{checked:?}");
    ensure!(stderr(&checked).starts_with("warning: /none/a:/none/b does not exist"), "{checked:?}");
    Ok(())
}

async fn missing_file() -> Result<()> {
    let refused = run(&["serve", "--config", "/nonexistent/drayd.toml"])?;
    ensure!(refused.status.code() == Some(EX_CONFIG), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr);
    ensure!(said.starts_with("cannot read /nonexistent/drayd.toml: "), "{said}");
    Ok(())
}

/// A file that goes with its guard.
struct Scratch(PathBuf);

impl Scratch {
    fn with(name: &str, text: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("drayd-{name}-{}.toml", std::process::id()));
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self(path))
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
