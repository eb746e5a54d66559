//! The images in memory across the ends of drayd and of containerd.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drayd_proto::cri::Image;
use drayd_tests::bed::Bed;
use drayd_tests::containerd::NATIVE_HANDLER;
use drayd_tests::cri::Cri;
use drayd_tests::images::Descriptor;
use drayd_tests::layer::digest;
use drayd_tests::peers::Release;
use drayd_tests::stage::{self, Stage, pull};
use drayd_tests::suite::Suite;
use drayd_tests::wait;
use tonic::{Code, Status};

use crate::answers::LEFT_OUT;

/// A call that cannot be answered without containerd ends within this.
const SECONDS: Duration = Duration::from_secs(15);

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "restarts_of_drayd_and_of_containerd_lose_nothing", restarts);
    suite.check(
        release,
        "without_containerd_lists_are_unavailable_and_right_again_after_it",
        without_containerd,
    );
    suite.check(release, "what_changed_while_containerd_was_away_is_known_after_it", changed_meanwhile);
    suite.check(
        release,
        "an_odd_record_is_told_of_once_across_a_restart_and_can_be_removed",
        odd_across_restarts,
    );
}

async fn three(bed: &Bed, drayd: &drayd_tests::drayd::Drayd) -> Result<()> {
    for (image, handler) in
        [(&bed.images.two, None), (&bed.images.docker, Some(NATIVE_HANDLER)), (&bed.images.zstd, None)]
    {
        pull(bed, drayd, image, handler).await?;
    }
    Ok(())
}

async fn restarts(bed: Stage) -> Result<()> {
    let mut drayd = stage::bare(&bed).await?;
    three(&bed, &drayd).await?;
    let before = drayd.cri().list().await?;
    ensure!(before.len() == 3, "{before:#?}");
    let same = async |cri: Cri, after: &str| {
        let listed = listed_again(&cri).await?;
        ensure!(listed == before, "after {after}: {listed:#?}\nnot {before:#?}");
        for image in &before {
            let status = cri.image(&image.id).await?;
            ensure!(status.as_ref() == Some(image), "after {after}: {status:?}");
        }
        Ok(())
    };
    ensure!(drayd.terminate()?, "drayd did not end by itself");
    drayd = stage::start(&bed, "", &[])?;
    same(drayd.cri(), "a restart of drayd").await?;
    bed.containerd.restart().await?;
    same(drayd.cri(), "a restart of containerd").await?;
    drayd.kill()?;
    bed.containerd.kill()?;
    bed.containerd.restart().await?;
    drayd = stage::start(&bed, "", &[])?;
    same(drayd.cri(), "a crash of both").await
}

/// The list as soon as drayd is at containerd again.
async fn listed_again(cri: &Cri) -> Result<Vec<Image>> {
    let mut listed = Vec::new();
    wait::until("drayd is back at containerd", SECONDS, async || match cri.list().await {
        Ok(images) => {
            listed = images;
            Ok(true)
        }
        Err(status) if status.code() == Code::Unavailable => Ok(false),
        Err(status) => Err(status.into()),
    })
    .await?;
    Ok(listed)
}

/// How calls about images end, by name.
async fn outcomes(cri: &Cri, name: &str) -> [(&'static str, Result<(), Status>); 5] {
    let (listed, found, streamed, removed, space) =
        tokio::join!(cri.list(), cri.image(name), cri.stream(None), cri.remove(name), cri.images_on_disk());
    [
        ("ListImages", listed.map(drop)),
        ("ImageStatus", found.map(drop)),
        ("StreamImages", streamed.map(drop)),
        ("RemoveImage", removed),
        ("ImageFsInfo", space.map(drop)),
    ]
}

async fn without_containerd(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    three(&bed, &drayd).await?;
    let cri = drayd.cri();
    let before = cri.list().await?;
    let id = bed.images.two.config.digest.clone();
    bed.containerd.kill()?;
    let ended = tokio::time::timeout(SECONDS, outcomes(&cri, &id)).await;
    bed.containerd.restart().await?;
    for (call, outcome) in ended.context("calls wait for containerd without end")? {
        let status = outcome.err().with_context(|| format!("{call} is answered without containerd"))?;
        ensure!(status.code() == Code::Unavailable, "{call}: {status:?}");
    }
    let listed = listed_again(&cri).await?;
    ensure!(listed == before, "{listed:#?}\nnot {before:#?}");
    ensure!(cri.image(&id).await?.is_some(), "{id} is gone");
    Ok(())
}

async fn changed_meanwhile(bed: Stage) -> Result<()> {
    let mut drayd = stage::bare(&bed).await?;
    three(&bed, &drayd).await?;
    let (cri, probe) = (drayd.cri(), bed.containerd.probe());
    let (removed, tagged) = (&bed.images.two, &bed.images.zstd);
    // containerd's own CRI does it while drayd stands still, and is gone before drayd goes on.
    let frozen = drayd.freeze()?;
    bed.containerd.cri().remove(&removed.config.digest).await?;
    probe.tag("docker.io/library/meanwhile:1", &tagged.target).await?;
    bed.containerd.restart().await?;
    drop(frozen);
    let status = async || match cri.image("meanwhile:1").await {
        Ok(found) => Ok(found.is_some_and(|image| image.id == tagged.config.digest)),
        Err(status) if status.code() == Code::Unavailable => Ok(false),
        Err(status) => Err(status.into()),
    };
    wait::until("drayd is back at containerd and knows the new name", SECONDS, status).await?;
    let listed: Vec<String> = cri.list().await?.into_iter().map(|image| image.id).collect();
    ensure!(listed.len() == 2 && !listed.contains(&removed.config.digest), "{listed:?}");
    ensure!(cri.image(&removed.config.digest).await?.is_none(), "an image that was removed is shown");
    Ok(())
}

async fn odd_across_restarts(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, probe) = (drayd.cri(), bed.containerd.probe());
    pull(&bed, &drayd, &bed.images.docker, None).await?;
    let blobless =
        Descriptor { digest: digest(b"a manifest that nobody has"), ..bed.images.two.target.clone() };
    let names = ["lost.example/app:1", "lost.example/app:2", "lost.example/other:1"];
    for name in names {
        probe.tag(name, &blobless).await?;
    }
    for _ in 0..2 {
        ensure!(cri.list().await?.len() == 1, "{:#?}", cri.list().await?);
        bed.containerd.restart().await?;
        let listed = listed_again(&cri).await?;
        ensure!(listed.len() == 1, "{listed:#?}");
    }
    let events = drayd.events();
    for name in names {
        let told = events.iter().filter(|event| event.message() == LEFT_OUT && event.text("name") == name);
        let told: Vec<_> = told.collect();
        ensure!(told.len() == 1, "of {name} is told {} times: {told:#?}", told.len());
    }
    cri.remove(names[0]).await?;
    let left: Vec<String> = probe.state().await?.images.into_keys().collect();
    ensure!(left.iter().all(|name| !names.contains(&name.as_str())), "left after the removal: {left:?}");
    ensure!(cri.list().await?.len() == 1, "the other image went, too");
    Ok(())
}
