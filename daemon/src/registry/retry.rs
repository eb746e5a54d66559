//! The one policy for asking a host again: what is worth it, after which pause, how often and for how long. Pure but
//! for the clock and the dice; own code because the pause is the host's to choose, which no backoff crate lets it.

use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use super::failure::Failure;

/// Tries of one host without any progress; those on other hosts do not count.
pub(super) const TRIES: u32 = 5;
/// The first pause; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause that a host did not ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The longest pause that a host may ask for. Beyond it the caller is better served with the host's own message:
/// kubelet comes again by itself, and shows the message meanwhile.
const LONGEST_TOLD: Duration = Duration::from_secs(60);
/// No try begins later than this after the first failure, so that pauses as told cannot add up without bound.
const TOTAL: Duration = Duration::from_secs(120);
/// The same for a host that gives no sign of life, whose every failure may take as long as a connection may.
const TOTAL_ABSENT: Duration = Duration::from_secs(30);
/// Added to a pause as told, at most: those who were told the same do not come back at the same moment.
const SPREAD: Duration = Duration::from_secs(1);

/// The tries of one host since it last made progress.
#[derive(Debug, Default)]
pub(super) struct Retry {
    /// When the first of them failed.
    began: Option<Instant>,
    pauses: u32,
}

impl Retry {
    /// How long to wait before the host is asked again after `failure`; `None` when it is not.
    pub(super) fn pause(&mut self, failure: &Failure) -> Option<Duration> {
        if !is_worth_it(failure) || self.pauses + 1 >= TRIES {
            return None;
        }
        let pause = match failure.told() {
            Some(told) => told + SPREAD.min(told).mul_f64(fastrand::f64()),
            None => backoff(self.pauses, fastrand::f64()),
        };
        let now = Instant::now();
        let began = *self.began.get_or_insert(now);
        self.pauses += 1;
        let total = if failure.is_absence() { TOTAL_ABSENT } else { TOTAL };
        (now + pause <= began + total).then_some(pause)
    }
}

/// Whether the same host may serve the same request in a moment. A host that wants to be left alone for longer than
/// anybody waits is none that may.
pub(super) fn is_worth_it(failure: &Failure) -> bool {
    match failure {
        Failure::Unreachable { .. }
        | Failure::Silent { .. }
        | Failure::Broken { .. }
        | Failure::Truncated { .. }
        | Failure::Stalled { .. } => true,
        Failure::Status { status, .. } => {
            is_passing(*status) && failure.told().is_none_or(|told| told <= LONGEST_TOLD)
        }
        Failure::Proxy { status, .. } => status.is_none_or(is_passing),
        Failure::NoTls { .. }
        | Failure::Untrusted { .. }
        | Failure::Unauthorized { .. }
        | Failure::Unusable { .. }
        | Failure::Size { .. }
        | Failure::Corrupt { .. }
        | Failure::Helper { .. } => false,
    }
}

/// How long a host is to be left alone by everyone who would ask it for the same repository.
pub(super) fn hold(failure: &Failure) -> Option<Duration> {
    match failure {
        Failure::Status { status: StatusCode::TOO_MANY_REQUESTS, .. } if is_worth_it(failure) => {
            Some(failure.told().unwrap_or(FIRST_PAUSE))
        }
        Failure::Status { .. } if is_worth_it(failure) => failure.told(),
        _ => None,
    }
}

fn is_passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504)
}

/// The pause after so many others: between half of the doubled one and all of it, as `dice` from 0 to 1 has it.
fn backoff(pauses: u32, dice: f64) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(pauses)).min(LONGEST_PAUSE);
    doubled.mul_f64(0.5 + dice / 2.0)
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::super::failure::Advice;
    use super::*;

    fn answer(status: u16, told: Option<u64>) -> Failure {
        Failure::Status {
            method: Method::GET,
            url: "https://h/".into(),
            status: StatusCode::from_u16(status).unwrap(),
            message: None,
            told: told.map(Duration::from_secs),
        }
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_are_spread() {
        for (pauses, most) in [(0, 500), (1, 1000), (2, 2000), (4, 8000), (5, 10_000), (99, 10_000)] {
            let most = Duration::from_millis(most);
            assert_eq!((backoff(pauses, 0.0), backoff(pauses, 1.0)), (most / 2, most), "{pauses}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tries_are_bounded_in_number() {
        let mut retry = Retry::default();
        let pauses = std::iter::from_fn(|| retry.pause(&answer(503, None)));
        assert_eq!(pauses.count(), TRIES as usize - 1);
    }

    #[tokio::test(start_paused = true)]
    async fn tries_are_bounded_in_time() {
        let mut retry = Retry::default();
        let mut waited = Duration::ZERO;
        while let Some(pause) = retry.pause(&answer(429, Some(50))) {
            assert!(pause >= Duration::from_secs(50) && pause <= Duration::from_secs(51));
            tokio::time::sleep(pause).await;
            waited += pause;
        }
        assert!(waited >= Duration::from_secs(100) && waited <= TOTAL, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_without_a_sign_of_life_is_given_up_sooner() {
        let absent = Failure::Unreachable { url: "https://h/".into(), cause: "timed out".into() };
        let mut retry = Retry::default();
        assert!(retry.pause(&absent).is_some());
        tokio::time::sleep(TOTAL_ABSENT).await;
        assert_eq!(retry.pause(&absent), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_asks_for_too_long_a_wait_is_not_asked_again() {
        assert!(Retry::default().pause(&answer(429, Some(60))).is_some());
        assert_eq!(Retry::default().pause(&answer(429, Some(61))), None);
        assert_eq!(Retry::default().pause(&answer(503, Some(u64::MAX))), None);
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        for (status, expected) in [
            (408, true),
            (429, true),
            (500, true),
            (502, true),
            (503, true),
            (504, true),
            (400, false),
            (403, false),
            (404, false),
            (416, false),
            (501, false),
        ] {
            assert_eq!(is_worth_it(&answer(status, None)), expected, "{status}");
        }
        let url = || "https://h/".to_owned();
        assert!(is_worth_it(&Failure::Unreachable { url: url(), cause: "refused".into() }));
        assert!(!is_worth_it(&Failure::Untrusted {
            url: url(),
            cause: "unknown issuer".into(),
            advice: Advice::Configure
        }));
    }

    #[test]
    fn everyone_is_held_off_where_the_host_asks_for_it() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(hold(&answer(429, Some(2))), seconds(2));
        assert_eq!(hold(&answer(503, Some(2))), seconds(2));
        assert_eq!(hold(&answer(429, None)), Some(FIRST_PAUSE));
        for (status, told) in [(503, None), (429, Some(86400)), (404, Some(2))] {
            assert_eq!(hold(&answer(status, told)), None, "{status} {told:?}");
        }
    }
}
