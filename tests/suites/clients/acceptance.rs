//! What kruise-daemon does when it starts and when it pulls, byte for byte as grpc-go sends it, with each `:authority`
//! that it and kubelet have ever sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use containerd_client::services::v1::{ListContentRequest, ListContentResponse};
use drayd_proto::cri;
use drayd_tests::bed::Bed;
use drayd_tests::grpc_go::{ENCODED_PATH, GrpcGo, RAW_PATH};
use drayd_tests::launch::Launch;
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;
use prost::Message;
use tonic::{Code, Status};

/// kruise-daemon's limits for one call at its start.
const IMAGE_FS_INFO: Duration = Duration::from_secs(10);
const VERSION: Duration = Duration::from_secs(5);
/// Of one attempt to pull: what is left of `timeoutSeconds`.
const ATTEMPT: Duration = Duration::from_secs(600);
/// Many more than grpc-go sends in the time that a server may refuse them in.
const PINGS: usize = 40;

pub(crate) fn add(suite: &mut Suite, release: Release) {
    for (authority, sentence) in [
        (ENCODED_PATH, "kruise_daemon_starts_and_pulls_with_the_encoded_path_as_authority"),
        (RAW_PATH, "kruise_daemon_starts_and_pulls_with_the_raw_path_as_authority"),
        ("", "kruise_daemon_starts_and_pulls_with_an_empty_authority"),
        ("localhost", "kruise_daemon_starts_and_pulls_with_a_host_as_authority"),
    ] {
        suite.check(release, sentence, move |bed| acceptance(bed, authority));
    }
    suite.check(
        release,
        "what_containerd_answers_comes_through_to_a_path_as_authority_with_streams_and_trailers",
        through,
    );
    suite.check(release, "pings_without_a_call_are_answered_and_do_not_end_the_connection", pings);
}

/// What kruise-daemon and this test call, in one place.
struct Kruise(GrpcGo);

impl Kruise {
    async fn image<R: Message + Default>(
        &mut self,
        method: &str,
        message: &impl Message,
        deadline: Option<Duration>,
    ) -> Result<Result<R, Status>> {
        self.0.call(&format!("/runtime.v1.ImageService/{method}"), message, deadline).await
    }

    async fn list(&mut self, deadline: Option<Duration>) -> Result<Vec<cri::Image>> {
        let listed: Result<cri::ListImagesResponse, _> =
            self.image("ListImages", &cri::ListImagesRequest::default(), deadline).await?;
        Ok(listed.context("ListImages")?.images)
    }

    async fn version(&mut self, version: &str) -> Result<cri::VersionResponse> {
        let request = cri::VersionRequest { version: version.to_owned() };
        let answer = self.0.call("/runtime.v1.RuntimeService/Version", &request, Some(VERSION)).await?;
        answer.context("Version")
    }

    async fn pull(&mut self, image: &str) -> Result<Result<cri::PullImageResponse, Status>> {
        let annotations =
            HashMap::from([("apps.kruise.io/pulling-image-by".to_owned(), "kruise-daemon".to_owned())]);
        let request = cri::PullImageRequest {
            image: Some(cri::ImageSpec { image: image.to_owned(), ..cri::ImageSpec::default() }),
            auth: None,
            sandbox_config: Some(cri::PodSandboxConfig { annotations, ..cri::PodSandboxConfig::default() }),
        };
        self.image("PullImage", &request, Some(ATTEMPT)).await
    }
}

