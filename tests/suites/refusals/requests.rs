//! Requests that cannot be served, whatever the registry says.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use drayd_proto::cri;
use drayd_tests::bed::Bed;
use drayd_tests::peers::Release;
use drayd_tests::registry::free_loopback_address;
use drayd_tests::scripted::Reply;
use drayd_tests::scripted::image::{self, Blob, INDEX, Image};
use drayd_tests::socket;
use drayd_tests::suite::Suite;
use serde_json::json;
use tonic::Code;

use crate::stage::{Stage, refused, timed};

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "a_bad_reference_is_an_invalid_argument", bad_references);
    suite.check(release, "a_request_without_an_image_is_an_invalid_argument", no_image);
    suite.check(release, "a_missing_tag_and_a_missing_repository_are_not_found", missing);
    suite.check(release, "an_unknown_handler_is_refused_in_containerds_words", unknown_handler);
    suite.check(release, "an_image_for_other_platforms_names_wanted_and_offered", other_platforms);
    suite.check(release, "a_closed_port_is_unavailable_within_seconds", closed_port);
    suite.check(release, "a_registry_that_never_answers_is_unavailable_by_its_own_limit", silent_registry);
    suite.check(release, "the_callers_deadline_ends_a_pull_and_leaves_nothing", deadlines);
}

/// Fault 156, a bad reference.
async fn bad_references(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "bad-references").await?;
    let long = format!("reg.test/{}", "a".repeat(300));
    for reference in [
        " ",
        "a b",
        "UPPER",
        "a//b",
        "/a",
        "a/",
        "busybox:",
        "busybox@",
        "busybox@sha256:123",
        "busybox@md5:d41d8cd98f00b204e9800998ecf8427e",
        "https://reg.test/a",
        "reg.test/a:-tag",
        "reg.test/a\n",
        "reg.test/a\0b",
        "reg.test/../a",
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        long.as_str(),
    ] {
        let pulled = stage.pull(reference).await;
        refused(reference, pulled, Code::InvalidArgument, &["cannot read the image reference"])?;
    }
    stage.left_nothing().await
}

/// Fault 165.
async fn no_image(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "no-image").await?;
    let cri = stage.drayd.cri();
    for image in [None, Some(cri::ImageSpec::default())] {
        let pull = cri::PullImageRequest { image: image.clone(), ..cri::PullImageRequest::default() };
        let pulled = cri.images.clone().pull_image(pull).await.map(|answer| answer.into_inner().image_ref);
        refused("pull", pulled, Code::InvalidArgument, &["the request names no image"])?;
        let status = cri::ImageStatusRequest { image: image.clone(), verbose: false };
        let found = cri.images.clone().image_status(status).await.map(|_| String::new());
        refused("status", found, Code::InvalidArgument, &["the request names no image"])?;
        let remove = cri::RemoveImageRequest { image };
        let removed = cri.images.clone().remove_image(remove).await.map(|_| String::new());
        refused("remove", removed, Code::InvalidArgument, &["the request names no image"])?;
    }
    stage.left_nothing().await
}

/// Fault 156, a missing repository.
async fn missing(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "missing").await?;
    let address = stage.bed.registry.address().to_owned();
    for name in ["busybox:absent", "absent/repository:1"] {
        let reference = format!("{address}/{name}");
        let begins = format!("failed to pull image \"{reference}\": ");
        let status =
            refused(name, stage.pull(&reference).await, Code::NotFound, &["404 Not Found", &address])?;
        ensure!(status.message().starts_with(&begins), "{:?}", status.message());
    }
    stage.left_nothing().await
}

async fn unknown_handler(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "unknown-handler").await?;
    let reference = stage.bed.images.busybox.reference(stage.bed.registry.address());
    let pulled = stage.drayd.cri().pull(&reference, Some("nobodys"), None).await;
    let texts = ["no runtime for \"nobodys\" is configured", "native-handler, nydus-handler, plain, runc"];
    refused("handler", pulled, Code::Unknown, &texts)?;
    stage.left_nothing().await
}

/// Fault 76.
async fn other_platforms(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "other-platforms").await?;
    let image = Image::new("foreign", 1, 1)?;
    let mut entry = image.manifest.descriptor();
    entry["platform"] = json!({"os": "linux", "architecture": "s390x"});
    let index = Blob::json(INDEX, &json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}));
    stage.registry.on("GET", &image.tag_path(), {
        let index = index.clone();
        move |_, _| image::manifest_reply(&index)
    });
    image::serve_blob(&stage.registry, &image.repository, &index);
    let wanted = format!("no image for platform linux/{}", image::architecture());
    let pulled = stage.pull(&image.reference(&stage.registry)).await;
    refused("platform", pulled, Code::NotFound, &[&wanted, "the index offers linux/s390x"])?;
    stage.left_nothing().await
}

/// Fault 156, a registry that is down.
async fn closed_port(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "closed-port").await?;
    let address = free_loopback_address()?;
    let (pulled, took) = timed(stage.pull(&format!("{address}/a:1"))).await;
    refused("port", pulled, Code::Unavailable, &["cannot connect to", &address])?;
    // Five tries, with at most 7.5 s between them.
    ensure!(took < Duration::from_secs(10), "took {took:?}");
    stage.left_nothing().await
}

async fn silent_registry(bed: Arc<Bed>) -> Result<()> {
    // What comes first still belongs to `[registry]`.
    let stage = Stage::with(bed, "silent-registry", "response_timeout = \"1s\"\n", |_| {}).await?;
    stage.registry.on("GET", "/v2/silent/manifests/1", |_, _| Reply::silence());
    let reference = format!("{}/silent:1", stage.registry.address());
    let (pulled, took) = timed(stage.pull(&reference)).await;
    refused("silence", pulled, Code::Unavailable, &["no answer within 1 s", "after 5 tries"])?;
    // Five tries, with half a second to 7.5 s between them.
    ensure!((5.0..14.0).contains(&took.as_secs_f64()), "took {took:?}");
    stage.left_nothing().await
}

async fn deadlines(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "deadlines").await?;
    let image = Image::new("slow", 1, 64)?;
    image.serve(&stage.registry);
    let layer = image.layers[0].clone();
    let path = layer.path("slow");
    stage.registry.on("GET", &path, move |request, _| {
        Reply::ranged(request, &layer.bytes).paced(1024, Duration::from_millis(100))
    });
    for timeout in ["1m", "300m"] {
        let spec = cri::ImageSpec { image: image.reference(&stage.registry), ..cri::ImageSpec::default() };
        let message = cri::PullImageRequest { image: Some(spec), ..cri::PullImageRequest::default() };
        let mut request = tonic::Request::new(message);
        request.metadata_mut().insert("grpc-timeout", timeout.parse()?);
        let mut client = socket::client_without_deadlines(stage.drayd.socket());
        let (pulled, took) = timed(client.pull_image(request)).await;
        let pulled = pulled.map(|answer| answer.into_inner().image_ref);
        refused(timeout, pulled, Code::DeadlineExceeded, &["the caller's deadline passed"])?;
        ensure!(took < Duration::from_secs(1), "{timeout} took {took:?}");
    }
    ensure!(!stage.registry.asked("GET", &path).is_empty(), "300 ms were too short to begin the layer");
    stage
        .drayd
        .await_lines("given up: the caller left or its deadline passed", 2, Duration::from_secs(5))
        .await?;
    stage.left_nothing().await
}
