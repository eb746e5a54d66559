//! The log: its lines, their number and their form.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use drayd_proto::cri;
use drayd_tests::bed::Bed;
use drayd_tests::cri::HANDLER_ANNOTATION;
use drayd_tests::launch::{Launch, Launched};
use drayd_tests::peers::Release;
use drayd_tests::scripted::image::Image;
use drayd_tests::scripted::{Reply, Scripted};
use drayd_tests::socket;
use drayd_tests::suite::Suite;
use serde_json::Value;
use tonic::Code;

use crate::ANY;

const SOON: Duration = Duration::from_secs(10);

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "a_pod_with_hostile_names_and_200_kib_of_annotations_is_pulled_for", hostile_pod);
    if release == ANY {
        suite.check(release, "every_call_has_one_first_and_one_last_line_in_text", counted_text);
        suite.check(release, "every_call_has_one_first_and_one_last_line_in_json", counted_json);
    }
}

/// What an operator's count of the log gives.
#[derive(Debug, PartialEq, Eq)]
struct Counts {
    first: usize,
    pulled: usize,
    failed: usize,
    refused: usize,
    given_up: usize,
}

impl Counts {
    /// Of messages, without times and levels.
    fn of<'a>(messages: impl Iterator<Item = &'a str>) -> Self {
        let mut counts = Self { first: 0, pulled: 0, failed: 0, refused: 0, given_up: 0 };
        for message in messages {
            let call = message.starts_with("PullImage \"");
            counts.first += usize::from(call && message.contains("\" with snapshotter "));
            counts.failed += usize::from(call && message.contains("\" failed: "));
            counts.given_up += usize::from(call && message.contains("\" given up: "));
            counts.refused += usize::from(message.starts_with("PullImage refused: "));
            counts.pulled += usize::from(message.starts_with("Pulled image \""));
        }
        counts
    }
}

/// Eight calls that end in every way there is. A call that is refused before a snapshotter is chosen has no first
/// line: there is none to name.
async fn series(bed: &Bed, drayd: &Launched) -> Result<Counts> {
    let registry = Scripted::start().await?;
    let slow = Image::new("series", 1, 64)?;
    slow.serve(&registry);
    let layer = slow.layers[0].clone();
    let path = layer.path("series");
    registry.on("GET", &path, move |request, _| {
        Reply::ranged(request, &layer.bytes).paced(1024, Duration::from_millis(100))
    });
    let cri = drayd.cri();
    let good = bed.images.busybox.reference(bed.registry.address());
    cri.pull(&good, None, None).await?;
    cri.pull(&good, None, None).await?;
    let absent = format!("{}/busybox:absent", bed.registry.address());
    for (reference, handler, code) in [
        (absent.as_str(), None, Code::NotFound),
        ("a b", None, Code::InvalidArgument),
        ("", None, Code::InvalidArgument),
        (good.as_str(), Some("nobodys"), Code::Unknown),
    ] {
        let status = cri.pull(reference, handler, None).await.err();
        ensure!(status.as_ref().is_some_and(|status| status.code() == code), "{reference:?}: {status:?}");
    }
    let leaving = drayd.cri();
    let reference = slow.reference(&registry);
    let call = tokio::spawn(async move { leaving.pull(&reference, None, None).await });
    registry.await_get(&path).await;
    call.abort();
    drayd.await_lines("given up", 1, SOON).await?;

    let image = cri::ImageSpec { image: slow.reference(&registry), ..cri::ImageSpec::default() };
    let message = cri::PullImageRequest { image: Some(image), ..cri::PullImageRequest::default() };
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("grpc-timeout", "300m".parse()?);
    let status = socket::client_without_deadlines(drayd.socket()).pull_image(request).await.err();
    ensure!(status.as_ref().is_some_and(|status| status.code() == Code::DeadlineExceeded), "{status:?}");
    drayd.await_lines("given up", 2, SOON).await?;
    Ok(Counts { first: 5, pulled: 2, failed: 2, refused: 2, given_up: 2 })
}

async fn counted_text(bed: Arc<Bed>) -> Result<()> {
    bed.empty().await?;
    let drayd = Launch::new(&bed.containerd.socket(), "counted-text")?.start()?;
    let expected = series(&bed, &drayd).await?;
    let log = drayd.log();
    // `TIME LEVEL MESSAGE`, the level right-aligned.
    let messages =
        log.lines().filter_map(|line| Some(line.split_once(' ')?.1.trim_start().split_once(' ')?.1));
    let counts = Counts::of(messages.clone());
    ensure!(counts == expected, "{counts:?}, not {expected:?}, in\n{log}");
    let good = bed.images.busybox.reference(bed.registry.address());
    let first = format!("PullImage \"{good}\" with snapshotter overlayfs");
    ensure!(
        messages.clone().filter(|message| message.starts_with(&first)).count() == 2,
        "no two {first} in\n{log}"
    );
    let info = format!(" INFO {first} runtime_handler=\"\" ");
    ensure!(log.lines().any(|line| line.contains(&info)), "no {info:?} in\n{log}");
    bed.empty().await
}

