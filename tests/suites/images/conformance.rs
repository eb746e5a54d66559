//! What the public CRI validation suite asks of images, asked through drayd's socket.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drayd_proto::cri;
use drayd_tests::bed::Bed;
use drayd_tests::containerd::RUNC_HANDLER;
use drayd_tests::cri::{Cri, Pod};
use drayd_tests::peers::Release;
use drayd_tests::registry::Registry;
use drayd_tests::scripted::Scripted;
use drayd_tests::scripted::image::{self, Blob, CONFIG, Image};
use drayd_tests::socket;
use drayd_tests::stage::{self, Stage, pull};
use drayd_tests::suite::Suite;
use drayd_tests::throttle::Throttle;
use serde_json::json;
use tonic::Code;

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "an_image_is_pulled_and_removed_by_tag_without_one_and_by_digest", every_form);
    suite.check(release, "the_status_is_the_same_by_every_reference", every_reference);
    suite.check(release, "the_user_of_an_image_is_a_uid_or_a_name", users);
    suite.check(release, "three_images_are_listed", three_images);
    suite.check(release, "three_tags_of_one_image_are_one_image", three_tags);
    suite.check(release, "removing_one_tag_removes_all_names", one_tag_removes_all);
    suite.check(release, "the_same_image_from_two_registries_is_one_image", two_registries);
    suite.check(release, "a_deadline_of_a_millisecond_is_exceeded", a_millisecond);
    suite.check(release, "the_id_is_the_same_everywhere_and_in_the_container", one_id);
}

/// An image in a scripted registry, under these tags.
fn served(registry: &Scripted, image: &Image, tags: &[&str]) {
    image.serve(registry);
    for tag in tags {
        let reply = image::manifest_reply(&image.manifest);
        let path = format!("/v2/{}/manifests/{tag}", image.repository);
        registry.on("GET", &path, move |_, _| reply.clone());
    }
}

fn named(registry: &Scripted, image: &Image, suffix: &str) -> String {
    format!("{}/{}{suffix}", registry.address(), image.repository)
}

async fn every_form(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, registry) = (drayd.cri(), Scripted::start().await?);
    let image = Image::new("every-form", 1, 4)?;
    served(&registry, &image, &["latest"]);
    let digest = named(&registry, &image, &format!("@{}", image.manifest.digest));
    for (suffix, tag) in
        [(":1", Some(":1")), ("", Some(":latest")), (&digest[digest.find('@').unwrap_or(0)..], None)]
    {
        let name = named(&registry, &image, suffix);
        let id = cri.pull(&name, None, None).await.with_context(|| format!("cannot pull {name}"))?;
        ensure!(id == image.config.digest, "{name} has the id {id}");
        let status = cri.image(&name).await?.with_context(|| format!("no status of {name}"))?;
        let tags: Vec<String> = tag.map(|tag| named(&registry, &image, tag)).into_iter().collect();
        ensure!(status.id == id && status.size > 0 && status.repo_tags == tags, "{name}: {status:?}");
        ensure!(status.repo_digests == [digest.clone()], "{name}: {status:?}");
        ensure!(cri.list_by(&name).await? == [status], "{name} is listed otherwise");
        cri.remove(&name).await?;
        ensure!(cri.image(&name).await?.is_none(), "{name} is still there");
        ensure!(cri.list().await?.is_empty(), "{name} is still listed");
    }
    Ok(())
}

async fn every_reference(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, address) = (drayd.cri(), bed.registry.address());
    let image = &bed.images.two;
    let id = pull(&bed, &drayd, image, None).await?;
    let hex = &id["sha256:".len()..];
    let listed = cri.list().await?;
    for name in [&image.reference(address), &image.digest_reference(address), &id, hex, &hex[..12], &id[..19]]
    {
        let status = cri.image(name).await?.with_context(|| format!("no status of {name}"))?;
        ensure!(listed == [status.clone()], "{name} is {status:?}, and listed is {listed:?}");
    }
    Ok(())
}

