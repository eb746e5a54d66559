//! Which host is asked, in which order, and by which way: hosts.toml over docker-registry and crane's registry.

use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::crane::Crane;
use drayd_tests::peers::Release;
use drayd_tests::registry::{Registry, Request, free_loopback_address};
use drayd_tests::suite::Suite;
use tonic::Code;

use crate::stage::{Stage, statuses};

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "without_server_the_registry_itself_is_asked_last", asked_last);
    suite.check(release, "with_a_mirror_as_server_the_registry_itself_is_never_asked", never_asked);
    suite.check(release, "the_first_directory_with_a_match_counts_and_in_it_the_closest_name", directories);
    suite.check(release, "a_broken_file_fails_the_pull_and_never_leads_past_the_mirrors", broken);
    suite.check(release, "the_default_directory_names_the_registry_meant_and_falls_back_to_it", default);
    suite.check(release, "a_mirrors_path_is_not_the_registrys", path);
    suite.check(release, "a_host_is_asked_for_what_it_is_capable_of", capabilities);
    suite.check(release, "a_request_goes_through_its_proxy_or_not_at_all", proxies);
}

/// Fault 33.
async fn asked_last(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "asked-last")?;
    let (image, server) = (&stage.bed.images.docker, stage.bed.registry.address());
    let empty = Crane::start(stage.bed.run())?;
    let dead = free_loopback_address()?;
    for (what, mirror) in [
        ("nobody there", dead.as_str()),
        ("no such image", empty.address()),
        ("a password wanted", stage.bed.private.address()),
    ] {
        stage.hosts(&format!("first/{server}"), &format!("[host.\"http://{mirror}\"]\n"))?;
        stage.pulls(what, image, &image.reference(server), None).await?;
    }
    Ok(())
}

/// Fault 34.
async fn never_asked(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "never-asked")?;
    let (image, upstream) = (&stage.bed.images.docker, &stage.bed.registry);
    let mirror = Crane::start(stage.bed.run())?;
    let entry = format!("first/{}", upstream.address());
    stage.hosts(&entry, &format!("server = \"http://{}\"\n", mirror.address()))?;
    let reference = image.reference(upstream.address());
    let mark = upstream.mark();
    let refused =
        stage.refuses("no such image", &reference, None, Code::NotFound, &[mirror.address()]).await?;
    let direct = format!("http://{}", upstream.address());
    ensure!(!refused.message().contains(&direct), "{}", refused.message());
    image.push(mirror.address())?;
    stage.pulls("from the mirror", image, &reference, None).await?;
    let asked = upstream.requests_since(mark);
    ensure!(asked.is_empty(), "the registry itself was asked: {asked:?}");
    Ok(())
}

/// Faults 36 and 46.
async fn directories(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "directories")?;
    let (image, one) = (&stage.bed.images.docker, &stage.bed.registry);
    let two = Registry::start("two", stage.bed.run(), &stage.bed.storage(), None)?;
    let three = Registry::start("three", stage.bed.run(), &stage.bed.storage(), None)?;
    let reference = image.reference("reg.test:5000");
    let dead = free_loopback_address()?;
    // Without the port it is another registry.
    stage.hosts("first/reg.test", &format!("server = \"http://{dead}\"\n"))?;
    // From the last that is looked for to the first, so that each hides those before it.
    for (entry, server) in [
        ("second/_default", one),
        ("second/reg.test:5000", &two),
        ("second/reg.test_5000_", &three),
        ("first/_default", one),
        ("first/reg.test:5000", &two),
        ("first/reg.test_5000_", &three),
    ] {
        stage.hosts(entry, &format!("server = \"http://{}\"\n", server.address()))?;
        let marks = [one, &two, &three].map(|registry| (registry, registry.mark()));
        stage.pulls(entry, image, &reference, None).await?;
        for (registry, mark) in marks {
            let asked = !statuses(registry, mark).is_empty();
            let meant = registry.address() == server.address();
            ensure!(asked == meant, "{entry}: {} was asked: {asked}", registry.address());
        }
    }
    Ok(())
}

/// Fault 39.
async fn broken(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "broken-file")?;
    let (image, server) = (&stage.bed.images.docker, &stage.bed.registry);
    let mark = server.mark();
    for (what, text, line) in [
        ("a table twice", "[host.'http://a']\n[host.'http://a']\n", 2),
        ("no TOML", "[host\n", 1),
        ("no such capability", "\n[host.'http://a']\ncapabilities = ['fly']\n", 3),
        ("no duration", "[host.'http://a']\ndial_timeout = 'fast'\n", 2),
    ] {
        let file = stage.hosts(&format!("first/{}", server.address()), text)?;
        let place = format!("{}:{line}: ", file.display());
        let reference = image.reference(server.address());
        stage.refuses(what, &reference, None, Code::FailedPrecondition, &[&place]).await?;
    }
    let asked = server.requests_since(mark);
    ensure!(asked.is_empty(), "the registry was asked past the file: {asked:?}");
    Ok(())
}

