//! Odd images that are pulled all the same, and those that are refused for what they are: names with tag and digest,
//! mixed types, attestations, indexes of several platforms, configs under other types, artifacts.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::images;
use drayd_tests::layer::digest;
use drayd_tests::peers::Release;
use drayd_tests::scripted::image::{self, Blob, CONFIG, INDEX, Image, LAYER, MANIFEST};
use drayd_tests::scripted::{Reply, Scripted};
use drayd_tests::suite::Suite;
use drayd_tests::wait;
use serde_json::{Value, json};
use tonic::Code;

use crate::ANY;
use crate::stage::{Stage, blobs_asked, refused};

const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
const HELM_CONFIG: &str = "application/vnd.cncf.helm.config.v1+json";

pub(crate) fn add(suite: &mut Suite, release: Release) {
    // What containerd's CRI makes of such an image is its own affair in each release.
    suite.check(release, "a_config_under_an_unknown_type_is_an_image_if_it_reads_like_one", octet_stream);
    suite.check(release, "an_image_without_layers_is_pulled_and_one_that_miscounts_is_refused", no_layers);
    suite.check(release, "a_config_that_containerd_cannot_read_is_refused_before_a_layer_comes", unreadable);
    suite.check(release, "an_image_that_containerd_would_not_find_in_its_index_is_refused", shadowed);
    if release == ANY {
        suite.check(release, "an_image_that_cri_does_not_show_leaves_no_record", unshown);
        suite.check(
            release,
            "a_record_that_others_changed_before_it_is_taken_back_stays_theirs",
            unshown_and_touched,
        );
        suite.check(release, "an_entry_of_an_index_that_is_for_others_does_not_decide", others);
        suite.check(release, "a_tag_beside_a_digest_is_never_asked_for_and_never_listed", tag_and_digest);
        suite.check(release, "a_host_in_upper_case_is_the_same_host", upper_case);
        suite.check(release, "dockers_and_ocis_types_mix_in_every_way", mixed_types);
        suite.check(release, "attestations_are_not_chosen_not_fetched_and_not_counted", attestations);
        suite.check(release, "every_call_means_the_same_entry_of_an_index", one_entry);
        suite.check(release, "an_artifact_is_refused_for_what_it_is", artifacts);
    }
}

/// Serves `target`, an index or manifest, under the image's tag and its digest.
fn serve_target(registry: &Scripted, image: &Image, target: &Blob) {
    let reply = Reply::ok(&target.media_type, &target.bytes).header("Docker-Content-Digest", &target.digest);
    for path in [image.tag_path(), format!("/v2/{}/manifests/{}", image.repository, target.digest)] {
        let reply = reply.clone();
        registry.on("GET", &path, move |_, _| reply.clone());
    }
}

fn entry(manifest: &Blob, architecture: &str, variant: Option<&str>) -> Value {
    let mut entry = manifest.descriptor();
    entry["platform"] = json!({"os": "linux", "architecture": architecture});
    if let Some(variant) = variant {
        entry["platform"]["variant"] = json!(variant);
    }
    entry
}

fn index_of(media_type: &str, entries: &[Value]) -> Blob {
    let index = json!({"schemaVersion": 2, "mediaType": media_type, "manifests": entries});
    Blob::json(media_type, &index)
}

/// What containerd counts: the chosen image, and the index that leads to it.
fn size(index: &Blob, image: &Image) -> Result<u64> {
    let parts = [index, &image.manifest, &image.config].into_iter().chain(&image.layers);
    Ok(u64::try_from(parts.map(|blob| blob.bytes.len()).sum::<usize>())?)
}

