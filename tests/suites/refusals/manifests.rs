//! Odd images that are pulled all the same, and those that are refused for what they are: mixed types, attestations,
//! shared and missing layers, artifacts, digests and sizes that containerd cannot keep or that are not true.

use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use drayd_tests::bed::Bed;
use drayd_tests::containerd::NATIVE_HANDLER;
use drayd_tests::layer::{Compression, digest};
use drayd_tests::peers::Release;
use drayd_tests::scripted::image::{self, Blob, CONFIG, INDEX, Image, LAYER, MANIFEST};
use drayd_tests::scripted::{Reply, Scripted};
use drayd_tests::suite::Suite;
use prost_types::Any;
use serde_json::{Value, json};
use tonic::Code;

use crate::ANY;
use crate::stage::{Stage, refused};

const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
const HELM_CONFIG: &str = "application/vnd.cncf.helm.config.v1+json";

pub(crate) fn add(suite: &mut Suite, release: Release) {
    // What containerd's CRI makes of such an image is its own affair in each release.
    suite.check(release, "a_config_under_an_unknown_type_is_an_image_if_it_reads_like_one", octet_stream);
    suite.check(release, "an_image_without_layers_is_pulled_and_one_that_miscounts_is_refused", no_layers);
    suite.check(release, "the_content_store_names_blobs_by_sha256_alone", sha512_is_not_kept);
    suite.check(release, "an_encrypted_layer_is_decrypted_by_what_its_descriptor_says", encrypted);
    if release == ANY {
        suite.check(release, "a_tag_beside_a_digest_is_never_asked_for_and_never_listed", tag_and_digest);
        suite.check(release, "a_host_in_upper_case_is_the_same_host", upper_case);
        suite.check(release, "dockers_and_ocis_types_mix_in_every_way", mixed_types);
        suite.check(release, "attestations_are_not_chosen_not_fetched_and_not_counted", attestations);
        suite.check(release, "every_call_means_the_same_entry_of_an_index", one_entry);
        suite.check(release, "one_diff_id_under_two_compressions_is_one_tree_and_two_blobs", twice);
        suite.check(release, "a_digest_of_another_algorithm_is_refused_before_any_download", algorithms);
        suite.check(release, "a_lying_digest_header_is_never_recorded", lying_header);
        suite.check(release, "an_artifact_is_refused_for_what_it_is", artifacts);
        suite.check(release, "a_size_that_is_not_true_is_shown_with_the_true_one", sizes);
        suite.check(release, "a_foreign_layer_comes_from_its_address_if_the_registry_has_none", foreign);
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

/// Requests for blobs so far.
fn blobs_asked(registry: &Scripted) -> usize {
    let journal = registry.journal();
    journal.iter().filter(|request| request.method == "GET" && request.path().contains("/blobs/")).count()
}

async fn removed(stage: &Stage, reference: &str) -> Result<()> {
    stage.drayd.cri().remove(reference).await?;
    stage.left_nothing().await
}

/// The manifest with a change made to its JSON.
fn changed(manifest: &Blob, change: impl FnOnce(&mut Value)) -> Result<Blob> {
    let mut value: Value = serde_json::from_slice(&manifest.bytes)?;
    change(&mut value);
    Ok(Blob::json(MANIFEST, &value))
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
    removed(&stage, &by_digest).await
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
    removed(&stage, &reference).await
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
                removed(&stage, &reference).await?;
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
    removed(&stage, &reference).await?;

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
    removed(&stage, &reference).await
}

/// An image of these layers over these diff IDs.
fn assembled(repository: &str, layers: Vec<Blob>, diff_ids: Vec<String>) -> Result<Image> {
    let mut image = Image::new(repository, 0, 0)?;
    image.config = image::config(&diff_ids);
    (image.layers, image.diff_ids) = (layers, diff_ids);
    image.manifest = image.manifest_with(&image.config.descriptor());
    Ok(image)
}

/// Fault 79.
async fn twice(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "twice").await?;
    let cri = stage.drayd.cri();
    let first = Image::new("twice", 1, 32)?;
    let (gzip, diff_id) = (first.layers[0].clone(), first.diff_ids[0].clone());
    let unpacked = Compression::Gzip.undone(gzip.bytes.clone())?;
    let zstd = "application/vnd.oci.image.layer.v1.tar+zstd";
    let zstd = Blob::new(zstd, Compression::Zstd.of(unpacked.clone())?);
    let plain = Blob::new("application/vnd.oci.image.layer.v1.tar", unpacked);
    let both = assembled("twice", vec![gzip, zstd.clone()], vec![diff_id.clone(), diff_id.clone()])?;
    both.serve(&stage.registry);
    let reference = both.reference(&stage.registry);
    stage.pull(&reference).await?;
    stage.holds(&both.top_chain_id()).await?;
    for blob in &both.layers {
        ensure!(stage.registry.asked("GET", &blob.path("twice")).len() == 1, "{} once", blob.digest);
    }

    // Its layer's tree is there already, and its blob is not.
    let alone = assembled("alone", vec![plain.clone()], vec![diff_id.clone()])?;
    alone.serve(&stage.registry);
    let other = alone.reference(&stage.registry);
    stage.pull(&other).await?;
    cri.remove(&reference).await?;
    stage.bed.containerd.probe().force_gc().await?;
    stage.holds(&alone.top_chain_id()).await.context("the tree of what is still listed")?;
    // A snapshotter that does not have the tree gets it from the blob, whichever image came first.
    cri.pull(&other, Some(NATIVE_HANDLER), None).await?;
    let found = stage.bed.containerd.probe().state().await?;
    ensure!(found.snapshot("native", &alone.top_chain_id()).is_some(), "it is not on native");
    ensure!(stage.registry.asked("GET", &plain.path("alone")).len() == 1, "its blob was not fetched");
    removed(&stage, &other).await?;

    // The second blob only claims to be the same layer.
    let strange = Image::new("strange", 1, 8)?.layers[0].clone();
    let bad = assembled("bad", vec![zstd, strange], vec![diff_id.clone(), diff_id])?;
    bad.serve(&stage.registry);
    let pulled = stage.pull(&bad.reference(&stage.registry)).await;
    refused("claims", pulled, Code::DataLoss, &["but the image config says"])?;
    stage.left_nothing().await
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
            removed(&stage, &reference).await?;
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
    removed(&stage, &reference).await
}

/// 128 digits that some bytes could have as their sha512.
fn sha512() -> String {
    format!("sha512:{}", "0123456789abcdef".repeat(8))
}

/// Fault 85.
async fn algorithms(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "algorithms").await?;
    let sha512 = sha512();
    for (name, place, digest, text) in [
        ("layer", "/layers/0/digest", sha512.as_str(), "the image's layer sha512:"),
        ("config", "/config/digest", sha512.as_str(), "the image's config sha512:"),
        ("unknown-layer", "/layers/0/digest", "sha999:00", "digest algorithm `sha999` is not supported"),
        ("unknown-config", "/config/digest", "sha999:00", "digest algorithm `sha999` is not supported"),
    ] {
        let mut image = Image::new(&format!("sha-{name}"), 1, 4)?;
        image.manifest = changed(&image.manifest, |value| {
            if let Some(field) = value.pointer_mut(place) {
                *field = json!(digest);
            }
        })?;
        image.serve(&stage.registry);
        let pulled = stage.pull(&image.reference(&stage.registry)).await;
        refused(name, pulled, Code::InvalidArgument, &[text])?;
    }
    ensure!(blobs_asked(&stage.registry) == 0, "a blob was downloaded");
    let asked = stage.registry.journal().len();
    for (digest, text) in [(sha512.as_str(), "named by sha512"), ("sha999:00", "`sha999` is not supported")] {
        let reference = format!("{}/sha-layer@{digest}", stage.registry.address());
        refused(digest, stage.pull(&reference).await, Code::InvalidArgument, &[text])?;
    }
    ensure!(stage.registry.journal().len() == asked, "the registry was asked");

    let mut image = Image::new("sha-diff-id", 1, 4)?;
    image.config = image::config(&[sha512]);
    image.manifest = image.manifest_with(&image.config.descriptor());
    image.serve(&stage.registry);
    let pulled = stage.pull(&image.reference(&stage.registry)).await;
    refused("diff ID", pulled, Code::InvalidArgument, &["the image's diff ID sha512:"])?;
    ensure!(stage.registry.asked("GET", &image.layers[0].path("sha-diff-id")).is_empty(), "a layer came");
    stage.left_nothing().await
}

