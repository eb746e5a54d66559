//! Runs checks as trials named `containerd-1.7::<sentence>`. The trials of one release share one bed, which starts
//! with the first of them; releases run one after another, because two cores carry one bed well.

use std::process::{self, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, anyhow};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

use crate::bed::Bed;
use crate::peers::Release;
use crate::place::Place;

/// The trials of one program.
pub struct Suite {
    runtime: Arc<Runtime>,
    trials: Vec<Trial>,
    /// The bed of the release that is running; a failed start is kept so that its trials fail at once.
    standing: Arc<Mutex<Standing>>,
}

type Standing = Option<(Release, Result<Arc<Bed>, String>)>;

impl Suite {
    /// A suite without trials.
    pub fn new() -> Result<Self> {
        Ok(Self { runtime: Arc::new(Runtime::new()?), trials: Vec::new(), standing: Arc::default() })
    }

    /// Adds a check for one release. `sentence` is what it proves, in snake case.
    pub fn check<F, Outcome>(&mut self, release: Release, sentence: &str, check: F)
    where
        F: FnOnce(Arc<Bed>) -> Outcome + Send + 'static,
        Outcome: Future<Output = Result<()>>,
    {
        let (runtime, standing) = (Arc::clone(&self.runtime), Arc::clone(&self.standing));
        self.trials.push(Trial::test(format!("containerd-{release}::{sentence}"), move || {
            runtime
                .block_on(async { check(bed_of(release, &standing).await?).await })
                .map_err(|error| Failed::from(format!("{error:#}")))
        }));
    }

    /// Adds a check that needs no bed.
    pub fn check_alone<F, Outcome>(&mut self, sentence: &str, check: F)
    where
        F: FnOnce() -> Outcome + Send + 'static,
        Outcome: Future<Output = Result<()>>,
    {
        let runtime = Arc::clone(&self.runtime);
        self.trials.push(Trial::test(format!("alone::{sentence}"), move || {
            runtime.block_on(check()).map_err(|error| Failed::from(format!("{error:#}")))
        }));
    }

    /// Counts a check as skipped, for a reason that lies in this machine.
    pub fn skip(&mut self, release: Release, sentence: &str, reason: &str) {
        eprintln!("containerd-{release}::{sentence} is skipped: {reason}");
        let trial = Trial::test(format!("containerd-{release}::{sentence}"), || Ok(()));
        self.trials.push(trial.with_ignored_flag(true));
    }

    /// Runs what the command line selects, and clears the beds.
    pub fn run(self) -> ExitCode {
        let mut arguments = Arguments::from_args();
        arguments.test_threads = Some(1);
        if !arguments.list
            && let Err(error) = Place::clear_abandoned()
        {
            eprintln!("cannot clear an abandoned bed: {error:#}");
        }
        let conclusion = libtest_mimic::run(&arguments, self.trials);
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = None;
        conclusion.exit_code()
    }
}

/// The standing bed if it is of this release; otherwise it goes and a new one comes.
async fn bed_of(release: Release, standing: &Mutex<Standing>) -> Result<Arc<Bed>> {
    let current = || standing.lock().unwrap_or_else(PoisonError::into_inner);
    let present = current().as_ref().is_some_and(|(of, _)| *of == release);
    if !present {
        // One at a time: memory and cores are for the release under test.
        *current() = None;
        let id = format!("{}-{}", release.to_string().replace('.', ""), process::id());
        let started = Bed::start(release, &id).await.map(Arc::new).map_err(|error| format!("{error:#}"));
        *current() = Some((release, started));
    }
    match current().as_ref() {
        Some((_, Ok(bed))) => Ok(Arc::clone(bed)),
        Some((_, Err(reason))) => Err(anyhow!("no bed of containerd {release}: {reason}")),
        None => Err(anyhow!("no bed of containerd {release}")),
    }
}