/// Fault 2.
/// Fault 3.
/// Fault 4.
/// Fault 5.
async fn tag_and_digest(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "tag-and-digest").await?;
    let (image, other) = (Image::new("tagged", 1, 8)?, Image::new("other", 1, 8)?);
    image.serve(&stage.registry);
    // The tag is there, and is another image.
    let target = other.manifest.clone();
    stage.registry.on("GET", &image.tag_path(), move |_, _| image::manifest_reply(&target));
    let repository = format!("{}/tagged", stage.registry.address());
    let by_digest = format!("{repository}@{}", image.manifest.digest);
    let cri = stage.drayd.cri();
    for tag in ["1", "fake"] {
        let reference = format!("{repository}:{tag}@{}", image.manifest.digest);
        let before = blobs_asked(&stage.registry);
        let id = stage.pull(&reference).await?;
        ensure!(id == image.config.digest, "{reference} is {id}");
        let expected = if tag == "1" { 2 } else { 0 };
        let moved = blobs_asked(&stage.registry) - before;
        ensure!(moved == expected, "{reference}: {moved} blobs were asked for, not {expected}");
        let shown = cri.image(&reference).await?.with_context(|| format!("{reference} is not found"))?;
        ensure!(shown.id == id && shown.repo_tags.is_empty(), "{shown:?}");
        ensure!(shown.repo_digests == [by_digest.clone()], "{:?}", shown.repo_digests);
        ensure!(stage.pull(&reference).await? == id, "the second pull is another image");
        ensure!(blobs_asked(&stage.registry) - before == expected, "the second pull moved blobs");
    }
    let tags = ["1", "fake"].map(|tag| format!("/v2/tagged/manifests/{tag}"));
    let asked = stage.registry.journal();
    ensure!(!asked.iter().any(|request| tags.iter().any(|tag| request.path() == tag)), "{asked:?}");
    let fake = cri.image(&format!("{repository}:fake")).await?;
    ensure!(fake.is_none(), "{fake:?}");
    stage.removed(&by_digest).await
}

/// Fault 7.
async fn upper_case(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "upper-case").await?;
    let image = Image::new("upper", 1, 8)?;
    image.serve(&stage.registry);
    let port = stage.registry.address().rsplit(':').next().context("a port")?.to_owned();
    let reference = format!("LOCALHOST:{port}/upper:1");
    let id = stage.pull(&reference).await?;
    for spelling in [reference.clone(), format!("localhost:{port}/upper:1")] {
        let shown = stage.drayd.cri().image(&spelling).await?.map(|image| image.id);
        ensure!(shown.as_ref() == Some(&id), "{spelling}: {shown:?}");
    }
    let path = format!("{}/Upper:1", stage.registry.address());
    refused("path", stage.pull(&path).await, Code::InvalidArgument, &["has upper-case letters"])?;
    stage.removed(&reference).await
}

/// Fault 72.
async fn mixed_types(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "mixed-types").await?;
    for index_type in [INDEX, DOCKER_LIST] {
        for config_type in [CONFIG, DOCKER_CONFIG] {
            for layer_type in [LAYER, DOCKER_LAYER] {
                let short = |name: &str| if name.contains("docker") { "d" } else { "o" };
                let name = format!("mix-{}{}{}", short(index_type), short(config_type), short(layer_type));
                let mut image = Image::new(&name, 1, 4)?;
                image.config.media_type = config_type.to_owned();
                layer_type.clone_into(&mut image.layers[0].media_type);
                image.manifest = image.manifest_with(&image.config.descriptor());
                image.serve(&stage.registry);
                let own = entry(&image.manifest, image::architecture(), None);
                serve_target(&stage.registry, &image, &index_of(index_type, &[own]));
                let reference = image.reference(&stage.registry);
                let id = stage.pull(&reference).await.with_context(|| name.clone())?;
                ensure!(id == image.config.digest, "{name}: {id}");
                stage.holds(&image.top_chain_id()).await.with_context(|| name.clone())?;
                stage.removed(&reference).await?;
            }
        }
    }
    Ok(())
}

/// Fault 74.
async fn attestations(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "attestations").await?;
    let (image, attestation) = (Image::new("attested", 1, 8)?, Image::new("attestation", 1, 8)?);
    image.serve(&stage.registry);
    image::serve_blob(&stage.registry, "attested", &attestation.manifest);
    let mut unknown = entry(&attestation.manifest, "unknown", None);
    unknown["platform"]["os"] = json!("unknown");
    let own = entry(&image.manifest, image::architecture(), None);
    let index = index_of(INDEX, &[unknown.clone(), own]);
    serve_target(&stage.registry, &image, &index);
    let reference = image.reference(&stage.registry);
    let id = stage.pull(&reference).await?;
    ensure!(id == image.config.digest, "pulled {id}");
    ensure!(stage.registry.asked("GET", &attestation.manifest.path("attested")).is_empty(), "it was fetched");
    let shown = stage.drayd.cri().image(&reference).await?.context("the image is not shown")?;
    let sum = size(&index, &image)?;
    ensure!(shown.size == sum, "its size is {}, not {sum}", shown.size);
    stage.removed(&reference).await?;

    serve_target(&stage.registry, &image, &index_of(INDEX, &[unknown]));
    let wanted = format!("no image for platform linux/{}", image::architecture());
    let texts = [wanted.as_str(), "the index offers no image at all"];
    refused("attestations alone", stage.pull(&reference).await, Code::NotFound, &texts)?;
    stage.left_nothing().await
}