/// Fault 85. Should a release fail this, sha512 can be had from it.
async fn sha512_is_not_kept(bed: Arc<Bed>) -> Result<()> {
    // FIPS 180-4's example for the message "abc".
    let digest = "sha512:ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                  2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f";
    let probe = bed.containerd.probe();
    let Err(error) = probe.write_blob("layer-of-sha512", digest, b"abc").await else {
        anyhow::bail!("it was committed")
    };
    let text = format!("{error:#}");
    ensure!(text.contains("unexpected commit digest sha256:"), "{text}");
    probe.abort_ingest("layer-of-sha512").await
}

/// Fault 88.
async fn lying_header(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "lying-header").await?;
    let image = Image::new("lying", 1, 4)?;
    image.serve(&stage.registry);
    let lie = digest(b"something else");
    let reply = Reply::ok(MANIFEST, &image.manifest.bytes).header("Docker-Content-Digest", &lie);
    for path in [image.tag_path(), format!("/v2/lying/manifests/{lie}")] {
        let reply = reply.clone();
        stage.registry.on("GET", &path, move |_, _| reply.clone());
    }
    // The header of HEAD is believed until the bytes come.
    let reference = image.reference(&stage.registry);
    let texts = [lie.as_str(), "the bytes do not match the digest"];
    refused("head", stage.pull(&reference).await, Code::DataLoss, &texts)?;
    stage.left_nothing().await?;
    stage.registry.on("HEAD", &image.tag_path(), |_, _| Reply::status(405));
    ensure!(stage.pull(&reference).await? == image.config.digest, "another image");
    let shown = stage.drayd.cri().image(&reference).await?.context("it is not shown")?;
    let expected = format!("{}/lying@{}", stage.registry.address(), image.manifest.digest);
    ensure!(shown.repo_digests == [expected], "{:?}", shown.repo_digests);
    removed(&stage, &reference).await
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

