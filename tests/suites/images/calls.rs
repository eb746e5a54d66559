//! Calls as no well-behaved client makes them: left in the middle, with fields of later versions, or without any.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use drayd_proto::cri;
use drayd_tests::peers::Release;
use drayd_tests::raw::{self, Connection};
use drayd_tests::stage::{self, SOON, Stage, pull};
use drayd_tests::suite::Suite;
use drayd_tests::throttle::Throttle;
use drayd_tests::wait;
use prost::Message;
use prost::encoding;
use tonic::Code;

const STATUS: &str = "/runtime.v1.ImageService/ImageStatus";
const LIST: &str = "/runtime.v1.ImageService/ListImages";
const PULL: &str = "/runtime.v1.ImageService/PullImage";
const SPACE: &str = "/runtime.v1.ImageService/ImageFsInfo";
/// Calls that are left: enough that one that stays behind each time shows.
const CALLS: usize = 100;

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "questions_that_are_left_in_the_middle_leave_nothing_behind", left_questions);
    suite.check(release, "a_pull_that_is_left_in_the_middle_leaves_nothing_behind", left_pulls);
    suite.check(release, "fields_of_later_versions_and_of_image_volumes_are_passed_over", unknown_fields);
    suite.check(release, "a_call_that_names_no_image_is_an_invalid_argument", no_image);
}

fn spec(name: &str) -> cri::ImageSpec {
    cri::ImageSpec { image: name.to_owned(), ..cri::ImageSpec::default() }
}

fn descriptors(pid: u32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// Returns when drayd has read all that was sent before: it takes in frames in their order, and this call needs nobody.
async fn taken_in(connection: &Connection) -> Result<()> {
    connection.begin(PULL, &[]).await?.answered().await
}

async fn left_questions(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let cri = drayd.cri();
    pull(&bed, &drayd, &bed.images.two, None).await?;
    let id = bed.images.two.config.digest.clone();
    let (listed, before) = (cri.list().await?, bed.containerd.probe().state().await?);
    let open = descriptors(drayd.pid())?;
    let present = cri::ImageStatusRequest { image: Some(spec(&id)), verbose: true }.encode_to_vec();
    let absent = cri::ImageStatusRequest { image: Some(spec("reg.test/none:1")), verbose: false };
    let questions =
        [(STATUS, present), (STATUS, absent.encode_to_vec()), (LIST, Vec::new()), (SPACE, Vec::new())];
    {
        let connection = Connection::open(&drayd.socket()).await?;
        // Each of these waits for containerd until it is left.
        let frozen = bed.containerd.freeze()?;
        let mut calls = Vec::new();
        for _ in 0..CALLS {
            for (path, message) in &questions {
                calls.push(connection.begin(path, message).await?);
            }
        }
        taken_in(&connection).await?;
        for call in calls {
            call.reset();
        }
        taken_in(&connection).await?;
        drop(frozen);
        // The same of those that are answered at the same time.
        for _ in 0..CALLS {
            for (path, message) in &questions {
                connection.begin(path, message).await?.reset();
            }
            // Dozens that are left before they could be looked at end the connection.
            taken_in(&connection).await?;
        }
    }
    ensure!(cri.list().await? == listed, "{:#?}", cri.list().await?);
    ensure!(cri.image(&id).await?.is_some(), "{id} is gone");
    cri.images_on_disk().await?;
    wait::until("drayd has no more descriptors than before", SOON, async || {
        Ok(descriptors(drayd.pid())? <= open)
    })
    .await?;
    stage::unchanged(&bed, &before, "calls that were left changed something").await
}

async fn left_pulls(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let probe = bed.containerd.probe();
    let before = probe.state().await?;
    let image = &bed.images.busybox;
    let throttle = Throttle::start(bed.registry.address(), 100_000).await?;
    let reference = image.reference(throttle.address());
    let message = cri::PullImageRequest { image: Some(spec(&reference)), ..cri::PullImageRequest::default() };
    let connection = Connection::open(&drayd.socket()).await?;
    let mut calls = Vec::new();
    for _ in 0..3 {
        calls.push(connection.begin(PULL, &message.encode_to_vec()).await?);
    }
    wait::until("the pull is in the middle of its layers", SOON, async || {
        Ok(throttle.passed() > 50_000 && !probe.state().await?.leases.is_empty())
    })
    .await?;
    for call in calls {
        call.reset();
    }
    wait::until("the lease of the pull is gone", SOON, async || Ok(probe.state().await?.leases.is_empty()))
        .await?;
    throttle.set_rate(0);
    probe.force_gc().await?;
    stage::unchanged(&bed, &before, "a pull that was left changed something").await?;
    ensure!(drayd.cri().list().await?.is_empty(), "something is listed");
    let id = drayd.cri().pull(&reference, None, None).await?;
    ensure!(id == image.config.digest, "the next pull has the id {id}");
    Ok(())
}

/// Fields of every wire type under numbers that nobody uses.
fn unknown() -> Vec<u8> {
    let mut fields = Vec::new();
    encoding::uint64::encode(1000, &u64::MAX, &mut fields);
    encoding::string::encode(1001, &"of a later version".to_owned(), &mut fields);
    encoding::fixed32::encode(1002, &7, &mut fields);
    encoding::fixed64::encode(1003, &7, &mut fields);
    fields
}

/// The message of this spec as its field 1, with unknown fields in both.
fn later(spec: &cri::ImageSpec) -> Vec<u8> {
    let mut message = unknown();
    encoding::bytes::encode(1, &[spec.encode_to_vec(), unknown()].concat(), &mut message);
    message.extend(unknown());
    message
}

/// The only answer to a message.
async fn answer<T: Message + Default>(socket: &Path, path: &'static str, message: Vec<u8>) -> Result<T> {
    let mut answers = raw::call_with(socket, path, message).await?;
    let answer = answers.message().await?.context("no answer")?;
    Ok(T::decode(answer.as_slice())?)
}

async fn unknown_fields(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, socket) = (drayd.cri(), drayd.socket());
    let (image, other) = (&bed.images.two, &bed.images.docker);
    let reference = image.reference(bed.registry.address());
    // As kubelet fills them in for the volume of a pod: the string of the pod beside what it became.
    let of_a_volume = cri::ImageSpec {
        image: reference.clone(),
        user_specified_image: other.reference(bed.registry.address()),
        image_ref: other.config.digest.clone(),
        ..cri::ImageSpec::default()
    };
    for spec in [spec(&reference), of_a_volume] {
        let pulled: cri::PullImageResponse = answer(&socket, PULL, later(&spec)).await?;
        ensure!(pulled.image_ref == image.config.digest, "{spec:?} is {pulled:?}");
        let status: cri::ImageStatusResponse = answer(&socket, STATUS, later(&spec)).await?;
        let plain = cri.image(&reference).await?;
        ensure!(plain.is_some() && status.image == plain, "{spec:?} is {status:?}");
        // A filter is one message further down.
        let mut filter = Vec::new();
        encoding::bytes::encode(1, &later(&spec), &mut filter);
        let listed: cri::ListImagesResponse = answer(&socket, LIST, [filter, unknown()].concat()).await?;
        ensure!(listed.images == cri.list().await? && listed.images.len() == 1, "{spec:?}: {listed:?}");
        let _: cri::ImageFsInfoResponse = answer(&socket, SPACE, unknown()).await?;
        let remove = "/runtime.v1.ImageService/RemoveImage";
        let _: cri::RemoveImageResponse = answer(&socket, remove, later(&spec)).await?;
        ensure!(cri.list().await?.is_empty(), "{spec:?} is not removed");
    }
    Ok(())
}

