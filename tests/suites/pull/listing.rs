//! The other calls of `ImageService` around a pull: both sockets tell the same, at once.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use drayd_proto::cri::Image as Listed;
use drayd_tests::cri::Cri;
use drayd_tests::images::Descriptor;
use drayd_tests::layer::digest;
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;
use tokio::task::JoinSet;

use crate::stage::{self, Stage, pull};

/// Pulls and removals in a row: enough to meet a race that is there one time in ten.
const ROUNDS: usize = 20;
/// Image events that are waiting when a pull begins: containerd takes longer over them than the pull does.
const QUEUE: usize = 100;

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "containerd_shows_an_image_as_soon_as_the_pull_returns", shown_at_once);
    suite.check(release, "containerd_shows_it_even_if_its_events_were_queueing", shown_behind_a_queue);
    suite.check(release, "ids_are_the_same_in_every_call", ids_are_the_same);
    suite.check(release, "both_sockets_list_what_either_pulled", both_sockets_list);
    suite.check(release, "an_unknown_image_has_an_empty_status", an_unknown_image);
    suite.check(release, "a_name_goes_before_the_first_digits_of_an_id", name_before_id);
    suite.check(release, "an_image_whose_documents_are_gone_can_be_removed", without_documents);
    suite.check(release, "space_in_use_grows_with_a_pull_and_shrinks_with_a_removal", space_in_use);
}

async fn shown_at_once(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let image = &bed.images.docker;
    let (containerd, registry) = (bed.containerd.cri(), bed.registry.address());
    for round in 0..ROUNDS {
        pull(&bed, &drayd, image, None).await?;
        for name in [&image.config.digest, &image.reference(registry), &image.digest_reference(registry)] {
            let shown = containerd.image(name).await?.map(|image| image.id);
            ensure!(shown.as_ref() == Some(&image.config.digest), "round {round}: {name} is {shown:?}");
        }
        drayd.cri().remove(&image.reference(registry)).await?;
        for side in [&containerd, &drayd.cri()] {
            let shown = side.image(&image.config.digest).await?;
            ensure!(shown.is_none(), "round {round}: after its removal, {shown:?}");
        }
    }
    Ok(())
}

async fn shown_behind_a_queue(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (probe, containerd, image) = (bed.containerd.probe(), bed.containerd.cri(), &bed.images.docker);
    pull(&bed, &drayd, &bed.images.pause, None).await?;
    let names: Vec<String> = (0..QUEUE).map(|n| format!("queue.example/pause:{n}")).collect();
    let mut tags = JoinSet::new();
    for name in names.clone() {
        let (probe, target) = (probe.clone(), bed.images.pause.target.clone());
        tags.spawn(async move { probe.tag(&name, &target).await });
    }
    tags.join_all().await.into_iter().collect::<Result<()>>()?;
    pull(&bed, &drayd, image, None).await?;
    for name in [&image.config.digest, &image.reference(bed.registry.address())] {
        let shown = containerd.image(name).await?.map(|image| image.id);
        ensure!(shown.as_ref() == Some(&image.config.digest), "{name} is {shown:?}");
    }
    for name in names {
        probe.untag(&name).await?;
    }
    Ok(())
}

async fn ids_are_the_same(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, registry) = (drayd.cri(), bed.registry.address());
    for image in [&bed.images.two, &bed.images.docker, &bed.images.zstd] {
        let id = pull(&bed, &drayd, image, None).await?;
        let tag = image.reference(registry);
        for name in [&id, &id["sha256:".len()..].to_owned(), &tag, &image.digest_reference(registry)] {
            let status = cri.image(name).await?.with_context(|| format!("no status of {name}"))?;
            ensure!(status.id == id, "{name} is {}", status.id);
            ensure!(status.repo_tags == [tag.clone()], "{status:?}");
            ensure!(status.repo_digests == [image.digest_reference(registry)], "{status:?}");
        }
        let listed: Vec<String> = cri.list().await?.into_iter().map(|listed| listed.id).collect();
        ensure!(listed.contains(&id), "{id} is not in {listed:?}");
    }
    ensure!(cri.list().await?.len() == 3, "{:?}", cri.list().await?);
    Ok(())
}

/// A listing that two sockets can be compared by.
async fn listing(cri: &Cri) -> Result<BTreeMap<String, Listed>> {
    let images = cri.list().await?.into_iter().map(|mut image| {
        image.repo_tags.sort();
        image.repo_digests.sort();
        (image.id.clone(), image)
    });
    Ok(images.collect())
}

