//! Each kind of registry as it is: pulled from by tag, by digest, and through an index.

use std::sync::Arc;

use anyhow::{Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::crane::Crane;
use drayd_tests::peers::Release;
use drayd_tests::registry::Account;
use drayd_tests::suite::Suite;

use crate::stage::Stage;
use crate::tokens::{Guarded, account};

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "docker_registry_is_pulled_from_with_a_password", password);
    suite.check(release, "docker_registry_is_pulled_from_with_tokens_of_a_token_server", one_token_each);
    suite.check(release, "the_registry_of_crane_is_pulled_from", crane);
}

async fn password(bed: Arc<Bed>) -> Result<()> {
    let account = bed.private.account().cloned();
    let address = bed.private.address().to_owned();
    pulls(bed, &address, account.as_ref()).await
}

/// Faults 19 and 20.
async fn one_token_each(bed: Arc<Bed>) -> Result<()> {
    let guarded = Guarded::start(&bed, "tokens", |rules| rules.anonymous = false).await?;
    pulls(bed, guarded.registry.address(), Some(&account())).await?;
    let orders = guarded.tokens.orders();
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
    pulls(bed, registry.address(), None).await
}

/// Pulls from a registry that has busybox and the image of two platforms.
async fn pulls(bed: Arc<Bed>, address: &str, account: Option<&Account>) -> Result<()> {
    let stage = Stage::set(bed, "plain")?;
    stage.plain(address)?;
    let (busybox, two) = (&stage.bed.images.busybox, &stage.bed.images.two);
    for (what, image, reference) in [
        ("tag", busybox, busybox.reference(address)),
        ("digest", busybox, busybox.digest_reference(address)),
        ("index", two, two.reference(address)),
    ] {
        stage.pulls(what, image, &reference, account).await?;
    }
    Ok(())
}
