//! Garbage collection: it takes nothing that is needed, at any time, and everything once it is not.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drayd_tests::containerd::{NATIVE_HANDLER, NYDUS_HANDLER, RUNC_HANDLER};
use drayd_tests::images::{Image, greeting};
use drayd_tests::peers::Release;
use drayd_tests::probe::State;
use drayd_tests::suite::Suite;
use drayd_tests::throttle::Throttle;
use drayd_tests::wait;
use tonic::Code;

use crate::stage::{self, SOON, Stage, begin, big, pull, under_way, wire_size};

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "what_was_pulled_survives_a_collection_and_runs", what_was_pulled_survives);
    suite.check(release, "a_removed_image_leaves_the_store_as_it_was", a_removed_image_leaves_nothing);
    suite.check(release, "a_pull_survives_collections_all_the_way", a_pull_survives_collections);
    suite.check(release, "a_pull_that_outlives_its_lease_loses_nothing", outlived_lease);
    suite.check(release, "a_pull_one_of_whose_leases_is_deleted_renews_the_others", deleted_lease);
    suite.check(release, "what_a_crashed_drayd_left_goes_when_its_lease_expires", expired_lease);
    suite.check(release, "leases_of_others_and_of_running_pulls_stay", other_leases);
    suite.check(
        release,
        "an_image_that_is_removed_while_it_is_pulled_is_whole_or_not_there",
        removed_meanwhile,
    );
    suite.check(release, "layers_that_are_not_kept_go_and_the_image_runs", layers_that_are_not_kept);
    suite.check(
        release,
        "an_image_that_the_differ_cannot_unpack_fails_and_leaves_nothing",
        an_image_that_the_differ_cannot_unpack,
    );
}

/// Handlers of all snapshotters.
const HANDLERS: [Option<&str>; 3] = [None, Some(NATIVE_HANDLER), Some(NYDUS_HANDLER)];

async fn what_was_pulled_survives(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let probe = bed.containerd.probe();
    pull(&bed, &drayd, &bed.images.pause, None).await?;
    for handler in HANDLERS {
        pull(&bed, &drayd, &bed.images.two, handler).await?;
    }
    let id = pull(&bed, &drayd, &bed.images.busybox, None).await?;
    let before = probe.state().await?;
    ensure!(
        before.leases.is_empty() && before.ingests.is_empty(),
        "left: {:?} {:?}",
        before.leases,
        before.ingests
    );
    probe.force_gc().await?;
    stage::unchanged(&bed, &before, "a collection took something").await?;
    let mark = bed.registry.mark();
    let printed = bed.containerd.cri().run_pod(&id, RUNC_HANDLER, bed.run()).await?;
    ensure!(printed == greeting(), "the container printed {printed:?}");
    ensure!(bed.registry.requests_since(mark).is_empty(), "something was pulled again");
    Ok(())
}

async fn a_removed_image_leaves_nothing(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let before = bed.containerd.probe().state().await?;
    for image in [&bed.images.busybox, &bed.images.two, &bed.images.dup] {
        for handler in HANDLERS {
            pull(&bed, &drayd, image, handler).await?;
        }
        let digest = image.digest_reference(bed.registry.address());
        drayd.cri().pull(&digest, None, None).await.with_context(|| format!("cannot pull {digest}"))?;
        drayd.cri().remove(&image.reference(bed.registry.address())).await?;
        bed.containerd.probe().force_gc().await?;
        stage::unchanged(&bed, &before, &format!("{} left something", image.name)).await?;
    }
    Ok(())
}

async fn a_pull_survives_collections(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let probe = bed.containerd.probe();
    let image = big(&bed, 8, 3)?;
    let throttle = Throttle::start(bed.registry.address(), 4 << 20).await?;
    let pulling = begin(&drayd.cri(), &image.reference(throttle.address()));
    let mut during = 0;
    while !pulling.is_finished() {
        probe.force_gc().await?;
        during += 1;
    }
    let id = pulling.await?.context("a collection broke the pull")?;
    ensure!(id == image.config.digest && during > 5, "{id} after {during} collections");
    let state = probe.state().await?;
    probe.force_gc().await?;
    stage::unchanged(&bed, &state, "a collection took something").await?;
    for layer in &image.layers {
        ensure!(state.content.contains_key(&layer.blob.digest), "{} is gone", layer.blob.digest);
    }
    ensure!(state.snapshot("overlayfs", &image.top_chain_id()).is_some(), "the top snapshot is gone");
    Ok(())
}