/// Fault 75.
async fn one_entry(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "one-entry").await?;
    let images: Vec<Image> = (0..4)
        .map(|number| {
            let mut image = Image::new(&format!("entries{number}"), 1, 4 + number)?;
            "entries".clone_into(&mut image.repository);
            image.serve(&stage.registry);
            Ok(image)
        })
        .collect::<Result<_>>()?;
    let platforms = match image::architecture() {
        "arm64" => [("arm", Some("v7")), ("arm64", Some("v9")), ("arm64", Some("v8")), ("arm", Some("v5"))],
        _ => [("386", None), ("amd64", Some("v2")), ("amd64", Some("v1")), ("arm", Some("v6"))],
    };
    let entries: Vec<Value> = images
        .iter()
        .zip(platforms)
        .map(|(image, (architecture, variant))| entry(&image.manifest, architecture, variant))
        .collect();
    let index = index_of(INDEX, &entries);
    serve_target(&stage.registry, &images[0], &index);
    let best = &images[2];
    let reference = best.reference(&stage.registry);
    let id = stage.pull(&reference).await?;
    ensure!(id == best.config.digest, "pulled {id}");
    stage.holds(&best.top_chain_id()).await?;
    let sum = size(&index, best)?;
    for (whose, cri) in [("drayd", stage.drayd.cri()), ("containerd", stage.bed.containerd.cri())] {
        let shown = cri.image(&reference).await?.with_context(|| format!("{whose} does not show it"))?;
        ensure!(shown.id == id, "{whose} shows {}", shown.id);
        ensure!(shown.size == sum, "{whose}: its size is {}, not {sum}", shown.size);
    }
    stage.removed(&reference).await
}

/// Fault 80.
async fn no_layers(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "no-layers").await?;
    let config = |rootfs: Option<Value>| {
        let mut config = json!({"architecture": image::architecture(), "os": "linux"});
        if let Some(rootfs) = rootfs {
            config["rootfs"] = rootfs;
        }
        Blob::json(CONFIG, &config)
    };
    for (name, rootfs, problem) in [
        ("absent", None, Some("it has no `rootfs`")),
        (
            "longer",
            Some(json!({"type": "layers", "diff_ids": [digest(b"x")]})),
            Some("lists 0 layers, the image config 1 diff IDs"),
        ),
        ("empty", Some(json!({"type": "layers", "diff_ids": []})), None),
        ("null", Some(json!({"type": "layers", "diff_ids": null})), None),
    ] {
        let mut image = Image::new(&format!("hollow-{name}"), 0, 0)?;
        image.config = config(rootfs);
        image.manifest = image.manifest_with(&image.config.descriptor());
        image.serve(&stage.registry);
        let reference = image.reference(&stage.registry);
        let pulled = stage.pull(&reference).await;
        if let Some(problem) = problem {
            refused(name, pulled, Code::FailedPrecondition, &[problem])?;
            stage.left_nothing().await?;
        } else {
            let id = pulled.with_context(|| name.to_owned())?;
            ensure!(id == image.config.digest, "{name}: {id}");
            let shown = stage.drayd.cri().image(&reference).await?;
            ensure!(shown.is_some_and(|image| image.id == id), "{name} is not shown");
            stage.removed(&reference).await?;
        }
    }
    Ok(())
}

/// Fault 81.
async fn octet_stream(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "octet-stream").await?;
    let mut image = Image::new("octets", 1, 8)?;
    "application/octet-stream".clone_into(&mut image.config.media_type);
    image.manifest = image.manifest_with(&image.config.descriptor());
    image.serve(&stage.registry);
    let reference = image.reference(&stage.registry);
    let id = stage.pull(&reference).await?;
    ensure!(id == image.config.digest, "pulled {id}");
    for (whose, cri) in [("drayd", stage.drayd.cri()), ("containerd", stage.bed.containerd.cri())] {
        let shown = cri.image(&reference).await?.map(|image| image.id);
        ensure!(shown.as_ref() == Some(&id), "{whose} shows {shown:?}");
    }
    stage.holds(&image.top_chain_id()).await?;
    stage.removed(&reference).await
}

