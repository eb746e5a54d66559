//! The unpacked filesystem equals the one that containerd's own pull makes.

use std::env;

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::containerd::NATIVE_HANDLER;
use drayd_tests::drayd::Drayd;
use drayd_tests::images::{self, Image, NASTY_UNDATED};
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;
use drayd_tests::tree::Tree;

use crate::direct;
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
            trees_are_equal(&bed, engine, images.map(known), None, "overlayfs").await
        });
        if release.maps_handlers() {
            suite.check(release, &format!("{sentence}_on_native"), async move |bed: Stage| {
                let images = bed.images.all().into_iter().map(known);
                trees_are_equal(&bed, engine, images, Some(NATIVE_HANDLER), "native").await
            });
        }
    }
    suite.check(
        release,
        "the_direct_engine_makes_containerds_trees_of_stacks_at_random",
        async |bed: Stage| random_trees_are_equal(&bed, None, "overlayfs").await,
    );
    let sentence = "the_direct_engine_takes_and_refuses_hostile_layers_as_containerd_does";
    suite.check(release, sentence, async |bed: Stage| hostile_layers(&bed, None, "overlayfs").await);
    if release.maps_handlers() {
        let sentence = "the_direct_engine_takes_and_refuses_hostile_layers_as_containerd_does_on_native";
        suite.check(release, sentence, async |bed: Stage| {
            hostile_layers(&bed, Some(NATIVE_HANDLER), "native").await
        });
        let sentence =
            "a_hard_link_into_a_lower_layer_is_on_an_overlay_what_containerd_makes_of_it_on_native";
        suite.check(release, sentence, link_into_a_lower_layer);
        let sentence = "the_direct_engine_makes_containerds_trees_of_stacks_at_random_on_native";
        suite.check(release, sentence, async |bed: Stage| {
            random_trees_are_equal(&bed, Some(NATIVE_HANDLER), "native").await
        });
    }
}

/// An image, with the directories whose time no unpacking can know.
type Known<'a> = (&'a Image, Vec<&'a str>);

fn known(image: &Image) -> Known<'_> {
    (image, NASTY_UNDATED.to_vec())
}

/// Images of random stacks, each of a seed of its own: `DRAYD_TEST_RANDOM_SEEDS`, as `100..200`, names others than the
/// few that always run.
async fn random_trees_are_equal(bed: &Bed, handler: Option<&str>, snapshotter: &str) -> Result<()> {
    let seeds = match env::var("DRAYD_TEST_RANDOM_SEEDS") {
        Err(_) => 0..2,
        Ok(text) => {
            let (first, end) = text.split_once("..").context("DRAYD_TEST_RANDOM_SEEDS is no range")?;
            first.parse()?..end.parse()?
        }
    };
    for seed in seeds {
        let (image, undated) = images::random(seed)?;
        image.push(bed.registry.address())?;
        let image = [(&image, undated.iter().map(String::as_str).collect())];
        trees_are_equal(bed, DIRECT, image.into_iter(), handler, snapshotter).await?;
    }
    Ok(())
}