async fn counted_json(bed: Arc<Bed>) -> Result<()> {
    bed.empty().await?;
    let mut launch = Launch::new(&bed.containerd.socket(), "counted-json")?;
    launch.format = "json";
    let drayd = launch.start()?;
    let expected = series(&bed, &drayd).await?;
    let log = drayd.log();
    let events: Vec<Value> = log.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let message = |event: &Value| event["fields"]["message"].as_str().unwrap_or_default().to_owned();
    let messages: Vec<String> = events.iter().map(message).collect();
    let counts = Counts::of(messages.iter().map(String::as_str));
    ensure!(counts == expected, "{counts:?}, not {expected:?}, in\n{log}");
    let good = bed.images.busybox.reference(bed.registry.address());
    let first = format!("PullImage \"{good}\" with snapshotter overlayfs");
    ensure!(messages.iter().filter(|message| **message == first).count() == 2, "no two {first} in\n{log}");
    let pulled: Vec<&Value> = events
        .iter()
        .filter(|event| message(event).starts_with("Pulled image"))
        .map(|event| &event["fields"])
        .collect();
    ensure!(
        pulled.iter().all(|fields| fields["image_id"] == bed.images.busybox.config.digest.as_str()),
        "{log}"
    );
    ensure!(pulled[0]["bytes_fetched"].as_u64().is_some_and(|bytes| bytes > 0), "{:?}", pulled[0]);
    ensure!(pulled[1]["bytes_fetched"] == 0, "{:?}", pulled[1]);
    bed.empty().await
}

async fn hostile_pod(bed: Arc<Bed>) -> Result<()> {
    const MARK: &str = "canary-of-the-pod";
    bed.empty().await?;
    for format in ["text", "json"] {
        let mut launch = Launch::new(&bed.containerd.socket(), &format!("hostile-{format}"))?;
        (launch.format, launch.level) = (format, "debug");
        let drayd = launch.start()?;
        let reference = bed.images.docker.reference(bed.registry.address());
        let forged = format!("2026-01-01T00:00:00Z  INFO PullImage \"{MARK}\" with snapshotter forged");
        let many: HashMap<String, String> =
            (0..100).map(|n| (format!("{MARK}/{n}\r\n"), format!("{MARK}\n{}", "x".repeat(1024)))).collect();
        let mut annotations = many.clone();
        annotations.insert(HANDLER_ANNOTATION.into(), "runc".into());
        let sandbox = cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                name: format!("evil\n{forged}\n\u{1b}[31m"),
                uid: format!("{MARK}\u{0}\u{7}"),
                namespace: format!("ns\r\n{forged}\u{2028}\u{9b}31m"),
                attempt: 0,
            }),
            labels: many,
            annotations,
            ..cri::PodSandboxConfig::default()
        };
        let image = cri::ImageSpec { image: reference, ..cri::ImageSpec::default() };
        let request = cri::PullImageRequest { image: Some(image), auth: None, sandbox_config: Some(sandbox) };
        let id = drayd.cri().images.pull_image(request).await?.into_inner().image_ref;
        ensure!(id == bed.images.docker.config.digest, "{id}");

        let held = format!("{:?}", bed.containerd.probe().state().await?);
        ensure!(!held.contains(MARK), "containerd has a copy of the pod's metadata: {held}");
        let log = drayd.log();
        ensure!(
            !log.contains(&format!("{MARK}/")) && !log.contains("xxxx"),
            "annotations are in the log:\n{log}"
        );
        let firsts = log.lines().filter(|line| line.contains(" with snapshotter overlayfs")).count();
        ensure!(firsts == 1, "{firsts} first lines in\n{log}");
        for line in log.lines() {
            ensure!(!line.starts_with("2026-01-01T"), "a forged line:\n{log}");
            // JSON escapes only what it must: those of ASCII.
            let raw = |c: char| c.is_control() && (format == "text" || c.is_ascii());
            ensure!(!line.contains(raw), "a control character in {line:?}");
            ensure!(format == "text" || serde_json::from_str::<Value>(line).is_ok(), "no JSON: {line:?}");
        }
        bed.empty().await?;
    }
    Ok(())
}
