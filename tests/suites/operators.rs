//! What operators see and steer: progress, queue, history, disks, metadata, metrics, and drayctl for it.

#[path = "operators/counting.rs"]
mod counting;
#[path = "operators/looking.rs"]
mod looking;
#[path = "operators/pages.rs"]
mod pages;
#[path = "operators/prometheus.rs"]
mod prometheus;
#[path = "operators/queueing.rs"]
mod queueing;
#[path = "operators/tracing.rs"]
mod tracing;
#[path = "operators/watching.rs"]
mod watching;

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use drayd_proto::cri;
use drayd_tests::bed::Bed;
use drayd_tests::cri::Cri;
use drayd_tests::drayctl;
use drayd_tests::drayd::Drayd;
use drayd_tests::peers::Release;
use drayd_tests::scripted::image::Image;
use drayd_tests::scripted::{Reply, Scripted};
use drayd_tests::suite::Suite;
use serde_json::Value;
use tokio::task::JoinHandle;
use tonic::Status;

/// The bed as a trial gets it.
pub(crate) type Stage = Arc<Bed>;

/// On a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

fn main() -> Result<ExitCode> {
    let mut suite = Suite::new()?;
    pages::add(&mut suite);
    prometheus::add(&mut suite, Release::V2_1);
    for release in Release::ALL {
        watching::add(&mut suite, release);
        looking::add(&mut suite, release);
        queueing::add(&mut suite, release);
        counting::add(&mut suite, release);
        tracing::add(&mut suite, release);
    }
    Ok(suite.run())
}

/// Answers blobs of a repository in pieces, so that a pull can be met in its middle.
pub(crate) fn slow(registry: &Scripted, piece: usize, pause: Duration) {
    registry.change(
        move |request, reply: Reply| {
            if request.fetches_blob() { reply.paced(piece, pause) } else { reply }
        },
    );
}

/// A pull as a client's, whose sandbox has these annotations.
pub(crate) fn request(reference: &str, annotations: &[(&str, &str)]) -> cri::PullImageRequest {
    let pairs = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    cri::PullImageRequest {
        image: Some(cri::ImageSpec { image: reference.into(), ..cri::ImageSpec::default() }),
        sandbox_config: Some(cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                name: "pod".into(),
                namespace: "team".into(),
                ..cri::PodSandboxMetadata::default()
            }),
            annotations: pairs.collect::<HashMap<_, _>>(),
            ..cri::PodSandboxConfig::default()
        }),
        ..cri::PullImageRequest::default()
    }
}

/// Begins such a pull.
pub(crate) fn begin(cri: &Cri, request: cri::PullImageRequest) -> JoinHandle<Result<String, Status>> {
    let cri = cri.clone();
    tokio::spawn(async move { cri.pull_as(request).await })
}

/// The pulls that `drayctl ps` lists.
pub(crate) async fn listed(drayd: &Drayd) -> Result<Vec<Value>> {
    drayctl::run(drayd, &["ps", "--json"]).await?.json()
}

/// Waits until a pull of the image is listed for which `fits` holds, and gives it.
pub(crate) async fn await_listed(
    drayd: &Drayd,
    reference: &str,
    fits: impl Fn(&Value) -> bool,
) -> Result<Value> {
    let mut found = None;
    drayd_tests::wait::until(&format!("drayctl lists {reference}"), SOON, async || {
        let pulls = listed(drayd).await?;
        found = pulls.into_iter().find(|pull| pull["reference"] == reference && fits(pull));
        Ok(found.is_some())
    })
    .await?;
    found.context("it was there a moment ago")
}

/// The sum of the layers, compressed.
pub(crate) fn total(image: &Image) -> u64 {
    image.layers.iter().map(|layer| layer.bytes.len() as u64).sum()
}
