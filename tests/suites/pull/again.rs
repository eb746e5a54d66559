//! Pulls of what is there already: what they cost the registry, and that they still are for those only whom it lets in.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use drayd_tests::containerd::{NATIVE_HANDLER, NYDUS_HANDLER};
use drayd_tests::drayd::Drayd;
use drayd_tests::peers::Release;
use drayd_tests::registry::Account;
use drayd_tests::scripted::image::Image;
use drayd_tests::scripted::{Reply, Scripted};
use drayd_tests::suite::Suite;
use tonic::{Code, Status};

use crate::stage::{self, Stage, pull};

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "an_image_that_is_up_to_date_costs_one_head", up_to_date);
    suite.check(release, "a_digest_that_is_complete_costs_no_request", complete_digest);
    suite.check(
        release,
        "what_is_on_the_node_is_given_only_to_credentials_that_the_registry_let_in",
        proved_credentials,
    );
    suite.check(release, "credentials_are_proved_in_every_pull_if_so_configured", always_proved);
    suite.check(release, "what_a_public_image_shows_by_the_fallback_is_shown_again", shown_by_the_fallback);
}

/// A registry of one image, and whom it lets in.
struct Guarded {
    registry: Scripted,
    image: Image,
    /// Passwords that are right, each with its own user's name; `None` lets everybody in who brings none.
    right: Arc<Mutex<Vec<Option<&'static str>>>>,
}

