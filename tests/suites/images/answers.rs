//! The answers that other runtimes got wrong: removal, ids, sizes, names, filters, pins, and what others put there.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use drayd_proto::cri::Image as Listed;
use drayd_tests::bed::Bed;
use drayd_tests::containerd::NATIVE_HANDLER;
use drayd_tests::cri::Cri;
use drayd_tests::ctr;
use drayd_tests::drayd::Drayd;
use drayd_tests::images::{Descriptor, Image};
use drayd_tests::launch::Launch;
use drayd_tests::layer::digest;
use drayd_tests::peers::Release;
use drayd_tests::probe::Probe;
use drayd_tests::registry::free_loopback_address;
use drayd_tests::stage::{self, SOON, Stage, pull};
use drayd_tests::suite::Suite;
use drayd_tests::wait;
use tonic::Code;

/// Set by containerd's CRI, and by drayd, on the records that they know.
const MANAGED: &str = "io.cri-containerd.image";
const PINNED: &str = "io.cri-containerd.pinned";
/// What drayd logs of a record that is in no list.
pub(crate) const LEFT_OUT: &str = "an image record is left out: no image can be made of it";

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "an_image_that_was_removed_is_gone_whoever_brought_it", removed_for_good);
    suite.check(release, "an_image_id_is_never_taken_for_a_name", an_id_is_an_id);
    suite.check(release, "the_size_is_that_of_the_manifest_wherever_it_is_unpacked", one_size);
    suite.check(release, "a_tag_has_the_digest_of_its_index_and_a_child_its_own", digests_that_can_be_pulled);
    suite.check(release, "a_digest_brings_no_tag_and_a_tag_brings_its_digest", no_invented_names);
    suite.check(release, "a_missing_image_is_an_empty_answer_and_a_malformed_name_a_refusal", missing);
    suite.check(release, "a_filter_lets_one_image_through_or_none", filters);
    suite.check(release, "a_pin_on_one_name_pins_the_image_and_outlives_a_pull", pins);
    suite.check(
        release,
        "what_ctr_and_drayd_pull_is_the_same_to_both_and_other_namespaces_are_unseen",
        views,
    );
    suite.check(release, "odd_records_are_left_out_of_lists_and_told_of_once", odd_records);
    suite.check(release, "kubelet_is_told_of_an_unreachable_registry_in_its_own_word", kubelets_word);
}

/// Names of all records that containerd has.
async fn records(bed: &Bed) -> Result<Vec<String>> {
    Ok(bed.containerd.probe().state().await?.images.into_keys().collect())
}

async fn gone(bed: &Bed, drayd: &Drayd, what: &str) -> Result<()> {
    for (side, cri) in [("drayd", drayd.cri()), ("containerd", bed.containerd.cri())] {
        let left = cri.list().await?;
        ensure!(left.is_empty(), "{what}: {side} still lists {left:#?}");
    }
    let left = records(bed).await?;
    ensure!(left.is_empty(), "{what}: records left: {left:?}");
    Ok(())
}

/// containerd's CRI labels what others bring, and makes the record by ID, some time after it was brought.
async fn managed(bed: &Bed, reference: &str, id: &str) -> Result<()> {
    wait::until("containerd's CRI manages the image", SOON, async || {
        let images = bed.containerd.probe().state().await?.images;
        let labelled = images.get(reference).is_some_and(|(_, labels)| labels.contains_key(MANAGED));
        Ok(labelled && images.contains_key(id))
    })
    .await
}

/// Fault 146.
async fn removed_for_good(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, registry) = (drayd.cri(), bed.registry.address());
    let image = &bed.images.two;
    let by_digest = image.digest_reference(registry);
    for name in [&by_digest, &image.config.digest, &image.config.digest["sha256:".len()..][..12].to_owned()] {
        cri.pull(&by_digest, None, None).await?;
        cri.remove(name).await?;
        gone(&bed, &drayd, &format!("known by digest, removed as {name}")).await?;
    }
    let reference = image.reference(registry);
    for name in [&reference, &image.config.digest] {
        ctr::pull(&bed.containerd, "k8s.io", &reference).await?;
        managed(&bed, &reference, &image.config.digest).await?;
        cri.remove(name).await?;
        gone(&bed, &drayd, &format!("brought by ctr, removed as {name}")).await?;
    }
    Ok(())
}

