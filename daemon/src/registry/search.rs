//! The search for one object over the hosts of a registry: whom to ask next, after which pause, and how each one
//! failed. Every host is asked once before any is asked again, so that a broken mirror costs one request.

use tokio::time::{Duration, Instant, sleep, sleep_until};

use super::credentials::Credentials;
use super::credentials_file::CredentialsFile;
use super::error::{Attempt, Error, Kind, is_final};
use super::failure::Failure;
use super::hosts::Host;
use super::retry::{self, Retry};
use super::session::Session;
use super::{Registry, Repository, Shared};

/// Those who wait for the same host to take requests again come back within this long of each other.
const SPREAD: Duration = Duration::from_millis(500);

pub(super) struct Search<'a> {
    registry: &'a Registry,
    repository: &'a Repository,
    credentials: &'a Credentials,
    /// The node's own credentials, as they were when the search began.
    node: CredentialsFile,
    /// In the order of asking.
    candidates: Vec<Candidate>,
    /// Who is asked next, and not before when. Settled when the last one failed rather than when the next is asked,
    /// so that a caller who leaves while it waits and comes back finds the same turn.
    turn: Option<Turn>,
    /// Who was asked last.
    current: usize,
    asked: Instant,
    retry: Retry,
}

struct Candidate {
    host: Host,
    tries: u32,
    /// How it failed since there was progress.
    failure: Option<Failure>,
    /// Whether bytes of the object came from it.
    gave: bool,
    /// Whether it has been counted that it was passed over.
    passed_over: bool,
}

#[derive(Clone, Copy)]
struct Turn {
    index: usize,
    at: Instant,
}

impl<'a> Search<'a> {
    /// The node's own credentials, as they were when the search began.
    pub(super) fn node(&self) -> &CredentialsFile {
        &self.node
    }

    /// A search over the hosts that serve content and fit: as they are configured, but those that are resting or ask
    /// to be left alone after all others.
    pub(super) async fn begin(
        registry: &'a Registry,
        repository: &'a Repository,
        credentials: &'a Credentials,
        fits: impl Fn(&Host) -> bool,
    ) -> Result<Self, Error> {
        let node = registry.logins.of_node().await.map_err(Error::Credentials)?;
        let mut hosts = registry.hosts(repository).await?;
        hosts.retain(|host| host.capabilities.pull && fits(host));
        let standing = &registry.standing;
        hosts.sort_by_cached_key(|Host { authority, .. }| {
            standing.is_resting(authority)
                || standing.held(authority, &repository.path, credentials).is_some()
        });
        let candidate = |host| Candidate { host, tries: 0, failure: None, gave: false, passed_over: false };
        let mut search = Self {
            registry,
            repository,
            credentials,
            node,
            candidates: hosts.into_iter().map(candidate).collect(),
            turn: None,
            current: 0,
            asked: Instant::now(),
            retry: Retry::default(),
        };
        search.turn = search.choose();
        Ok(search)
    }