/// Fault 90.
async fn sizes(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "sizes").await?;
    for of_layer in [true, false] {
        let place = if of_layer { "/layers/0" } else { "/config" };
        let base = Image::new("sizes", 1, 4)?;
        let blob = if of_layer { &base.layers[0] } else { &base.config };
        let real = blob.bytes.len();
        for stated in [None, Some(0), Some(real - 1), Some(real + 1)] {
            let mut image = base.clone();
            image.manifest = changed(&base.manifest, |value| {
                let Some(fields) = value.pointer_mut(place).and_then(Value::as_object_mut) else { return };
                fields.remove("size");
                fields.extend(stated.map(|stated| ("size".to_owned(), json!(stated))));
            })?;
            image.serve(&stage.registry);
            let what = format!("{place} {stated:?}");
            let pulled = stage.pull(&image.reference(&stage.registry)).await;
            match stated {
                None => {
                    let text = format!("({}) has no size", blob.digest);
                    refused(&what, pulled, Code::FailedPrecondition, &[&text])?;
                }
                Some(stated) => {
                    let numbers = format!("the descriptor says {stated} bytes, the host sends {real}");
                    refused(&what, pulled, Code::DataLoss, &[&blob.digest, &numbers])?;
                }
            }
            stage.left_nothing().await?;
        }
    }
    Ok(())
}

