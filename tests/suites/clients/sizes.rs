//! Messages of up to 16 MiB, as all clients and containerd have it, both ways: drayd's own and those handed through.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::{CreateImageRequest, GetImageRequest, Image};
use containerd_client::types::Descriptor;
use drayd_proto::cri;
use drayd_tests::bed::Bed;
use drayd_tests::grpc_go::{ENCODED_PATH, GrpcGo};
use drayd_tests::launch::Launch;
use drayd_tests::peers::Release;
use drayd_tests::socket;
use drayd_tests::suite::Suite;
use prost::Message as _;
use tokio::task::JoinSet;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request};

const LIMIT: usize = 16 << 20;
/// What gRPC takes where nobody has set a limit.
const USUAL: usize = 4 << 20;
/// Away from the CRI's namespace, where its plugin would look at each record.
const NAMESPACE: &str = "sizes";
/// containerd allows 4096 bytes for a label's key and value together, and any number of labels.
const LABEL: usize = 4000;
/// Records of one image, with names that are nearly as long as names get.
const RECORDS: usize = 14_000;
/// At once: containerd's database writes one at a time anyway.
const WRITERS: usize = 8;

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "a_message_of_nearly_16_mib_is_handed_through_both_ways", through);
    if release == Release::V1_7 {
        suite.check(release, "a_request_of_nearly_16_mib_is_taken_and_a_larger_one_refused", request);
        suite.check(release, "a_list_of_more_than_4_mib_is_answered", list);
    }
}

async fn through(bed: Arc<Bed>) -> Result<()> {
    let drayd = Launch::new(&bed.containerd.socket(), "through")?.start()?;
    let mut go = GrpcGo::dial(drayd.socket(), ENCODED_PATH).await?;
    let version = cri::VersionRequest { version: "v".repeat(LIMIT - 64) };
    let answer: cri::VersionResponse =
        go.call("/runtime.v1.RuntimeService/Version", &version, None).await?.context("a large request")?;
    ensure!(answer.runtime_name == "containerd", "{answer:?}");

    // containerd answers little that is large, so it is given something first; on its own socket.
    let name = "sizes.test/large:1";
    let labels: HashMap<_, _> =
        (0..(LIMIT - (64 << 10)) / (LABEL + 16)).map(|at| (format!("l{at}"), "x".repeat(LABEL))).collect();
    let large = Image { name: name.into(), labels, target: Some(target(1)), ..Image::default() };
    let size = large.encoded_len();
    ensure!((LIMIT - (1 << 20)..LIMIT).contains(&size), "{size} bytes");
    for (socket, what) in [(bed.containerd.socket(), "containerd"), (drayd.socket().to_owned(), "drayd")] {
        let mut images = images(socket::channel(&socket));
        if what == "containerd" {
            let create = CreateImageRequest { image: Some(large.clone()), ..CreateImageRequest::default() };
            images.create(namespaced(create)).await.context("cannot create the large record")?;
        }
        let got = images.get(namespaced(GetImageRequest { name: name.into() })).await;
        let got = got.with_context(|| format!("a large answer of {what}"))?.into_inner();
        ensure!(got.image.context("no image")?.labels == large.labels, "other labels from {what}");
    }
    let delete = containerd_client::services::v1::DeleteImageRequest {
        name: name.into(),
        sync: false,
        ..containerd_client::services::v1::DeleteImageRequest::default()
    };
    images(socket::channel(drayd.socket())).delete(namespaced(delete)).await?;
    Ok(())
}

async fn request(bed: Arc<Bed>) -> Result<()> {
    let drayd = Launch::new(&bed.containerd.socket(), "request")?.start()?;
    let mut go = GrpcGo::dial(drayd.socket(), ENCODED_PATH).await?;
    // A name that is refused for what it is, once all of the message was read.
    for (size, code) in [(USUAL + 1, Code::InvalidArgument), (LIMIT - 256, Code::InvalidArgument)] {
        let status = pull_with(&mut go, size).await?;
        ensure!(status.code() == code, "{size} bytes: {status:?}");
    }
    let status = pull_with(&mut go, LIMIT + 1).await?;
    ensure!(matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted), "{status:?}");
    // The connection goes on.
    let listed: Result<cri::ListImagesResponse, _> =
        go.call("/runtime.v1.ImageService/ListImages", &cri::ListImagesRequest::default(), None).await?;
    listed?;
    Ok(())
}

/// What PullImage says to a request with so many bytes of annotation.
async fn pull_with(go: &mut GrpcGo, size: usize) -> Result<tonic::Status> {
    let annotations = HashMap::from([("large".to_owned(), "x".repeat(size))]);
    let request = cri::PullImageRequest {
        image: Some(cri::ImageSpec { image: "Not A Name".into(), ..cri::ImageSpec::default() }),
        sandbox_config: Some(cri::PodSandboxConfig { annotations, ..cri::PodSandboxConfig::default() }),
        ..cri::PullImageRequest::default()
    };
    let answer: Result<cri::PullImageResponse, _> =
        go.call("/runtime.v1.ImageService/PullImage", &request, None).await?;
    answer.err().context("pulled")
}

async fn list(bed: Arc<Bed>) -> Result<()> {
    let mut launch = Launch::new(&bed.containerd.socket(), "list")?;
    launch.namespace = NAMESPACE;
    let drayd = launch.start()?;
    let reference = bed.images.busybox.reference(bed.registry.address());
    drayd.cri().pull(&reference, None, None).await?;
    let channel = socket::channel(&bed.containerd.socket());
    let pulled = images(channel.clone()).get(namespaced(GetImageRequest { name: reference })).await?;
    let target = pulled.into_inner().image.and_then(|image| image.target).context("no target")?;
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (mut images, target) = (images(channel.clone()), target.clone());
        writers.spawn(async move {
            for at in (writer..RECORDS).step_by(WRITERS) {
                let image = Image { name: name(at), target: Some(target.clone()), ..Image::default() };
                let create = CreateImageRequest { image: Some(image), ..CreateImageRequest::default() };
                images.create(namespaced(create)).await?;
            }
            Ok::<_, tonic::Status>(())
        });
    }
    while let Some(written) = writers.join_next().await {
        written?.context("cannot create a record")?;
    }
    let mut go = GrpcGo::dial(drayd.socket(), ENCODED_PATH).await?;
    let listed: cri::ListImagesResponse = go
        .call("/runtime.v1.ImageService/ListImages", &cri::ListImagesRequest::default(), None)
        .await?
        .context("a large list")?;
    let size = listed.encoded_len();
    ensure!(size > USUAL, "only {size} bytes");
    let tags: Vec<_> = listed.images.iter().flat_map(|image| &image.repo_tags).collect();
    ensure!(tags.len() == RECORDS + 1, "{} tags", tags.len());
    Ok(())
}

fn name(at: usize) -> String {
    format!("sizes.test/{}-{at}:{}", "n".repeat(220), "t".repeat(128))
}

fn target(size: i64) -> Descriptor {
    Descriptor {
        media_type: "application/vnd.oci.image.manifest.v1+json".into(),
        digest: format!("sha256:{}", "0".repeat(64)),
        size,
        ..Descriptor::default()
    }
}

fn images(channel: Channel) -> ImagesClient<Channel> {
    ImagesClient::new(channel).max_decoding_message_size(LIMIT)
}

fn namespaced<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
    request
}
