//! The unpacked filesystem equals the one that containerd's own pull makes.

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::containerd::NATIVE_HANDLER;
use drayd_tests::images::{Image, NASTY_UNDATED};
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;
use drayd_tests::tree::Tree;

use crate::stage::{self, Stage, pull};

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "the_tree_of_every_image_is_containerds_own", async |bed: Stage| {
        // The differ cannot make the hard link of this one on an overlay, whoever asks.
        let links = &bed.images.links.name;
        let images = bed.images.all().into_iter().filter(|image| image.name != *links);
        trees_are_equal(&bed, images, None, "overlayfs").await
    });
    if release.maps_handlers() {
        suite.check(release, "the_tree_of_every_image_is_containerds_own_on_native", async |bed: Stage| {
            trees_are_equal(&bed, bed.images.all().into_iter(), Some(NATIVE_HANDLER), "native").await
        });
    }
}

async fn trees_are_equal(
    bed: &Bed,
    images: impl Iterator<Item = &Image>,
    handler: Option<&str>,
    snapshotter: &str,
) -> Result<()> {
    let drayd = stage::bare(bed).await?;
    let (probe, containerd) = (bed.containerd.probe(), bed.containerd.cri());
    for image in images {
        let name = &image.name;
        pull(bed, &drayd, image, handler).await?;
        let of_drayd = tree(bed, image, snapshotter).await?;
        drayd.cri().remove(&image.config.digest).await?;
        probe.force_gc().await?;
        ensure!(probe.state().await?.snapshot(snapshotter, &image.chain_ids()[0]).is_none(), "{name} stays");
        let pulled = containerd.pull(&image.reference(bed.registry.address()), handler, None).await;
        pulled.with_context(|| format!("containerd cannot pull {name}"))?;
        let of_containerd = tree(bed, image, snapshotter).await?;
        containerd.remove(&image.config.digest).await?;
        probe.force_gc().await?;
        ensure!(of_drayd.entries.len() > 3, "{name} is empty: {of_drayd:?}");
        let difference = of_drayd.difference_from(&of_containerd);
        ensure!(difference.is_empty(), "{name} differs:\n{}", difference.join("\n"));
    }
    Ok(())
}

/// The tree without what two unpackings never have in common.
async fn tree(bed: &Bed, image: &Image, snapshotter: &str) -> Result<Tree> {
    let tree = Tree::of(&bed.containerd.probe(), snapshotter, &image.top_chain_id(), bed.run()).await?;
    let dated = tree.without_times_of(&NASTY_UNDATED);
    Ok(if snapshotter == "native" { dated.without_directory_times() } else { dated })
}
