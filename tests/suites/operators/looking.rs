//! What drayctl tells of the node: what a pull would do, what is wrong, and how to get at it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context, Result, ensure};
use drayd_tests::containerd::NYDUS_HANDLER;
use drayd_tests::drayctl;
use drayd_tests::peers::Release;
use drayd_tests::scripted::image::Image;
use drayd_tests::scripted::{Reply, Scripted};
use drayd_tests::stage;
use drayd_tests::suite::Suite;
use tonic::Code;

use crate::{Stage, request};

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "an_explained_pull_is_not_done", explained);
    suite.check(release, "what_does_not_fit_on_the_disk_fails_before_it_is_fetched", too_large);
    suite.check(release, "images_are_listed_with_their_snapshotters", images);
    suite.check(release, "doctor_says_what_is_wrong_and_what_to_do", doctor);
    suite.check(release, "whoever_has_no_access_learns_how_to_get_it", access);
    suite.check(release, "the_registrys_own_reason_is_quoted_and_no_page_is_dumped", reasons);
    suite.check(release, "every_client_makes_the_same_requests_and_gets_the_same_answer", same);
    suite.check(release, "the_level_of_the_log_changes_while_drayd_runs", level);
}

async fn explained(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let registry = Scripted::start().await?;
    let image = Image::new("explained", 3, 64)?;
    image.serve(&registry);
    let before = bed.containerd.probe().state().await?;
    let reference = image.reference(&registry);
    let arguments = [
        "explain",
        &reference,
        "--runtime-handler",
        NYDUS_HANDLER,
        "--annotation",
        "apps.kruise.io/pulling-image-by=x",
    ];
    let answer = drayctl::run(&drayd, &[&arguments[..], &["--json"]].concat()).await?;
    ensure!(answer.code == 0, "{answer:?}");
    let it = answer.json()?.pop().context("no answer")?;
    let layers = it["layers"].as_array().context("no layers")?;
    let digests: Vec<_> = layers.iter().map(|layer| layer["digest"].as_str().unwrap_or_default()).collect();
    let expected: Vec<_> = image.layers.iter().map(|layer| layer.digest.as_str()).collect();
    ensure!(it["reference"] == reference.as_str() && digests == expected, "{it}");
    ensure!(it["image_id"] == image.config.digest.as_str(), "{it}");
    ensure!(it["snapshotter"] == "nydus" && it["snapshotter_is_remote"] == true, "{it}");
    ensure!(it["priority"] == "low", "{it}");
    ensure!(it["bytes_to_fetch"] == crate::total(&image), "{it}");
    ensure!(
        it["hosts"][0]["url"] == format!("http://{}/v2", registry.address())
            || it["hosts"][0]["url"] == format!("https or http://{}/v2", registry.address()),
        "{it}"
    );
    ensure!(it["hosts"][0]["credentials"] == "none", "{it}");
    ensure!(layers.iter().all(|layer| layer["unpacked"] == false && layer["stored"] == false), "{it}");
    let blobs = registry
        .journal()
        .into_iter()
        .filter(|request| request.fetches_blob() && !request.path().ends_with(&image.config.digest));
    ensure!(blobs.count() == 0, "a layer was fetched: {:#?}", registry.journal());
    stage::unchanged(&bed, &before, "an explanation has written").await?;
    ensure!(drayctl::run(&drayd, &["history"]).await?.out.lines().count() == 2, "it counts as a call");

    // Once it is there, the same says so.
    drayd.cri().pull_as(request(&reference, &[])).await?;
    let there = drayctl::run(&drayd, &["explain", &reference, "--json"]).await?.json()?;
    let there = there.first().context("no answer")?;
    ensure!(there["bytes_to_fetch"] == 0 && there["layers"][2]["unpacked"] == true, "{there}");
    ensure!(there["room"].as_array().is_some_and(|rooms| !rooms.is_empty()), "{there}");
    let text = drayctl::run(&drayd, &["explain", &reference]).await?.out;
    ensure!(text.contains("unpacked") && text.contains("the request names no runtime handler"), "{text}");
    Ok(())
}

