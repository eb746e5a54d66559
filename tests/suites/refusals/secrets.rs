//! No secret of a caller or of a token server comes out of drayd anywhere but towards the registry it is for.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use drayd_proto::cri;
use drayd_tests::bed::Bed;
use drayd_tests::peers::Release;
use drayd_tests::scripted::image::Image;
use drayd_tests::scripted::{Reply, Request};
use drayd_tests::suite::Suite;
use serde_json::json;
use tonic::Status;

use crate::stage::Stage;

const USER: &str = "canary-user";
/// Its plain, base64 and URL-encoded forms have nothing in common.
const PASSWORD: &str = "cänary&pass word/+=%1";
const IDENTITY: &str = "canary identity/token+2";
const REGISTRY_TOKEN: &str = "canary-registry-token-3";
const BEARER: &str = "canary-bearer-token-4";

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "no_secret_appears_in_any_spelling_anywhere", nowhere);
}

async fn nowhere(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::with(bed, "secrets", "", |launch| launch.level = "trace").await?;
    let registry = &stage.registry;
    let image = Image::new("secrets", 2, 8)?;
    serve(&stage, &image);
    let reference = image.reference(registry);
    let mut messages = Vec::new();
    let mut note = |what: &str, pulled: Result<String, Status>| {
        messages.push(match pulled {
            Ok(id) => format!("{what}: {id}"),
            Err(status) => format!("{what}: {status:?}"),
        });
    };

    let by_password =
        cri::AuthConfig { username: USER.into(), password: PASSWORD.into(), ..cri::AuthConfig::default() };
    let by_identity = cri::AuthConfig { identity_token: IDENTITY.into(), ..cri::AuthConfig::default() };
    let by_token = cri::AuthConfig { registry_token: REGISTRY_TOKEN.into(), ..cri::AuthConfig::default() };
    let by_auth =
        cri::AuthConfig { auth: STANDARD.encode(format!("{USER}:{PASSWORD}")), ..cri::AuthConfig::default() };
    let unreadable = cri::AuthConfig { auth: format!("%{PASSWORD}"), ..cri::AuthConfig::default() };

    note("good", stage.pull_as(&reference, by_password.clone()).await);
    let held = stage.bed.containerd.probe().state().await?;
    let record = held.images.get(&reference).context("the image was to be pulled with the password")?;
    ensure!(record.0 == image.manifest.digest, "{record:?}");
    for repository in ["echo-basic", "echo-form", "echo-bearer"] {
        let reference = format!("{}/{repository}:1", registry.address());
        for auth in [&by_password, &by_identity, &by_token, &by_auth, &unreadable] {
            note(repository, stage.pull_as(&reference, auth.clone()).await);
        }
    }
    let private = stage.bed.images.busybox.reference(stage.bed.private.address());
    for auth in [by_password, by_auth, by_identity, by_token] {
        note("private", stage.pull_as(&private, auth).await);
    }
    let used = registry.journal();
    let basic = format!("Basic {}", STANDARD.encode(format!("{USER}:{PASSWORD}")));
    for sent in [basic, format!("Bearer {REGISTRY_TOKEN}"), format!("Bearer {BEARER}")] {
        let came = used.iter().any(|request| request.header("authorization") == Some(&sent));
        ensure!(came, "the check is blind: {sent} never reached the registry");
    }

    let places = [
        ("the output", stage.drayd.output()),
        ("the errors", messages.join("\n")),
        ("containerd", format!("{held:?}")),
    ];
    for (place, text) in &places {
        ensure!(!text.is_empty(), "{place} is empty");
        let lines: Vec<String> = spellings()
            .iter()
            .flat_map(|(name, spelling)| {
                text.lines()
                    .filter(move |line| line.contains(spelling))
                    .take(2)
                    .map(move |line| format!("{name}: {line}"))
            })
            .collect();
        ensure!(lines.is_empty(), "{place} shows\n{}", lines.join("\n"));
    }
    drop(places);
    stage.bed.empty().await
}

/// Serves the image to bearers; `echo-…` are refused with the registry's or the token server's own quotation of what
/// they sent.
fn serve(stage: &Stage, image: &Image) {
    let registry = &stage.registry;
    let bearer = |path: &str, repository: &str| {
        format!(
            "Bearer realm=\"http://{}{path}\",service=\"s\",scope=\"repository:{repository}:pull\"",
            registry.address()
        )
    };
    image.serve(registry);
    let challenge = bearer("/token", "secrets");
    let manifest = image.manifest.clone();
    registry.on("GET", &image.tag_path(), move |request, _| match request.header("authorization") {
        Some(sent) if sent == format!("Bearer {BEARER}") => Reply::ok(&manifest.media_type, &manifest.bytes),
        _ => Reply::status(401).header("WWW-Authenticate", &challenge),
    });
    let token = json!({"token": BEARER, "access_token": BEARER, "refresh_token": BEARER}).to_string();
    for method in ["GET", "POST"] {
        let token = token.clone();
        registry.on(method, "/token", move |_, _| Reply::ok("application/json", token.as_bytes()));
        registry.on(method, "/refuse", |request, _| echo(401, request));
    }
    for (repository, challenge) in [
        ("echo-basic", "Basic realm=\"r\"".to_owned()),
        ("echo-form", bearer("/refuse", "echo-form")),
        ("echo-bearer", bearer("/token", "echo-bearer")),
    ] {
        registry.on("GET", &format!("/v2/{repository}/manifests/1"), move |request, _| {
            let status = if request.header("authorization").is_some() { 403 } else { 401 };
            echo(status, request).header("WWW-Authenticate", &challenge)
        });
    }
}

/// Quotes everything that came.
fn echo(status: u16, request: &Request) -> Reply {
    let sent = request.header("authorization").unwrap_or_default();
    let decoded = sent.strip_prefix("Basic ").and_then(|sent| STANDARD.decode(sent).ok()).unwrap_or_default();
    let message = format!(
        "you sent {sent} ({}) and {} to {}",
        String::from_utf8_lossy(&decoded),
        request.body,
        request.target
    );
    let body = json!({"errors": [{"code": "DENIED", "message": message}]}).to_string();
    let reply = Reply::ok("application/json", body.as_bytes());
    reply.with_status(status)
}

/// Everything that must not be seen, by what it is.
fn spellings() -> Vec<(String, String)> {
    let mut all = vec![("user:password in base64".to_owned(), STANDARD.encode(format!("{USER}:{PASSWORD}")))];
    all.push((":identity in base64".to_owned(), STANDARD.encode(format!(":{IDENTITY}"))));
    for (name, secret) in [
        ("user", USER),
        ("password", PASSWORD),
        ("identity token", IDENTITY),
        ("registry token", REGISTRY_TOKEN),
        ("bearer token", BEARER),
    ] {
        all.push((name.to_owned(), secret.to_owned()));
        all.push((format!("{name} in base64"), STANDARD.encode(secret)));
        all.push((format!("{name} in a form"), encoded(secret, "+")));
        all.push((format!("{name} in a URL"), encoded(secret, "%20")));
        all.push((format!("{name} escaped"), secret.escape_debug().to_string()));
    }
    all
}

fn encoded(secret: &str, space: &str) -> String {
    secret
        .bytes()
        .map(|byte| match byte {
            b' ' => space.to_owned(),
            b if b.is_ascii_alphanumeric() || b"-_.*".contains(&b) => char::from(b).to_string(),
            b => format!("%{b:02X}"),
        })
        .collect()
}
