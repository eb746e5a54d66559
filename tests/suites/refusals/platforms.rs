//! Indexes whose entries do not say what they run on: what containerd would not find in them is refused, and what it
//! finds is pulled.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::peers::Release;
use drayd_tests::scripted::image::{self, Blob, CONFIG, INDEX, Image};
use drayd_tests::suite::Suite;
use serde_json::{Value, json};
use tonic::Code;

use crate::stage::{Stage, reach, refused};

/// What the config of an image says that it runs on; nothing stands for a field that is not there.
type Platform = (Option<&'static str>, Option<&'static str>);

const LINUX: Option<&str> = Some("linux");

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "an_entry_without_a_platform_is_taken_by_its_config_as_containerd_does", unnamed);
    suite.check(release, "a_manifest_that_the_name_points_to_may_be_for_any_platform", direct);
}

/// The platforms of an index's images in their order, and which of them is pulled.
fn cases() -> [(&'static str, Vec<Platform>, Option<usize>); 6] {
    let (own, other) = ((LINUX, Some(image::architecture())), (LINUX, Some(other())));
    [
        ("other-only", vec![other], None),
        // containerd tries the first alone, and creates no container from the second.
        ("other-first", vec![other, own], None),
        ("own-first", vec![own, other], Some(0)),
        ("own-only", vec![own], Some(0)),
        ("no-system", vec![(None, own.1)], Some(0)),
        ("no-processor", vec![(LINUX, None)], None),
    ]
}

/// A processor that this machine's cannot stand in for.
fn other() -> &'static str {
    if image::architecture() == "amd64" { "arm64" } else { "amd64" }
}

async fn unnamed(bed: Arc<Bed>) -> Result<()> {
    let stage = staged(bed, "unnamed").await?;
    for (name, platforms, expected) in cases() {
        let (reference, images) = serve(&stage, name, &platforms)?;
        let checked = match expected.and_then(|place| images.get(place)) {
            Some(image) => pulled(&stage, &reference, image).await,
            None => refused_by_both(&stage, &reference).await,
        };
        checked.with_context(|| format!("case {name}"))?;
    }
    Ok(())
}

async fn direct(bed: Arc<Bed>) -> Result<()> {
    let stage = staged(bed, "direct").await?;
    let image = image_for("direct", (LINUX, Some(other())))?;
    image.serve(&stage.registry);
    pulled(&stage, &image.reference(&stage.registry), &image).await
}

/// With a registry that containerd reaches without TLS, too.
async fn staged(bed: Arc<Bed>, name: &str) -> Result<Stage> {
    let stage = Stage::set(bed, name).await?;
    let address = stage.registry.address();
    reach(&stage.bed, address, &format!("[host.\"http://{address}\"]\n"))?;
    Ok(stage)
}

fn image_for(repository: &str, (system, processor): Platform) -> Result<Image> {
    let mut image = Image::new(repository, 1, 4)?;
    let mut config: Value = serde_json::from_slice(&image.config.bytes)?;
    let fields = config.as_object_mut().context("a config is an object")?;
    for (name, value) in [("os", system), ("architecture", processor)] {
        fields.remove(name);
        fields.extend(value.map(|value| (name.to_owned(), json!(value))));
    }
    image.config = Blob::json(CONFIG, &config);
    image.manifest = image.manifest_with(&image.config.descriptor());
    Ok(image)
}

/// Serves an index without platforms over images with these; returns its reference.
fn serve(stage: &Stage, name: &str, platforms: &[Platform]) -> Result<(String, Vec<Image>)> {
    let repository = format!("unnamed-{name}");
    let mut images = Vec::new();
    for (number, platform) in platforms.iter().enumerate() {
        let mut image = image_for(&format!("{repository}{number}"), *platform)?;
        image.repository.clone_from(&repository);
        image.serve(&stage.registry);
        images.push(image);
    }
    let entries: Vec<Value> = images.iter().map(|image| image.manifest.descriptor()).collect();
    let index = Blob::json(INDEX, &json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}));
    image::serve_blob(&stage.registry, &repository, &index);
    let tag = format!("/v2/{repository}/manifests/1");
    stage.registry.on("GET", &tag, move |_, _| image::manifest_reply(&index));
    Ok((format!("{}/{repository}:1", stage.registry.address()), images))
}

/// drayd, and containerd asked for the same, take this image.
async fn pulled(stage: &Stage, reference: &str, image: &Image) -> Result<()> {
    let id = stage.pull(reference).await?;
    ensure!(id == image.config.digest, "pulled as {id}, not {}", image.config.digest);
    let containerd = stage.bed.containerd.cri();
    for (whose, cri) in [("drayd", stage.drayd.cri()), ("containerd", containerd.clone())] {
        let shown = cri.image(reference).await?.map(|image| image.id);
        ensure!(shown.as_ref() == Some(&id), "{whose} shows {shown:?}, not {id}");
    }
    let again = containerd.pull(reference, None, None).await?;
    ensure!(again == id, "containerd pulls it as {again}, not {id}");
    stage.drayd.cri().remove(reference).await?;
    stage.left_nothing().await
}

async fn refused_by_both(stage: &Stage, reference: &str) -> Result<()> {
    let wanted = format!("no image for platform linux/{}: the index offers ", image::architecture());
    let texts = [wanted.as_str(), " in the first entry that names no platform"];
    refused(reference, stage.pull(reference).await, Code::NotFound, &texts)?;
    stage.left_nothing().await?;
    let by_containerd = stage.bed.containerd.cri().pull(reference, None, None).await;
    refused("containerd", by_containerd, Code::NotFound, &["no match for platform in manifest"])?;
    // Unlike drayd, it leaves the record of the name.
    let probe = stage.bed.containerd.probe();
    if probe.state().await?.images.contains_key(reference) {
        probe.untag(reference).await?;
    }
    stage.left_nothing().await
}