async fn too_large(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let registry = Scripted::start().await?;
    let mut image = Image::new("vast", 1, 64)?;
    // What no disk here has.
    let size = 1_u64 << 50;
    let mut manifest: serde_json::Value = serde_json::from_slice(&image.manifest.bytes)?;
    manifest["layers"][0]["size"] = size.into();
    image.manifest = drayd_tests::scripted::image::Blob::json(&image.manifest.media_type, &manifest);
    image.serve(&registry);
    let reference = image.reference(&registry);
    let before = bed.containerd.probe().state().await?;
    let status = drayd.cri().pull_as(request(&reference, &[])).await.expect_err("it cannot fit");
    ensure!(status.code() == Code::ResourceExhausted, "{status:?}");
    let message = status.message();
    ensure!(message.contains("there is no room for the image on /"), "{message}");
    // The blob and its files, where one filesystem has both; and what is free.
    let needed = [(size * 2).to_string(), (size * 3).to_string()];
    ensure!(needed.iter().any(|needed| message.contains(&format!("about {needed} bytes"))), "{message}");
    ensure!(message.contains("are free"), "{message}");
    ensure!(registry.asked("GET", &image.layers[0].path("vast")).is_empty(), "it was begun");
    stage::unchanged(&bed, &before, "what did not fit has left something").await?;
    let explained = drayctl::run(&drayd, &["explain", &reference]).await?;
    ensure!(explained.out.contains("too little"), "{explained:?}");
    let history = drayctl::run(&drayd, &["history", "--image", &reference, "--json"]).await?.json()?;
    ensure!(history[0]["results"]["no_space"] == 1, "{history:?}");

    // Told not to look, it tries.
    drop(drayd);
    let drayd = stage::configured(&bed, "[pull]\ncheck_disk = false\n", &[]).await?;
    let status = drayd.cri().pull_as(request(&reference, &[])).await.expect_err("the layer is shorter");
    ensure!(!status.message().contains("no room"), "{status:?}");
    ensure!(!registry.asked("GET", &image.layers[0].path("vast")).is_empty(), "it was not begun");
    Ok(())
}

async fn images(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let reference = bed.images.two.reference(bed.registry.address());
    for handler in [None, Some(NYDUS_HANDLER)] {
        stage::pull(&bed, &drayd, &bed.images.two, handler).await?;
    }
    let listed = drayctl::run(&drayd, &["images", "--json"]).await?.json()?;
    let image = listed.iter().find(|image| image["tags"][0] == reference.as_str());
    let image = image.with_context(|| format!("it is not listed: {listed:?}"))?;
    let snapshotters = image["snapshotters"].as_array().context("no snapshotters")?;
    let mut snapshotters: Vec<_> = snapshotters.iter().filter_map(|name| name.as_str()).collect();
    snapshotters.sort_unstable();
    ensure!(snapshotters == ["nydus", "overlayfs"], "{image}");
    let text = drayctl::run(&drayd, &["images"]).await?.out;
    ensure!(text.contains(&reference), "{text}");
    Ok(())
}

async fn doctor(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let well = drayctl::run(&drayd, &["doctor"]).await?;
    ensure!(well.code == 0 && !well.out.contains("FAILURE"), "{well:?}");
    for subject in ["CRI socket", "containerd: version", "snapshotter overlayfs", "kubelet"] {
        ensure!(well.out.contains(subject), "{subject} was not looked at: {}", well.out);
    }
    drop(drayd);
    let hosts = bed.run().join("broken-hosts");
    fs::create_dir_all(hosts.join("broken.test"))?;
    fs::write(hosts.join("broken.test/hosts.toml"), "server = 1\n")?;
    let settings = format!("[registry]\nconfig_path = [\"{}\"]\n", hosts.display());
    let drayd = stage::configured(&bed, &settings, &[("lost", "lost-snapshotter")]).await?;
    let ill = drayctl::run(&drayd, &["doctor"]).await?;
    ensure!(ill.code == 1, "{ill:?}");
    for found in [
        "broken.test/hosts.toml:1: expected a string",
        "snapshotter lost-snapshotter: pods are to run on it, and containerd has not loaded it",
        "check its proxy_plugins section",
    ] {
        ensure!(ill.out.contains(found), "{found} is not told: {}", ill.out);
    }
    let failures = drayctl::run(&drayd, &["doctor", "--json"]).await?.json()?;
    let failed = failures.iter().filter(|check| check["verdict"] == "failure");
    ensure!(failed.count() == 2, "{failures:#?}");
    fs::remove_dir_all(hosts)?;
    Ok(())
}

async fn access(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    // Where a user without rights finds the program.
    let program = bed.run().join("drayctl");
    fs::copy(drayctl::path()?, &program)?;
    fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    let mut command = tokio::process::Command::new(&program);
    command.arg("--address").arg(drayd.api_socket()).arg("ps").uid(65534).gid(65534);
    let output = command.output().await.context("cannot run drayctl as nobody")?;
    let err = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(77), "{:?}: {err}", output.status);
    ensure!(err.contains("run drayctl as root, or as a member of the group"), "{err}");
    let mut command = tokio::process::Command::new(&program);
    let output = command.args(["--address", "/nonexistent/api.sock", "ps"]).output().await?;
    let err = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(69) && err.contains("there is no socket /nonexistent/api.sock"),
        "{err}"
    );
    for (address, said) in
        [(bed.containerd.socket(), "is not drayd's API socket"), (bed.run().to_owned(), "is no socket")]
    {
        let mut command = tokio::process::Command::new(&program);
        let output = command.arg("--address").arg(&address).arg("ps").output().await?;
        let err = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(69) && err.contains(said), "{}: {err}", address.display());
    }
    fs::remove_file(program)?;
    Ok(())
}

