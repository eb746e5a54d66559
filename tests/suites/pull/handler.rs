//! The snapshotter of a pull, chosen by its runtime handler; and how a remote snapshotter is asked.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use drayd_proto::cri;
use drayd_tests::bed::Bed;
use drayd_tests::containerd::{NATIVE_HANDLER, NYDUS_HANDLER, PLAIN_HANDLER};
use drayd_tests::cri::HANDLER_ANNOTATION;
use drayd_tests::drayd::Drayd;
use drayd_tests::images::Image;
use drayd_tests::log::Event;
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;
use tonic::Code;

use crate::stage::{self, Stage, blobs_fetched, end, pull, wire_size};

/// Set by the nydus-snapshotter's proxy driver on a layer that it takes over.
const PROXY_MODE: &str = "containerd.io/snapshot/nydus-proxy-mode";

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(
        release,
        "nydus_is_asked_for_every_layer_and_only_the_config_is_fetched",
        async |bed: Stage| {
            let drayd = stage::bare(&bed).await?;
            is_left_to_nydus(&bed, &drayd, &bed.images.busybox, request(&bed, "", Some(NYDUS_HANDLER))).await
        },
    );
    suite.check(release, "the_handler_of_the_image_spec_does_the_same", async |bed: Stage| {
        let drayd = stage::bare(&bed).await?;
        is_left_to_nydus(&bed, &drayd, &bed.images.busybox, request(&bed, NYDUS_HANDLER, None)).await
    });
    suite.check(
        release,
        "the_handler_of_the_image_spec_wins_over_the_annotation_with_a_warning",
        the_spec_wins,
    );
    suite.check(release, "every_kind_of_handler_chooses_as_containerd_1_7_does", every_kind_of_handler);
    suite.check(
        release,
        "an_unknown_handler_is_refused_in_containerds_words_before_any_request",
        an_unknown_handler_is_refused,
    );
    suite.check(
        release,
        "an_unknown_handler_takes_the_default_snapshotter_if_so_configured",
        an_unknown_handler_is_allowed,
    );
    suite.check(
        release,
        "a_snapshotter_that_is_not_loaded_is_refused_before_any_request_and_names_those_that_are",
        a_snapshotter_that_is_not_loaded,
    );
    suite.check(release, "what_else_a_pod_says_of_itself_changes_nothing", other_metadata);
    suite.check(release, "a_request_of_an_image_alone_goes_to_the_default_snapshotter", bare_requests);
    suite.check(release, "credentials_reach_no_label_and_no_file", credentials_reach_no_label);
}

fn request(bed: &Bed, of_spec: &str, annotation: Option<&str>) -> cri::PullImageRequest {
    let image = cri::ImageSpec {
        image: bed.images.busybox.reference(bed.registry.address()),
        runtime_handler: of_spec.to_owned(),
        ..cri::ImageSpec::default()
    };
    let annotated = annotation.map(|handler| cri::PodSandboxConfig {
        annotations: HashMap::from([(HANDLER_ANNOTATION.to_owned(), handler.to_owned())]),
        ..cri::PodSandboxConfig::default()
    });
    cri::PullImageRequest {
        image: Some(image),
        sandbox_config: annotated,
        ..cri::PullImageRequest::default()
    }
}