/// Fault 131.
async fn outlived_lease(bed: Stage) -> Result<()> {
    let drayd = stage::configured(&bed, "[pull]\nlease_lifetime = \"5s\"\n", &[]).await?;
    let probe = bed.containerd.probe();
    let image = big(&bed, 8, 2)?;
    // Each layer takes longer than a lease lasts, and the whole pull than three of them do.
    let throttle = Throttle::start(bed.registry.address(), wire_size(&image) / 20).await?;
    let pulling = begin(&drayd.cri(), &image.reference(throttle.address()));
    let mut leases = BTreeSet::new();
    while !pulling.is_finished() {
        probe.force_gc().await?;
        leases.extend(probe.state().await?.leases.into_keys());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let id = pulling.await?.context("the lease ran out under the pull")?;
    ensure!(id == image.config.digest && leases.len() > 4, "{id} after the leases {leases:?}");
    let wire = throttle.passed();
    ensure!(wire < wire_size(&image) + 64_000, "{wire} bytes for {}", wire_size(&image));
    let state = probe.state().await?;
    ensure!(
        state.leases.is_empty() && state.ingests.is_empty(),
        "left: {:?} {:?}",
        state.leases,
        state.ingests
    );
    probe.force_gc().await?;
    stage::unchanged(&bed, &state, "a collection took something").await?;
    for layer in &image.layers {
        ensure!(state.content.contains_key(&layer.blob.digest), "{} is gone", layer.blob.digest);
    }
    ensure!(state.snapshot("overlayfs", &image.top_chain_id()).is_some(), "the top snapshot is gone");
    Ok(())
}

/// Fault 131.
async fn deleted_lease(bed: Stage) -> Result<()> {
    let drayd = stage::configured(&bed, "[pull]\nlease_lifetime = \"5s\"\n", &[]).await?;
    let probe = bed.containerd.probe();
    let image = big(&bed, 8, 1)?;
    let throttle = Throttle::start(bed.registry.address(), wire_size(&image) / 40).await?;
    let pulling = begin(&drayd.cri(), &image.reference(throttle.address()));
    let leases = async || anyhow::Ok(probe.state().await?.leases.into_keys().collect::<BTreeSet<_>>());
    let renewed = async |known: &BTreeSet<String>| {
        wait::until("there is a next lease", 2 * SOON, async || Ok(!leases().await?.is_subset(known))).await
    };
    wait::until("the pull has a lease", SOON, async || Ok(leases().await?.len() == 1)).await?;
    let mut known = leases().await?;
    for _ in 0..3 {
        renewed(&known).await?;
        for former in leases().await?.intersection(&known) {
            probe.delete_lease(former).await?;
        }
        known.extend(leases().await?);
    }
    renewed(&known).await?;
    let newest: BTreeSet<_> = leases().await?.difference(&known).cloned().collect();
    for lease in &newest {
        probe.delete_lease(lease).await?;
    }
    known.extend(newest);
    renewed(&known).await?;
    ensure!(!pulling.is_finished(), "the pull was over before; slow it down");
    throttle.set_rate(0);
    let id = pulling.await?.context("the pull needed a lease that was deleted")?;
    ensure!(id == image.config.digest, "the pull got {id}");
    wait::until("no lease is left", SOON, async || Ok(leases().await?.is_empty())).await
}

async fn expired_lease(bed: Stage) -> Result<()> {
    let mut drayd = stage::configured(&bed, "[pull]\nlease_lifetime = \"5s\"\n", &[]).await?;
    let probe = bed.containerd.probe();
    let before = probe.state().await?;
    let image = big(&bed, 8, 2)?;
    let throttle = Throttle::start(bed.registry.address(), wire_size(&image) / 20).await?;
    let pulling = begin(&drayd.cri(), &image.reference(throttle.address()));
    under_way(&throttle, wire_size(&image) / 8).await?;
    wait::until("the lease was renewed", SOON, async || Ok(probe.state().await?.leases.len() == 2)).await?;
    drayd.kill()?;
    ensure!(pulling.await?.is_err(), "the pull outlived drayd");
    let left = probe.state().await?.difference_from(&before);
    ensure!(!left.is_empty(), "nothing was left that could expire");
    wait::until("what was left is gone", 2 * SOON, async || {
        probe.force_gc().await?;
        Ok(probe.state().await?.difference_from(&before).is_empty())
    })
    .await
}

/// Fault 129.
async fn other_leases(bed: Stage) -> Result<()> {
    const FOREIGN: &str = "somebody-elses";
    let mut crashed = stage::bare(&bed).await?;
    let probe = bed.containerd.probe();
    probe.make_lease(FOREIGN).await?;
    let image = big(&bed, 8, 2)?;
    let throttle = Throttle::start(bed.registry.address(), 4 << 20).await?;
    let reference = image.reference(throttle.address());
    let pulling = begin(&crashed.cri(), &reference);
    under_way(&throttle, 1 << 20).await?;
    crashed.kill()?;
    ensure!(pulling.await?.is_err(), "the pull outlived drayd");
    let others: BTreeSet<String> = probe.state().await?.leases.into_keys().collect();
    ensure!(others.len() == 2 && others.contains(FOREIGN), "{others:?}");

    drop(crashed);
    let mut drayd = stage::start(&bed, "", &[])?;
    pull(&bed, &drayd, &bed.images.two, None).await?;
    throttle.set_rate(1 << 20);
    let passed = throttle.passed();
    let pulling = begin(&drayd.cri(), &reference);
    under_way(&throttle, passed + (1 << 20)).await?;
    // Each of these ends with a collection.
    drayd.cri().remove(&bed.images.two.config.digest).await?;
    probe.force_gc().await?;
    let held: BTreeSet<String> = probe.state().await?.leases.into_keys().collect();
    ensure!(held.len() == 3 && held.is_superset(&others), "{held:?}, not {others:?} and one more");
    ensure!(!pulling.is_finished(), "the pull was over before; slow it down");
    throttle.set_rate(0);
    let id = pulling.await?.context("the pull lost its work")?;
    ensure!(id == image.config.digest, "the pull got {id}");
    ensure!(drayd.terminate()?, "drayd had to be killed");
    let left: BTreeSet<String> = probe.state().await?.leases.into_keys().collect();
    ensure!(left == others, "{left:?}, not {others:?}");
    for lease in others {
        probe.delete_lease(&lease).await?;
    }
    Ok(())
}

/// How far a pull has come, by what containerd has of it.
#[derive(Debug)]
enum Progress {
    /// Not even begun.
    Nothing,
    /// Its lease is made.
    Lease,
    /// A blob is there.
    Blob(String),
    /// A layer is unpacked.
    Snapshot(String),
    /// A record is written.
    Record(String),
}

impl Progress {
    fn all(image: &Image, reference: &str) -> Vec<Self> {
        let repository = reference.rsplit_once(':').map_or(reference, |(repository, _)| repository);
        let by_digest = format!("{repository}@{}", image.target.digest);
        let blobs = [&image.manifest, &image.config].into_iter();
        let blobs = blobs.chain(image.layers.iter().map(|layer| &layer.blob));
        let mut all = vec![Self::Nothing, Self::Lease];
        all.extend(blobs.map(|blob| Self::Blob(blob.digest.clone())));
        all.extend(image.chain_ids().into_iter().map(Self::Snapshot));
        let records = [by_digest, image.config.digest.clone(), reference.to_owned()];
        all.extend(records.into_iter().map(Self::Record));
        all
    }

    fn is_made(&self, state: &State, reference: &str) -> bool {
        match self {
            Self::Nothing => true,
            Self::Lease => state
                .leases
                .values()
                .any(|labels| labels.get("drayd.io/reference").is_some_and(|noted| noted == reference)),
            Self::Blob(digest) => state.content.contains_key(digest),
            Self::Snapshot(chain_id) => state.snapshot("overlayfs", chain_id).is_some(),
            Self::Record(name) => state.images.contains_key(name),
        }
    }
}

/// Fault 130.
async fn removed_meanwhile(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (probe, cri) = (bed.containerd.probe(), drayd.cri());
    // They share their lowest layer.
    let (image, sibling) = (&bed.images.busybox, &bed.images.two);
    // Slow enough that each blob is seen to come.
    let throttle = Throttle::start(bed.registry.address(), wire_size(image)).await?;
    let reference = image.reference(throttle.address());
    for round in Progress::all(image, &reference) {
        let pulling = begin(&cri, &reference);
        let (removed, other) = tokio::join!(
            async {
                while !pulling.is_finished() && !round.is_made(&probe.state().await?, &reference) {}
                cri.remove(&reference).await?;
                anyhow::Ok(cri.remove(&image.config.digest).await?)
            },
            pull(&bed, &drayd, sibling, None)
        );
        removed.with_context(|| format!("{round:?}: the removal failed"))?;
        other.with_context(|| format!("{round:?}: the other pull failed"))?;
        if let Err(status) = pulling.await? {
            ensure!(status.code() == Code::Aborted, "{round:?}: {status:?}");
        }
        probe.force_gc().await?;
        let state = probe.state().await?;
        ensure!(state.leases.is_empty(), "{round:?}: {:?}", state.leases);
        let mut listed: Vec<String> = cri.list().await?.into_iter().map(|listed| listed.id).collect();
        listed.extend(bed.containerd.cri().list().await?.into_iter().map(|listed| listed.id));
        ensure!(listed.contains(&sibling.config.digest), "{round:?}: {listed:?}");
        for image in [image, sibling].into_iter().filter(|image| listed.contains(&image.config.digest)) {
            let blobs = image.layers.iter().map(|layer| &layer.blob).chain([&image.manifest, &image.config]);
            for blob in blobs {
                let there = state.content.contains_key(&blob.digest);
                ensure!(there, "{round:?}: {} is listed without {}", image.name, blob.digest);
            }
            for chain_id in image.chain_ids() {
                let there = state.snapshot("overlayfs", &chain_id).is_some();
                ensure!(there, "{round:?}: {} is listed without {chain_id}", image.name);
            }
        }
        cri.remove(&sibling.config.digest).await?;
    }
    pull(&bed, &drayd, image, None).await?;
    Ok(())
}

async fn layers_that_are_not_kept(bed: Stage) -> Result<()> {
    let drayd = stage::configured(&bed, "[unpack]\nkeep_layers = false\n", &[]).await?;
    pull(&bed, &drayd, &bed.images.pause, None).await?;
    let image = &bed.images.busybox;
    let id = pull(&bed, &drayd, image, None).await?;
    bed.containerd.probe().force_gc().await?;
    let state = bed.containerd.probe().state().await?;
    for layer in &image.layers {
        ensure!(!state.content.contains_key(&layer.blob.digest), "{} is still there", layer.blob.digest);
    }
    for document in [&image.manifest, &image.config] {
        ensure!(state.content.contains_key(&document.digest), "{} is gone", document.digest);
    }
    let mark = bed.registry.mark();
    let printed = bed.containerd.cri().run_pod(&id, RUNC_HANDLER, bed.run()).await?;
    ensure!(printed == greeting(), "the container printed {printed:?}");
    ensure!(bed.registry.requests_since(mark).is_empty(), "something was pulled again");
    Ok(())
}

async fn an_image_that_the_differ_cannot_unpack(bed: Stage) -> Result<()> {
    drop(stage::bare(&bed).await?);
    let drayd = stage::configured(&bed, "[unpack]\nengine = \"differ\"\n", &[]).await?;
    let before = bed.containerd.probe().state().await?;
    let reference = bed.images.links.reference(bed.registry.address());
    let pulled = drayd.cri().pull(&reference, None, None).await;
    let status = pulled.err().context("containerd's differ can do it now")?;
    let layer = &bed.images.links.layers[1].blob.digest;
    ensure!(status.message().contains(layer) && status.message().contains("overlayfs"), "{status:?}");
    stage::unchanged(&bed, &before, "the failed pull left something").await
}
