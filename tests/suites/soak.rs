//! Many pulls through a registry that breaks a fifth of all requests: each succeeds with the right content or fails
//! with the code of a fault that it met, and nothing of any of them is left behind.
//!
//! `DRAYD_SOAK_PULLS` sets how many, `DRAYD_SOAK_SEED` what breaks (`random` draws one), and `DRAYD_SOAK_RELEASES` the
//! containerds (`1.6,1.7,2.1`).

#[path = "soak/faults.rs"]
mod faults;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::launch::{Launch, Launched};
use drayd_tests::peers::Release;
use drayd_tests::scripted::Scripted;
use drayd_tests::scripted::image::Image;
use drayd_tests::suite::Suite;
use drayd_tests::tree::Tree;
use drayd_tests::wait;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Status;

use faults::{Fault, Faults};

const PULLS: usize = 30;
const SEED: u64 = 20_260_301;
const LAYERS: usize = 10;
/// Images that are pulled side by side.
const ROUND: usize = 5;
/// Pulls of one image until it is given up, as kubelet would go on for longer.
const ATTEMPTS: usize = 4;
/// A pull that takes this long hangs.
const HANGS: Duration = Duration::from_secs(120);
/// Short, so that a stall costs little.
const PROGRESS: &str = "[pull]\nprogress_timeout = \"2s\"\n";
/// Lines of drayd's log that a failure shows.
const TAIL: usize = 400;
const SETTLE: Duration = Duration::from_secs(15);

fn main() -> Result<ExitCode> {
    let mut suite = Suite::new()?;
    let releases = env::var("DRAYD_SOAK_RELEASES").unwrap_or_else(|_| Release::V1_7.to_string());
    for release in releases.split(',') {
        suite.check(
            release.trim().parse()?,
            "pulls_through_a_breaking_registry_are_right_or_fail_rightly_and_leave_nothing",
            soak,
        );
    }
    Ok(suite.run())
}

/// What came of all pulls.
#[derive(Debug, Default)]
struct Tally {
    pulls: usize,
    pulled: usize,
    given_up: usize,
    failures: BTreeMap<String, usize>,
    faults: BTreeMap<Fault, usize>,
    slowest: Duration,
}

async fn soak(bed: Arc<Bed>) -> Result<()> {
    let wanted = env::var("DRAYD_SOAK_PULLS").ok().map_or(Ok(PULLS), |number| number.parse())?;
    let seed = match env::var("DRAYD_SOAK_SEED").ok().as_deref() {
        None => SEED,
        Some("random") => u64::from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.subsec_nanos()),
        Some(number) => number.parse().context("DRAYD_SOAK_SEED is not a number")?,
    };
    eprintln!("soak: {wanted} pulls, DRAYD_SOAK_SEED={seed}");
    let done = soaked(&bed, wanted, seed).await;
    done.with_context(|| format!("with DRAYD_SOAK_SEED={seed}"))
}

