//! What every check here stands on: a drayd with a hosts.toml and credentials of the trial's own.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::images::Image;
use drayd_tests::launch::{Launch, Launched};
use drayd_tests::registry::{Account, Mark, Registry};
use serde_json::{Value, json};
use tonic::{Code, Status};

/// A check's surroundings.
pub(crate) struct Stage {
    pub(crate) bed: Arc<Bed>,
    pub(crate) drayd: Launched,
    directory: PathBuf,
}

impl Stage {
    /// With drayd's own settings, and nothing configured for any registry.
    pub(crate) fn set(bed: Arc<Bed>, name: &str) -> Result<Self> {
        Self::with(bed, name, "", |_| {})
    }

    /// With more keys of `[registry]` and whatever else `change` wants.
    pub(crate) fn with(
        bed: Arc<Bed>,
        name: &str,
        keys: &str,
        change: impl FnOnce(&mut Launch),
    ) -> Result<Self> {
        let mut launch = Launch::new(&bed.containerd.socket(), name)?;
        let directory = launch.directory().to_owned();
        let [first, second, node] =
            ["first", "second", "config.json"].map(|name| directory.join(name).display().to_string());
        launch.sections = format!(
            "[registry]\nconfig_path = [\"{first}\", \"{second}\"]\ncredentials_file = \"{node}\"\n{keys}\n"
        );
        fs::write(&node, "{}").with_context(|| format!("cannot write {node}"))?;
        change(&mut launch);
        Ok(Self { drayd: launch.start()?, bed, directory })
    }

    /// Writes the hosts.toml of `entry`, such as `first/reg.test`: there are two directories of them, `first` and
    /// `second`. Returns its path.
    pub(crate) fn hosts(&self, entry: &str, text: &str) -> Result<PathBuf> {
        let file = self.beside(entry, "hosts.toml");
        fs::create_dir_all(file.parent().unwrap_or(&self.directory))
            .and_then(|()| fs::write(&file, text))
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }

    /// Lets drayd reach a registry without TLS.
    pub(crate) fn plain(&self, address: &str) -> Result<PathBuf> {
        self.hosts(&format!("first/{address}"), &format!("server = \"http://{address}\"\n"))
    }

    /// The path of a file beside the hosts.toml of `entry`.
    pub(crate) fn beside(&self, entry: &str, name: &str) -> PathBuf {
        self.directory.join(entry).join(name)
    }

    /// Gives the node these credentials, each under the name of a host, and no others.
    pub(crate) fn node_has(&self, accounts: &[(&str, &Account)]) -> Result<()> {
        let entry = |account: &Account| json!({"username": account.user, "password": account.password});
        let auths: HashMap<&str, Value> =
            accounts.iter().map(|(host, account)| (*host, entry(account))).collect();
        let file = self.directory.join("config.json");
        fs::write(&file, json!({"auths": auths}).to_string())
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// Pulls, and fails unless the image is in containerd then, whole; removes it again.
    pub(crate) async fn pulls(
        &self,
        what: &str,
        image: &Image,
        reference: &str,
        account: Option<&Account>,
    ) -> Result<()> {
        self.bed.empty().await?;
        let id = self.drayd.cri().pull(reference, None, account).await;
        let id = id.with_context(|| format!("{what}: cannot pull {reference}"))?;
        ensure!(id == image.config.digest, "{what}: {id}");
        let state = self.bed.containerd.probe().state().await?;
        let target = state.images.get(reference).map(|(target, _)| target);
        ensure!(target == Some(&image.target.digest), "{what}: {target:?}");
        let snapshot = state.snapshot("overlayfs", &image.top_chain_id());
        ensure!(snapshot.is_some_and(|snapshot| snapshot.kind == "committed"), "{what}: {snapshot:?}");
        ensure!(state.leases.is_empty() && state.ingests.is_empty(), "{what}: {state:?}");
        self.bed.empty().await
    }

    /// Pulls, and fails unless that is refused with this code and a message that has all these texts.
    pub(crate) async fn refuses(
        &self,
        what: &str,
        reference: &str,
        account: Option<&Account>,
        code: Code,
        texts: &[&str],
    ) -> Result<Status> {
        match self.drayd.cri().pull(reference, None, account).await {
            Ok(id) => bail!("{what}: pulled as {id}, not refused"),
            Err(status) => {
                let fits = status.code() == code && texts.iter().all(|text| status.message().contains(text));
                ensure!(
                    fits,
                    "{what}: {:?} {:?}, not {code:?} with {texts:?}",
                    status.code(),
                    status.message()
                );
                Ok(status)
            }
        }
    }
}

/// What a registry answered since the mark: the statuses, in order.
pub(crate) fn statuses(registry: &Registry, mark: Mark) -> Vec<u16> {
    registry.requests_since(mark).iter().map(|request| request.status).collect()
}
