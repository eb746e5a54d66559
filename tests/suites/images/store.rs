//! The images in memory: whatever somebody else does to containerd's records is seen at once, however much it is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drayd_proto::cri::Image as Listed;
use drayd_tests::cri::Cri;
use drayd_tests::images::Descriptor;
use drayd_tests::peers::Release;
use drayd_tests::probe::Probe;
use drayd_tests::scripted::Scripted;
use drayd_tests::scripted::image::{self, Blob, CONFIG, Image, MANIFEST};
use drayd_tests::stage::{self, Stage, pull};
use drayd_tests::suite::Suite;
use drayd_tests::wait;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Enough to meet a race that is there one time in ten.
const ROUNDS: usize = 20;
/// Images that come and go at the same time.
const BURST: usize = 200;
/// For containerd's CRI to take in the events of all of those, one after the other.
const TAKEN_IN: Duration = Duration::from_secs(60);

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "what_others_make_tag_and_remove_is_seen_at_once", others);
    suite.check(release, "a_name_that_comes_back_without_its_documents_is_no_image", name_comes_back);
    suite.check(release, "hundreds_of_images_that_come_and_go_leave_nothing_behind", burst);
    suite.check(release, "a_stream_has_every_image_once_and_no_message_without_images", stream);
    suite.check(
        release,
        "a_verbose_status_tells_the_whole_config_the_chain_and_where_it_is_unpacked",
        verbose,
    );
}

/// Fails unless status and lists of drayd have the image under exactly these names, or do not have it.
async fn shown(cri: &Cri, id: &str, names: &[&str], what: &str) -> Result<()> {
    // The status first, since a list would settle what it tells.
    for name in names {
        let status = cri.image(name).await?.map(|image| image.id);
        ensure!(status.as_deref() == Some(id), "{what}: {name} is {status:?}");
    }
    let status = cri.image(id).await?;
    ensure!(status.is_some() != names.is_empty(), "{what}: {id} is {status:?}");
    let listed = cri.list().await?.into_iter().find(|image| image.id == id);
    let tags: BTreeSet<String> = listed.into_iter().flat_map(|image| image.repo_tags).collect();
    let expected = names.iter().map(|name| (*name).to_owned()).collect();
    ensure!(tags == expected, "{what}: listed with {tags:?}, not {expected:?}");
    Ok(())
}

async fn others(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, containerd, probe) = (drayd.cri(), bed.containerd.cri(), bed.containerd.probe());
    let image = &bed.images.docker;
    let (id, tag) = (image.config.digest.as_str(), image.reference(bed.registry.address()));
    let other = "docker.io/library/other:1";
    for round in 0..ROUNDS {
        let what = |step: &str| format!("round {round}, {step}");
        containerd.pull(&tag, None, None).await?;
        shown(&cri, id, &[&tag], &what("pulled by containerd's CRI")).await?;
        probe.tag(other, &image.target).await?;
        shown(&cri, id, &[other, &tag], &what("tagged by the native API")).await?;
        probe.untag(&tag).await?;
        ensure!(cri.image(&tag).await?.is_none(), "{}", what("a tag that was removed is still there"));
        shown(&cri, id, &[other], &what("a tag removed by the native API")).await?;
        wait::until("containerd's CRI knows of both changes", stage::SOON, async || {
            let image = containerd.image(id).await?.context("containerd has no image")?;
            Ok(image.repo_tags == [other])
        })
        .await?;
        containerd.remove(id).await?;
        shown(&cri, id, &[], &what("removed by containerd's CRI")).await?;
        let left = probe.state().await?.images;
        ensure!(left.is_empty(), "{}: {left:?}", what("at the end"));
    }
    Ok(())
}