/// Checks a cold pull of `image` that nydus takes over completely.
async fn is_left_to_nydus(
    bed: &Bed,
    drayd: &Drayd,
    image: &Image,
    request: cri::PullImageRequest,
) -> Result<()> {
    let reference = image.reference(bed.registry.address());
    let mark = bed.registry.mark();
    let id = drayd.cri().pull_as(request).await.context("the pull failed")?;
    ensure!(id == image.config.digest, "the id is {id}");

    let requests = bed.registry.requests_since(mark);
    ensure!(blobs_fetched(&requests) == [image.config.digest.as_str()], "fetched: {requests:#?}");
    let state = bed.containerd.probe().state().await?;
    let kept = state
        .content
        .get(&image.config.digest)
        .and_then(|labels| labels.get("containerd.io/gc.ref.snapshot.nydus"));
    ensure!(kept == Some(&image.top_chain_id()), "the config keeps {kept:?}");
    let (chain, digests) = (image.chain_ids(), image.layers.iter().map(|layer| layer.blob.digest.as_str()));
    let digests: Vec<&str> = digests.collect();
    for (index, chain_id) in chain.iter().enumerate() {
        let snapshot =
            state.snapshot("nydus", chain_id).with_context(|| format!("nydus lacks {chain_id}"))?;
        ensure!(snapshot.kind == "committed", "{snapshot:?}");
        ensure!(
            snapshot.parent == index.checked_sub(1).map(|below| chain[below].clone()).unwrap_or_default()
        );
        for (key, value) in [
            (PROXY_MODE, "true"),
            ("containerd.io/snapshot.ref", chain_id.as_str()),
            ("containerd.io/snapshot/cri.image-ref", &reference),
            ("containerd.io/snapshot/cri.layer-digest", digests[index]),
            ("containerd.io/snapshot/cri.manifest-digest", &image.manifest.digest),
            ("containerd.io/snapshot/cri.image-layers", &digests[index..].join(",")),
        ] {
            let label = snapshot.labels.get(key).map(String::as_str);
            ensure!(label == Some(value), "layer {index} has {key} = {label:?}, not {value}");
        }
    }
    ensure!(state.snapshot("overlayfs", &chain[0]).is_none(), "unpacked on the host, too");
    ensure!(choices(drayd, &reference) == ["nydus"], "{:?}", choices(drayd, &reference));
    let (end, layers) =
        (end(drayd, &reference)?, image.layers.iter().map(|layer| layer.blob.size).sum::<u64>());
    ensure!(end.number("bytes_left_to_snapshotter") == Some(layers), "{end:?}");
    ensure!(end.number("bytes_fetched") == Some(wire_size(image) - layers), "{end:?}");
    Ok(())
}

/// The snapshotters that the log names for pulls of a reference, line by line.
fn choices(drayd: &Drayd, reference: &str) -> Vec<String> {
    let beginning = format!("PullImage \"{reference}\" with snapshotter ");
    let events = drayd.events();
    let names = events.iter().filter_map(|event| event.message().strip_prefix(&beginning));
    names.map(str::to_owned).collect()
}

/// Warnings about runtime handlers.
fn warnings(drayd: &Drayd) -> Vec<Event> {
    let about_handlers = |event: &Event| event.level == "WARN" && !event.text("runtime_handler").is_empty();
    drayd.events().into_iter().filter(about_handlers).collect()
}

/// Fault 163.
async fn the_spec_wins(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let wanted = request(&bed, NYDUS_HANDLER, Some(NATIVE_HANDLER));
    is_left_to_nydus(&bed, &drayd, &bed.images.busybox, wanted).await?;
    let warnings = warnings(&drayd);
    let [warning] = warnings.as_slice() else { anyhow::bail!("not one warning, but {warnings:#?}") };
    let named = (warning.text("runtime_handler"), warning.text("annotation"));
    ensure!(named == (NYDUS_HANDLER, NATIVE_HANDLER), "{warning:?}");
    Ok(())
}

/// Fault 162.
async fn every_kind_of_handler(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (image, probe) = (&bed.images.docker, bed.containerd.probe());
    let reference = image.reference(bed.registry.address());
    let mut expected = Vec::new();
    for (handler, snapshotter) in [
        (None, "overlayfs"),
        (Some(""), "overlayfs"),
        (Some(PLAIN_HANDLER), "overlayfs"),
        (Some(NATIVE_HANDLER), "native"),
        (Some(NYDUS_HANDLER), "nydus"),
    ] {
        pull(&bed, &drayd, image, handler).await?;
        expected.push(snapshotter);
        ensure!(choices(&drayd, &reference) == expected, "{handler:?}: {:?}", choices(&drayd, &reference));
        let state = probe.state().await?;
        for loaded in probe.snapshotters().await? {
            let there = state.snapshot(&loaded, &image.top_chain_id()).is_some();
            ensure!(there == (loaded == snapshotter), "{handler:?}: in {loaded}: {there}");
        }
        drayd.cri().remove(&reference).await?;
        probe.force_gc().await?;
    }
    Ok(())
}

