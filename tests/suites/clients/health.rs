//! `grpc.health.v1` on the CRI socket follows containerd.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::grpc_go::{ENCODED_PATH, GrpcGo};
use drayd_tests::launch::{Launch, Launched};
use drayd_tests::peers::Release;
use drayd_tests::socket;
use drayd_tests::suite::Suite;
use tokio::time::timeout;
use tonic::{Code, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

const NAMES: [&str; 2] = ["", "runtime.v1.ImageService"];
/// For drayd to notice that containerd came or went.
const SOON: Duration = Duration::from_secs(20);

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "health_follows_containerd_and_a_watch_does_not_hold_up_the_end", health);
}

async fn health(bed: Arc<Bed>) -> Result<()> {
    bed.containerd.kill()?;
    let outcome = started_without(&bed).await;
    // Whatever happened: the bed is shared.
    bed.containerd.restart().await?;
    let (mut drayd, mut watches) = outcome?;
    await_status(&mut watches, ServingStatus::Serving).await?;
    let mut client = HealthClient::new(socket::channel(drayd.socket()));
    for name in NAMES {
        let answer = client.check(request(name)).await?.into_inner();
        ensure!(answer.status() == ServingStatus::Serving, "{name:?}: {answer:?}");
    }
    let unknown = client.check(request("runtime.v1.RuntimeService")).await.err().context("an answer")?;
    ensure!(unknown.code() == Code::NotFound, "{unknown:?}");
    // As grpc-go sends it.
    let mut go = GrpcGo::dial(drayd.socket(), ENCODED_PATH).await?;
    let answer: HealthCheckResponse =
        go.call("/grpc.health.v1.Health/Check", &request(""), None).await?.context("Check")?;
    ensure!(answer.status() == ServingStatus::Serving, "{answer:?}");

    bed.containerd.kill()?;
    let gone = await_status(&mut watches, ServingStatus::NotServing).await;
    bed.containerd.restart().await?;
    gone?;
    await_status(&mut watches, ServingStatus::Serving).await?;

    drayd.tell_to_stop()?;
    let status = drayd.ended(SOON).await?;
    ensure!(status.code() == Some(0), "{status}");
    Ok(())
}

async fn started_without(bed: &Bed) -> Result<(Launched, Vec<Streaming<HealthCheckResponse>>)> {
    let drayd = Launch::new(&bed.containerd.socket(), "health")?.start()?;
    let mut client = HealthClient::new(socket::channel(drayd.socket()));
    let mut watches = Vec::new();
    for name in NAMES {
        let answer = client.check(request(name)).await?.into_inner();
        ensure!(answer.status() == ServingStatus::NotServing, "{name:?}: {answer:?}");
        watches.push(client.watch(request(name)).await?.into_inner());
    }
    Ok((drayd, watches))
}

fn request(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

/// Takes in what the watches tell until each has told this.
async fn await_status(watches: &mut [Streaming<HealthCheckResponse>], wanted: ServingStatus) -> Result<()> {
    for watch in watches {
        loop {
            let told = timeout(SOON, watch.message()).await;
            let told = told.with_context(|| format!("never {wanted:?}"))??.context("the watch ended")?;
            if told.status() == wanted {
                break;
            }
        }
    }
    Ok(())
}