/// Fault 40.
async fn default(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "default")?;
    let image = &stage.bed.images.docker;
    let empty = stage.beside("", "empty");
    fs::create_dir_all(&empty).context("cannot create a storage")?;
    let mirror = Registry::start("default", stage.bed.run(), &empty, None)?;
    let upstream = Crane::start(stage.bed.run())?;
    image.push(upstream.address())?;
    stage.hosts("first/_default", &format!("[host.\"http://{}\"]\n", mirror.address()))?;
    let mark = mirror.mark();
    stage.pulls("fallback", image, &image.reference(upstream.address()), None).await?;
    let asked = mirror.requests_since(mark);
    let namespace = format!("?ns={}", upstream.address().replace(':', "%3A"));
    let told = |request: &Request| request.path.ends_with(&namespace) && request.status == 404;
    ensure!(!asked.is_empty() && asked.iter().all(told), "the mirror was asked {asked:?}");
    Ok(())
}

/// Fault 41.
async fn path(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "path")?;
    let (image, server) = (&stage.bed.images.docker, &stage.bed.registry);
    let nested = Registry::start_below("nested", stage.bed.run(), &stage.bed.storage(), "/nested/")?;
    let text = format!("[host.\"http://{}/nested/v2\"]\noverride_path = true\n", nested.address());
    stage.hosts(&format!("first/{}", server.address()), &text)?;
    let reference = image.reference(server.address());
    let marks = (nested.mark(), server.mark());
    stage.pulls("below a path", image, &reference, None).await?;
    let (at_nested, at_server) = (nested.requests_since(marks.0), server.requests_since(marks.1));
    let below = |request: &Request| request.path.starts_with("/nested/v2/docker/");
    ensure!(!at_nested.is_empty() && at_nested.iter().all(below), "the mirror was asked {at_nested:?}");
    ensure!(at_server.is_empty(), "the registry was asked {at_server:?}");
    drop(nested);
    let mark = server.mark();
    stage.pulls("the mirror is gone", image, &reference, None).await?;
    let asked = server.requests_since(mark);
    let own = |request: &Request| request.path.starts_with("/v2/docker/") && !request.path.contains("ns=");
    ensure!(!asked.is_empty() && asked.iter().all(own), "the registry was asked {asked:?}");
    Ok(())
}

async fn capabilities(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "capabilities")?;
    let (image, server) = (&stage.bed.images.docker, &stage.bed.registry);
    let mirror = Registry::start("capable", stage.bed.run(), &stage.bed.storage(), None)?;
    for (capabilities, resolves, gives) in
        [("\"pull\", \"resolve\"", true, true), ("\"pull\"", false, true), ("\"resolve\"", false, false)]
    {
        let text = format!("[host.\"http://{}\"]\ncapabilities = [{capabilities}]\n", mirror.address());
        stage.hosts(&format!("first/{}", server.address()), &text)?;
        let marks = [mirror.mark(), server.mark()];
        stage.pulls(capabilities, image, &image.reference(server.address()), None).await?;
        let [at_mirror, at_server] =
            [(&mirror, marks[0]), (server, marks[1])].map(|(registry, mark)| registry.requests_since(mark));
        let tag = |asked: &[Request]| asked.iter().any(|request| request.path.contains("/manifests/1"));
        let blobs = |asked: &[Request]| asked.iter().any(|request| request.path.contains("/blobs/"));
        ensure!(tag(&at_mirror) == resolves && tag(&at_server) != resolves, "{capabilities}: {at_mirror:?}");
        ensure!(blobs(&at_mirror) == gives && blobs(&at_server) != gives, "{capabilities}: {at_mirror:?}");
    }
    Ok(())
}

/// Fault 47.
async fn proxies(bed: Arc<Bed>) -> Result<()> {
    let image = &bed.images.docker;
    let reference = image.reference("reg.invalid");
    let through = |name: &str, proxy: &str| {
        let proxy = format!("http://{proxy}");
        let stage = Stage::with(Arc::clone(&bed), name, "", |launch| {
            launch.environment.push(("HTTP_PROXY", proxy.clone()));
            launch.environment.push(("HTTPS_PROXY", proxy));
        })?;
        stage.hosts("first/reg.invalid", "server = \"http://reg.invalid\"\n")?;
        anyhow::Ok(stage)
    };
    // A registry is as good as a proxy in front of it: the name that it is asked by is of no interest to it.
    let stage = through("proxy", bed.registry.address())?;
    let mark = bed.registry.mark();
    stage.pulls("through the proxy", image, &reference, None).await?;
    ensure!(!statuses(&bed.registry, mark).is_empty(), "the proxy was not asked");

    let dead = free_loopback_address()?;
    let stage = through("dead-proxy", &dead)?;
    stage.refuses("a dead proxy", &reference, None, Code::Unavailable, &["refused"]).await?;
    stage.pulls("on this node", image, &image.reference(bed.registry.address()), None).await
}