async fn users(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, registry) = (drayd.cri(), Scripted::start().await?);
    for (number, (user, uid, username)) in [
        ("", None, ""),
        ("0", Some(0), ""),
        ("1002", Some(1002), ""),
        ("1003:100", Some(1003), ""),
        ("www-data", None, "www-data"),
        ("www-data:100", None, "www-data"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut image = Image::new(&format!("user{number}"), 1, 1)?;
        let config = json!({
            "architecture": image::architecture(), "os": "linux", "config": {"User": user},
            "rootfs": {"type": "layers", "diff_ids": image.diff_ids},
        });
        image.config = Blob::json(CONFIG, &config);
        image.manifest = image.manifest_with(&image.config.descriptor());
        image.serve(&registry);
        let name = image.reference(&registry);
        let id = cri.pull(&name, None, None).await.with_context(|| format!("user {user:?}"))?;
        let listed = cri.list_by(&id).await?;
        let status = cri.image(&name).await?.with_context(|| format!("no status with user {user:?}"))?;
        let found = (status.uid.map(|uid| uid.value), status.username.as_str());
        ensure!(found == (uid, username), "{user:?} is {found:?}");
        ensure!(listed == [status.clone()], "{user:?} is listed as {listed:?}");
        let containerds = bed.containerd.cri().image(&name).await?.context("containerd has no status")?;
        ensure!((containerds.uid, containerds.username) == (status.uid, status.username), "{user:?}");
    }
    Ok(())
}

async fn three_images(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let cri = drayd.cri();
    let images = [&bed.images.busybox, &bed.images.two, &bed.images.docker];
    for image in images {
        pull(&bed, &drayd, image, None).await?;
    }
    let listed = cri.list().await?;
    ensure!(listed.len() == 3, "{listed:#?}");
    for image in images {
        let found = listed.iter().find(|listed| listed.id == image.config.digest);
        let found = found.with_context(|| format!("{} is not listed", image.name))?;
        ensure!(found.repo_tags == [image.reference(bed.registry.address())], "{found:?}");
    }
    Ok(())
}

/// An image that was pulled by each of three tags; their names.
async fn tagged(cri: &Cri, registry: &Scripted, image: &Image) -> Result<Vec<String>> {
    served(registry, image, &["2", "3"]);
    let names: Vec<String> = [":1", ":2", ":3"].map(|tag| named(registry, image, tag)).into();
    for name in &names {
        let id = cri.pull(name, None, None).await?;
        ensure!(id == image.config.digest, "{name} has the id {id}");
    }
    Ok(names)
}

async fn three_tags(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, registry) = (drayd.cri(), Scripted::start().await?);
    let names = tagged(&cri, &registry, &Image::new("three-tags", 1, 4)?).await?;
    let listed = cri.list().await?;
    ensure!(listed.len() == 1 && listed[0].repo_tags == names, "{listed:#?}");
    ensure!(listed[0].repo_digests.len() == 1, "{listed:#?}");
    Ok(())
}

async fn one_tag_removes_all(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, registry) = (drayd.cri(), Scripted::start().await?);
    let (image, other) = (Image::new("removed-tags", 1, 4)?, &bed.images.docker);
    pull(&bed, &drayd, other, None).await?;
    let names = tagged(&cri, &registry, &image).await?;
    cri.remove(&names[1]).await?;
    for side in [&cri, &bed.containerd.cri()] {
        for name in names.iter().chain([&image.config.digest]) {
            ensure!(side.image(name).await?.is_none(), "{name} is still there");
        }
        let left: Vec<String> = side.list().await?.into_iter().map(|image| image.id).collect();
        ensure!(left == [other.config.digest.clone()], "{left:?}");
    }
    // The same again is no failure.
    Ok(cri.remove(&names[1]).await?)
}