/// Fault 84.
async fn foreign(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "foreign").await?;
    let outside = Scripted::start().await?;
    let mut image = Image::new("foreign", 1, 8)?;
    let layer_type = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip";
    layer_type.clone_into(&mut image.layers[0].media_type);
    let layer = image.layers[0].clone();
    let address = format!("http://{}/layer", outside.address());
    image.manifest = changed(&image.manifest_with(&image.config.descriptor()), |value| {
        value["layers"][0]["urls"] = json!([address]);
    })?;
    image.serve(&stage.registry);
    let reference = image.reference(&stage.registry);
    outside.on("GET", "/layer", |_, _| Reply::silence());
    let (pulled, took) = crate::stage::timed(stage.pull(&reference)).await;
    pulled?;
    ensure!(outside.journal().is_empty(), "its address was asked though the registry has it");
    ensure!(took.as_secs() < 5, "it took {took:?}");
    removed(&stage, &reference).await?;

    stage.registry.on("GET", &layer.path("foreign"), |_, _| Reply::status(404));
    let bytes = layer.bytes.clone();
    outside.on("GET", "/layer", move |request, _| Reply::ranged(request, &bytes));
    stage.pull(&reference).await?;
    stage.holds(&image.top_chain_id()).await?;
    ensure!(outside.asked("GET", "/layer").len() == 1, "{:?}", outside.journal());
    removed(&stage, &reference).await?;

    outside.on("GET", "/layer", |_, _| Reply::ok("application/octet-stream", &[7; 64]).unannounced());
    refused("short", stage.pull(&reference).await, Code::Unavailable, &["bytes too early"])?;
    outside
        .on("GET", "/layer", move |_, _| Reply::ok("application/octet-stream", &vec![7; layer.bytes.len()]));
    let texts = ["the bytes do not match the digest", outside.address()];
    refused("bytes", stage.pull(&reference).await, Code::DataLoss, &texts)?;
    stage.left_nothing().await
}

async fn encrypted(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "encrypted").await?;
    let layer_type = "application/vnd.oci.image.layer.v1.tar";
    for (name, compression, suffix) in [
        ("plain", Compression::Plain, "+encrypted"),
        ("gzip", Compression::Gzip, "+gzip+encrypted"),
        ("zstd", Compression::Zstd, "+zstd+encrypted"),
    ] {
        let mut image = Image::new(&format!("encrypted-{name}"), 1, 64)?;
        let packed = compression.of(Compression::Gzip.undone(image.layers[0].bytes.clone())?)?;
        let secret = base64::engine::general_purpose::STANDARD.encode(packed);
        image.layers[0] = Blob::new(&format!("{layer_type}{suffix}"), secret.into_bytes());
        let annotation = ("org.opencontainers.image.enc.keys.jwe", "wrapped-key");
        image.manifest = changed(&image.manifest_with(&image.config.descriptor()), |value| {
            value["layers"][0]["annotations"] = json!({ annotation.0: annotation.1 });
        })?;
        image.serve(&stage.registry);
        let reference = image.reference(&stage.registry);
        stage.pull(&reference).await.with_context(|| name.to_owned())?;
        // Committed only if what came out has the diff ID.
        stage.holds(&image.top_chain_id()).await?;

        let records = stage.bed.containerd.decoder_records();
        let media_type = fs::read_to_string(records.join("media-type"))?;
        ensure!(media_type == image.layers[0].media_type, "it was told {media_type}");
        let payload = <Any as prost::Message>::decode(fs::read(records.join("payload"))?.as_slice())?;
        ensure!(payload.type_url == "io.containerd.ocicrypt.v1.Payload", "{}", payload.type_url);
        let payload: Value = serde_json::from_slice(&payload.value)?;
        let mut descriptor = image.layers[0].descriptor();
        descriptor["annotations"] = json!({ annotation.0: annotation.1 });
        ensure!(payload["Descriptor"] == descriptor, "{payload}");
        ensure!(payload["DecryptConfig"] == json!({"Parameters": null}), "{payload}");
        removed(&stage, &reference).await?;
    }
    Ok(())
}
