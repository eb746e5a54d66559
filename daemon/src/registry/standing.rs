//! What the process remembers of hosts, so that one pull's experience spares the next request: who could not be
//! reached, who asked to be left alone, and who cannot range. Orders hosts and delays requests; forbids none.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::credentials::Credentials;
use super::failure::Failure;
use super::retry;

/// How long a host that could not be reached is asked last.
const FIRST_REST: Duration = Duration::from_secs(30);
/// The longest rest; each one without a success in between is twice as long as the one before.
const LONGEST_REST: Duration = Duration::from_secs(5 * 60);
/// So many ignored or refused ranges in a row are no accident.
const IGNORED_RANGES: u32 = 2;
/// How long a host counts as one that cannot range: it may be replaced by one that can.
const RANGELESS: Duration = Duration::from_secs(10 * 60);
/// Bound on each table. A node talks to fewer hosts; forgetting costs one request that could have been spared.
const ENTRIES: usize = 1024;

/// The memory of all hosts by their authority.
#[derive(Default)]
pub(super) struct Standing(
    /// Guards the tables, each for single look-ups.
    Mutex<Tables>,
);

#[derive(Default)]
struct Tables {
    rests: HashMap<String, Rest>,
    /// Until when a host is left alone. By repository and credentials too: a pull with an account, whose requests are
    /// counted on their own, does not wait for one without.
    holds: HashMap<(String, String, Credentials), Instant>,
    ranges: HashMap<String, (u32, Instant)>,
    /// Hosts whose ranges were part of what was not the blob, and since when. Another range that they serve does not
    /// clear them: what they say of it is what was wrong.
    distrusted: HashMap<String, Instant>,
    /// Hosts whose last answer to a range was the range.
    ranging: HashSet<String>,
}

struct Rest {
    since: Instant,
    length: Duration,
}

impl Standing {
    /// Whether the host is better asked after others.
    pub(super) fn is_resting(&self, host: &str) -> bool {
        self.lock().rests.get(host).is_some_and(|rest| rest.since.elapsed() < rest.length)
    }