async fn soaked(bed: &Arc<Bed>, wanted: usize, seed: u64) -> Result<()> {
    let registry = Scripted::start().await?;
    let hosts = bed.containerd.registry_configuration();
    let directory = hosts.join(registry.address());
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("hosts.toml"), format!("server = \"{}\"\n", registry.url()))?;
    let mut launch = Launch::new(&bed.containerd.socket(), "soak")?;
    launch.sections = format!("[registry]\nconfig_path = [\"{}\"]\n\n{PROGRESS}", hosts.display());
    launch.level = "debug";
    let drayd = Arc::new(launch.start()?);
    bed.empty().await?;
    let before = bed.containerd.probe().state().await?;
    let blobs: Arc<Mutex<BTreeMap<String, Vec<u8>>>> = Arc::default();
    let find = Arc::clone(&blobs);
    let faults = Faults::break_some(&registry, seed, move |path| {
        find.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
    });
    let mut tally = Tally::default();
    let mut round = 0;
    while tally.pulls < wanted {
        let mut pulls = JoinSet::new();
        for number in 0..ROUND {
            let image = Image::new(&format!("soak-{seed}-{round}-{number}"), LAYERS, 8 + 8 * number)?;
            image.serve(&registry);
            let mut known = blobs.lock().unwrap_or_else(PoisonError::into_inner);
            known.extend(
                image.layers.iter().map(|layer| (layer.path(&image.repository), layer.bytes.clone())),
            );
            drop(known);
            let reference = image.reference(&registry);
            pulls.spawn(pulled(Arc::clone(bed), Arc::clone(&drayd), faults.clone(), image, reference));
        }
        while let Some(one) = pulls.join_next().await {
            tally.add(one?.with_context(|| tail(&drayd))?);
        }
        blobs.lock().unwrap_or_else(PoisonError::into_inner).clear();
        wait::until("containerd holds what it held before the pulls", SETTLE, async || {
            bed.empty().await?;
            Ok(bed.containerd.probe().state().await?.difference_from(&before).is_empty())
        })
        .await
        .with_context(|| format!("after round {round}"))?;
        round += 1;
    }
    eprintln!("soak: {} requests, {tally:#?}", faults.requests());
    ensure!(tally.pulled > 0, "not one pull got through");
    Ok(())
}

/// What a failure is looked into with, once the bed is gone.
fn tail(drayd: &Launched) -> String {
    let log = drayd.log();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.pulls += other.pulls;
        self.pulled += other.pulled;
        self.given_up += other.given_up;
        self.slowest = self.slowest.max(other.slowest);
        for (code, count) in other.failures {
            *self.failures.entry(code).or_default() += count;
        }
        for (fault, count) in other.faults {
            *self.faults.entry(fault).or_default() += count;
        }
    }
}

/// Pulls one image until it is there, as kubelet does, and judges each attempt.
async fn pulled(
    bed: Arc<Bed>,
    drayd: Arc<Launched>,
    faults: Faults,
    image: Image,
    reference: String,
) -> Result<Tally> {
    let mut tally = Tally::default();
    for _ in 0..ATTEMPTS {
        let started = Instant::now();
        let answer = timeout(HANGS, drayd.cri().pull(&reference, None, None)).await;
        let answer = answer.with_context(|| format!("{reference} hangs"))?;
        tally.pulls += 1;
        tally.slowest = tally.slowest.max(started.elapsed());
        let met = faults.take(&image.repository);
        for fault in &met {
            *tally.faults.entry(*fault).or_default() += 1;
        }
        match answer {
            Ok(id) => {
                ensure!(id == image.config.digest, "{reference} has the id {id}");
                whole(&bed, &image).await.with_context(|| format!("{reference}, which met {met:?}"))?;
                tally.pulled += 1;
                return Ok(tally);
            }
            Err(status) => {
                judge(&status, &met).with_context(|| reference.clone())?;
                *tally.failures.entry(format!("{:?}", status.code())).or_default() += 1;
            }
        }
    }
    tally.given_up += 1;
    Ok(tally)
}

/// Fails unless a fault that the pull met has this code.
fn judge(status: &Status, met: &[Fault]) -> Result<()> {
    let fits = met.iter().any(|fault| fault.code() == Some(status.code()));
    ensure!(fits, "{:?} {:?}, having met {met:?}", status.code(), status.message());
    Ok(())
}

/// Fails unless the snapshot holds exactly the files of the image.
async fn whole(bed: &Bed, image: &Image) -> Result<()> {
    let probe = bed.containerd.probe();
    let tree = Tree::of(&probe, "overlayfs", &image.top_chain_id(), bed.run()).await?;
    let held: BTreeMap<String, String> = tree
        .entries
        .iter()
        .filter(|(_, entry)| entry.kind == "file")
        .map(|(path, entry)| (path.display().to_string(), entry.content.clone()))
        .collect();
    let files = image.files.iter().enumerate();
    let expected = files.map(|(number, content)| (format!("./file{number}"), content.clone())).collect();
    ensure!(held == expected, "the tree holds {held:?}, not {expected:?}");
    Ok(())
}