/// Fault 172.
async fn reasons(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let registry = Scripted::start().await?;
    registry.gate(|request| {
        Some(match request.repository()? {
            "denied" => Reply::error(403, "DENIED", "team x has no access to this project"),
            "limited" => Reply::error(429, "TOOMANYREQUESTS", "a hundred pulls in six hours are over"),
            "forged" => Reply::error(403, "DENIED", "no\nERROR forged\u{1b}[31m"),
            "page" => {
                Reply::ok("text/html", "<html>canary</html>".repeat(60_000).as_bytes()).with_status(404)
            }
            _ => return None,
        })
    });
    for (repository, code, quoted) in [
        ("denied", Code::PermissionDenied, "team x has no access to this project"),
        ("limited", Code::ResourceExhausted, "a hundred pulls in six hours are over"),
        ("forged", Code::PermissionDenied, "ERROR forged"),
        ("page", Code::NotFound, "404"),
    ] {
        let reference = format!("{}/{repository}:1", registry.address());
        let status = drayd.cri().pull_as(request(&reference, &[])).await.expect_err("it is refused");
        let message = status.message();
        ensure!(status.code() == code && message.contains(quoted), "{repository}: {status:?}");
        ensure!(message.len() < 4096 && !message.contains("canary"), "{repository}: {message}");
        ensure!(!message.contains(['\n', '\u{1b}']), "{repository}: {message:?}");
    }
    Ok(())
}

/// Fault 175.
async fn same(bed: Stage) -> Result<()> {
    let registry = Scripted::start().await?;
    let image = Image::new("same", 2, 16)?;
    image.serve(&registry);
    // A registry that is only reached as its hosts.toml says.
    let hosts = bed.run().join("same-hosts");
    fs::create_dir_all(hosts.join("registry.test"))?;
    fs::write(hosts.join("registry.test/hosts.toml"), format!("server = \"{}\"\n", registry.url()))?;
    let settings = format!("[registry]\nconfig_path = [\"{}\"]\n", hosts.display());
    let drayd = stage::configured(&bed, &settings, &[]).await?;
    let reference = format!("registry.test/{}:1", image.repository);
    let cri = drayd.cri();
    let mut seen = Vec::new();
    for client in ["crictl", "kubelet", "kruise", "drayctl"] {
        let kruise = [("apps.kruise.io/pulling-image-by", "ImagePullJob")];
        registry.take_journal();
        let id = match client {
            "crictl" => cri.pull(&reference, None, None).await?,
            "kubelet" => cri.pull_as(request(&reference, &[])).await?,
            "kruise" => cri.pull_as(request(&reference, &kruise)).await?,
            _ => {
                let answer = drayctl::run(&drayd, &["pull", &reference]).await?;
                answer.out.lines().last().unwrap_or_default().to_owned()
            }
        };
        // Documents that came a moment ago are not asked for again.
        let layer = |path: &str| image.layers.iter().any(|layer| path.ends_with(&layer.digest));
        let requests = registry.take_journal().into_iter();
        let requests = requests.filter(|request| request.method == "HEAD" || layer(request.path()));
        let mut requests: Vec<String> =
            requests.map(|request| format!("{} {}", request.method, request.path())).collect();
        requests.sort();
        seen.push((client, id, requests));
        cri.remove(&reference).await?;
    }
    let (_, id, requests) = seen[0].clone();
    ensure!(id == image.config.digest && requests.len() == 3, "{seen:#?}");
    ensure!(seen.iter().all(|(_, other, asked)| *other == id && *asked == requests), "{seen:#?}");
    fs::remove_dir_all(hosts)?;
    Ok(())
}

async fn level(bed: Stage) -> Result<()> {
    let drayd = stage::bare(&bed).await?;
    let debug = || drayd.events().iter().filter(|event| event.level == "DEBUG").count();
    ensure!(drayctl::run(&drayd, &["log-level", "error"]).await?.out == "it was debug\n");
    let before = debug();
    drayd.cri().list().await?;
    stage::pull(&bed, &drayd, &bed.images.busybox, None).await?;
    ensure!(debug() == before, "it goes on at the old level");
    ensure!(drayctl::run(&drayd, &["log-level"]).await?.out == "it was error\n");
    stage::pull(&bed, &drayd, &bed.images.two, None).await?;
    ensure!(debug() > before, "the configured level is not back");
    let none = drayctl::run(&drayd, &["log-level", "loud"]).await?;
    ensure!(none.code == 1 && none.err.contains("\"loud\" is no level of the log"), "{none:?}");
    Ok(())
}