/// Fault 162. Case J: nothing is guessed.
async fn an_unknown_handler_is_refused(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let reference = bed.images.docker.reference(bed.registry.address());
    let (mark, before) = (bed.registry.mark(), bed.containerd.probe().state().await?);
    for handler in ["X", &NATIVE_HANDLER.to_uppercase()] {
        let pulled = drayd.cri().pull(&reference, Some(handler), None).await;
        let status = pulled.err().context("the pull succeeded")?;
        let words = format!("no runtime for {handler:?} is configured");
        ensure!(status.code() == Code::Unknown && status.message().contains(&words), "{status:?}");
        if bed.containerd.release() == Release::V1_7 {
            let pulled = bed.containerd.cri().pull(&reference, Some(handler), None).await;
            let own = pulled.err().context("containerd's own pull succeeded")?;
            let same = own.code() == status.code() && own.message().contains(&words);
            ensure!(same, "containerd says {own:?}");
        }
    }
    let requests = bed.registry.requests_since(mark);
    ensure!(requests.is_empty(), "the registry was asked: {requests:#?}");
    stage::unchanged(&bed, &before, "the refused pull left something").await
}

/// Fault 162.
async fn an_unknown_handler_is_allowed(bed: Stage) -> Result<()> {
    let drayd = stage::configured(&bed, "[snapshotter]\nunknown_handler = \"default\"\n", &[]).await?;
    let image = &bed.images.docker;
    pull(&bed, &drayd, image, Some("X")).await?;
    let state = bed.containerd.probe().state().await?;
    ensure!(state.snapshot("overlayfs", &image.top_chain_id()).is_some(), "not in the default snapshotter");
    let warnings = warnings(&drayd);
    ensure!(warnings.iter().any(|event| event.text("runtime_handler") == "X"), "no warning: {warnings:#?}");
    Ok(())
}

async fn a_snapshotter_that_is_not_loaded(bed: Stage) -> Result<()> {
    let drayd = stage::configured(&bed, "", &[("lost", "stargz")]).await?;
    let reference = bed.images.docker.reference(bed.registry.address());
    let (mark, before) = (bed.registry.mark(), bed.containerd.probe().state().await?);
    let pulled = drayd.cri().pull(&reference, Some("lost"), None).await;
    let status = pulled.err().context("the pull succeeded")?;
    let mut loaded = bed.containerd.probe().snapshotters().await?;
    loaded.sort();
    ensure!(status.code() == Code::FailedPrecondition, "{status:?}");
    for words in ["stargz", loaded.join(", ").as_str()] {
        ensure!(status.message().contains(words), "{words} is not in {status:?}");
    }
    let requests = bed.registry.requests_since(mark);
    ensure!(requests.is_empty(), "the registry was asked: {requests:#?}");
    stage::unchanged(&bed, &before, "the refused pull left something").await
}

