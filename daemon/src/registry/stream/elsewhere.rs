//! The addresses that the descriptor of a foreign layer tells, as a part asks them: one body at a time, without ranges
//! beside each other.

use tokio::time::{Duration, Instant, sleep_until};

use super::part::Whole;
use super::subject;
use crate::registry::blob::Blob;
use crate::registry::error::{Attempt, Error};
use crate::registry::failure::Failure;
use crate::registry::foreign;
use crate::registry::retry::Retry;

/// What the addresses were good for. While it is new, none was asked.
#[derive(Default)]
pub(super) struct Elsewhere {
    /// Who served last.
    pub(super) host: Option<String>,
    /// Whether a range came from there.
    by_range: bool,
    /// Whether ranges are not to be trusted.
    plain: bool,
    /// How that failed last.
    failure: Option<Failure>,
    /// Bodies without progress in a row.
    tries: u32,
    retry: Retry,
    /// Nobody is asked before.
    at: Option<Instant>,
    /// No address is asked again.
    over: bool,
}

impl Elsewhere {
    /// The blob from `offset` on or from its beginning, where `error` says that the registry does not have it; else
    /// that error.
    pub(super) async fn open(&mut self, whole: &Whole<'_>, offset: u64, error: Error) -> Result<Blob, Error> {
        if self.over {
            return Err(self.given_up(whole).unwrap_or(error));
        }
        if let Some(at) = self.at {
            sleep_until(at).await;
        }
        let offset = if self.plain { 0 } else { offset };
        let subject = subject(whole.repository, whole.descriptor);
        let open = whole.registry.requests.open();
        let opened =
            foreign::open_instead(&whole.registry.wire, whole.descriptor, offset, subject, error).await;
        drop(open);
        let (host, blob) = opened?;
        self.by_range |= blob.partial;
        self.host = Some(host);
        Ok(blob)
    }

    /// Notes that a body broke after it had brought enough to ask for the rest after `pause`.
    pub(super) fn progressed(&mut self, failure: Failure, pause: Duration) {
        (self.tries, self.retry) = (0, Retry::default());
        self.at = Some(Instant::now() + pause);
        self.failure = Some(failure);
    }

    /// Notes that a body failed.
    pub(super) fn failed(&mut self, failure: Failure) {
        self.tries += 1;
        match self.retry.pause(&failure) {
            Some(pause) => self.at = Some(Instant::now() + pause),
            None => self.over = true,
        }
        self.failure = Some(failure);
    }

    /// Whether ranges came from here that may have been wrong.
    pub(super) fn is_suspect(&self) -> bool {
        self.by_range && !self.plain
    }

    /// Notes that the blob is not what it was with ranges: no more of them.
    pub(super) fn again(&mut self) {
        self.plain |= self.by_range;
    }

    /// Notes that the blob is not what it was with the bytes from here, if there are any.
    pub(super) fn refused(&mut self, actual: Option<&str>) {
        let Some(host) = &self.host else { return };
        self.tries += 1;
        self.failure = Some(Failure::Corrupt { url: host.clone(), actual: actual.map(str::to_owned) });
        self.over = true;
    }

    /// The error of whoever served last. That the registry had nothing is not among it: it is no longer what decides.
    pub(super) fn given_up(&self, whole: &Whole<'_>) -> Option<Error> {
        let (host, failure) = (self.host.clone()?, self.failure.clone()?);
        let attempts = vec![Attempt { host, own: false, tries: self.tries, failure }];
        Some(Error::Unserved { subject: subject(whole.repository, whole.descriptor), attempts })
    }
}
