//! Descriptors and what they lead to: digests and sizes that containerd cannot keep or that are not true, layers that
//! lie elsewhere, come twice or are encrypted.

use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use drayd_tests::bed::Bed;
use drayd_tests::containerd::NATIVE_HANDLER;
use drayd_tests::layer::{Compression, digest};
use drayd_tests::peers::Release;
use drayd_tests::scripted::image::{self, Blob, INDEX, Image, MANIFEST};
use drayd_tests::scripted::{Reply, Scripted};
use drayd_tests::suite::Suite;
use prost_types::Any;
use serde_json::{Value, json};
use tonic::Code;

use crate::ANY;
use crate::stage::{Stage, blobs_asked, refused};

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "the_content_store_names_blobs_by_sha256_alone", sha512_is_not_kept);
    suite.check(release, "an_encrypted_layer_is_decrypted_by_what_its_descriptor_says", encrypted);
    if release == ANY {
        suite.check(release, "one_diff_id_under_two_compressions_is_one_tree_and_two_blobs", twice);
        suite.check(release, "a_digest_of_another_algorithm_is_refused_before_any_download", algorithms);
        suite.check(release, "a_lying_digest_header_is_never_recorded", lying_header);
        suite.check(release, "what_head_tells_does_not_decide", wrong_head);
        suite.check(release, "a_size_that_is_not_true_is_shown_with_the_true_one", sizes);
        suite.check(release, "a_foreign_layer_comes_from_its_address_if_the_registry_has_none", foreign);
    }
}

/// The manifest with a change made to its JSON.
fn changed(manifest: &Blob, change: impl FnOnce(&mut Value)) -> Result<Blob> {
    let mut value: Value = serde_json::from_slice(&manifest.bytes)?;
    change(&mut value);
    Ok(Blob::json(MANIFEST, &value))
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
    stage.removed(&other).await?;

    // The second blob only claims to be the same layer.
    let strange = Image::new("strange", 1, 8)?.layers[0].clone();
    let bad = assembled("bad", vec![zstd, strange], vec![diff_id.clone(), diff_id])?;
    bad.serve(&stage.registry);
    let pulled = stage.pull(&bad.reference(&stage.registry)).await;
    refused("claims", pulled, Code::DataLoss, &["but the image config says"])?;
    stage.left_nothing().await
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
    stage.removed(&reference).await
}

/// Fault 70.
async fn wrong_head(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "wrong-head").await?;
    let image = Image::new("wrong-head", 1, 4)?;
    image.serve(&stage.registry);
    let Blob { digest: own, bytes, .. } = &image.manifest;
    let gone = digest(b"what the tag meant before");
    let by_digest = format!("{}/wrong-head@{own}", stage.registry.address());
    for (what, media_type, told, length) in [
        ("another digest, which is not there", MANIFEST, &gone, bytes.len()),
        ("one byte too many", MANIFEST, own, bytes.len() + 1),
        ("one byte too few", MANIFEST, own, bytes.len() - 1),
        ("an index", INDEX, own, bytes.len()),
    ] {
        let head = Reply::ok(media_type, &vec![0; length]).header("Docker-Content-Digest", told);
        for path in [image.tag_path(), image.manifest.path("wrong-head")] {
            let head = head.clone();
            stage.registry.on("HEAD", &path, move |_, _| head.clone());
        }
        for reference in [&image.reference(&stage.registry), &by_digest] {
            let pulled = stage.pull(reference).await.with_context(|| format!("{what}: {reference}"))?;
            ensure!(pulled == image.config.digest, "{what}: another image");
            let shown = stage.drayd.cri().image(reference).await?.context("it is not shown")?;
            ensure!(shown.repo_digests == [by_digest.as_str()], "{what}: {:?}", shown.repo_digests);
            stage.removed(reference).await?;
        }
    }
    // Where the tag leads nowhere either, it is said of what was told first.
    stage.registry.on("GET", &image.tag_path(), |_, _| Reply::status(404));
    let head = Reply::ok(MANIFEST, bytes).header("Docker-Content-Digest", &gone);
    stage.registry.on("HEAD", &image.tag_path(), move |_, _| head.clone());
    let pulled = stage.pull(&image.reference(&stage.registry)).await;
    refused("neither", pulled, Code::NotFound, &[&gone])?;
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
    stage.removed(&reference).await?;

    stage.registry.on("GET", &layer.path("foreign"), |_, _| Reply::status(404));
    let bytes = layer.bytes.clone();
    outside.on("GET", "/layer", move |request, _| Reply::ranged(request, &bytes));
    stage.pull(&reference).await?;
    stage.holds(&image.top_chain_id()).await?;
    ensure!(outside.asked("GET", "/layer").len() == 1, "{:?}", outside.journal());
    stage.removed(&reference).await?;

    outside.on("GET", "/layer", |_, _| Reply::ok("application/octet-stream", &[7; 64]).unannounced());
    refused("short", stage.pull(&reference).await, Code::Unavailable, &["bytes too early"])?;
    outside
        .on("GET", "/layer", move |_, _| Reply::ok("application/octet-stream", &vec![7; layer.bytes.len()]));
    let texts = ["the bytes do not match the digest", outside.address()];
    refused("bytes", stage.pull(&reference).await, Code::DataLoss, &texts)?;
    stage.left_nothing().await
}

/// With either engine: the direct one leaves such a layer to the differ.
async fn encrypted(bed: Arc<Bed>) -> Result<()> {
    for engine in ["differ", "direct"] {
        encrypted_with(Arc::clone(&bed), engine).await.with_context(|| engine.to_owned())?;
    }
    Ok(())
}

async fn encrypted_with(bed: Arc<Bed>, engine: &str) -> Result<()> {
    let stage = Stage::with(bed, "encrypted", &format!("[unpack]\nengine = \"{engine}\"\n"), |_| {}).await?;
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
        stage.removed(&reference).await?;
    }
    Ok(())
}
