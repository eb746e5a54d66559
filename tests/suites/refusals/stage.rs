//! What every check of a refusal stands on: a scripted registry, a drayd of its own, and the store as it was before.

use std::fs;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use drayd_proto::cri;
use drayd_tests::bed::Bed;
use drayd_tests::launch::{Launch, Launched};
use drayd_tests::probe::State;
use drayd_tests::scripted::Scripted;
use tonic::{Code, Status};

/// A lease whose caller left is deleted behind its back.
const SETTLE: Duration = Duration::from_secs(10);

/// A check's surroundings.
pub(crate) struct Stage {
    pub(crate) bed: Arc<Bed>,
    pub(crate) registry: Scripted,
    pub(crate) drayd: Launched,
    before: State,
}

impl Stage {
    /// With drayd's own settings.
    pub(crate) async fn set(bed: Arc<Bed>, name: &str) -> Result<Self> {
        Self::with(bed, name, "", |_| {}).await
    }

    /// With more sections in drayd's configuration and whatever else `change` wants.
    pub(crate) async fn with(
        bed: Arc<Bed>,
        name: &str,
        sections: &str,
        change: impl FnOnce(&mut Launch),
    ) -> Result<Self> {
        let registry = Scripted::start().await?;
        reach(&bed, registry.address(), "")?;
        let mut launch = Launch::new(&bed.containerd.socket(), name)?;
        let hosts = bed.containerd.registry_configuration();
        launch.sections = format!("[registry]\nconfig_path = [\"{}\"]\n\n{sections}", hosts.display());
        change(&mut launch);
        let drayd = launch.start()?;
        let probe = bed.containerd.probe();
        probe.force_gc().await?;
        let before = probe.state().await?;
        Ok(Self { bed, registry, drayd, before })
    }

    /// Pulls without credentials.
    pub(crate) async fn pull(&self, reference: &str) -> Result<String, Status> {
        self.drayd.cri().pull(reference, None, None).await
    }

    /// Pulls with these credentials.
    pub(crate) async fn pull_as(&self, reference: &str, auth: cri::AuthConfig) -> Result<String, Status> {
        let image = cri::ImageSpec { image: reference.to_owned(), ..cri::ImageSpec::default() };
        let request = cri::PullImageRequest { image: Some(image), auth: Some(auth), sandbox_config: None };
        Ok(self.drayd.cri().images.pull_image(request).await?.into_inner().image_ref)
    }

    /// Fails unless containerd holds what it held before: no more and no less after a collection.
    pub(crate) async fn left_nothing(&self) -> Result<()> {
        let probe = self.bed.containerd.probe();
        let deadline = Instant::now() + SETTLE;
        loop {
            probe.force_gc().await?;
            let changes = probe.state().await?.difference_from(&self.before);
            if changes.is_empty() {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "the refused pull changed containerd:\n{}",
                changes.join("\n")
            );
        }
    }

    /// Removes an image and fails unless that leaves what was there before it.
    pub(crate) async fn removed(&self, reference: &str) -> Result<()> {
        self.drayd.cri().remove(reference).await?;
        self.left_nothing().await
    }

    /// Fails unless the snapshot is committed in overlayfs, all leases are gone and nothing is unfinished.
    pub(crate) async fn holds(&self, chain_id: &str) -> Result<()> {
        let state = self.bed.containerd.probe().state().await?;
        let snapshot = state.snapshot("overlayfs", chain_id);
        ensure!(snapshot.is_some_and(|snapshot| snapshot.kind == "committed"), "{chain_id}: {snapshot:?}");
        ensure!(
            state.leases.is_empty() && state.ingests.is_empty(),
            "{:?} {:?}",
            state.leases,
            state.ingests
        );
        Ok(())
    }
}

/// Lets drayd reach the registry without TLS; `keys` may set more of it.
pub(crate) fn reach(bed: &Bed, address: &str, keys: &str) -> Result<()> {
    let directory = bed.containerd.registry_configuration().join(address);
    fs::create_dir_all(&directory)
        .and_then(|()| {
            fs::write(directory.join("hosts.toml"), format!("server = \"http://{address}\"\n{keys}"))
        })
        .with_context(|| format!("cannot write {}", directory.display()))
}

/// Requests for blobs so far.
pub(crate) fn blobs_asked(registry: &Scripted) -> usize {
    let journal = registry.journal();
    journal.iter().filter(|request| request.method == "GET" && request.path().contains("/blobs/")).count()
}

/// Fails unless the pull was refused with this code and a message that has all these texts.
pub(crate) fn refused(
    what: &str,
    pulled: Result<String, Status>,
    code: Code,
    texts: &[&str],
) -> Result<Status> {
    match pulled {
        Ok(id) => anyhow::bail!("{what}: pulled as {id}, not refused"),
        Err(status) => {
            let fits = status.code() == code && texts.iter().all(|text| status.message().contains(text));
            ensure!(fits, "{what}: {:?} {:?}, not {code:?} with {texts:?}", status.code(), status.message());
            Ok(status)
        }
    }
}

/// The result and how long it took.
pub(crate) async fn timed<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let started = Instant::now();
    (work.await, started.elapsed())
}
