//! No secret of a caller or of a token server comes out of drayd anywhere but towards the registry it is for.

use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use drayd_proto::cri;
use drayd_tests::bed::Bed;
use drayd_tests::peers::Release;
use drayd_tests::probe::State;
use drayd_tests::scripted::image::{Blob, Image, MANIFEST};
use drayd_tests::scripted::tokens::{Rules, Tokens};
use drayd_tests::scripted::{End, Reply, Request, Scripted, storage};
use drayd_tests::suite::Suite;
use serde_json::json;
use tonic::Status;

use crate::stage::{Stage, reach};

const USER: &str = "canary-user";
/// Its plain, base64 and URL-encoded forms have nothing in common.
const PASSWORD: &str = "cänary&pass word/+=%1";
const IDENTITY: &str = "canary identity/token+2";
const REGISTRY_TOKEN: &str = "canary-registry-token-3";
const BEARER: &str = "canary-bearer-token-4";
const SIGNATURE: &str = "canary%2Fsignature+5";
/// In a header that hosts.toml sends along.
const HEADER: &str = "canary-header-6";

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "no_secret_appears_in_any_spelling_anywhere", nowhere);
    suite.check(release, "no_secret_appears_at_whatever_step_a_pull_fails", at_no_step);
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

    clean(&stage, &messages, &[held])?;
    stage.bed.empty().await
}

/// Breaks one step of a pull of the image; `store` is where its redirects lead.
type Break = fn(&Scripted, &Scripted, &Image);

/// The steps in their order, each broken so that what it was given comes back.
const STEPS: [(&str, Break); 24] = [
    ("challenge-missing", |registry, _, image| {
        registry.on("GET", &image.tag_path(), |request, _| echo(401, request));
    }),
    ("challenge-unreadable", |registry, _, image| {
        registry.on("GET", &image.tag_path(), |request, _| {
            echo(401, request)
                .header("WWW-Authenticate", &format!("Bearer realm=\"{SIGNATURE}{}", sent(request)))
        });
    }),
    ("challenge-elsewhere", |registry, _, image| {
        let challenge =
            format!("Bearer realm=\"http://{USER}@127.0.0.1:1/token?sig={SIGNATURE}\",service=\"s\"");
        registry.on("GET", &image.tag_path(), move |request, _| {
            echo(401, request).header("WWW-Authenticate", &challenge)
        });
    }),
    ("challenge-signed", |registry, store, _| {
        let challenge = format!("Bearer realm=\"{}/signed?sig={SIGNATURE}\",service=\"s\"", store.url());
        registry.gate(move |request| {
            request.repository()?;
            Some(echo(401, request).header("WWW-Authenticate", &challenge))
        });
        for method in ["GET", "POST"] {
            store.on(method, "/signed", |request, _| echo(401, request));
        }
    }),
    ("token-refused", |_, store, _| on_token(store, |request| echo(401, request))),
    ("token-failed", |_, store, _| on_token(store, |request| echo(500, request))),
    ("token-html", |_, store, _| {
        on_token(store, |request| Reply::ok("text/html", format!("<p>{}</p>", said(request)).as_bytes()));
    }),
    ("token-odd", |_, store, _| {
        on_token(store, |request| {
            Reply::ok(
                "application/json",
                json!({"token": [said(request)], "expires_in": said(request)}).to_string().as_bytes(),
            )
        });
    }),
    ("token-unsendable", |_, store, _| {
        on_token(store, |_| {
            Reply::ok("application/json", format!("{{\"token\": \"{BEARER}\\n\"}}").as_bytes())
        });
    }),
    ("token-cut", |_, store, _| {
        on_token(store, |request| {
            Reply::ok("application/json", json!({"token": said(request)}).to_string().as_bytes())
                .cut_after(40, End::Reset)
        });
    }),
    ("manifest-denied", |registry, _, image| on_manifest(registry, image, |request| echo(403, request))),
    ("manifest-failed", |registry, _, image| on_manifest(registry, image, |request| echo(503, request))),
    ("manifest-odd", |registry, _, image| {
        on_manifest(registry, image, |request| {
            let odd = json!({"schemaVersion": said(request), "layers": said(request), "config": {"digest": sent(request)}});
            Reply::ok(MANIFEST, odd.to_string().as_bytes())
        });
    }),
    ("config-denied", |registry, _, image| {
        registry.on("GET", &image.config.path(&image.repository), |request, _| echo(403, request));
    }),
    ("config-odd", |registry, _, image| {
        registry.on("GET", &image.config.path(&image.repository), |request, _| {
            Reply::ok("text/html", said(request).as_bytes())
        });
    }),
    ("blob-denied", |registry, _, image| on_layer(registry, image, |request| echo(403, request))),
    ("blob-limited", |registry, _, image| on_layer(registry, image, |request| echo(429, request))),
    ("redirect-dead", |registry, _, image| {
        on_layer(registry, image, |_| Reply::redirect(&format!("http://127.0.0.1:1/store?sig={SIGNATURE}")));
    }),
    ("redirect-nowhere", |registry, _, image| {
        on_layer(registry, image, |_| {
            Reply::redirect(&format!("ftp://{USER}:{BEARER}@reg.test/store?sig={SIGNATURE}"))
        });
    }),
    ("redirect-endless", |registry, store, image| {
        let again = format!("{}/again?sig={SIGNATURE}", store.url());
        store.on("GET", "/again", move |_, _| Reply::redirect(&again));
        let first = format!("{}/again?sig={SIGNATURE}", store.url());
        on_layer(registry, image, move |_| Reply::redirect(&first));
    }),
    ("redirect-worn-out", |registry, store, image| {
        storage::redirect(registry, store, &image.repository, &image.layers[1], SIGNATURE, 0);
        let location = format!("/store/{}", image.layers[1].digest);
        store.on("GET", &location, |request, _| echo(403, request));
    }),
    ("redirect-user", |registry, store, image| {
        let (user, password) = (encoded(USER, "%20"), encoded(PASSWORD, "%20"));
        let host = store.url().trim_start_matches("http://").to_owned();
        on_layer(registry, image, move |_| Reply::redirect(&format!("http://{user}:{password}@{host}/user")));
        store.on("GET", "/user", |request, _| echo(403, request));
    }),
    ("redirect-reset", |registry, store, image| {
        storage::redirect(registry, store, &image.repository, &image.layers[1], SIGNATURE, 0);
        let location = format!("/store/{}", image.layers[1].digest);
        store.on("GET", &location, |_, _| {
            Reply::ok("application/octet-stream", b"x").cut_after(0, End::Reset)
        });
    }),
    ("unpack", |registry, store, image| {
        let mut image = image.clone();
        image.layers[1] = Blob::new(&image.layers[1].media_type, b"this was never compressed".to_vec());
        image.manifest = image.manifest_with(&image.config.descriptor());
        image.serve(registry);
        storage::redirect(registry, store, &image.repository, &image.layers[1], SIGNATURE, usize::MAX);
    }),
];