async fn acceptance(bed: Arc<Bed>, authority: &'static str) -> Result<()> {
    bed.empty().await?;
    let drayd = Launch::new(&bed.containerd.socket(), "acceptance")?.start()?;
    let mut kruise = Kruise(GrpcGo::dial(drayd.socket(), authority).await?);

    // Its start: this decides whether there is a CRI at all.
    let info: Result<cri::ImageFsInfoResponse, _> =
        kruise.image("ImageFsInfo", &cri::ImageFsInfoRequest::default(), Some(IMAGE_FS_INFO)).await?;
    ensure!(!info.context("ImageFsInfo")?.image_filesystems.is_empty(), "no filesystem");
    kruise.list(None).await?;
    // Its runtime's connection is another one, with the authority that its client library sets.
    let mut runtime = Kruise(GrpcGo::dial(drayd.socket(), "localhost").await?);
    for version in ["", "0.1.0"] {
        for connection in [&mut runtime, &mut kruise] {
            let answer = connection.version(version).await?;
            let cri::VersionResponse { version, runtime_name, runtime_version, runtime_api_version } = answer;
            let others = [version, runtime_version, runtime_api_version];
            ensure!(runtime_name == "containerd" && !others.contains(&String::new()), "{others:?}");
        }
    }

    // One attempt: look, pull, look for the id.
    let image = &bed.images.busybox;
    let reference = image.reference(bed.registry.address());
    let is_there = |listed: &[cri::Image]| listed.iter().any(|listed| listed.repo_tags.contains(&reference));
    ensure!(!is_there(&kruise.list(Some(ATTEMPT)).await?), "{reference} before the pull");
    let pulled = kruise.pull(&reference).await?.context("PullImage")?;
    ensure!(pulled.image_ref == image.config.digest, "{pulled:?}");
    let listed = kruise.list(Some(ATTEMPT)).await?;
    ensure!(is_there(&listed), "{reference} after the pull: {listed:?}");

    // An attempt that fails is a status, with its text, on a connection that goes on.
    let missing = format!("{}/no/such:image", bed.registry.address());
    let status = kruise.pull(&missing).await?.err().context("pulled what is not there")?;
    ensure!(status.code() == Code::NotFound && status.message().contains("no/such:image"), "{status:?}");
    ensure!(is_there(&kruise.list(None).await?), "after a failure");
    bed.empty().await
}

async fn through(bed: Arc<Bed>) -> Result<()> {
    let drayd = Launch::new(&bed.containerd.socket(), "answers")?.start()?;
    let reference = bed.images.busybox.reference(bed.registry.address());
    drayd.cri().pull(&reference, None, None).await?;
    let mut streams: Vec<Vec<ListContentResponse>> = Vec::new();
    let mut refusals = Vec::new();
    // grpc-go's own server takes any authority.
    for socket in [drayd.socket().to_owned(), bed.containerd.socket()] {
        for authority in [ENCODED_PATH, RAW_PATH, ""] {
            let mut go = GrpcGo::dial(&socket, authority).await?;
            go.metadata.push(("containerd-namespace".into(), "k8s.io".into()));
            let list = "/containerd.services.content.v1.Content/List";
            streams.push(go.stream(list, &ListContentRequest::default(), None).await?.context("a stream")?);
            let request = cri::ContainerStatusRequest { container_id: "none/ü%".into(), verbose: false };
            for method in ["ContainerStatus", "NoSuchMethod"] {
                let path = format!("/runtime.v1.RuntimeService/{method}");
                let refused: Result<Vec<cri::VersionResponse>, _> = go.stream(&path, &request, None).await?;
                let status = refused.err().context("answered")?;
                refusals.push((method, status.code(), status.message().to_owned()));
            }
        }
    }
    ensure!(!streams[0].is_empty() && !streams[0][0].info.is_empty(), "an empty stream: {streams:?}");
    ensure!(streams.iter().all(|stream| *stream == streams[0]), "{streams:?}");
    ensure!(refusals[0].1 == Code::NotFound && refusals[1].1 == Code::Unimplemented, "{refusals:?}");
    ensure!(refusals.chunks(2).all(|pair| *pair == refusals[..2]), "{refusals:?}");
    bed.empty().await
}

async fn pings(bed: Arc<Bed>) -> Result<()> {
    let drayd = Launch::new(&bed.containerd.socket(), "pings")?.start()?;
    let mut kruise = Kruise(GrpcGo::dial(drayd.socket(), ENCODED_PATH).await?);
    for _ in 0..PINGS {
        kruise.0.ping().await?;
    }
    kruise.version("").await?;
    for _ in 0..PINGS {
        kruise.0.ping().await?;
    }
    kruise.list(None).await?;
    Ok(())
}