    /// How long the host is still to be left alone by whoever has these credentials, in this repository.
    pub(super) fn held(&self, host: &str, path: &str, credentials: &Credentials) -> Option<Duration> {
        let until = *self.lock().holds.get(&(host.to_owned(), path.to_owned(), credentials.clone()))?;
        let left = until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Notes that a host served what it was asked for.
    pub(super) fn served(&self, host: &str) {
        self.lock().rests.remove(host);
    }

    /// Notes how a request that began at `asked` failed.
    pub(super) fn failed(
        &self,
        host: &str,
        path: &str,
        credentials: &Credentials,
        asked: Instant,
        failure: &Failure,
    ) {
        let mut tables = self.lock();
        match failure {
            Failure::Unreachable { .. } | Failure::Silent { .. } | Failure::Stalled { .. } => {
                rest(&mut tables.rests, host, asked);
            }
            // It was not there for long, or not asked at all: neither says that it is back.
            Failure::Broken { .. }
            | Failure::Truncated { .. }
            | Failure::Proxy { .. }
            | Failure::Helper { .. } => {}
            _ => drop(tables.rests.remove(host)),
        }
        if let Some(hold) = retry::hold(failure) {
            let now = Instant::now();
            // They hold credentials, so none is kept for longer than it counts.
            tables.holds.retain(|_, until| *until > now);
            let until = now + hold;
            let key = (host.to_owned(), path.to_owned(), credentials.clone());
            let entry = entry(&mut tables.holds, key, until);
            *entry = until.max(*entry);
        }
    }

    /// Notes whether a host served the range it was asked for.
    pub(super) fn ranged(&self, host: &str, served: bool) {
        let mut tables = self.lock();
        if served {
            tables.ranges.remove(host);
            if tables.ranging.len() >= ENTRIES {
                tables.ranging.clear();
            }
            tables.ranging.insert(host.to_owned());
        } else {
            tables.ranging.remove(host);
            let (ignored, last) = entry(&mut tables.ranges, host.to_owned(), (0, Instant::now()));
            *ignored += 1;
            *last = Instant::now();
        }
    }

    /// Notes that ranges of the host were among bytes that were not the blob.
    pub(super) fn distrust_ranges(&self, host: &str) {
        let now = Instant::now();
        *entry(&mut self.lock().distrusted, host.to_owned(), now) = now;
    }

    /// Whether asking the host for a range is worth it.
    pub(super) fn can_range(&self, host: &str) -> bool {
        let tables = self.lock();
        let over = |since: &Instant| since.elapsed() >= RANGELESS;
        tables.ranges.get(host).is_none_or(|(ignored, last)| *ignored < IGNORED_RANGES || over(last))
            && tables.distrusted.get(host).is_none_or(over)
    }

    /// Whether the host is known to serve ranges.
    pub(super) fn ranges(&self, host: &str) -> bool {
        self.lock().ranging.contains(host)
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets a host rest. Requests that were under way when its last rest began tell nothing new.
fn rest(rests: &mut HashMap<String, Rest>, host: &str, asked: Instant) {
    let now = Instant::now();
    let rest = entry(rests, host.to_owned(), Rest { since: now, length: Duration::ZERO });
    if rest.length.is_zero() || asked >= rest.since {
        *rest = Rest { since: now, length: (rest.length * 2).clamp(FIRST_REST, LONGEST_REST) };
    }
}

fn entry<K: Eq + Hash, V>(table: &mut HashMap<K, V>, key: K, new: V) -> &mut V {
    if table.len() >= ENTRIES && !table.contains_key(&key) {
        table.clear();
    }
    table.entry(key).or_insert(new)
}

#[cfg(test)]
mod tests {
    use http::{Method, StatusCode};

    use super::super::credentials::Given;
    use super::*;

    fn unreachable() -> Failure {
        Failure::Unreachable { url: "https://h/".into(), cause: "timed out".into() }
    }

    fn status(status: u16, told: Option<u64>) -> Failure {
        let status = StatusCode::from_u16(status).unwrap();
        let told = told.map(Duration::from_secs);
        Failure::Status { method: Method::GET, url: "https://h/".into(), status, message: None, told }
    }

    fn fail(standing: &Standing, asked: Instant, failure: &Failure) {
        standing.failed("h", "a", &Credentials::anonymous(), asked, failure);
    }

    /// How long `h` rests from now on.
    async fn rest_of(standing: &Standing) -> u64 {
        let began = Instant::now();
        while standing.is_resting("h") {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        began.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_is_not_there_rests_twice_as_long_each_time_until_it_is_back() {
        let standing = Standing::default();
        assert!(!standing.is_resting("h"));
        for expected in [30, 60, 120, 240, 300, 300] {
            fail(&standing, Instant::now(), &unreachable());
            assert_eq!(rest_of(&standing).await, expected);
        }
        fail(&standing, Instant::now(), &unreachable());
        standing.served("h");
        assert!(!standing.is_resting("h"));
        fail(&standing, Instant::now(), &unreachable());
        assert_eq!(rest_of(&standing).await, 30);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_fail_together_count_once() {
        let standing = Standing::default();
        let asked = Instant::now();
        tokio::time::sleep(Duration::from_secs(10)).await;
        for _ in 0..10 {
            fail(&standing, asked, &unreachable());
        }
        assert_eq!(rest_of(&standing).await, 30);
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_answers_is_there_whatever_it_says() {
        let standing = Standing::default();
        fail(&standing, Instant::now(), &unreachable());
        fail(&standing, Instant::now(), &status(404, None));
        assert!(!standing.is_resting("h"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_is_for_one_repository_and_login_and_ends() {
        let standing = Standing::default();
        fail(&standing, Instant::now(), &status(429, Some(20)));
        fail(&standing, Instant::now(), &status(429, Some(2)));
        let held = |path| standing.held("h", path, &Credentials::anonymous());
        assert_eq!(held("a"), Some(Duration::from_secs(20)));
        assert_eq!(held("b"), None);
        let account = Given { username: "u", password: "p", ..Given::default() };
        assert_eq!(standing.held("h", "a", &Credentials::new(account).unwrap()), None);
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(held("a"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_ignores_two_ranges_is_asked_for_none_for_a_while() {
        let standing = Standing::default();
        standing.ranged("h", false);
        assert!(standing.can_range("h"));
        standing.ranged("h", false);
        assert!(!standing.can_range("h"));
        standing.ranged("h", true);
        assert!(standing.can_range("h"));
        standing.ranged("h", false);
        standing.ranged("h", false);
        tokio::time::sleep(RANGELESS).await;
        assert!(standing.can_range("h"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_whose_ranges_were_wrong_is_not_cleared_by_another_range() {
        let standing = Standing::default();
        standing.distrust_ranges("h");
        standing.ranged("h", true);
        assert!(!standing.can_range("h") && standing.can_range("i"));
        tokio::time::sleep(RANGELESS).await;
        assert!(standing.can_range("h"));
    }
}
