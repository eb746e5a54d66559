//! Images that contradict themselves, and registries whose answers are none.

use std::sync::Arc;

use anyhow::Result;
use drayd_tests::bed::Bed;
use drayd_tests::peers::Release;
use drayd_tests::scripted::image::{self, Blob, CONFIG, Image, MANIFEST};
use drayd_tests::scripted::{Reply, Scripted};
use drayd_tests::suite::Suite;
use serde_json::json;
use tonic::Code;

use crate::ANY;
use crate::stage::{Stage, reach, refused};

/// Serves an image in a broken way.
type Breakage = fn(&Scripted, &mut Image);

const CASES: [(&str, Breakage, Code, &str); 16] = [
    ("config-bytes", config_bytes, Code::DataLoss, "the bytes do not match the digest"),
    ("config-short", config_stated_longer, Code::DataLoss, "the descriptor says"),
    ("config-long", config_sent_longer, Code::DataLoss, "bytes, the host sends"),
    ("config-absent", config_absent, Code::NotFound, "404 Not Found"),
    ("config-no-json", config_no_json, Code::FailedPrecondition, "the image's config"),
    ("layer-bytes", layer_bytes, Code::DataLoss, "the bytes do not match the digest"),
    ("layer-absent", layer_absent, Code::NotFound, "404 Not Found"),
    ("layer-html", layer_html, Code::Unknown, "HTML page"),
    ("layer-long", layer_sent_longer, Code::DataLoss, "bytes, the host sends"),
    ("diff-id", other_diff_id, Code::DataLoss, "but the image config says"),
    ("no-gzip", layer_no_gzip, Code::Unknown, "cannot unpack the image"),
    ("counts", one_diff_id_less, Code::FailedPrecondition, "lists 2 layers, the image config 1 diff IDs"),
    ("schema-1", schema_1, Code::FailedPrecondition, "schema 1 not supported"),
    ("manifest-html", manifest_html, Code::Unknown, "HTML page"),
    ("manifest-no-json", manifest_no_json, Code::FailedPrecondition, "the image's manifest"),
    ("manifest-bytes", manifest_bytes, Code::DataLoss, "the bytes do not match the digest"),
];

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "a_broken_image_is_refused_by_its_code_and_leaves_nothing", broken);
    if release == ANY {
        suite.check(
            release,
            "bytes_of_another_digest_are_brought_from_another_host_or_blamed_on_those_that_sent_them",
            blames,
        );
    }
}

/// Fault 89.
async fn broken(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "broken").await?;
    let mut failures = Vec::new();
    for (name, breakage, code, text) in CASES {
        let mut image = Image::new(name, 2, 8)?;
        let reference = image.reference(&stage.registry);
        breakage(&stage.registry, &mut image);
        if let Err(error) = refused(name, stage.pull(&reference).await, code, &[text]) {
            failures.push(format!("{error:#}"));
        }
        if let Err(error) = stage.left_nothing().await {
            failures.push(format!("{name}: {error:#}"));
        }
    }
    anyhow::ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

async fn blames(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "blames").await?;
    let mirror = Scripted::start().await?;
    let keys = format!("[host.\"http://{}\"]\ncapabilities = [\"pull\"]\n", mirror.address());
    reach(&stage.bed, stage.registry.address(), &keys)?;
    for (name, of_layer) in [("blamed-layer", true), ("blamed-config", false)] {
        let image = Image::new(name, 1, 8)?;
        image.serve(&stage.registry);
        let blob = if of_layer { &image.layers[0] } else { &image.config };
        let reply = Reply::ok("application/octet-stream", &flipped(&blob.bytes));
        mirror.on("GET", &blob.path(name), move |_, _| reply.clone());
        stage.pull(&image.reference(&stage.registry)).await?;
        anyhow::ensure!(
            !mirror.asked("GET", &blob.path(name)).is_empty(),
            "{name}: the mirror was not asked"
        );
    }
    let image = Image::new("blamed-all", 1, 8)?;
    image.serve(&stage.registry);
    let (path, wrong) = (image.layers[0].path("blamed-all"), flipped(&image.layers[0].bytes));
    for host in [&mirror, &stage.registry] {
        let reply = Reply::ok("application/octet-stream", &wrong);
        host.on("GET", &path, move |_, _| reply.clone());
    }
    let blamed = [mirror.address(), stage.registry.address()].map(ToString::to_string);
    let pulled = stage.pull(&image.reference(&stage.registry)).await;
    refused("blamed-all", pulled, Code::DataLoss, &[&blamed[0], &blamed[1]])?;
    Ok(())
}

/// The same length, and one bit otherwise.
fn flipped(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if let Some(middle) = bytes.len().checked_div(2).and_then(|middle| bytes.get_mut(middle)) {
        *middle ^= 1;
    }
    bytes
}