async fn at_no_step(bed: Arc<Bed>) -> Result<()> {
    let stage = Stage::with(bed, "steps", "", |launch| launch.level = "trace").await?;
    let store = Scripted::start_at("127.0.0.2").await?;
    let rules = Rules {
        account: Some((USER.into(), PASSWORD.into())),
        anonymous: false,
        fields: vec!["token", "access_token", "refresh_token"],
        prefix: BEARER.into(),
        ..Rules::default()
    };
    let auth =
        cri::AuthConfig { username: USER.into(), password: PASSWORD.into(), ..cri::AuthConfig::default() };
    let (mut messages, mut held, mut pulled) = (Vec::new(), Vec::new(), Vec::new());
    let mut asked = Vec::new();
    let probe = stage.bed.containerd.probe();
    for (name, fault) in STEPS {
        // A registry of each step's own: what drayd learned of one is not to help with the next.
        let registry = Scripted::start().await?;
        reach(&stage.bed, registry.address(), &format!("header = {{ x-key = \"{HEADER}\" }}\n"))?;
        let tokens = Tokens::at(&store, "/token", rules.clone());
        let image = Image::new(name, 2, 8)?;
        image.serve(&registry);
        if !name.starts_with("challenge") {
            tokens.guard(&registry);
        }
        fault(&registry, &store, &image);
        match stage.pull_as(&image.reference(&registry), auth.clone()).await {
            Ok(id) => pulled.push(format!("{name}: {id}")),
            Err(status) => messages.push(format!("{name}: {status:?}")),
        }
        held.push(probe.state().await?);
        asked.extend(registry.journal());
    }
    // An address that cannot be used may hold a password as well.
    for (name, address) in [("scheme", ""), ("port", ":99999")] {
        let scheme = if name == "scheme" { "ftp" } else { "http" };
        let host = format!("address-{name}.test");
        reach(&stage.bed, &host, &format!("[host.\"{scheme}://{USER}:{BEARER}@m.test{address}\"]\n"))?;
        match stage.pull(&format!("{host}/a:1")).await {
            Ok(id) => pulled.push(format!("{name}: {id}")),
            Err(status) => messages.push(format!("{name}: {status:?}")),
        }
    }
    ensure!(pulled.is_empty(), "pulled in spite of everything: {pulled:?}");
    asked.extend(store.journal());
    let basic = format!("Basic {}", STANDARD.encode(format!("{USER}:{PASSWORD}")));
    let came = |test: &dyn Fn(&Request) -> bool| asked.iter().any(test);
    ensure!(came(&|request| request.header("authorization") == Some(&basic)), "the password never came");
    ensure!(came(&|request| sent(request).starts_with(&format!("Bearer {BEARER}"))), "no token ever came");
    ensure!(came(&|request| request.query().contains(SIGNATURE)), "no signature ever came");
    ensure!(came(&|request| request.header("x-key") == Some(HEADER)), "the header never came");
    clean(&stage, &messages, &held)
}