async fn no_image(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let cri = drayd.cri();
    pull(&bed, &drayd, &bed.images.two, None).await?;
    let beside = cri::ImageSpec {
        user_specified_image: bed.images.two.reference(bed.registry.address()),
        image_ref: bed.images.two.config.digest.clone(),
        annotations: [("kubernetes.io/config.source".to_owned(), "api".to_owned())].into(),
        ..cri::ImageSpec::default()
    };
    for image in [None, Some(cri::ImageSpec::default()), Some(beside)] {
        let pull = cri::PullImageRequest {
            image: image.clone(),
            sandbox_config: Some(cri::PodSandboxConfig::default()),
            ..cri::PullImageRequest::default()
        };
        let status = cri::ImageStatusRequest { image: image.clone(), verbose: true };
        let remove = cri::RemoveImageRequest { image: image.clone() };
        for refused in [
            cri.pull_as(pull).await.err(),
            cri.images.clone().image_status(status).await.err(),
            cri.images.clone().remove_image(remove).await.err(),
        ] {
            let refused = refused.with_context(|| format!("{image:?} is an image"))?;
            ensure!(refused.code() == Code::InvalidArgument, "{refused:?}");
        }
        // A filter that names nothing lets everything through.
        let list = cri::ListImagesRequest { filter: Some(cri::ImageFilter { image }) };
        let listed = cri.images.clone().list_images(list).await?.into_inner().images;
        ensure!(listed.len() == 1, "{listed:?}");
    }
    Ok(())
}
