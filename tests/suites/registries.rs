//! The registries that others wrote: each is pulled from by tag, by digest, and through an index.

use std::fs;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::crane::Crane;
use drayd_tests::launch::Launch;
use drayd_tests::peers::Release;
use drayd_tests::registry::{Account, Registry};
use drayd_tests::scripted::tokens::{Rules, Tokens};
use drayd_tests::scripted::{Scripted, Signer};
use drayd_tests::suite::Suite;

/// No containerd has a part in who sends the bytes.
const ANY: Release = Release::V1_7;

fn main() -> Result<ExitCode> {
    let mut suite = Suite::new()?;
    suite.check(ANY, "docker_registry_is_pulled_from_with_a_password", passwords);
    suite.check(ANY, "docker_registry_is_pulled_from_with_tokens_of_a_token_server", tokens);
    suite.check(ANY, "the_registry_of_crane_is_pulled_from", crane);
    Ok(suite.run())
}

async fn passwords(bed: Arc<Bed>) -> Result<()> {
    let account = bed.private.account().cloned();
    pulls(&bed, bed.private.address(), account.as_ref()).await
}

async fn tokens(bed: Arc<Bed>) -> Result<()> {
    let account = Account { user: "token-user".into(), password: "token password".into() };
    let signer = Signer::new()?;
    let certificate = signer.certificate();
    let server = Scripted::start().await?;
    let rules = Rules {
        account: Some((account.user.clone(), account.password.clone())),
        anonymous: false,
        signer: Some(signer),
        ..Rules::default()
    };
    let tokens = Tokens::at(&server, "/token", rules);
    let registry =
        Registry::start_with_tokens("tokens", bed.run(), &bed.storage(), tokens.realm(), &certificate)?;
    pulls(&bed, registry.address(), Some(&account)).await?;
    let orders = tokens.orders();
    ensure!(orders.iter().all(|order| order.granted), "{orders:?}");
    // One for each repository: what is granted for one is of no use for the other.
    ensure!(orders.len() == 2, "{} tokens were ordered for two repositories: {orders:#?}", orders.len());
    Ok(())
}

async fn crane(bed: Arc<Bed>) -> Result<()> {
    let registry = Crane::start(bed.run())?;
    for image in [&bed.images.busybox, &bed.images.two] {
        image.push(registry.address())?;
    }
    pulls(&bed, registry.address(), None).await
}

/// Pulls from a registry that has busybox and the image of two platforms.
async fn pulls(bed: &Bed, address: &str, account: Option<&Account>) -> Result<()> {
    let hosts = bed.containerd.registry_configuration();
    let directory = hosts.join(address);
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("hosts.toml"), format!("server = \"http://{address}\"\n"))?;
    let mut launch = Launch::new(&bed.containerd.socket(), "registries")?;
    launch.sections = format!("[registry]\nconfig_path = [\"{}\"]\n", hosts.display());
    let drayd = launch.start()?;
    let (busybox, two) = (&bed.images.busybox, &bed.images.two);
    for (what, image, reference) in [
        ("tag", busybox, busybox.reference(address)),
        ("digest", busybox, busybox.digest_reference(address)),
        ("index", two, two.reference(address)),
    ] {
        bed.empty().await?;
        let id = drayd.cri().pull(&reference, None, account).await.with_context(|| format!("by {what}"))?;
        ensure!(id == image.config.digest, "by {what}: {id}");
        let state = bed.containerd.probe().state().await?;
        let target = state.images.get(&reference).map(|(target, _)| target);
        ensure!(target == Some(&image.target.digest), "by {what}: {target:?}");
        let snapshot = state.snapshot("overlayfs", &image.top_chain_id());
        ensure!(snapshot.is_some_and(|snapshot| snapshot.kind == "committed"), "by {what}: {snapshot:?}");
        ensure!(state.leases.is_empty() && state.ingests.is_empty(), "by {what}: {state:?}");
    }
    bed.empty().await
}