/// Fails if drayd's output, these answers, containerd's state or its log show a secret.
fn clean(stage: &Stage, messages: &[String], states: &[State]) -> Result<()> {
    let log = stage.bed.containerd.log();
    let places = [
        ("the output", stage.drayd.output()),
        ("the errors", messages.join("\n")),
        ("containerd", format!("{states:#?}")),
        ("containerd's log", fs::read_to_string(&log).with_context(|| log.display().to_string())?),
    ];
    let mut seen = Vec::new();
    for (place, text) in &places {
        ensure!(!text.is_empty(), "{place} is empty");
        for (name, spelling) in spellings() {
            let lines = text.lines().filter(|line| line.contains(&spelling)).take(2);
            seen.extend(lines.map(|line| format!("{place} shows the {name}: {line}")));
        }
    }
    ensure!(seen.is_empty(), "{}", seen.join("\n"));
    Ok(())
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
    Reply::error(status, "DENIED", &said(request))
}

/// Everything that came, with what is encoded in it.
fn said(request: &Request) -> String {
    let decoded = sent(request).strip_prefix("Basic ").and_then(|sent| STANDARD.decode(sent).ok());
    format!(
        "you sent {} ({}), {} and {} to {}",
        sent(request),
        String::from_utf8_lossy(&decoded.unwrap_or_default()),
        request.header("x-key").unwrap_or_default(),
        request.body,
        request.target
    )
}

fn sent(request: &Request) -> &str {
    request.header("authorization").unwrap_or_default()
}

fn on_token(store: &Scripted, answer: fn(&Request) -> Reply) {
    for method in ["GET", "POST"] {
        store.on(method, "/token", move |request, _| answer(request));
    }
}

fn on_manifest(registry: &Scripted, image: &Image, answer: fn(&Request) -> Reply) {
    for path in [image.tag_path(), image.manifest.path(&image.repository)] {
        registry.on("GET", &path, move |request, _| answer(request));
    }
}

fn on_layer(registry: &Scripted, image: &Image, answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) {
    registry.on("GET", &image.layers[1].path(&image.repository), move |request, _| answer(request));
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
        ("signature", SIGNATURE),
        ("header", HEADER),
    ] {
        all.push((name.to_owned(), secret.to_owned()));
        all.push((format!("{name} in base64"), STANDARD.encode(secret).trim_end_matches('=').to_owned()));
        all.push((format!("{name} in base64 for URLs"), URL_SAFE_NO_PAD.encode(secret)));
        all.push((format!("{name} in a form"), encoded(secret, "+")));
        all.push((format!("{name} in a URL"), encoded(secret, "%20")));
        all.push((format!("{name} escaped"), secret.escape_debug().to_string()));
        all.push((format!("{name} in JSON"), json!(secret).to_string().trim_matches('"').to_owned()));
        all.push((format!("{name} in ASCII"), secret.escape_default().to_string()));
        all.push((format!("{name} in JSON of ASCII"), in_ascii(secret)));
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

/// As JSON writers do that keep to ASCII.
fn in_ascii(secret: &str) -> String {
    secret
        .chars()
        .map(|c| if c.is_ascii() { c.to_string() } else { format!("\\u{:04x}", u32::from(c)) })
        .collect()
}
