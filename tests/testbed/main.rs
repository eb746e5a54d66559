//! `testbed up [--release 1.7]`, `testbed status`, `testbed down`: a bed that stays, for trying things by hand; and
//! `testbed run [--release 1.7] [IMAGE]`, which shows the main job once; and `testbed memory RELEASE`, which measures.

mod memory;
mod run;

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::peers::Release;
use drayd_tests::place::Place;

/// One bed by hand at a time; the suites' beds have other names.
const ID: &str = "hand";
/// What `up` printed, for `status`.
const SUMMARY: &str = "summary";

const USAGE: &str = "usage: testbed up [--release 1.6|1.7|2.1]\n       testbed status\n       testbed down\n       \
                     testbed run [--release 1.6|1.7|2.1] [IMAGE]\n       testbed memory 1.6|1.7|2.1";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        ["up"] => up(Release::V1_7).await,
        ["up", "--release", release] => match release.parse() {
            Ok(release) => up(release).await,
            Err(error) => Err(error),
        },
        ["run", rest @ ..] => match rest {
            [] => run::run(Release::V1_7, None).await,
            ["--release", release, image @ ..] if image.len() <= 1 => match release.parse() {
                Ok(release) => run::run(release, image.first().copied()).await,
                Err(error) => Err(error),
            },
            [image] => run::run(Release::V1_7, Some(image)).await,
            _ => return usage(),
        },
        ["memory", release] => match release.parse() {
            Ok(release) => memory::measure(release).await,
            Err(error) => Err(error),
        },
        ["status"] => status(),
        ["down"] => down(),
        _ => return usage(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testbed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

async fn up(release: Release) -> Result<()> {
    ensure!(
        !Place::named(ID).owned(),
        "a bed is up already; `testbed status` shows it, `testbed down` ends it"
    );
    let bed = Bed::start(release, ID).await?;
    let text = summary(&bed);
    let file = bed.run().join(SUMMARY);
    fs::write(&file, &text).with_context(|| format!("cannot write {}", file.display()))?;
    bed.stay()?;
    print!("{text}");
    Ok(())
}

fn summary(bed: &Bed) -> String {
    let mut lines = vec![
        format!("containerd {}", bed.containerd.release()),
        format!("  socket            {}", bed.containerd.socket().display()),
        format!("  hosts.toml files  {}", bed.containerd.registry_configuration().display()),
        format!("  logs              {}", bed.run().join("logs").display()),
        format!("registry            {}", bed.registry.address()),
    ];
    if let Some(account) = bed.private.account() {
        let (user, password) = (&account.user, &account.password);
        lines.push(format!("private registry    {} as {user}:{password}", bed.private.address()));
    }
    lines.push("images".to_owned());
    for image in bed.images.all() {
        lines.push(format!("  {:<32} id {}", image.reference(bed.registry.address()), image.config.digest));
    }
    lines.join("\n") + "\n"
}

fn status() -> Result<()> {
    let place = Place::named(ID);
    ensure!(place.owned(), "no bed is up; `testbed up` makes one");
    let file = place.run().join(SUMMARY);
    print!("{}", fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?);
    Ok(())
}

fn down() -> Result<()> {
    Place::named(ID).clear()?;
    println!("the bed is down");
    Ok(())
}
