//! docker-registry that wants tokens, which it reads by itself, and a scripted server that issues them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::crane::Crane;
use drayd_tests::peers::Release;
use drayd_tests::registry::{Account, Registry};
use drayd_tests::scripted::tokens::{Rules, Tokens};
use drayd_tests::scripted::{Scripted, Signer};
use drayd_tests::suite::Suite;
use serde_json::json;
use tonic::Code;

use crate::stage::{Stage, statuses};

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "a_token_is_taken_under_either_name", either_name);
    suite.check(release, "no_lifetime_of_a_token_makes_a_storm_of_requests", lifetimes);
    suite.check(release, "a_token_that_died_in_the_cache_is_replaced_within_the_pull", died);
    suite.check(release, "a_realm_with_commas_and_a_query_is_used_as_it_is", realm);
    suite.check(release, "refused_credentials_fail_a_public_image_unless_the_fallback_is_on", public);
}

/// A registry with its token server.
pub(crate) struct Guarded {
    pub(crate) registry: Registry,
    pub(crate) tokens: Tokens,
    /// What the token server stands on.
    server: Scripted,
}

/// Whom the token server knows.
pub(crate) fn account() -> Account {
    Account { user: "token-user".into(), password: "token password".into() }
}

/// Somebody else for each number: tokens of one login are not used for another.
fn login(number: usize) -> Account {
    Account { user: format!("user-{number}"), password: "password".into() }
}

impl Guarded {
    /// Over what the bed's registries hold. The token server knows the account and, if `change` does not say
    /// otherwise, serves those without credentials.
    pub(crate) async fn start(bed: &Bed, name: &str, change: impl FnOnce(&mut Rules)) -> Result<Self> {
        Self::start_at(bed, name, "", change).await
    }

    /// As [`Guarded::start`], with more behind the URL of the token server.
    async fn start_at(bed: &Bed, name: &str, query: &str, change: impl FnOnce(&mut Rules)) -> Result<Self> {
        let signer = Signer::new()?;
        let certificate = signer.certificate();
        let mut rules = Rules {
            account: Some((account().user, account().password)),
            signer: Some(signer),
            ..Rules::default()
        };
        change(&mut rules);
        let server = Scripted::start().await?;
        let tokens = Tokens::at(&server, "/auth/token", rules);
        let realm = format!("{}{query}", tokens.realm());
        let registry = Registry::start_with_tokens(name, bed.run(), &bed.storage(), &realm, &certificate)?;
        Ok(Self { registry, tokens, server })
    }

    /// A drayd that reaches this registry without TLS.
    fn stage(&self, bed: Arc<Bed>, name: &str, keys: &str) -> Result<Stage> {
        let stage = Stage::with(bed, name, keys, |_| {})?;
        stage.plain(self.registry.address())?;
        Ok(stage)
    }
}

/// Fault 14.
async fn either_name(bed: Arc<Bed>) -> Result<()> {
    let guarded = Guarded::start(&bed, "fields", |rules| rules.account = None).await?;
    let stage = guarded.stage(bed, "fields", "")?;
    let image = &stage.bed.images.docker;
    let reference = image.reference(guarded.registry.address());
    let names = [vec!["token"], vec!["access_token"], vec!["access_token", "token"]];
    for (number, fields) in names.into_iter().enumerate() {
        guarded.tokens.change(|rules| rules.fields.clone_from(&fields));
        stage.pulls(&format!("{fields:?}"), image, &reference, Some(&login(number))).await?;
    }
    guarded.tokens.change(|rules| rules.fields.clear());
    let texts = [guarded.server.address(), "no token"];
    stage.refuses("no field", &reference, Some(&login(9)), Code::Unauthenticated, &texts).await?;
    Ok(())
}

/// Fault 17.
async fn lifetimes(bed: Arc<Bed>) -> Result<()> {
    let guarded = Guarded::start(&bed, "lifetimes", |rules| rules.account = None).await?;
    let stage = guarded.stage(bed, "lifetimes", "")?;
    let image = &stage.bed.images.docker;
    let reference = image.reference(guarded.registry.address());
    // Absent, and what no lifetime should be.
    let told = [json!(null), json!(0), json!(-1), json!(4_000_000_000_u64), json!("300")];
    for (number, told) in told.into_iter().enumerate() {
        guarded.tokens.change(|rules| rules.expires_in = Some(told.clone()));
        let before = guarded.tokens.orders().len();
        for _ in 0..2 {
            stage.pulls(&told.to_string(), image, &reference, Some(&login(number))).await?;
        }
        let ordered = guarded.tokens.orders().len() - before;
        ensure!(ordered == 1, "expires_in = {told}: two pulls ordered {ordered} tokens");
    }
    Ok(())
}