    /// The next host to ask, once it may be asked; `None` when no host is worth another try.
    pub(super) async fn next(&mut self) -> Option<Session<'_>> {
        let chosen = loop {
            let Turn { index, at } = self.turn?;
            let host = &self.candidates[index].host;
            sleep_until(at).await;
            let held = self.registry.standing.held(&host.authority, &self.repository.path, self.credentials);
            if let Some(held) = held {
                tracing::debug!(host = host.authority, seconds = held.as_secs(), "waiting as the host asked");
                sleep(held + SPREAD.mul_f64(fastrand::f64())).await;
            }
            self.current = index;
            self.asked = Instant::now();
            match self.registry.logins.choose(host, self.repository, self.credentials, &self.node).await {
                Ok(chosen) => break chosen,
                Err(failure) => self.failed(failure),
            }
        };
        let Candidate { host, tries, .. } = &self.candidates[self.current];
        if *tries > 0 {
            self.registry.metrics.retried(&host.authority);
        }
        Some(self.registry.session(host, self.repository, &self.node, chosen))
    }

    /// Notes that the host asked last serves the object.
    pub(super) fn served(&mut self) {
        let current = &mut self.candidates[self.current];
        current.gave = true;
        self.registry.standing.served(&current.host.authority);
        // Those before it failed, which no error tells then.
        for candidate in &mut self.candidates {
            if candidate.failure.is_some() && !std::mem::replace(&mut candidate.passed_over, true) {
                self.registry.metrics.passed_over(&candidate.host.authority);
            }
        }
        for attempt in self.attempts() {
            tracing::debug!(%attempt, "host passed over");
        }
    }

    /// Notes how the host asked last failed.
    pub(super) fn failed(&mut self, failure: Failure) {
        self.note(&failure);
        let Some(current) = self.candidates.get_mut(self.current) else { return };
        current.tries += 1;
        current.failure = Some(failure);
        self.turn = self.choose();
    }

    /// Notes that the host asked last failed after it had served a part: it is the first to be asked for the rest,
    /// after `pause`, and what went wrong in passing before no longer counts.
    pub(super) fn progressed(&mut self, failure: &Failure, pause: Duration) {
        self.note(failure);
        self.renew();
        self.candidates[..=self.current].rotate_right(1);
        self.current = 0;
        self.turn = Some(Turn { index: 0, at: Instant::now() + pause });
    }

    /// Notes that the object is not what those sent who gave parts of it, here or, as `others`, to another search.
    /// They are not asked again.
    pub(super) fn refused(&mut self, actual: Option<&str>, others: &[String]) {
        self.renew();
        for candidate in &mut self.candidates {
            if !candidate.gave && !others.contains(&candidate.host.authority) {
                continue;
            }
            candidate.tries += 1;
            candidate.failure = Some(Failure::Corrupt {
                url: candidate.host.authority.clone(),
                actual: actual.map(str::to_owned),
            });
        }
        self.turn = self.choose();
    }

    /// Notes that the object is not what was put together, and that how it was may be the reason: everyone is asked
    /// again who did not fail for good.
    pub(super) fn again(&mut self) {
        self.renew();
        for candidate in &mut self.candidates {
            candidate.gave = false;
        }
        self.turn = self.choose();
    }

    /// Whether the host whose turn it is will be asked no more after that. One that is silent has no time for more.
    pub(super) fn is_last_try(&self) -> bool {
        let turn = self.turn.and_then(|turn| self.candidates.get(turn.index));
        turn.is_some_and(|Candidate { tries, failure, .. }| {
            matches!(failure, Some(Failure::Silent { .. })) || tries + 1 >= retry::TRIES
        })
    }

    /// Asks this host before all others.
    pub(super) fn prefer(&mut self, authority: &str) {
        if let Some(index) = self.candidates.iter().position(|it| it.host.authority == authority) {
            self.candidates[..=index].rotate_right(1);
            self.turn = self.choose();
        }
    }

    /// Who gave parts of the object.
    pub(super) fn gave(&self) -> Vec<String> {
        let gave = self.candidates.iter().filter(|candidate| candidate.gave);
        gave.map(|candidate| candidate.host.authority.clone()).collect()
    }

    /// The host asked last.
    pub(super) fn host(&self) -> Option<&str> {
        self.candidates.get(self.current).map(|candidate| candidate.host.authority.as_str())
    }

    /// The error of a search that found nobody.
    pub(super) fn given_up(&self, subject: String) -> Error {
        let attempts: Vec<_> = self.attempts().collect();
        if attempts.is_empty() { Error::NoHost { subject } } else { Error::Unserved { subject, attempts } }
    }

    fn attempts(&self) -> impl Iterator<Item = Attempt> {
        self.candidates.iter().filter_map(|Candidate { host, tries, failure, .. }| {
            let failure = failure.clone()?;
            Some(Attempt { host: host.authority.clone(), own: host.own, tries: *tries, failure })
        })
    }

    fn note(&self, failure: &Failure) {
        let Some(Candidate { host, .. }) = self.candidates.get(self.current) else { return };
        let Shared { standing, metrics, .. } = &**self.registry;
        if failure.kind() == Kind::RateLimited {
            metrics.rate_limited(&host.authority);
        }
        standing.failed(&host.authority, &self.repository.path, self.credentials, self.asked, failure);
    }

    /// Forgets failures that may have passed.
    fn renew(&mut self) {
        self.retry = Retry::default();
        for candidate in &mut self.candidates {
            if candidate.failure.as_ref().is_some_and(retry::is_worth_it) {
                candidate.failure = None;
                candidate.tries = 0;
            }
        }
    }

    /// The first host not asked yet. After that the last one that may still serve: those before it are mirrors, which
    /// are left for it, and one that answers at all is better than one that is not there. Nobody, once the registry's
    /// own host has given a clear answer.
    fn choose(&mut self) -> Option<Turn> {
        let now = Instant::now();
        if let Some(index) = self.candidates.iter().position(|candidate| candidate.failure.is_none()) {
            return Some(Turn { index, at: now });
        }
        if self.candidates.iter().any(|it| it.host.own && it.failure.as_ref().is_some_and(is_final)) {
            return None;
        }
        let last = |fits: fn(&Failure) -> bool| {
            self.candidates.iter().rposition(|candidate| candidate.failure.as_ref().is_some_and(fits))
        };
        let index = last(|failure| retry::is_worth_it(failure) && !failure.is_absence())
            .or_else(|| last(retry::is_worth_it))?;
        let pause = self.retry.pause(self.candidates[index].failure.as_ref()?)?;
        Some(Turn { index, at: now + pause })
    }
}