async fn name_comes_back(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, probe) = (drayd.cri(), bed.containerd.probe());
    let image = &bed.images.docker;
    // Not the name that it was pulled by: containerd's CRI waits minutes before it looks again at a name that it could
    // make no image of.
    let tag = "back.example/app:1";
    for remover in [&cri, &bed.containerd.cri()] {
        pull(&bed, &drayd, image, None).await?;
        remover.remove(&image.config.digest).await?;
        probe.force_gc().await?;
        ensure!(!probe.state().await?.content.contains_key(&image.manifest.digest), "the documents stay");
        probe.tag(tag, &image.target).await?;
        ensure!(cri.list().await?.is_empty(), "an image without documents is listed");
        ensure!(cri.image(tag).await?.is_none(), "an image without documents is shown");
        cri.remove(tag).await?;
        ensure!(probe.state().await?.images.is_empty(), "the record stays");
    }
    Ok(())
}

/// One image of the burst: documents over the layers of another.
struct Small {
    name: String,
    config: Blob,
    manifest: Blob,
}

impl Small {
    fn new(number: usize) -> Self {
        let config = json!({
            "architecture": image::architecture(), "os": "linux", "config": {"Cmd": [format!("/{number}")]},
            "rootfs": {"type": "layers", "diff_ids": []},
        });
        let config = Blob::json(CONFIG, &config);
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config.descriptor(), "layers": [],
        });
        let name = format!("burst.example/app:{number}");
        Self { name, manifest: Blob::json(MANIFEST, &manifest), config }
    }

    async fn make(&self, probe: &Probe) -> Result<()> {
        let size = u64::try_from(self.manifest.bytes.len())?;
        let (media_type, digest) = (MANIFEST.to_owned(), self.manifest.digest.clone());
        probe.tag(&self.name, &Descriptor { media_type, digest, size }).await
    }

    /// Under its name and the one that containerd's CRI gave it.
    async fn unmake(&self, probe: &Probe) -> Result<()> {
        probe.untag(&self.name).await?;
        probe.untag(&self.config.digest).await
    }
}

/// Does it to all, as many at a time as there are.
async fn all<F>(images: &Arc<Vec<Small>>, act: impl Fn(Arc<Vec<Small>>, usize) -> F) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let mut acts = JoinSet::new();
    for number in 0..images.len() {
        acts.spawn(act(Arc::clone(images), number));
    }
    acts.join_all().await.into_iter().collect()
}

/// Asks for lists until told to stop; each must make sense in itself. Returns how many there were.
async fn lists(cri: Cri, known: BTreeSet<String>, stop: Arc<AtomicBool>) -> Result<usize> {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let listed = cri.list().await?;
        let ids: BTreeSet<&String> = listed.iter().map(|image| &image.id).collect();
        ensure!(ids.len() == listed.len(), "an image is listed twice");
        for image in &listed {
            ensure!(known.contains(&image.id) && image.size > 0, "{image:?} is listed");
            ensure!(image.repo_tags.len() <= 1, "{image:?} has tags of others");
        }
        count += 1;
    }
    Ok(count)
}

async fn burst(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let probe = bed.containerd.probe();
    let images: Arc<Vec<Small>> = Arc::new((0..BURST).map(Small::new).collect());
    for image in images.iter() {
        for blob in [&image.config, &image.manifest] {
            probe.root_blob(&blob.digest, &blob.bytes).await?;
        }
    }
    let known: BTreeSet<String> = images.iter().map(|image| image.config.digest.clone()).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let listing = tokio::spawn(lists(drayd.cri(), known.clone(), Arc::clone(&stop)));

    let (to, cri) = (probe.clone(), drayd.cri());
    all(&images, |images, number| {
        let (probe, cri) = (to.clone(), cri.clone());
        async move {
            images[number].make(&probe).await?;
            // Now and then, as it would cost the burst its speed.
            if number % 20 == 0 {
                let id = &images[number].config.digest;
                let listed = cri.list().await?.iter().any(|image| image.id == *id);
                ensure!(listed, "{} was made and is not listed", images[number].name);
            }
            Ok(())
        }
    })
    .await?;
    let ids = |listed: Vec<Listed>| listed.into_iter().map(|image| image.id).collect::<BTreeSet<_>>();
    ensure!(ids(drayd.cri().list().await?) == known, "after all were made");
    wait::until("containerd's CRI has taken in all images", TAKEN_IN, async || {
        Ok(ids(bed.containerd.cri().list().await?) == known)
    })
    .await?;
    let to = probe.clone();
    all(&images, |images, number| {
        let probe = to.clone();
        async move { images[number].unmake(&probe).await }
    })
    .await?;
    let left = drayd.cri().list().await?;
    ensure!(left.is_empty(), "after all were removed: {left:#?}");
    stop.store(true, Ordering::Relaxed);
    ensure!(listing.await?? > 1, "no list was asked for meanwhile");
    for image in images.iter() {
        for blob in [&image.manifest, &image.config] {
            probe.delete_blob(&blob.digest).await?;
        }
    }
    let records = probe.state().await?.images;
    ensure!(records.is_empty(), "containerd has {records:?}");
    Ok(())
}