/// Fault 18.
async fn died(bed: Arc<Bed>) -> Result<()> {
    const LIFETIME: Duration = Duration::from_secs(2);
    let guarded = Guarded::start(&bed, "died", |rules| {
        rules.lifetime = LIFETIME;
        rules.expires_in = Some(json!(3600));
    })
    .await?;
    let stage = guarded.stage(bed, "died", "")?;
    let image = &stage.bed.images.docker;
    let reference = image.reference(guarded.registry.address());
    stage.pulls("a fresh token", image, &reference, Some(&account())).await?;
    // The registry counts in whole seconds.
    tokio::time::sleep(LIFETIME + Duration::from_secs(1)).await;
    let (mark, before) = (guarded.registry.mark(), guarded.tokens.issued());
    stage.pulls("a dead token", image, &reference, Some(&account())).await?;
    let answered = statuses(&guarded.registry, mark);
    ensure!(answered.first() == Some(&401), "the dead token was not refused: {answered:?}");
    ensure!(guarded.tokens.issued() > before, "no token was ordered in place of the dead one");
    Ok(())
}

/// Faults 13 and 29.
async fn realm(bed: Arc<Bed>) -> Result<()> {
    let guarded = Guarded::start_at(&bed, "realm", "?x=1,scope=2", |_| {}).await?;
    let stage = guarded.stage(bed, "realm", "")?;
    let image = &stage.bed.images.docker;
    let open = Crane::start(stage.bed.run())?;
    image.push(open.address())?;
    stage.plain(open.address())?;
    let orders = |who: &str| {
        let orders = guarded.server.take_journal();
        ensure!(!orders.is_empty(), "{who}: no token was ordered");
        for order in orders {
            let (path, query) = order.target.split_once('?').unwrap_or((&order.target, ""));
            ensure!(path == "/auth/token", "{who}: {}", order.target);
            let asked = if order.method == "POST" { &order.body } else { query };
            ensure!(query.starts_with("x=1,scope=2"), "{who}: the realm's query became {query}");
            ensure!(asked.contains("service=scripted"), "{who}: {asked}");
            ensure!(asked.contains("scope=repository%3Adocker%3Apull"), "{who}: {asked}");
        }
        Ok(())
    };
    stage.pulls("nobody", image, &image.reference(guarded.registry.address()), None).await?;
    orders("nobody")?;
    stage.pulls("somebody", image, &image.reference(guarded.registry.address()), Some(&account())).await?;
    orders("somebody")?;
    // Who does not ask for a token is not brought one.
    stage.pulls("open", image, &image.reference(open.address()), Some(&account())).await?;
    let orders = guarded.server.take_journal();
    ensure!(orders.is_empty(), "a token was ordered for a registry that wants none: {orders:?}");
    Ok(())
}

/// Fault 27.
async fn public(bed: Arc<Bed>) -> Result<()> {
    let guarded = Guarded::start(&bed, "public", |_| {}).await?;
    let open = Crane::start(bed.run())?;
    let image = &bed.images.docker;
    image.push(open.address())?;
    let reference = image.reference(guarded.registry.address());
    let wrong = Account { password: "wrong".into(), ..account() };
    for (name, keys, pulled) in
        [("no-fallback", "", false), ("fallback", "anonymous_fallback = true\n", true)]
    {
        let stage = guarded.stage(Arc::clone(&bed), name, keys)?;
        stage.pulls("nobody", image, &reference, None).await?;
        if pulled {
            stage.pulls("wrong", image, &reference, Some(&wrong)).await?;
        } else {
            let texts = [guarded.server.address(), "the credentials were refused"];
            stage.refuses("wrong", &reference, Some(&wrong), Code::Unauthenticated, &texts).await?;
        }
        // A registry that lets everybody in does not ask who comes.
        stage.plain(open.address())?;
        stage.pulls("open", image, &image.reference(open.address()), Some(&wrong)).await?;
    }
    Ok(())
}