/// Fault 148.
async fn an_id_is_an_id(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let cri = drayd.cri();
    let id = pull(&bed, &drayd, &bed.images.docker, None).await?;
    let mark = bed.registry.mark();
    let listed = cri.list().await?;
    let status = cri.image(&id).await?.context("the id that PullImage gave is not known")?;
    ensure!(listed == [status.clone()] && status.id == id, "{status:#?} is listed as {listed:#?}");
    let again = cri.pull(&id, None, None).await.err().context("an id was pulled")?;
    let named = format!("`{id}` is an image ID");
    ensure!(again.code() == Code::InvalidArgument && again.message().contains(&named), "{again:?}");
    cri.remove(&id).await?;
    gone(&bed, &drayd, "removed by its id").await?;
    let requests = bed.registry.requests_since(mark);
    ensure!(requests.is_empty(), "the registry was asked: {requests:#?}");
    Ok(())
}

/// What the documents of the image and its layers are in all, as they travel.
fn size(image: &Image) -> u64 {
    let mut size = image.manifest.size + image.config.size;
    if image.target != image.manifest {
        size += image.target.size;
    }
    size + image.layers.iter().map(|layer| layer.blob.size).sum::<u64>()
}

/// Fault 150.
async fn one_size(bed: Stage) -> Result<()> {
    let mut drayd = stage::bare(&bed).await?;
    for image in [&bed.images.two, &bed.images.zstd] {
        for handler in [None, Some(NATIVE_HANDLER)] {
            pull(&bed, &drayd, image, handler).await?;
            sizes_are(&bed, &drayd.cri(), image).await?;
        }
    }
    ensure!(drayd.terminate()?, "drayd did not end");
    bed.containerd.restart().await?;
    let drayd = stage::start(&bed, "", &[])?;
    for image in [&bed.images.two, &bed.images.zstd] {
        sizes_are(&bed, &drayd.cri(), image).await?;
    }
    Ok(())
}

async fn sizes_are(bed: &Bed, cri: &Cri, image: &Image) -> Result<()> {
    let id = &image.config.digest;
    let listed = cri.list().await?;
    let listed = listed.iter().find(|listed| listed.id == *id).context("it is not listed")?;
    let status = cri.image(id).await?.context("no status")?;
    let containerds = bed.containerd.cri().image(id).await?.context("containerd has no status")?;
    let found = [listed.size, status.size, containerds.size];
    ensure!(found == [size(image); 3], "{} has {found:?}, not {}", image.name, size(image));
    Ok(())
}

/// Fault 151.
async fn digests_that_can_be_pulled(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, registry) = (drayd.cri(), bed.registry.address());
    let image = &bed.images.two;
    let index = image.digest_reference(registry);
    let child = format!("{registry}/{}@{}", image.repository(), image.manifest.digest);
    let digests = async || {
        let image = cri.image(&image.config.digest).await?.context("no status")?;
        Ok::<_, anyhow::Error>(image.repo_digests)
    };
    pull(&bed, &drayd, image, None).await?;
    ensure!(digests().await? == [index.clone()], "by tag: {:?}", digests().await?);
    cri.pull(&child, None, None).await?;
    let mut both = [index.clone(), child.clone()];
    both.sort();
    ensure!(digests().await? == both, "by tag and by child: {:?}", digests().await?);
    cri.remove(&image.config.digest).await?;
    for name in [child, index] {
        cri.pull(&name, None, None).await?;
        ensure!(digests().await? == [name.clone()], "{name}: {:?}", digests().await?);
        cri.remove(&name).await?;
    }
    Ok(())
}

/// Fault 153.
async fn no_invented_names(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, registry) = (drayd.cri(), bed.registry.address());
    for image in [&bed.images.two, &bed.images.docker] {
        let (tag, digest) = (image.reference(registry), image.digest_reference(registry));
        for (name, tags) in [(&digest, vec![]), (&tag, vec![tag.clone()])] {
            let id = cri.pull(name, None, None).await?;
            ensure!(id == image.config.digest, "{name} has the id {id}");
            for side in [&cri, &bed.containerd.cri()] {
                let found = side.image(&id).await?.with_context(|| format!("no status of {name}"))?;
                ensure!(found.id == id && found.repo_tags == tags, "{name}: {found:?}");
                ensure!(found.repo_digests == [digest.clone()], "{name}: {found:?}");
            }
            cri.remove(&id).await?;
        }
    }
    Ok(())
}