/// Fails unless containerd's own puller makes no image of it either, and removes what that leaves.
async fn useless_to_containerd(stage: &Stage, what: &str, reference: &str) -> Result<()> {
    let containerd = &stage.bed.containerd;
    let before = containerd.probe().state().await?;
    let pulled = containerd.cri().pull(reference, None, None).await;
    let shown = containerd.cri().image(reference).await?;
    ensure!(shown.is_none(), "{what}: containerd pulls it, {pulled:?}, and shows {shown:?}");
    for name in containerd.probe().state().await?.images.keys().filter(|it| !before.images.contains_key(*it))
    {
        containerd.probe().untag(name).await?;
    }
    stage.left_nothing().await
}

/// The image with this field in its config.
fn with_field(repository: &str, field: &str, value: &Value) -> Result<Image> {
    let mut image = Image::new(repository, 1, 4)?;
    let mut config: Value = serde_json::from_slice(&image.config.bytes)?;
    config[field] = value.clone();
    image.config = Blob::json(CONFIG, &config);
    image.manifest = image.manifest_with(&image.config.descriptor());
    Ok(image)
}

async fn unreadable(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "unreadable").await?;
    let wrong = [
        ("created", json!("garbage")),
        ("created", json!("2024-01-01")),
        ("history", json!("zz")),
        ("config", json!({"Cmd": "/none"})),
        ("config", json!({"Labels": {"a": 1}})),
    ];
    for (number, (field, value)) in wrong.into_iter().enumerate() {
        let image = with_field(&format!("unreadable{number}"), field, &value)?;
        image.serve(&stage.registry);
        let reference = image.reference(&stage.registry);
        let what = format!("{field} {value}");
        let texts = ["the image's config", &image.config.digest, "document is not valid: wrong value"];
        refused(&what, stage.pull(&reference).await, Code::FailedPrecondition, &texts)?;
        let layer = image.layers[0].path(&image.repository);
        ensure!(stage.registry.asked("GET", &layer).is_empty(), "{what}: a layer came");
        stage.left_nothing().await?;
        useless_to_containerd(&stage, &what, &reference).await?;
    }
    for time in ["2024-02-29T23:59:59.123456789+02:00", "0001-01-01T00:00:00Z"] {
        let image = with_field("readable", "created", &json!(time))?;
        image.serve(&stage.registry);
        let reference = image.reference(&stage.registry);
        ensure!(stage.pull(&reference).await? == image.config.digest, "{time}: another image");
        stage.removed(&reference).await?;
    }
    Ok(())
}

/// One that containerd's CRI cannot read: Go's reader takes a field in any case, and so finds no time in this one.
fn unshown_image(repository: &str, stage: &Stage) -> Result<Image> {
    let image = with_field(repository, "Created", &json!(format!("garbage of {repository}")))?;
    image.serve(&stage.registry);
    Ok(image)
}

async fn unshown(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "unshown").await?;
    let image = unshown_image("unshown", &stage)?;
    let pulled = stage.pull(&image.reference(&stage.registry)).await;
    refused("unshown", pulled, Code::FailedPrecondition, &["its CRI plugin did not show it"])?;
    stage.left_nothing().await
}

