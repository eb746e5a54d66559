//! The unpacked filesystem equals the one that containerd's own pull makes.

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::containerd::NATIVE_HANDLER;
use drayd_tests::drayd::Drayd;
use drayd_tests::images::{Image, NASTY_UNDATED};
use drayd_tests::log::Event;
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;
use drayd_tests::tree::Tree;

use crate::stage::{self, Stage, pull};

/// The engines by their names in the configuration.
const DIFFER: &str = "differ";
const DIRECT: &str = "direct";

pub(crate) fn add(suite: &mut Suite, release: Release) {
    for (engine, sentence) in [
        (DIFFER, "the_tree_of_every_image_is_containerds_own"),
        (DIRECT, "the_tree_that_the_direct_engine_makes_of_every_image_is_containerds_own"),
    ] {
        suite.check(release, sentence, async move |bed: Stage| {
            // The differ cannot make the hard link of this one on an overlay, whoever asks.
            let links = &bed.images.links.name;
            let images = bed.images.all().into_iter().filter(|image| image.name != *links);
            trees_are_equal(&bed, engine, images, None, "overlayfs").await
        });
        if release.maps_handlers() {
            suite.check(release, &format!("{sentence}_on_native"), async move |bed: Stage| {
                let images = bed.images.all().into_iter();
                trees_are_equal(&bed, engine, images, Some(NATIVE_HANDLER), "native").await
            });
        }
    }
}

async fn trees_are_equal(
    bed: &Bed,
    engine: &str,
    images: impl Iterator<Item = &Image>,
    handler: Option<&str>,
    snapshotter: &str,
) -> Result<()> {
    let drayd = stage::configured(bed, &format!("[unpack]\nengine = \"{engine}\"\n"), &[]).await?;
    let mut layers = 0;
    let (probe, containerd) = (bed.containerd.probe(), bed.containerd.cri());
    for image in images {
        let name = &image.name;
        pull(bed, &drayd, image, handler).await?;
        let of_drayd = tree(bed, image, snapshotter).await?;
        layers += image.layers.len();
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
    let directly = written_directly(&drayd);
    let expected = if engine == DIRECT { layers } else { 0 };
    ensure!(directly == expected, "{directly} of {layers} layers were written directly, not {expected}");
    Ok(())
}

/// How many layers drayd has written without containerd's differ.
fn written_directly(drayd: &Drayd) -> usize {
    let directly = |event: &Event| event.message() == "a layer is written directly";
    drayd.events().iter().filter(|event| directly(event)).count()
}

/// The tree without what two unpackings never have in common.
async fn tree(bed: &Bed, image: &Image, snapshotter: &str) -> Result<Tree> {
    let tree = Tree::of(&bed.containerd.probe(), snapshotter, &image.top_chain_id(), bed.run()).await?;
    let dated = tree.without_times_of(&NASTY_UNDATED);
    Ok(if snapshotter == "native" { dated.without_directory_times() } else { dated })
}