/// Both pull each image or neither does, and to the same tree. What is refused leaves nothing.
async fn hostile_layers(bed: &Bed, handler: Option<&str>, snapshotter: &str) -> Result<()> {
    let drayd = stage::configured(bed, direct::DIRECT, &[]).await?;
    let (probe, containerd) = (bed.containerd.probe(), bed.containerd.cri());
    let before = probe.state().await?;
    let (images, undated) = images::hostile()?;
    let (mut failures, mut refused) = (Vec::new(), 0);
    for image in &images {
        image.push(bed.registry.address())?;
        let reference = image.reference(bed.registry.address());
        let mut outcomes = Vec::new();
        for cri in [drayd.cri(), containerd.clone()] {
            let pulled = cri.pull(&reference, handler, None).await;
            outcomes.push(match pulled {
                Ok(_) => Ok(tree(bed, image, &undated, snapshotter).await?),
                Err(status) => Err(status.message().to_owned()),
            });
            if outcomes.len() == 1 && outcomes[0].is_err() {
                refused += 1;
                stage::unchanged(bed, &before, &image.name).await?;
            }
            containerd.remove(&image.config.digest).await?;
            probe.force_gc().await?;
        }
        match outcomes.as_slice() {
            [Ok(ours), Ok(theirs)] => failures.extend(
                ours.difference_from(theirs).into_iter().map(|line| format!("{}: {line}", image.name)),
            ),
            [Err(_), Err(_)] => {}
            [ours, theirs] => {
                let error = |outcome: &Result<Tree, String>| outcome.as_ref().err().cloned();
                failures.push(format!("{}: {:?} but {:?}", image.name, error(ours), error(theirs)));
            }
            _ => unreachable!("two outcomes"),
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    ensure!(refused > 3 && refused < images.len() - 3, "{refused} of {} were refused", images.len());
    Ok(())
}

/// Fault 100.
async fn link_into_a_lower_layer(bed: Stage) -> Result<()> {
    let drayd = stage::configured(&bed, direct::DIRECT, &[]).await?;
    let image = &bed.images.links;
    pull(&bed, &drayd, image, None).await?;
    let reference = image.reference(bed.registry.address());
    bed.containerd.cri().pull(&reference, Some(NATIVE_HANDLER), None).await?;
    let overlay = tree(&bed, image, &["."], "overlayfs").await?.without_directory_times();
    let native = tree(&bed, image, &["."], "native").await?;
    let difference = overlay.difference_from(&native);
    ensure!(difference.is_empty(), "the trees differ:\n{}", difference.join("\n"));
    ensure!(overlay.get("hard/two").is_some_and(|file| file.links == 2), "{overlay:?}");
    Ok(())
}

async fn trees_are_equal<'a>(
    bed: &Bed,
    engine: &str,
    images: impl Iterator<Item = Known<'a>>,
    handler: Option<&str>,
    snapshotter: &str,
) -> Result<()> {
    let drayd = stage::configured(bed, &format!("[unpack]\nengine = \"{engine}\"\n"), &[]).await?;
    let mut layers = 0;
    let (probe, containerd) = (bed.containerd.probe(), bed.containerd.cri());
    for (image, undated) in images {
        let name = &image.name;
        pull(bed, &drayd, image, handler).await?;
        let of_drayd = tree(bed, image, &undated, snapshotter).await?;
        layers += image.layers.len();
        drayd.cri().remove(&image.config.digest).await?;
        probe.force_gc().await?;
        ensure!(probe.state().await?.snapshot(snapshotter, &image.chain_ids()[0]).is_none(), "{name} stays");
        let pulled = containerd.pull(&image.reference(bed.registry.address()), handler, None).await;
        pulled.with_context(|| format!("containerd cannot pull {name}"))?;
        let of_containerd = tree(bed, image, &undated, snapshotter).await?;
        containerd.remove(&image.config.digest).await?;
        probe.force_gc().await?;
        ensure!(of_drayd.entries.len() > 3, "{name} is empty: {of_drayd:?}");
        let difference = of_drayd.difference_from(&of_containerd);
        ensure!(difference.is_empty(), "{name} differs:\n{}", difference.join("\n"));
    }
    let directly = written_directly(&drayd);
    // A layer may be unpacked for another image that drayd looks after.
    let expected = if engine == DIRECT { directly >= layers } else { directly == 0 };
    ensure!(expected, "{directly} layers were written directly, and {layers} by the images");
    Ok(())
}

/// How many layers drayd has written without containerd's differ.
fn written_directly(drayd: &Drayd) -> usize {
    drayd.events().iter().filter(|event| direct::is_direct(event)).count()
}

/// The tree without what two unpackings never have in common.
pub(crate) async fn tree(bed: &Bed, image: &Image, undated: &[&str], snapshotter: &str) -> Result<Tree> {
    let tree = Tree::of(&bed.containerd.probe(), snapshotter, &image.top_chain_id(), bed.run()).await?;
    let dated = tree.without_times_of(undated);
    Ok(if snapshotter == "native" { dated.without_directory_times() } else { dated })
}
