//! What a pull writes down equals what containerd's own pull does: names, targets, labels.

use std::mem;

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::cri::Cri;
use drayd_tests::peers::Release;
use drayd_tests::probe::{Labels, State};
use drayd_tests::suite::Suite;
use drayd_tests::wait;

use crate::stage::{self, SOON, Stage};

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "the_records_of_a_pull_are_containerds_own", the_records_are_equal);
}

/// Set by drayd on every release, as by containerd itself from 2.3 on: how layers stand on one another.
const STACK: [&str; 2] = ["containerd.io/snapshot/diff-id", "containerd.io/snapshot/parent-chain-id"];
/// Begins the labels that containerd sets where its configuration asks for annotations of snapshots: in this bed for
/// all snapshotters up to 1.7, and from 2.1 on for nydus only. drayd always sets them.
const ANNOTATIONS: &str = "containerd.io/snapshot/cri.";
/// Begins the labels of a config that keep the image's snapshots, one for each snapshotter.
const SNAPSHOT_REF: &str = "containerd.io/gc.ref.snapshot.";
/// On the records of the sandbox image: kubelet must not collect it.
const PINNED: &str = "io.cri-containerd.pinned";

async fn the_records_are_equal(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (registry, images) = (bed.registry.address(), &bed.images);
    let all = images.all().into_iter().filter(|image| image.name != images.links.name);
    let mut references: Vec<String> = all.map(|image| image.reference(registry)).collect();
    references.push(images.two.digest_reference(registry));
    references.push(images.docker.digest_reference(registry));
    for reference in references {
        let pulled = drayd.cri().pull(&reference, None, None).await;
        pulled.with_context(|| format!("drayd cannot pull {reference}"))?;
        if reference == images.pause.reference(registry) {
            the_sandbox_image_is_pinned(&bed, &drayd.cri(), &reference).await?;
        }
        let mut of_drayd = taken(&bed).await?;
        if reference == images.pause.reference(registry) {
            only_in_overlayfs(&mut of_drayd)?;
        }
        let mut snapshots = of_drayd.snapshots["overlayfs"].values();
        ensure!(
            snapshots.all(|snapshot| snapshot.labels.contains_key(STACK[0])),
            "{:#?}",
            of_drayd.snapshots
        );

        let pulled = bed.containerd.cri().pull(&reference, None, None).await;
        pulled.with_context(|| format!("containerd cannot pull {reference}"))?;
        let of_containerd = taken(&bed).await?;
        let [expected, found] =
            [of_containerd, of_drayd].map(|state| compared(state, bed.containerd.release()));
        let difference = found.difference_from(&expected);
        ensure!(difference.is_empty(), "{reference} has (+), not (-):\n{}", difference.join("\n"));
    }
    Ok(())
}

/// Takes off what drayd does for the sandbox image alone, and containerd for none: it is in all snapshotters.
fn only_in_overlayfs(state: &mut State) -> Result<()> {
    for snapshotter in ["native", "nydus"] {
        let snapshots = state.snapshots.get_mut(snapshotter).map(mem::take).unwrap_or_default();
        ensure!(!snapshots.is_empty(), "the sandbox image is not in {snapshotter}");
    }
    for labels in state.content.values_mut() {
        labels.retain(|key, _| !key.starts_with(SNAPSHOT_REF) || key.ends_with(".overlayfs"));
    }
    Ok(())
}

/// Where containerd tells what its sandbox image is, drayd pins; 2.x does not tell, and pins by itself.
async fn the_sandbox_image_is_pinned(bed: &Bed, cri: &Cri, reference: &str) -> Result<()> {
    wait::until("the records of the sandbox image are pinned", SOON, async || {
        let pinned = |labels: &Labels| labels.get(PINNED).is_some_and(|value| value == "pinned");
        let images = bed.containerd.probe().state().await?.images;
        let expected = if bed.containerd.release() == Release::V2_1 { 2 } else { 3 };
        Ok(images.values().filter(|(_, labels)| pinned(labels)).count() == expected)
    })
    .await?;
    let shown = cri.image(reference).await?;
    ensure!(shown.as_ref().is_some_and(|image| image.pinned), "not shown as pinned: {shown:?}");
    Ok(())
}

/// What is stored now; then everything is removed.
async fn taken(bed: &Bed) -> Result<State> {
    let state = bed.containerd.probe().state().await?;
    bed.bare().await?;
    Ok(state)
}

/// The state without what is meant to differ.
fn compared(mut state: State, release: Release) -> State {
    for snapshot in state.snapshots.values_mut().flat_map(|snapshots| snapshots.values_mut()) {
        snapshot.labels.retain(|key, _| {
            let annotation = release == Release::V2_1 && key.starts_with(ANNOTATIONS);
            !annotation && !STACK.contains(&key.as_str())
        });
    }
    for (name, (_, labels)) in &mut state.images {
        // containerd 1.6 pins from 1.6.22 on, which this bed's is not; 2.x, pinning what drayd pulled, knows nothing
        // of the record by digest.
        if release == Release::V1_6 || (release == Release::V2_1 && name.contains('@')) {
            labels.remove(PINNED);
        }
    }
    state
}
