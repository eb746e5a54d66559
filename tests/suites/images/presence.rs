//! An image is there for a pod if it is unpacked where that pod will run; kubelet pulls what is not there.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use drayd_proto::cri::ImageSpec;
use drayd_tests::bed::Bed;
use drayd_tests::containerd::{NATIVE_HANDLER, NYDUS_HANDLER, PLAIN_HANDLER, RUNC_HANDLER};
use drayd_tests::cri::{Cri, HANDLER_ANNOTATION};
use drayd_tests::images::{Image, greeting};
use drayd_tests::launch::Launch;
use drayd_tests::peers::Release;
use drayd_tests::stage::{self, SOON, Stage, pull};
use drayd_tests::suite::Suite;
use drayd_tests::wait;
use tonic::{Code, Status};

/// On every pod of kubelet's.
const OF_EVERY_POD: (&str, &str) = ("kubernetes.io/config.source", "api");
/// Handlers of all snapshotters.
const PLACES: [(Option<&str>, &str); 3] =
    [(None, "overlayfs"), (Some(NATIVE_HANDLER), "native"), (Some(NYDUS_HANDLER), "nydus")];

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "an_image_is_there_for_a_handler_once_it_was_pulled_for_it", async |bed: Stage| {
        any_order(&bed, "").await
    });
    suite.check(release, "the_same_where_layers_are_not_kept", async |bed: Stage| {
        any_order(&bed, "[unpack]\nkeep_layers = false\n").await
    });
    suite.check(release, "the_handler_of_the_spec_wins_over_the_annotation", the_spec_wins);
    suite.check(release, "an_unknown_handler_is_refused_as_by_a_pull", refused_as_by_a_pull);
    suite.check(release, "a_snapshotter_that_does_not_answer_is_unavailable", killed_snapshotter);
    suite.check(release, "snapshots_that_went_are_missed_at_once_and_a_pull_heals_it", snapshots_went);
    suite.check(release, "without_verify_unpacked_an_image_is_there_for_all", unverified);
    if release.maps_handlers() {
        suite.check(release, "containers_of_both_handlers_run_after_kubelets_own_pulls", both_run);
    }
}

fn spec(name: &str, handler: &str, annotations: &[(&str, &str)]) -> ImageSpec {
    let annotations = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    ImageSpec {
        image: name.to_owned(),
        annotations: annotations.collect::<HashMap<_, _>>(),
        runtime_handler: handler.to_owned(),
        ..ImageSpec::default()
    }
}

/// Every way in which kubelet names the handler of a pod; `None` is the default one.
fn ways(name: &str, handler: Option<&str>) -> Vec<ImageSpec> {
    match handler {
        None => vec![
            spec(name, "", &[OF_EVERY_POD]),
            spec(name, PLAIN_HANDLER, &[]),
            spec(name, RUNC_HANDLER, &[OF_EVERY_POD]),
            spec(name, "", &[(HANDLER_ANNOTATION, RUNC_HANDLER)]),
            spec(name, "", &[(HANDLER_ANNOTATION, "")]),
        ],
        Some(handler) => vec![
            spec(name, handler, &[]),
            spec(name, handler, &[OF_EVERY_POD]),
            spec(name, "", &[(HANDLER_ANNOTATION, handler), OF_EVERY_POD]),
            spec(name, handler, &[(HANDLER_ANNOTATION, handler)]),
        ],
    }
}

/// Fails unless the image is there, or is not, whichever way it is asked for.
async fn is(cri: &Cri, names: &[&str], handler: Option<&str>, there: bool, when: &str) -> Result<()> {
    for name in names {
        for spec in ways(name, handler) {
            let found = cri.image_for(spec.clone()).await.with_context(|| format!("{when}: {spec:?}"))?;
            ensure!(found.is_some() == there, "{when}: {spec:?} is {found:?}");
        }
    }
    Ok(())
}

/// Removes the image with all its snapshots.
async fn removed(bed: &Bed, cri: &Cri, image: &Image) -> Result<()> {
    cri.remove(&image.config.digest).await?;
    bed.containerd.probe().force_gc().await
}