async fn stream(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let cri = drayd.cri();
    ensure!(cri.stream(None).await?.is_empty(), "a message without images");
    for image in [&bed.images.busybox, &bed.images.two, &bed.images.docker, &bed.images.zstd] {
        pull(&bed, &drayd, image, None).await?;
    }
    let messages = cri.stream(None).await?;
    ensure!(messages.iter().all(|images| !images.is_empty()), "a message without images: {messages:?}");
    let streamed = messages.concat();
    let listed = cri.list().await?;
    ensure!(streamed == listed && listed.len() == 4, "{streamed:#?} is streamed, {listed:#?} listed");
    let one = cri.stream(Some(&listed[0].id)).await?.concat();
    ensure!(one == listed[..1], "{one:?} is streamed by its id");
    Ok(())
}

async fn verbose(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, registry) = (drayd.cri(), Scripted::start().await?);
    let mut image = Image::new("verbose", 2, 4)?;
    let diff_ids = serde_json::to_string(&image.diff_ids)?;
    // Fields that drayd does not know, and a number that no machine has.
    let config = format!(
        "{{\"architecture\": \"{}\", \"os\": \"linux\", \"author\": \"somebody\", \"of.nobody\": {{\"a\": [1, null]}}, \
         \"large\": 123456789012345678901234567890, \"config\": {{\"User\": \"7:8\", \"Env\": [\"A=b\"], \
         \"Labels\": {{\"key\": \"value\"}}, \"StopSignal\": \"SIGQUIT\"}}, \"history\": [{{\"created_by\": \"hand\"}}], \
         \"rootfs\": {{\"type\": \"layers\", \"diff_ids\": {diff_ids}}}}}",
        image::architecture(),
    );
    image.config = Blob::new(CONFIG, config.clone().into_bytes());
    image.manifest = image.manifest_with(&image.config.descriptor());
    image.serve(&registry);
    let reference = image.reference(&registry);
    cri.pull(&reference, None, None).await?;
    let mut expected = vec!["overlayfs"];
    for handler in [None, Some(drayd_tests::containerd::NATIVE_HANDLER)] {
        if handler.is_some() {
            cri.pull(&reference, handler, None).await?;
            expected.insert(0, "native");
        }
        for name in [&reference, &image.config.digest] {
            let info = cri.image_info(name).await?;
            ensure!(info.len() == 1, "{info:?}");
            let text = info.get("info").context("no key `info`")?;
            ensure!(text.contains(&config), "the config is written otherwise in {text}");
            let info: Value = serde_json::from_str(text).context("it is no JSON")?;
            ensure!(info["chainID"] == image.top_chain_id(), "{text}");
            let mut snapshotters: Vec<&str> = info["snapshotters"]
                .as_array()
                .context("no list")?
                .iter()
                .filter_map(Value::as_str)
                .collect();
            snapshotters.sort_unstable();
            ensure!(snapshotters == expected, "{text}");
        }
    }
    let containerds = bed.containerd.cri().image_info(&reference).await?;
    let containerds: Value =
        serde_json::from_str(containerds.get("info").context("containerd has no info")?)?;
    ensure!(containerds["chainID"] == image.top_chain_id(), "{containerds}");
    ensure!(containerds["imageSpec"]["config"]["User"] == "7:8", "{containerds}");
    // Nothing is told without being asked for, and nothing of what is not there.
    ensure!(cri.image_info("nowhere.example/none:1").await?.is_empty(), "info of nothing");
    Ok(())
}