async fn two_registries(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let cri = drayd.cri();
    let second = Registry::start("second", bed.run(), &bed.storage(), None)?;
    let image = &bed.images.two;
    let addresses = [bed.registry.address(), second.address()];
    for address in addresses {
        let id = cri.pull(&image.reference(address), None, None).await?;
        ensure!(id == image.config.digest, "{address} has the id {id}");
    }
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    let (tags, digests) = (
        sorted(addresses.map(|address| image.reference(address)).into()),
        sorted(addresses.map(|address| image.digest_reference(address)).into()),
    );
    let listed = cri.list().await?;
    ensure!(listed.len() == 1 && sorted(listed[0].repo_tags.clone()) == tags, "{listed:#?}");
    ensure!(sorted(listed[0].repo_digests.clone()) == digests, "{listed:#?}");
    cri.remove(&tags[0]).await?;
    for name in tags.iter().chain(&digests) {
        ensure!(cri.image(name).await?.is_none(), "{name} is still there");
    }
    ensure!(cri.list().await?.is_empty(), "{:#?}", cri.list().await?);
    Ok(())
}

async fn a_millisecond(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    // Nothing comes through, so that no pull can be quick enough.
    let throttle = Throttle::start(bed.registry.address(), 1).await?;
    let spec = cri::ImageSpec {
        image: bed.images.busybox.reference(throttle.address()),
        ..cri::ImageSpec::default()
    };
    let message = cri::PullImageRequest { image: Some(spec), ..cri::PullImageRequest::default() };
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("grpc-timeout", "1m".parse()?);
    let mut client = socket::client_without_deadlines(&drayd.socket());
    let pulled = client.pull_image(request).await;
    let status = pulled.err().context("the pull succeeded")?;
    ensure!(status.code() == Code::DeadlineExceeded, "{status:?}");
    // The same of a client that keeps its deadline by itself.
    let request = cri::PullImageRequest {
        image: Some(cri::ImageSpec {
            image: bed.images.busybox.reference(throttle.address()),
            ..cri::ImageSpec::default()
        }),
        ..cri::PullImageRequest::default()
    };
    let left = tokio::time::timeout(Duration::from_millis(1), drayd.cri().pull_as(request)).await;
    ensure!(left.is_err(), "{left:?}");
    throttle.set_rate(0);
    pull(&bed, &drayd, &bed.images.busybox, None).await?;
    Ok(())
}

async fn one_id(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let cri = drayd.cri();
    pull(&bed, &drayd, &bed.images.pause, None).await?;
    let image = &bed.images.two;
    let id = pull(&bed, &drayd, image, None).await?;
    let address = bed.registry.address();
    let status = cri.image(&image.reference(address)).await?.context("no status")?;
    ensure!(status.id == id, "{status:?}");
    ensure!(cri.list().await?.iter().any(|listed| listed.id == id), "{id} is not listed");
    let pod = cri.start_pod(RUNC_HANDLER, bed.run()).await?;
    let checked = containers(&bed, &cri, &pod, &id, [&id, &image.reference(address)]).await;
    cri.stop_pod(&pod).await?;
    checked
}

/// Checks the ids of containers of the image by these names.
async fn containers(bed: &Bed, cri: &Cri, pod: &Pod, id: &str, names: [&str; 2]) -> Result<()> {
    let image = &bed.images.two;
    for name in names {
        let container = cri.create_container(pod, name).await?;
        let listed = cri.runtime.clone().list_containers(cri::ListContainersRequest {}).await?.into_inner();
        let listed = listed.containers.into_iter().find(|listed| listed.id == container);
        let listed = listed.context("the container is not listed")?;
        let status = cri::ContainerStatusRequest { container_id: container.clone(), verbose: false };
        let status = cri.runtime.clone().container_status(status).await?.into_inner().status;
        let remove = cri::RemoveContainerRequest { container_id: container };
        cri.runtime.clone().remove_container(remove).await?;
        let status = status.context("no status of the container")?;
        ensure!(listed.image_ref == id, "{listed:?}");
        // The status has the digest that the image can be pulled by, if there is one.
        let by_digest = image.digest_reference(bed.registry.address());
        ensure!([by_digest.as_str(), id].contains(&status.image_ref.as_str()), "{status:?}");
        // Fields that came later than these releases.
        for of_container in [&listed.image_id, &status.image_id] {
            ensure!(of_container.is_empty() || of_container == id, "{listed:?} {status:?}");
        }
    }
    Ok(())
}