async fn any_order(bed: &Bed, settings: &str) -> Result<()> {
    let drayd = stage::configured(bed, settings, &[]).await?;
    let (cri, probe) = (drayd.cri(), bed.containerd.probe());
    let image = &bed.images.two;
    let (tag, id) = (image.reference(bed.registry.address()), image.config.digest.as_str());
    let names = [tag.as_str(), id];
    for first in PLACES {
        for second in PLACES.into_iter().filter(|second| *second != first) {
            let order = |step: &str| format!("{} then {}, {step}", first.1, second.1);
            is(&cri, &names, first.0, false, &order("before any pull")).await?;
            pull(bed, &drayd, image, first.0).await?;
            is(&cri, &names, first.0, true, &order("after the first pull")).await?;
            is(&cri, &names, second.0, false, &order("after the first pull")).await?;
            // About no pod, such as kubelet's question for the user of an image.
            for name in names {
                ensure!(cri.image(name).await?.is_some(), "{}", order("it is nowhere"));
            }
            let before = probe.state().await?.snapshots.remove(first.1).unwrap_or_default();
            pull(bed, &drayd, image, second.0).await?;
            is(&cri, &names, first.0, true, &order("after both pulls")).await?;
            is(&cri, &names, second.0, true, &order("after both pulls")).await?;
            probe.force_gc().await?;
            is(&cri, &names, first.0, true, &order("after a collection")).await?;
            is(&cri, &names, second.0, true, &order("after a collection")).await?;
            let after = probe.state().await?.snapshots.remove(first.1).unwrap_or_default();
            ensure!(before == after, "{}", order("the first one's snapshots were touched"));
            removed(bed, &cri, image).await?;
            for name in names {
                ensure!(cri.image(name).await?.is_none(), "{}", order("it is still there"));
            }
        }
    }
    Ok(())
}

async fn the_spec_wins(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let image = &bed.images.two;
    pull(&bed, &drayd, image, Some(NATIVE_HANDLER)).await?;
    let id = image.config.digest.as_str();
    for (of_spec, annotation, there) in
        [(NATIVE_HANDLER, NYDUS_HANDLER, true), (NYDUS_HANDLER, NATIVE_HANDLER, false)]
    {
        let spec = spec(id, of_spec, &[(HANDLER_ANNOTATION, annotation), OF_EVERY_POD]);
        let found = drayd.cri().image_for(spec.clone()).await?;
        ensure!(found.is_some() == there, "{spec:?} is {found:?}");
    }
    Ok(())
}

async fn refused_as_by_a_pull(bed: Stage) -> Result<()> {
    let drayd = stage::configured(&bed, "", &[("lost", "stargz")]).await?;
    let cri = drayd.cri();
    let image = &bed.images.two;
    pull(&bed, &drayd, image, None).await?;
    let tag = image.reference(bed.registry.address());
    for (handler, code) in [("nobodys", Code::Unknown), ("lost", Code::FailedPrecondition)] {
        let pulled = cri.pull(&tag, Some(handler), None).await.err().context("it was pulled")?;
        ensure!(pulled.code() == code, "{pulled:?}");
        for spec in ways(&tag, Some(handler)) {
            let status = cri.image_for(spec).await.err().context("there is an answer")?;
            let said = status.message();
            ensure!(status.code() == code && said.len() > 40, "{status:?}");
            ensure!(pulled.message().ends_with(said), "{said} is not {}", pulled.message());
        }
    }
    Ok(())
}

async fn killed_snapshotter(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let cri = drayd.cri();
    let (only_there, both) = (&bed.images.two, &bed.images.docker);
    pull(&bed, &drayd, only_there, Some(NYDUS_HANDLER)).await?;
    for handler in [None, Some(NYDUS_HANDLER)] {
        pull(&bed, &drayd, both, handler).await?;
    }
    bed.containerd.kill_nydus()?;
    let answers = while_killed(&cri, &only_there.config.digest, &both.config.digest).await;
    bed.containerd.restart_nydus()?;
    answers?;
    wait::until("the snapshotter answers again", SOON, async || {
        let spec = spec(&only_there.config.digest, NYDUS_HANDLER, &[]);
        Ok(cri.image_for(spec).await.is_ok_and(|image| image.is_some()))
    })
    .await
}

