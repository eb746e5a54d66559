//! Who is asking: passwords against docker-registry, bearer tokens against a scripted one.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use drayd_proto::cri;
use drayd_tests::bed::Bed;
use drayd_tests::peers::Release;
use drayd_tests::scripted::image::Image;
use drayd_tests::scripted::{Reply, Scripted};
use drayd_tests::suite::Suite;
use tonic::Code;

use crate::stage::{Stage, refused};

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "only_the_right_password_for_this_registry_opens_it", passwords);
    suite.check(release, "credentials_that_cannot_be_read_are_an_invalid_argument", unreadable);
    suite.check(release, "a_pull_orders_one_token_and_the_next_pull_uses_it_again", tokens);
}

fn password(user: &str, password: &str, server_address: &str) -> cri::AuthConfig {
    cri::AuthConfig {
        username: user.into(),
        password: password.into(),
        server_address: server_address.into(),
        ..cri::AuthConfig::default()
    }
}

/// Faults 30 and 156, bad credentials.
async fn passwords(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::with(bed, "passwords", "", |launch| launch.level = "debug").await?;
    let registry = &stage.bed.private;
    let (address, account) = (registry.address(), registry.account().context("an account")?);
    let (user, right) = (account.user.as_str(), account.password.as_str());
    let image = &stage.bed.images.busybox;
    let reference = image.reference(address);
    let required = "credentials are required and none were given for this host";
    let wrong = "the credentials were refused";
    for (what, auth, text) in [
        ("none", cri::AuthConfig::default(), required),
        ("wrong password", password(user, "wrong", ""), wrong),
        ("wrong user", password("nobody", right, ""), wrong),
        ("for another host", password(user, right, "reg.test"), required),
        ("for another port", password(user, right, "127.0.0.1:1"), required),
        ("for another host, as a URL", password(user, right, "https://reg.test/v1/"), required),
        (
            "a token",
            cri::AuthConfig { identity_token: "t".into(), ..cri::AuthConfig::default() },
            "user and password are required",
        ),
    ] {
        refused(what, stage.pull_as(&reference, auth).await, Code::Unauthenticated, &[text, address])?;
    }
    stage.left_nothing().await?;
    let log = stage.drayd.log();
    ensure!(log.contains("credentials not used: their server address is another registry"), "{log}");
    ensure!(!log.contains(right), "the log shows a password:\n{log}");

    let encoded = STANDARD.encode(format!("{user}:{right}"));
    for (what, auth) in [
        ("user and password", password(user, right, "")),
        ("for host:port", password(user, right, address)),
        ("for http://host:port", password(user, right, &format!("http://{address}"))),
        ("for https://host:port", password(user, right, &format!("https://{address}"))),
        ("for https://host:port/v1/", password(user, right, &format!("https://{address}/v1/"))),
        ("for https://host:port/v2/", password(user, right, &format!("https://{address}/v2/"))),
        ("auth", cri::AuthConfig { auth: encoded.clone(), ..cri::AuthConfig::default() }),
        (
            "auth for host:port",
            cri::AuthConfig { auth: encoded, server_address: address.into(), ..cri::AuthConfig::default() },
        ),
    ] {
        let id = stage.pull_as(&reference, auth).await.with_context(|| format!("refused: {what}"))?;
        ensure!(id == image.config.digest, "{what}: {id}");
        stage.holds(&image.top_chain_id()).await?;
        stage.bed.empty().await?;
    }
    Ok(())
}

async fn unreadable(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "unreadable").await?;
    let reference = stage.bed.images.busybox.reference(stage.bed.private.address());
    for (auth, text) in [
        ("%%%", "is not base64"),
        (STANDARD.encode("nocolon").as_str(), "holds no colon"),
        ("bm9jb2xvbg", "holds no colon"),
    ] {
        let auth = cri::AuthConfig { auth: auth.into(), ..cri::AuthConfig::default() };
        let pulled = stage.pull_as(&reference, auth).await;
        refused("auth", pulled, Code::InvalidArgument, &["cannot read the credentials", text])?;
    }
    stage.left_nothing().await
}

const TOKEN: &str = "token-of-the-script";

/// Serves the image to bearers of the token only, and tokens to everybody.
fn guard(registry: &Scripted, image: &Image) {
    let challenge = format!(
        "Bearer realm=\"http://{}/token\",service=\"scripted\",scope=\"repository:{}:pull\"",
        registry.address(),
        image.repository
    );
    let blobs = image.layers.iter().chain([&image.config]).cloned();
    let documents = blobs.map(|blob| (blob.path(&image.repository), blob));
    let manifests = [image.tag_path(), image.manifest.path(&image.repository)];
    for (path, blob) in documents.chain(manifests.map(|path| (path, image.manifest.clone()))) {
        let challenge = challenge.clone();
        registry.on("GET", &path, move |request, _| {
            if request.header("authorization") == Some(&format!("Bearer {TOKEN}")) {
                Reply::ok(&blob.media_type, &blob.bytes)
            } else {
                Reply::status(401).header("WWW-Authenticate", &challenge)
            }
        });
    }
    let answer = format!("{{\"token\": \"{TOKEN}\", \"expires_in\": 300}}");
    registry.on("GET", "/token", move |_, _| Reply::ok("application/json", answer.as_bytes()));
}

async fn tokens(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::set(bed, "tokens").await?;
    let registry = &stage.registry;
    let image = Image::new("tokens", 3, 8)?;
    guard(registry, &image);
    let first = stage.pull(&image.reference(registry)).await?;
    ensure!(first == image.config.digest, "{first}");
    let orders = registry.asked("GET", "/token");
    ensure!(orders.len() == 1, "the first pull ordered {} tokens", orders.len());
    let query = orders[0].target.split_once('?').unwrap_or_default().1;
    ensure!(query == "service=scripted&scope=repository%3Atokens%3Apull", "ordered {query}");
    let bare = |requests: &[drayd_tests::scripted::Request]| {
        let bare = |request: &&drayd_tests::scripted::Request| {
            request.path() != "/token" && request.header("authorization").is_none()
        };
        requests.iter().filter(bare).count()
    };
    let asked = registry.journal();
    ensure!(bare(&asked) == 1, "only the very first request should be without a token: {asked:#?}");

    stage.bed.empty().await?;
    let second = stage.pull(&image.reference(registry)).await?;
    ensure!(second == image.config.digest, "{second}");
    stage.holds(&image.top_chain_id()).await?;
    let orders = registry.asked("GET", "/token").len();
    ensure!(orders == 1, "the second pull ordered a token of its own");
    ensure!(bare(&registry.journal()) == 1, "the second pull forgot what the registry demands");
    stage.bed.empty().await
}