impl Guarded {
    async fn serve(name: &str, right: &[Option<&'static str>]) -> Result<Self> {
        let registry = Scripted::start().await?;
        let image = Image::new(name, 2, 8)?;
        image.serve(&registry);
        let right = Arc::new(Mutex::new(right.to_vec()));
        let let_in = Arc::clone(&right);
        registry.gate(move |request| {
            let header = |name: &str| format!("Basic {}", STANDARD.encode(format!("{name}:{name}-password")));
            let shown = request.header("authorization");
            let right = let_in.lock().unwrap_or_else(PoisonError::into_inner);
            let open = right.iter().any(|right| right.map(header).as_deref() == shown);
            (!open).then(|| Reply::status(401).header("WWW-Authenticate", "Basic realm=\"scripted\""))
        });
        Ok(Self { registry, image, right })
    }

    fn let_in(&self, right: &[Option<&'static str>]) {
        *self.right.lock().unwrap_or_else(PoisonError::into_inner) = right.to_vec();
    }

    fn by_tag(&self) -> String {
        self.image.reference(&self.registry)
    }

    fn by_digest(&self) -> String {
        format!("{}/{}@{}", self.registry.address(), self.image.repository, self.image.manifest.digest)
    }

    /// Pulls in somebody's name, and tells what the registry was asked meanwhile.
    async fn pulled(
        &self,
        drayd: &Drayd,
        reference: &str,
        handler: Option<&str>,
        name: Option<&str>,
    ) -> (Result<String, Status>, Vec<String>) {
        self.registry.take_journal();
        let account =
            name.map(|name| Account { user: name.to_owned(), password: format!("{name}-password") });
        let pulled = drayd.cri().pull(reference, handler, account.as_ref()).await;
        let asked = self.registry.take_journal().into_iter();
        (pulled, asked.map(|request| format!("{} {}", request.method, request.path())).collect())
    }

    /// The same for a pull that is to succeed.
    async fn cost(
        &self,
        drayd: &Drayd,
        reference: &str,
        handler: Option<&str>,
        name: Option<&str>,
    ) -> Result<Vec<String>> {
        let (pulled, asked) = self.pulled(drayd, reference, handler, name).await;
        let id = pulled.with_context(|| format!("cannot pull {reference} for {name:?}"))?;
        ensure!(id == self.image.config.digest, "{reference} is {id}");
        Ok(asked)
    }

    /// The same for one that is to be refused, by the registry and before anything is fetched.
    async fn refused(&self, drayd: &Drayd, reference: &str, name: Option<&str>) -> Result<()> {
        let (pulled, asked) = self.pulled(drayd, reference, None, name).await;
        let code = pulled.as_ref().err().map(Status::code);
        ensure!(code == Some(Code::Unauthenticated), "{name:?}: {pulled:?}");
        ensure!(
            !asked.is_empty() && asked.iter().all(|asked| asked.starts_with("HEAD ")),
            "{name:?}: {asked:?}"
        );
        Ok(())
    }

    fn head(&self, object: &str) -> Vec<String> {
        vec![format!("HEAD /v2/{}/manifests/{object}", self.image.repository)]
    }
}

/// Settings that let drayd reach the registry without trying TLS first.
fn reach(bed: &Stage, guarded: &Guarded, more: &str) -> Result<String> {
    let hosts = bed.containerd.registry_configuration();
    let directory = hosts.join(guarded.registry.address());
    std::fs::create_dir_all(&directory)?;
    std::fs::write(directory.join("hosts.toml"), format!("server = \"{}\"\n", guarded.registry.url()))?;
    Ok(format!("[registry]\nconfig_path = [\"{}\"]\n{more}", hosts.display()))
}

async fn up_to_date(bed: Stage) -> Result<()> {
    let guarded = Guarded::serve("up-to-date", &[None]).await?;
    let drayd = stage::configured(&bed, &reach(&bed, &guarded, "")?, &[]).await?;
    let tag = guarded.by_tag();
    for handler in [None, Some(NATIVE_HANDLER), Some(NYDUS_HANDLER)] {
        let first = guarded.cost(&drayd, &tag, handler, None).await?;
        ensure!(!first.is_empty(), "{handler:?}: nobody was asked");
        for _ in 0..2 {
            let again = guarded.cost(&drayd, &tag, handler, None).await?;
            ensure!(again == guarded.head("1"), "{handler:?}: {again:?}");
        }
    }
    // The same of an index, from a registry as others run it.
    let image = &bed.images.two;
    for handler in [Some(NYDUS_HANDLER), None, Some(NATIVE_HANDLER)] {
        pull(&bed, &drayd, image, handler).await?;
        let mark = bed.registry.mark();
        pull(&bed, &drayd, image, handler).await?;
        let asked = bed.registry.requests_since(mark);
        let [only] = asked.as_slice() else { anyhow::bail!("{handler:?}: not one request: {asked:#?}") };
        ensure!(only.method == "HEAD" && only.path.ends_with("/manifests/1"), "{handler:?}: {only:?}");
    }
    Ok(())
}

async fn complete_digest(bed: Stage) -> Result<()> {
    let guarded = Guarded::serve("complete-digest", &[None]).await?;
    let settings = reach(&bed, &guarded, "")?;
    let drayd = stage::configured(&bed, &settings, &[]).await?;
    let (digest, head) = (guarded.by_digest(), guarded.head(&guarded.image.manifest.digest));
    let with_tag = digest.replace('@', ":other@");
    guarded.cost(&drayd, &guarded.by_tag(), None, None).await?;
    // The blobs are here, so that another snapshotter needs nothing either.
    for (reference, handler) in
        [(&digest, None), (&with_tag, None), (&digest, Some(NATIVE_HANDLER)), (&digest, Some(NYDUS_HANDLER))]
    {
        let asked = guarded.cost(&drayd, reference, handler, None).await?;
        ensure!(asked.is_empty(), "{reference} for {handler:?}: {asked:?}");
    }
    drop(drayd);
    let drayd = stage::start(&bed, &settings, &[])?;
    let first = guarded.cost(&drayd, &digest, None, None).await?;
    ensure!(first == head, "after a restart: {first:?}");
    let second = guarded.cost(&drayd, &digest, None, None).await?;
    ensure!(second.is_empty(), "after a restart, the second: {second:?}");

    // What is missing is asked for, and only that.
    let probe = bed.containerd.probe();
    drayd.cri().remove(&guarded.image.config.digest).await?;
    probe.force_gc().await?;
    let anew = guarded.cost(&drayd, &digest, None, None).await?;
    ensure!(anew.len() == 5 && anew.starts_with(&head), "after a removal: {anew:?}");
    let state = probe.state().await?;
    let names: Vec<&String> = state.images.keys().collect();
    ensure!(names == [&digest, &guarded.image.config.digest], "{names:?}");
    ensure!(state.leases.is_empty(), "{:?}", state.leases);
    Ok(())
}

async fn proved_credentials(bed: Stage) -> Result<()> {
    let guarded = Guarded::serve("proved", &[Some("one"), Some("two")]).await?;
    let settings = reach(&bed, &guarded, "")?;
    let drayd = stage::configured(&bed, &settings, &[]).await?;
    let (tag, digest) = (guarded.by_tag(), guarded.by_digest());
    let head = guarded.head(&guarded.image.manifest.digest);
    guarded.cost(&drayd, &tag, None, Some("one")).await?;
    let again = guarded.cost(&drayd, &digest, None, Some("one")).await?;
    ensure!(again.is_empty(), "proved credentials were proved again: {again:?}");
    // All of it is on the node, and none of that is theirs.
    for stranger in [None, Some("wrong")] {
        for reference in [&digest, &tag] {
            guarded.refused(&drayd, reference, stranger).await?;
        }
    }
    for (expected, time) in [(&head, "first"), (&Vec::new(), "second")] {
        let asked = guarded.cost(&drayd, &digest, None, Some("two")).await?;
        ensure!(asked == *expected, "the {time} pull of the second one: {asked:?}");
    }
    // A refusal counts from when it is known.
    guarded.let_in(&[Some("two")]);
    guarded.refused(&drayd, &tag, Some("one")).await?;
    guarded.refused(&drayd, &digest, Some("one")).await?;
    let asked = guarded.cost(&drayd, &digest, None, Some("two")).await?;
    ensure!(asked.is_empty(), "another's refusal was held against the second one: {asked:?}");
    drop(drayd);
    let drayd = stage::start(&bed, &settings, &[])?;
    guarded.refused(&drayd, &digest, Some("one")).await?;
    let log = drayd.log_lines().join("\n");
    ensure!(!log.contains("-password"), "a password is in the log");
    Ok(())
}

async fn always_proved(bed: Stage) -> Result<()> {
    let guarded = Guarded::serve("always", &[Some("one")]).await?;
    let settings = reach(&bed, &guarded, "\n[pull]\nalways_verify_credentials = true\n")?;
    let drayd = stage::configured(&bed, &settings, &[]).await?;
    let digest = guarded.by_digest();
    guarded.cost(&drayd, &digest, None, Some("one")).await?;
    for _ in 0..2 {
        let asked = guarded.cost(&drayd, &digest, None, Some("one")).await?;
        ensure!(asked == guarded.head(&guarded.image.manifest.digest), "{asked:?}");
    }
    guarded.let_in(&[]);
    guarded.refused(&drayd, &digest, Some("one")).await
}

async fn shown_by_the_fallback(bed: Stage) -> Result<()> {
    let guarded = Guarded::serve("public", &[None]).await?;
    let settings = reach(&bed, &guarded, "anonymous_fallback = true\n")?;
    let drayd = stage::configured(&bed, &settings, &[]).await?;
    let digest = guarded.by_digest();
    guarded.cost(&drayd, &digest, None, Some("stale")).await?;
    let asked = guarded.cost(&drayd, &digest, None, Some("stale")).await?;
    ensure!(asked.is_empty(), "{asked:?}");
    // It was shown to nobody in particular: the image is no more public, and each one's own proof counts.
    guarded.let_in(&[Some("one")]);
    guarded.refused(&drayd, &digest, Some("wrong")).await
}