async fn while_killed(cri: &Cri, only_there: &str, both: &str) -> Result<()> {
    let unavailable = |answer: Result<_, Status>| match answer {
        Err(status) if status.code() == Code::Unavailable => Ok(()),
        other => Err(anyhow::anyhow!("not unavailable but {other:?}")),
    };
    for id in [only_there, both] {
        for spec in ways(id, Some(NYDUS_HANDLER)) {
            unavailable(cri.image_for(spec).await)?;
        }
    }
    is(cri, &[only_there], None, false, "nydus is killed").await?;
    is(cri, &[both], None, true, "nydus is killed").await?;
    // Nobody can say that it is nowhere.
    unavailable(cri.image(only_there).await)?;
    ensure!(cri.image(both).await?.is_some(), "{both} is nowhere");
    ensure!(cri.list().await?.len() == 2, "{:?}", cri.list().await?);
    Ok(())
}

async fn snapshots_went(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (cri, probe) = (drayd.cri(), bed.containerd.probe());
    let image = &bed.images.two;
    let id = image.config.digest.as_str();
    for (handler, snapshotter) in PLACES {
        for how_many in [1, image.layers.len()] {
            pull(&bed, &drayd, image, handler).await?;
            is(&cri, &[id], handler, true, snapshotter).await?;
            for name in image.chain_ids().iter().rev().take(how_many) {
                // Once nothing stands on it, a collection may be faster.
                if let Err(error) = probe.remove_snapshot(snapshotter, name).await {
                    ensure!(probe.state().await?.snapshot(snapshotter, name).is_none(), "{error:#}");
                }
            }
            is(&cri, &[id], handler, false, &format!("{how_many} went in {snapshotter}")).await?;
            ensure!(cri.list().await?.len() == 1, "the record is there all the same");
            pull(&bed, &drayd, image, handler).await?;
            is(&cri, &[id], handler, true, &format!("{snapshotter} was healed")).await?;
        }
        removed(&bed, &cri, image).await?;
    }
    Ok(())
}

async fn unverified(bed: Stage) -> Result<()> {
    // Clears the bed; this one verifies.
    drop(stage::bare(&bed).await?);
    let mut launch = Launch::new(&bed.containerd.socket(), "unverified")?;
    launch.cri = "verify_unpacked = false\n".into();
    launch.sections = stage::handler_section(&bed, &[]);
    let drayd = launch.start()?;
    let (cri, probe) = (drayd.cri(), bed.containerd.probe());
    let image = &bed.images.two;
    let tag = image.reference(bed.registry.address());
    cri.pull(&tag, None, None).await?;
    for (handler, _) in PLACES {
        is(&cri, &[&tag], handler, true, "unpacked in overlayfs alone").await?;
    }
    ensure!(cri.image_for(spec(&tag, "nobodys", &[])).await?.is_some(), "as with containerd");
    probe.remove_snapshot("overlayfs", &image.top_chain_id()).await?;
    is(&cri, &[&tag], None, true, "unpacked nowhere").await
}

async fn both_run(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let cri = drayd.cri();
    for handler in [None, Some(NATIVE_HANDLER)] {
        pull(&bed, &drayd, &bed.images.pause, handler).await?;
    }
    let image = &bed.images.busybox;
    let tag = image.reference(bed.registry.address());
    let handlers = [RUNC_HANDLER, NATIVE_HANDLER];
    for (handlers, order) in [(handlers, "runc first"), ([NATIVE_HANDLER, RUNC_HANDLER], "native first")] {
        for handler in handlers {
            let spec = spec(&tag, "", &[(HANDLER_ANNOTATION, handler)]);
            ensure!(cri.image_for(spec).await?.is_none(), "{order}: no need to pull for {handler}");
            pull(&bed, &drayd, image, Some(handler)).await?;
        }
        let mark = bed.registry.mark();
        for handler in handlers {
            let printed = cri.run_pod(&image.config.digest, handler, bed.run()).await?;
            ensure!(printed == greeting(), "{order}: {handler} printed {printed:?}");
        }
        let requests = bed.registry.requests_since(mark);
        ensure!(requests.is_empty(), "{order}: containerd pulled something itself: {requests:#?}");
        removed(&bed, &cri, image).await?;
    }
    Ok(())
}
