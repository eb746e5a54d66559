//! Whose password goes to whom, against docker-registry with a file of passwords.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use drayd_tests::bed::Bed;
use drayd_tests::crane::Crane;
use drayd_tests::peers::Release;
use drayd_tests::registry::{Account, Registry, free_loopback_address};
use drayd_tests::scripted::{Reply, Scripted};
use drayd_tests::suite::Suite;
use tonic::Code;

use crate::stage::{Stage, statuses};

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "a_mirror_gets_what_the_node_has_under_its_own_name", under_its_own_name);
    suite.check(release, "the_callers_credentials_go_to_a_mirror_only_when_it_is_trusted", trusted);
    suite.check(release, "a_registry_behind_a_redirect_gets_its_own_credentials_only", redirected);
    suite.check(release, "a_header_of_hosts_toml_is_for_its_own_host", header);
}

/// That of the bed's private registry.
fn account_of(bed: &Bed) -> Result<Account> {
    bed.private.account().cloned().context("the private registry has an account")
}

fn basic(account: &Account) -> String {
    format!("Basic {}", STANDARD.encode(format!("{}:{}", account.user, account.password)))
}

/// Fault 25.
async fn under_its_own_name(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "own-name")?;
    let (image, mirror) = (&stage.bed.images.docker, stage.bed.private.address());
    // It has no image at all.
    let server = Crane::start(stage.bed.run())?;
    let text = format!("server = \"http://{}\"\n[host.\"http://{mirror}\"]\n", server.address());
    stage.hosts("first/reg.test", &text)?;
    let account = account_of(&stage.bed)?;
    let other = Account { user: "other".into(), password: "other".into() };
    let reference = image.reference("reg.test");
    stage.node_has(&[(mirror, &account), ("reg.test", &other)])?;
    stage.pulls("under the mirror's name", image, &reference, None).await?;
    stage.pulls("beside the pull's own", image, &reference, Some(&other)).await?;
    stage.node_has(&[("reg.test", &account)])?;
    let required = "credentials are required and none were given for this host";
    let texts = [mirror, required];
    stage.refuses("under the registry's name", &reference, None, Code::Unauthenticated, &texts).await?;
    Ok(())
}

/// Fault 26.
async fn trusted(bed: Arc<Bed>) -> Result<()> {
    let account = account_of(&bed)?;
    let server = Registry::start("server", bed.run(), &bed.storage(), Some(account.clone()))?;
    let mirror = bed.private.address().to_owned();
    let text = format!("server = \"http://{}\"\n[host.\"http://{mirror}\"]\n", server.address());
    let entry = format!("first/{}", server.address());
    for (name, keys, trusted) in [
        ("untrusted", String::new(), false),
        ("trusted", format!("trusted_mirrors = [\"{mirror}\"]\n"), true),
    ] {
        let stage = Stage::with(Arc::clone(&bed), name, &keys, |_| {})?;
        stage.hosts(&entry, &text)?;
        let image = &bed.images.docker;
        let marks = (bed.private.mark(), server.mark());
        stage.pulls(name, image, &image.reference(server.address()), Some(&account)).await?;
        let (at_mirror, at_server) = (statuses(&bed.private, marks.0), statuses(&server, marks.1));
        let opened = |statuses: &[u16]| statuses.contains(&200);
        ensure!(!at_mirror.is_empty(), "{name}: the mirror was not asked");
        ensure!(opened(&at_mirror) == trusted, "{name}: the mirror answered {at_mirror:?}");
        ensure!(opened(&at_server) != trusted, "{name}: the registry answered {at_server:?}");
    }
    Ok(())
}

/// Fault 23.
async fn redirected(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "redirected")?;
    let (image, second) = (&stage.bed.images.docker, stage.bed.private.address());
    let (right, own) = (account_of(&stage.bed)?, Account { user: "a".into(), password: "a".into() });
    // docker-registry sends nobody to another registry: the first one is scripted. It takes both accounts.
    let first = Scripted::start().await?;
    let (taken, to) = ([basic(&own), basic(&right)], second.to_owned());
    first.gate(move |request| {
        let sent = request.header("authorization").map(str::to_owned);
        Some(match sent {
            Some(sent) if taken.contains(&sent) => Reply::redirect(&format!("http://{to}{}", request.target)),
            _ => Reply::status(401).header("WWW-Authenticate", "Basic realm=\"first\""),
        })
    });
    let address = first.address();
    stage.plain(address)?;
    let reference = image.reference(address);
    stage.node_has(&[(address, &own), (second, &right)])?;
    stage.pulls("each its own", image, &reference, None).await?;
    let sent = first.take_journal();
    let sent: Vec<_> = sent.iter().filter_map(|request| request.header("authorization")).collect();
    ensure!(!sent.is_empty() && sent.iter().all(|sent| *sent == basic(&own)), "the first one got {sent:?}");
    // What would open the second one is the first one's, and stays there.
    stage.node_has(&[(address, &right)])?;
    stage.refuses("the first one's", &reference, None, Code::Unauthenticated, &[second]).await?;
    stage.refuses("the caller's", &reference, Some(&right), Code::Unauthenticated, &[second]).await?;
    Ok(())
}

async fn header(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "header")?;
    let (image, private) = (&stage.bed.images.docker, stage.bed.private.address());
    let proof = basic(&account_of(&stage.bed)?);
    let dead = free_loopback_address()?;
    let with = |host: &str, server: &str| {
        format!(
            "server = \"http://{server}\"\n[host.\"http://{host}\"]\n\
             [host.\"http://{host}\".header]\nAuthorization = \"{proof}\"\n"
        )
    };
    let reference = image.reference("reg.test");
    stage.hosts("first/reg.test", &with(private, &dead))?;
    stage.pulls("with the header", image, &reference, None).await?;
    stage.hosts("first/reg.test", &with(&dead, private))?;
    stage.refuses("the mirror's header", &reference, None, Code::Unauthenticated, &[private]).await?;
    Ok(())
}