/// What others do to the records while drayd waits for CRI stays.
async fn unshown_and_touched(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "unshown-touched").await?;
    let probe = stage.bed.containerd.probe();
    let (moved, removed) = (unshown_image("moved", &stage)?, unshown_image("removed", &stage)?);
    let (moved_name, removed_name) = (moved.reference(&stage.registry), removed.reference(&stage.registry));
    let theirs = images::Descriptor {
        media_type: MANIFEST.into(),
        digest: removed.manifest.digest.clone(),
        size: removed.manifest.bytes.len() as u64,
    };
    // The tag is the last that is written. Half of the time that drayd waits for CRI then.
    let recorded = async |name: &str| {
        let within = Duration::from_secs(15);
        let there = async || Ok(probe.state().await?.images.contains_key(name));
        wait::until("the image is recorded", within, there).await
    };
    let (first, second, touched) = tokio::join!(stage.pull(&moved_name), stage.pull(&removed_name), async {
        recorded(&moved_name).await?;
        probe.untag(&moved_name).await?;
        probe.tag(&moved_name, &theirs).await?;
        recorded(&removed_name).await?;
        probe.untag(&removed.config.digest).await
    });
    touched?;
    refused("moved", first, Code::FailedPrecondition, &["its CRI plugin did not show it"])?;
    refused("removed", second, Code::Aborted, &["the image was removed while it was pulled"])?;
    let target = probe.state().await?.images.get(&moved_name).map(|(target, _)| target.clone());
    ensure!(target.as_ref() == Some(&theirs.digest), "the name that others moved leads to {target:?}");
    probe.untag(&moved_name).await?;
    stage.left_nothing().await
}

async fn shadowed(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "shadowed").await?;
    let (image, other) = (Image::new("shadowed", 1, 4)?, Image::new("shadow", 1, 4)?);
    image.serve(&stage.registry);
    image::serve_blob(&stage.registry, "shadowed", &other.manifest);
    let own = entry(&image.manifest, image::architecture(), None);
    let statement = json!({"mediaType": "application/vnd.in-toto+json", "digest": digest(b"{}"), "size": 2});
    let mut signature = entry(&other.manifest, image::architecture(), None);
    signature["artifactType"] = json!("application/vnd.example.signature");
    let mut attestation = entry(&other.manifest, image::architecture(), None);
    attestation["annotations"] = json!({"vnd.docker.reference.type": "attestation-manifest"});
    let reference = image.reference(&stage.registry);
    for (what, entries) in [
        ("application/vnd.in-toto+json", [statement, image.manifest.descriptor()]),
        ("application/vnd.example.signature", [signature, own.clone()]),
        ("attestation-manifest", [attestation, own]),
    ] {
        let index = index_of(INDEX, &entries);
        serve_target(&stage.registry, &image, &index);
        let texts = [index.digest.as_str(), what, &image.manifest.digest];
        refused(what, stage.pull(&reference).await, Code::FailedPrecondition, &texts)?;
        stage.left_nothing().await?;
        useless_to_containerd(&stage, what, &reference).await?;
        // Behind the image it is in nobody's way.
        let [first, second] = entries;
        serve_target(&stage.registry, &image, &index_of(INDEX, &[second, first]));
        ensure!(stage.pull(&reference).await? == image.config.digest, "{what}: another image");
        stage.removed(&reference).await?;
    }
    Ok(())
}

async fn others(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "others").await?;
    let image = Image::new("others", 1, 4)?;
    image.serve(&stage.registry);
    let own = entry(&image.manifest, image::architecture(), None);
    let mut broken = entry(&image.manifest, "s390x", None);
    broken["digest"] = json!("sha999:abc");
    broken["size"] = Value::Null;
    serve_target(&stage.registry, &image, &index_of(INDEX, &[broken, own]));
    let reference = image.reference(&stage.registry);
    ensure!(stage.pull(&reference).await? == image.config.digest, "another image");
    for (whose, cri) in [("drayd", stage.drayd.cri()), ("containerd", stage.bed.containerd.cri())] {
        let shown = cri.image(&reference).await?.map(|image| image.id);
        ensure!(shown.as_ref() == Some(&image.config.digest), "{whose} shows {shown:?}");
    }
    stage.removed(&reference).await
}

async fn artifacts(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "artifacts").await?;
    let mut chart = Image::new("chart", 1, 4)?;
    chart.config = Blob::json(HELM_CONFIG, &json!({"apiVersion": "v2", "name": "chart"}));
    chart.manifest = chart.manifest_with(&chart.config.descriptor());
    chart.serve(&stage.registry);
    let text = format!("is not an image but an artifact of type `{HELM_CONFIG}`");
    let pulled = stage.pull(&chart.reference(&stage.registry)).await;
    refused("chart", pulled, Code::FailedPrecondition, &[&chart.manifest.digest, &text])?;
    ensure!(stage.registry.asked("GET", &chart.layers[0].path("chart")).is_empty(), "a layer came");
    stage.left_nothing().await
}