/// Fault 164.
async fn other_metadata(bed: Stage) -> Result<()> {
    const CANARY: &str = "canary-of-the-pod";
    let drayd = stage::bare(&bed).await?;
    let (image, probe) = (&bed.images.docker, bed.containerd.probe());
    pull(&bed, &drayd, image, None).await?;
    let plain = probe.state().await?;
    // 200 KiB of each, and keys that mean something to others.
    let mut said: HashMap<String, String> = (0..50)
        .map(|number| (format!("{CANARY}/{number}"), format!("{CANARY}{}", "x".repeat(4 << 10))))
        .collect();
    for key in [
        "containerd.io/snapshot/cri.image-ref",
        "containerd.io/gc.root",
        "io.kubernetes.cri.untrusted-workload",
    ] {
        said.insert(key.to_owned(), CANARY.to_owned());
    }
    for metadata in [None, Some(cri::PodSandboxMetadata::default())] {
        bed.bare().await?;
        let mut request = request(&bed, "", None);
        request.image = request.image.map(|spec| cri::ImageSpec {
            image: image.reference(bed.registry.address()),
            annotations: said.clone(),
            ..spec
        });
        request.sandbox_config = Some(cri::PodSandboxConfig {
            metadata,
            annotations: said.clone(),
            labels: said.clone(),
            ..cri::PodSandboxConfig::default()
        });
        let id = drayd.cri().pull_as(request).await.context("the pull failed")?;
        ensure!(id == image.config.digest, "the id is {id}");
        stage::unchanged(&bed, &plain, "the pod's words changed something").await?;
        ensure!(
            !drayd.log_lines().iter().any(|line| line.contains(CANARY)),
            "the pod's words are in the log"
        );
    }
    Ok(())
}

/// Fault 165.
async fn bare_requests(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let reference = bed.images.busybox.reference(bed.registry.address());
    let nothing = request(&bed, "", None);
    let empty = cri::PullImageRequest {
        auth: Some(cri::AuthConfig::default()),
        sandbox_config: Some(cri::PodSandboxConfig::default()),
        ..nothing.clone()
    };
    for request in [nothing, empty] {
        let id =
            drayd.cri().pull_as(request.clone()).await.with_context(|| format!("refused: {request:?}"))?;
        ensure!(id == bed.images.busybox.config.digest, "the id is {id}");
        for image in [None, Some(cri::ImageSpec::default())] {
            let refused = drayd.cri().pull_as(cri::PullImageRequest { image, ..request.clone() }).await;
            let code = refused.as_ref().err().map(tonic::Status::code);
            ensure!(code == Some(Code::InvalidArgument), "{refused:?}");
        }
    }
    ensure!(choices(&drayd, &reference) == ["overlayfs"; 2], "{:?}", choices(&drayd, &reference));
    Ok(())
}

/// Fault 169.
async fn credentials_reach_no_label(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let (image, account) = (&bed.images.busybox, bed.private.account().context("an account")?);
    let reference = image.reference(bed.private.address());
    for handler in [NYDUS_HANDLER, NATIVE_HANDLER] {
        drayd.cri().pull(&reference, Some(handler), Some(account)).await.context("the pull failed")?;
    }
    let state = bed.containerd.probe().state().await?;
    let top = state.snapshot("nydus", &image.top_chain_id()).context("not in nydus")?;
    ensure!(top.labels.contains_key("containerd.io/snapshot/cri.image-ref"), "{top:?}");
    let pair = STANDARD.encode(format!("{}:{}", account.user, account.password));
    let secrets = [account.user.as_str(), account.password.as_str(), pair.trim_end_matches('=')];
    let told = [format!("{state:?}"), drayd.log_lines().join("\n")];
    for secret in secrets {
        ensure!(told.iter().all(|text| !text.contains(secret)), "{secret} is told");
    }
    // What the snapshotter keeps of the labels, and containerd of everything.
    for file in files_below(bed.root())? {
        let bytes = fs::read(&file).unwrap_or_default();
        let holds = |secret: &&&str| bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
        let found: Vec<_> = secrets.iter().filter(holds).collect();
        ensure!(found.is_empty(), "{} holds {found:?}", file.display());
    }
    Ok(())
}

/// The databases of containerd and of its snapshotters; layers hold what images hold.
fn files_below(root: &Path) -> Result<Vec<PathBuf>> {
    let (mut open, mut files) = (vec![root.to_owned()], Vec::new());
    while let Some(directory) = open.pop() {
        for entry in
            fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?
        {
            let path = entry?.path();
            if path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|ending| ending == "db") {
                files.push(path);
            }
        }
    }
    ensure!(files.len() > 2, "only {files:?} below {}", root.display());
    Ok(files)
}