/// Fault 155.
async fn missing(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let cri = drayd.cri();
    pull(&bed, &drayd, &bed.images.docker, None).await?;
    let unknown = digest(b"no config of anybody's");
    for name in ["nowhere.example/none:1", "none", unknown.as_str(), "sha256:00", "deadbeef"] {
        let found = cri.image(name).await.with_context(|| format!("status of {name}"))?;
        ensure!(found.is_none(), "{name} is {found:?}");
        let listed = cri.list_by(name).await.with_context(|| format!("list of {name}"))?;
        ensure!(listed.is_empty(), "{name} lists {listed:?}");
        cri.remove(name).await.with_context(|| format!("removal of {name}"))?;
    }
    for name in ["a b", "reg.test/UPPER", "reg.test/a@sha256:12", "reg.test/a:-", "/a"] {
        let refused = [
            cri.image(name).await.err(),
            cri.list_by(name).await.err(),
            cri.stream(Some(name)).await.err(),
            cri.remove(name).await.err(),
        ];
        for status in refused {
            let status = status.with_context(|| format!("{name} is taken for a name"))?;
            ensure!(status.code() == Code::InvalidArgument, "{name}: {status:?}");
        }
    }
    ensure!(cri.list().await?.len() == 1, "something was removed");
    Ok(())
}

/// Fault 157.
async fn filters(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, registry) = (drayd.cri(), bed.registry.address());
    let image = &bed.images.docker;
    for image in [image, &bed.images.two, &bed.images.zstd] {
        pull(&bed, &drayd, image, None).await?;
    }
    bed.containerd.probe().tag("docker.io/library/short:latest", &image.target).await?;
    let id = image.config.digest.as_str();
    let (tag, by_digest) = (image.reference(registry), image.digest_reference(registry));
    for name in [tag.as_str(), &by_digest, id, &id["sha256:".len()..], &id["sha256:".len()..][..12], "short"]
    {
        let listed: Vec<String> = cri.list_by(name).await?.into_iter().map(|image| image.id).collect();
        ensure!(listed == [id], "{name} lists {listed:?}");
        let streamed = cri.stream(Some(name)).await?.concat();
        ensure!(streamed.len() == 1 && streamed[0].id == id, "{name} streams {streamed:?}");
    }
    for name in ["long", "short:2", "reg.test/none:1"] {
        ensure!(cri.list_by(name).await?.is_empty(), "{name} lists {:?}", cri.list_by(name).await?);
        ensure!(cri.stream(Some(name)).await?.is_empty(), "{name} streams something");
    }
    ensure!(cri.list_by("").await?.len() == 3, "a filter without a name is none");
    Ok(())
}

/// Fault 158.
async fn pins(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, probe) = (drayd.cri(), bed.containerd.probe());
    let image = &bed.images.two;
    let id = pull(&bed, &drayd, image, None).await?;
    let tag = image.reference(bed.registry.address());
    let pinned = async || {
        let status = cri.image(&id).await?.context("no status")?;
        Ok::<_, anyhow::Error>([status.pinned, cri.list().await?.iter().all(|image| image.pinned)])
    };
    ensure!(pinned().await? == [false; 2], "{:?}", pinned().await?);
    probe.label_image(&tag, PINNED, "pinned").await?;
    ensure!(pinned().await? == [true; 2], "{:?}", pinned().await?);
    pull(&bed, &drayd, image, None).await?;
    ensure!(pinned().await? == [true; 2], "after a pull: {:?}", pinned().await?);
    let labels = &probe.state().await?.images[&tag].1;
    ensure!(labels.get(PINNED).is_some_and(|value| value == "pinned"), "{labels:?}");
    probe.label_image(&tag, PINNED, "").await?;
    ensure!(pinned().await? == [false; 2], "{:?}", pinned().await?);
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