/// Serves the image, but `reply` where the config belongs.
fn with_config_reply(registry: &Scripted, image: &Image, reply: Reply) {
    image.serve(registry);
    registry.on("GET", &image.config.path(&image.repository), move |_, _| reply.clone());
}

fn with_layer_reply(registry: &Scripted, image: &Image, reply: Reply) {
    image.serve(registry);
    registry.on("GET", &image.layers[1].path(&image.repository), move |_, _| reply.clone());
}

fn with_tag_reply(registry: &Scripted, image: &Image, reply: Reply) {
    image.serve(registry);
    registry.on("GET", &image.tag_path(), move |_, _| reply.clone());
}

fn config_bytes(registry: &Scripted, image: &mut Image) {
    let reply = Reply::ok(CONFIG, &flipped(&image.config.bytes));
    with_config_reply(registry, image, reply);
}

fn config_stated_longer(registry: &Scripted, image: &mut Image) {
    let mut descriptor = image.config.descriptor();
    descriptor["size"] = json!(image.config.bytes.len() + 1);
    image.manifest = image.manifest_with(&descriptor);
    image.serve(registry);
}

fn config_sent_longer(registry: &Scripted, image: &mut Image) {
    let longer = [image.config.bytes.as_slice(), b" "].concat();
    with_config_reply(registry, image, Reply::ok(CONFIG, &longer).unannounced());
}

fn config_absent(registry: &Scripted, image: &mut Image) {
    with_config_reply(registry, image, Reply::status(404));
}

fn config_no_json(registry: &Scripted, image: &mut Image) {
    image.config = Blob::new(CONFIG, b"{\"architecture\": ".to_vec());
    image.manifest = image.manifest_with(&image.config.descriptor());
    image.serve(registry);
}

fn layer_bytes(registry: &Scripted, image: &mut Image) {
    let reply = Reply::ok("application/octet-stream", &flipped(&image.layers[1].bytes));
    with_layer_reply(registry, image, reply);
}

fn layer_absent(registry: &Scripted, image: &mut Image) {
    with_layer_reply(registry, image, Reply::status(404));
}

fn layer_html(registry: &Scripted, image: &mut Image) {
    with_layer_reply(registry, image, Reply::ok("text/html; charset=utf-8", b"<html>please log in</html>"));
}

fn layer_sent_longer(registry: &Scripted, image: &mut Image) {
    let longer = [image.layers[1].bytes.as_slice(), b"tail"].concat();
    with_layer_reply(registry, image, Reply::ok("application/octet-stream", &longer).unannounced());
}

fn other_diff_id(registry: &Scripted, image: &mut Image) {
    image.diff_ids.swap(0, 1);
    image.config = image::config(&image.diff_ids);
    image.manifest = image.manifest_with(&image.config.descriptor());
    image.serve(registry);
}

/// Its digest is right; what it holds is no gzip.
fn layer_no_gzip(registry: &Scripted, image: &mut Image) {
    image.layers[1] = Blob::new(&image.layers[1].media_type, b"this was never compressed".to_vec());
    image.manifest = image.manifest_with(&image.config.descriptor());
    image.serve(registry);
}

fn one_diff_id_less(registry: &Scripted, image: &mut Image) {
    image.diff_ids.pop();
    image.config = image::config(&image.diff_ids);
    image.manifest = image.manifest_with(&image.config.descriptor());
    image.serve(registry);
}

fn schema_1(registry: &Scripted, image: &mut Image) {
    let manifest =
        json!({"schemaVersion": 1, "name": image.repository, "tag": "1", "fsLayers": [], "history": []});
    let media_type = "application/vnd.docker.distribution.manifest.v1+prettyjws";
    with_tag_reply(registry, image, Reply::ok(media_type, manifest.to_string().as_bytes()));
}

fn manifest_html(registry: &Scripted, image: &mut Image) {
    with_tag_reply(registry, image, Reply::ok("text/html", b"<html>please log in</html>"));
}

fn manifest_no_json(registry: &Scripted, image: &mut Image) {
    image.manifest = Blob::new(MANIFEST, b"{\"schemaVersion\": 2,".to_vec());
    image.serve(registry);
}

/// HEAD of the tag names one digest, and GET by that digest gives other bytes.
fn manifest_bytes(registry: &Scripted, image: &mut Image) {
    image.serve(registry);
    // Under the tag, too: if it were whole there, it would be taken from there.
    let reply = Reply::ok(MANIFEST, &flipped(&image.manifest.bytes))
        .header("Docker-Content-Digest", &image.manifest.digest);
    for path in [image.tag_path(), image.manifest.path(&image.repository)] {
        let reply = reply.clone();
        registry.on("GET", &path, move |_, _| reply.clone());
    }
}