async fn both_sockets_list(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (containerd, registry) = (bed.containerd.cri(), bed.registry.address());
    let (ours, theirs) = ([&bed.images.two, &bed.images.docker], [&bed.images.zstd, &bed.images.pause]);
    for image in ours {
        pull(&bed, &drayd, image, None).await?;
    }
    for image in theirs {
        containerd.pull(&image.reference(registry), None, None).await?;
    }
    let (of_drayd, of_containerd) = (listing(&drayd.cri()).await?, listing(&containerd).await?);
    ensure!(of_drayd == of_containerd, "drayd lists {of_drayd:#?}\ncontainerd lists {of_containerd:#?}");
    ensure!(of_drayd.len() == 4, "{of_drayd:#?}");
    for image in ours {
        containerd.remove(&image.reference(registry)).await?;
    }
    for image in theirs {
        drayd.cri().remove(&image.reference(registry)).await?;
    }
    let (of_drayd, of_containerd) = (listing(&drayd.cri()).await?, listing(&containerd).await?);
    ensure!(of_drayd.is_empty() && of_containerd.is_empty(), "left: {of_drayd:?} {of_containerd:?}");
    Ok(())
}

async fn an_unknown_image(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let unknown = bed.images.busybox.reference(bed.registry.address());
    for name in [unknown.as_str(), &bed.images.busybox.config.digest, "nowhere.example/none:1"] {
        let status = drayd.cri().image(name).await.with_context(|| format!("status of {name}"))?;
        ensure!(status.is_none(), "{name} is {status:?}");
        drayd.cri().remove(name).await.with_context(|| format!("removal of {name}"))?;
    }
    Ok(())
}

async fn name_before_id(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, probe) = (drayd.cri(), bed.containerd.probe());
    let (by_id, by_name) = (&bed.images.two, &bed.images.docker);
    for image in [by_id, by_name] {
        pull(&bed, &drayd, image, None).await?;
    }
    let digits = &by_id.config.digest["sha256:".len()..][..6];
    let shown = |image: Option<Listed>| image.map(|image| image.id).unwrap_or_default();
    ensure!(shown(cri.image(digits).await?) == by_id.config.digest, "without a name it is an ID");
    probe.tag(&format!("docker.io/library/{digits}:latest"), &by_name.target).await?;
    ensure!(
        shown(cri.image(digits).await?) == by_name.config.digest,
        "{digits} is the name of another image"
    );
    cri.remove(digits).await?;
    let left: Vec<String> = cri.list().await?.into_iter().map(|image| image.id).collect();
    ensure!(left == [by_id.config.digest.clone()], "left after the removal: {left:?}");
    Ok(())
}

async fn without_documents(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let probe = bed.containerd.probe();
    let target =
        Descriptor { digest: digest(b"a manifest that nobody has"), ..bed.images.two.target.clone() };
    let [removed, with_it] = ["gone.example/app:1", "gone.example/app:2"];
    for name in [removed, with_it] {
        probe.tag(name, &target).await?;
    }
    ensure!(drayd.cri().image(removed).await?.is_none(), "an image without documents is shown");
    drayd.cri().remove(removed).await?;
    let records: Vec<String> = probe.state().await?.images.into_keys().collect();
    ensure!(records.is_empty(), "left after the removal: {records:?}");
    Ok(())
}

async fn space_in_use(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let image = &bed.images.busybox;
    let (root, empty, no_inodes) = drayd.cri().images_on_disk().await?;
    let (of_containerd, ..) = bed.containerd.cri().images_on_disk().await?;
    ensure!(root == of_containerd, "drayd says {root}, containerd {of_containerd}");
    pull(&bed, &drayd, image, None).await?;
    let (_, bytes, inodes) = drayd.cri().images_on_disk().await?;
    // Noise does not compress, so the files are at least as large as their layers.
    let layers: u64 = image.layers.iter().map(|layer| layer.blob.size).sum();
    ensure!(
        bytes - empty > layers && bytes - empty < 4 * layers,
        "{empty} became {bytes}; the layers have {layers}"
    );
    ensure!(inodes > no_inodes + 12, "{no_inodes} inodes became {inodes}");
    drayd.cri().remove(&image.config.digest).await?;
    let (_, after, _) = drayd.cri().images_on_disk().await?;
    ensure!(after == empty, "{empty} bytes became {bytes}, and after the removal {after}");
    Ok(())
}
