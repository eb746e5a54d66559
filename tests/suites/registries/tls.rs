//! docker-registry with TLS: what hosts.toml says of certificates.

use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result};
use drayd_tests::bed::Bed;
use drayd_tests::peers::Release;
use drayd_tests::registry::Registry;
use drayd_tests::scripted::Authority;
use drayd_tests::suite::Suite;
use tonic::Code;

use crate::stage::Stage;

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "keys_without_any_host_are_for_the_registry_itself", root_keys);
    suite.check(release, "of_several_client_certificates_the_one_that_fits_is_shown", client_certificates);
}

/// Faults 38, 48 and 49.
async fn root_keys(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "root-keys")?;
    let image = &stage.bed.images.docker;
    let authority = Authority::new("site")?;
    let identity = authority.server(&["127.0.0.1"])?;
    let server = Registry::start_tls("tls", stage.bed.run(), &stage.bed.storage(), &identity, None)?;
    let server = server.address();
    stage.hosts("first/reg.test", "")?;
    fs::write(stage.beside("first/reg.test", "site.pem"), authority.pem())
        .context("cannot write site.pem")?;
    for keys in ["ca = \"site.pem\"", "ca = [\"site.pem\"]", "skip_verify = true"] {
        stage.hosts("first/reg.test", &format!("server = \"https://{server}\"\n{keys}\n"))?;
        stage.pulls(keys, image, &image.reference("reg.test"), None).await?;
        stage.pulls(keys, image, &image.digest_reference("reg.test"), None).await?;
    }
    stage.hosts("first/reg.test", &format!("server = \"https://{server}\"\n"))?;
    let texts = ["invalid peer certificate", "set `ca` (or `skip_verify`)"];
    stage.refuses("no keys", &image.reference("reg.test"), None, Code::Unavailable, &texts).await?;
    // The registry's own name in place of `server`.
    for keys in ["skip_verify = true\n", "override_path = false\n"] {
        stage.hosts(&format!("first/{server}"), keys)?;
        stage.pulls(keys, image, &image.reference(server), None).await?;
    }
    Ok(())
}

async fn client_certificates(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "client-certificates")?;
    let image = &stage.bed.images.docker;
    let reference = image.reference("reg.test");
    let (authority, own, other) = (Authority::new("site")?, Authority::new("own")?, Authority::new("other")?);
    let identity = authority.server(&["127.0.0.1"])?;
    let server = Registry::start_tls("mutual", stage.bed.run(), &stage.bed.storage(), &identity, Some(&own))?;
    let server = format!("server = \"https://{}\"\nca = \"site.pem\"\n", server.address());
    stage.hosts("first/reg.test", &server)?;
    let beside = |name: &str, text: &str| {
        let file = stage.beside("first/reg.test", name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    beside("site.pem", &authority.pem())?;
    for (name, authority) in [("own", &own), ("other", &other)] {
        let client = authority.client("node")?;
        beside(&format!("{name}.pem"), &client.certificate)?;
        beside(&format!("{name}.key"), &client.key)?;
    }
    let (own, other) = ("[\"own.pem\", \"own.key\"]", "[\"other.pem\", \"other.key\"]");
    for clients in [own.to_owned(), format!("{own}, {other}"), format!("{other}, {own}")] {
        stage.hosts("first/reg.test", &format!("{server}client = [{clients}]\n"))?;
        stage.pulls(&clients, image, &reference, None).await?;
    }
    stage.hosts("first/reg.test", &format!("{server}client = [{other}]\n"))?;
    stage
        .refuses(
            "another authority's",
            &reference,
            None,
            Code::Unavailable,
            &["no TLS with", "BadCertificate"],
        )
        .await?;
    Ok(())
}