/// Fault 159.
async fn views(bed: Stage) -> Result<()> {
    const OTHER: &str = "other";
    let drayd = stage::bare(&bed).await?;
    let (cri, registry) = (drayd.cri(), bed.registry.address());
    let [theirs, ours, foreign] = [&bed.images.two, &bed.images.docker, &bed.images.zstd];
    ctr::pull(&bed.containerd, "k8s.io", &theirs.reference(registry)).await?;
    let ids = |listed: Vec<Listed>| listed.into_iter().map(|image| image.id).collect::<Vec<_>>();
    ensure!(ids(cri.list().await?) == [theirs.config.digest.clone()], "ctr's image is not listed at once");
    managed(&bed, &theirs.reference(registry), &theirs.config.digest).await?;
    pull(&bed, &drayd, ours, None).await?;
    let images = bed.containerd.probe().state().await?.images;
    for name in [ours.reference(registry), ours.digest_reference(registry), ours.config.digest.clone()] {
        let (target, labels) = images.get(&name).with_context(|| format!("there is no record {name}"))?;
        ensure!(*target == ours.target.digest && labels.contains_key(MANAGED), "{name}: {target} {labels:?}");
    }
    ctr::pull(&bed.containerd, OTHER, &foreign.reference(registry)).await?;
    let (of_drayd, of_containerd) = (listing(&cri).await?, listing(&bed.containerd.cri()).await?);
    ensure!(of_drayd == of_containerd, "drayd lists {of_drayd:#?}\ncontainerd lists {of_containerd:#?}");
    ensure!(of_drayd.len() == 2 && !of_drayd.contains_key(&foreign.config.digest), "{of_drayd:#?}");
    for name in [&foreign.config.digest, &foreign.reference(registry)] {
        ensure!(cri.image(name).await?.is_none(), "{name} of another namespace is shown");
        cri.remove(name).await?;
    }
    let other = Probe::connect_in(&bed.containerd.socket(), OTHER);
    ensure!(other.state().await?.images.len() == 1, "an image of another namespace was removed");
    other.untag(&foreign.reference(registry)).await?;
    other.force_gc().await
}

/// Fault 160.
async fn odd_records(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, probe) = (drayd.cri(), bed.containerd.probe());
    let (image, by_id) = (&bed.images.docker, &bed.images.two);
    pull(&bed, &drayd, image, None).await?;
    let blobless =
        Descriptor { digest: digest(b"a manifest that nobody has"), ..bed.images.two.target.clone() };
    probe.tag("busybox:fixed", &image.target).await?;
    probe.tag("lost.example/app:1", &blobless).await?;
    // Known by its ID alone, as after a pull whose names were taken away.
    pull(&bed, &drayd, by_id, None).await?;
    for name in [by_id.reference(bed.registry.address()), by_id.digest_reference(bed.registry.address())] {
        probe.untag(&name).await?;
    }
    for _ in 0..5 {
        let listed = listing(&cri).await?;
        ensure!(listed.len() == 2, "{listed:#?}");
        let shown = &listed[&image.config.digest];
        ensure!(shown.repo_tags == [image.reference(bed.registry.address())], "{shown:?}");
        let bare = &listed[&by_id.config.digest];
        ensure!(bare.repo_tags.is_empty() && bare.repo_digests.is_empty(), "{bare:?}");
        ensure!(cri.image("lost.example/app:1").await?.is_none(), "an image without documents is shown");
    }
    let events = drayd.events();
    let told: Vec<_> = events.iter().filter(|event| event.message() == LEFT_OUT).collect();
    ensure!(told.len() == 1 && told[0].text("name") == "lost.example/app:1", "{told:#?}");
    for name in ["lost.example/app:1", &by_id.config.digest, &image.config.digest] {
        cri.remove(name).await?;
    }
    ensure!(cri.list().await?.is_empty(), "left after all were removed: {:?}", cri.list().await?);
    let left = records(&bed).await?;
    ensure!(left.is_empty(), "records left: {left:?}");
    // containerd's own CRI remembers the odd name for good.
    bed.containerd.restart().await
}

/// Fault 156.
async fn kubelets_word(bed: Stage) -> Result<()> {
    let reference = format!("{}/app:1", free_loopback_address()?);
    let begins = format!("RegistryUnavailable: failed to pull image \"{reference}\": ");
    for (key, code) in [("false", Code::Unavailable), ("true", Code::Unknown)] {
        let mut launch = Launch::new(&bed.containerd.socket(), &format!("kubelet-{key}"))?;
        launch.cri = format!("kubelet_reasons = {key}\n");
        let drayd = launch.start()?;
        let status = drayd.cri().pull(&reference, None, None).await.err().context("nothing was pulled")?;
        ensure!(status.code() == code && status.message().starts_with(&begins), "{key}: {status:?}");
        // What is no registry's absence keeps its code and has no such word.
        let absent = format!("{}/absent:1", bed.registry.address());
        let status = drayd.cri().pull(&absent, None, None).await.err().context("an absent tag was pulled")?;
        let begins = "failed to pull image ";
        ensure!(status.code() == Code::NotFound && status.message().starts_with(begins), "{key}: {status:?}");
    }
    Ok(())
}
