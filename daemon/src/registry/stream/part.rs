//! A part of a blob as one stream of bytes in order: where a body breaks, the registry is asked for the rest of the
//! part, the same host or another one.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::time::{Duration, Instant, timeout};

use super::elsewhere::Elsewhere;
use super::subject;
use crate::metrics::Counter;
use crate::oci::Descriptor;
use crate::registry::blob::{self, Blob, Want};
use crate::registry::credentials::Credentials;
use crate::registry::error::Error;
use crate::registry::failure::Failure;
use crate::registry::rate::Allowance;
use crate::registry::search::Search;
use crate::registry::{Registry, Repository, Requests, retry};

/// A body that brings less than this while it is waited for as long as `stall_timeout` stands still, however many
/// single bytes trickle in. At 30 s it is half a kilobyte per second, below any link that an image could come over.
const FLOOR: u64 = 16 << 10;
/// So many bodies in a row that bring less than [`FLOOR`] each are no progress, though each brought something: a
/// blob does not come in thousands of connections.
const POOR_BODIES: u32 = 64;
/// The pause after such a body, so that a host that breaks at once is not asked in a tight loop.
const POOR_PAUSE: Duration = Duration::from_millis(500);
/// How long the end of a body is waited for after its last byte. It only frees the connection for the next request.
const END: Duration = Duration::from_secs(1);

/// What a part is of, and who wants it.
#[derive(Clone, Copy)]
pub(super) struct Whole<'a> {
    pub(super) registry: &'a Registry,
    pub(super) repository: &'a Repository,
    pub(super) descriptor: &'a Descriptor,
    pub(super) credentials: &'a Credentials,
}

/// What came for all parts of a blob.
#[derive(Default)]
pub(super) struct Came {
    /// Bytes of bodies so far, those that were not for the caller too.
    pub(super) bytes: AtomicU64,
    /// Guards which hosts of the registry gave a range.
    by_range: Mutex<BTreeSet<String>>,
}

impl Came {
    /// Who gave a range since this was asked last.
    pub(super) fn take_by_range(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.by_range.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn by_range(&self, host: &str) {
        self.by_range.lock().unwrap_or_else(PoisonError::into_inner).insert(host.to_owned());
    }
}

/// The bytes from `position` to `end`.
///
/// Bodies that break are continued without limit while they bring bytes; without, each host is asked once, and the
/// last one under the policy for retries. A call to [`Self::next`] may be dropped and made again: nothing is lost, but
/// the time that it waited does not count for a stall.
pub(super) struct Part<'a> {
    whole: Whole<'a>,
    /// Of the next byte for the caller.
    pub(super) position: u64,
    /// Behind the last byte. May be moved while the part is read.
    pub(super) end: u64,
    /// Who is asked for the rest; begun by the first call, since the hosts are read from files.
    pub(super) search: Option<Search<'a>>,
    body: Option<Body>,
    /// Shared with the other parts: whose ranges they were is asked of all together.
    came: Arc<Came>,
    requests: Requests,
    /// Whether a host that does not serve ranges is of no use, and whether one was found.
    ranges_only: bool,
    pub(super) rangeless: bool,
    /// The host that is asked first.
    first: Option<String>,
    /// Whether a host began before the offset that it was asked for.
    pub(super) repeated: bool,
    /// Bodies in a row that brought too little.
    poor: u32,
    /// Who is asked once no host of the registry has it.
    elsewhere: Elsewhere,
}

/// One answer's body.
struct Body {
    blob: Blob,
    /// Whether it is not from a host of the registry.
    foreign: bool,
    /// Waiting for it is no stall of the host.
    allowance: Allowance,
    /// Counts what comes of the host.
    counter: Counter,
    /// Of its next byte; behind the stream's where a host did not start at the offset it was asked for.
    at: u64,
    /// The stream's position when it was opened.
    opened: u64,
    /// What came since the last time that it was enough, and how long that was waited for.
    recent: u64,
    waited: Duration,
}

impl<'a> Part<'a> {
    /// A part that any host may serve.
    pub(super) fn new(whole: Whole<'a>, position: u64, end: u64, came: Arc<Came>) -> Self {
        Self {
            position,
            end,
            search: None,
            body: None,
            came,
            requests: whole.registry.requests.clone(),
            ranges_only: false,
            rangeless: false,
            first: None,
            repeated: false,
            poor: 0,
            elsewhere: Elsewhere::default(),
            whole,
        }
    }

    /// A part that is read beside others: from hosts that serve ranges alone, `first` before all others. Its requests
    /// are counted by `requests`.
    pub(super) fn beside(self, first: Option<String>, requests: Requests) -> Self {
        Self { ranges_only: true, first, requests, ..self }
    }

    /// The next bytes; `None` after the last. After an error there are none.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        while self.position < self.end {
            self.open().await?;
            let Some(body) = &mut self.body else { break };
            body.allowance.ready().await;
            let open = self.requests.open();
            let read = body.read(self.whole.registry.stall_timeout).await;
            drop(open);
            match read {
                Ok(bytes) => {
                    body.allowance.spend(bytes.len());
                    body.counter.inc_by(bytes.len() as u64);
                    self.came.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    let bytes = body.new_part(bytes, self.position, self.end);
                    if !bytes.is_empty() {
                        self.position += bytes.len() as u64;
                        return Ok(Some(bytes));
                    }
                }
                Err(failure) => self.broke(failure),
            }
        }
        self.finish().await.map(|()| None)
    }

    /// The host that was asked last, if any was.
    pub(super) fn host(&self) -> Option<&str> {
        let asked = self.search.as_ref().and_then(Search::host);
        self.elsewhere.host.as_deref().or(asked)
    }

    /// Notes that the blob is not what those sent who gave parts of it, here or, as `others`, beside.
    pub(super) fn refuse(&mut self, actual: Option<&str>, others: &[String]) {
        self.elsewhere.refused(actual);
        if let Some(search) = &mut self.search {
            search.refused(actual, others);
        }
    }

    /// Whether an address of the descriptor gave a range that may have been wrong.
    pub(super) fn is_suspect_elsewhere(&self) -> bool {
        self.elsewhere.is_suspect()
    }

    /// Notes that the blob is not what was put together of ranges, and that it may be without them: everyone is asked
    /// again.
    pub(super) fn again(&mut self) {
        self.elsewhere.again();
        if let Some(search) = &mut self.search {
            search.again();
        }
    }

    /// Whether the host that serves this part serves ranges too; `None` while none serves.
    pub(super) fn serves_ranges(&self) -> Option<bool> {
        self.body.as_ref().map(|body| body.blob.ranges)
    }

    /// Goes on elsewhere in the blob.
    pub(super) fn restart(&mut self, position: u64, end: u64) {
        self.body = None;
        (self.position, self.end) = (position, end);
    }

    pub(super) async fn open(&mut self) -> Result<(), Error> {
        if self.body.is_some() {
            return Ok(());
        }
        let Whole { registry, repository, descriptor, credentials } = self.whole;
        let search = match &mut self.search {
            Some(search) => search,
            search => {
                let mut begun = Search::begin(registry, repository, credentials, |_| true).await?;
                if let Some(first) = &self.first {
                    begun.prefer(first);
                }
                search.insert(begun)
            }
        };
        loop {
            let want = match (self.ranges_only, search.is_last_try()) {
                (true, _) => Want::Range,
                (false, true) => Want::Whole,
                (false, false) => Want::Enough,
            };
            let Some(session) = search.next().await else { break };
            let open = self.requests.open();
            let opened = blob::open(&session, descriptor, self.position..self.end, want).await;
            drop(open);
            match opened {
                Ok(Some(blob)) => {
                    search.served();
                    if let Some(host) = search.host().filter(|_| blob.partial) {
                        self.came.by_range(host);
                    }
                    self.begin(blob, false);
                    return Ok(());
                }
                Ok(None) => {
                    self.rangeless = true;
                    break;
                }
                Err(failure) => search.failed(failure),
            }
        }
        let error = search.given_up(subject(repository, descriptor));
        // What else there is, the whole and the descriptor's addresses, is for the part that is read alone.
        self.rangeless |= self.ranges_only && error.may_be_for_ranges();
        if self.ranges_only || descriptor.urls.is_empty() {
            return Err(error);
        }
        let blob = self.elsewhere.open(&self.whole, self.position, error).await?;
        self.begin(blob, true);
        Ok(())
    }

    fn begin(&mut self, blob: Blob, foreign: bool) {
        self.repeated |= blob.offset < self.position;
        let allowance =
            Allowance::new(Arc::clone(&self.whole.registry.rate), self.whole.registry.priority.clone());
        let host = self.host().unwrap_or(&self.whole.repository.domain);
        let counter = self.whole.registry.metrics.received_from(host);
        self.body = Some(Body::new(blob, foreign, self.position, allowance, counter));
    }

    /// Settles who goes on after a body broke.
    fn broke(&mut self, failure: Failure) {
        let (Some(body), Some(search)) = (self.body.take(), &mut self.search) else { return };
        let gained = self.position - body.opened;
        let ample = gained >= FLOOR;
        self.poor = if ample { 0 } else { self.poor + 1 };
        let trickled = matches!(failure, Failure::Stalled { .. }) && !ample;
        // A range that is longer than it said: the whole may be right.
        let overlong = body.blob.partial && !body.foreign && matches!(failure, Failure::Size { .. });
        if let Some(host) = search.host().filter(|_| overlong) {
            self.whole.registry.standing.distrust_ranges(host);
        }
        let brought = gained > 0 && !trickled && self.poor < POOR_BODIES && retry::is_worth_it(&failure);
        let goes_on = brought || overlong;
        let pause = if ample { Duration::ZERO } else { POOR_PAUSE };
        if goes_on {
            tracing::debug!(digest = %self.whole.descriptor.digest, offset = self.position, %failure, "blob goes on after a break");
        }
        match (body.foreign, goes_on) {
            (false, true) => search.progressed(&failure, pause),
            (false, false) => search.failed(failure),
            (true, true) => self.elsewhere.progressed(failure, pause),
            (true, false) => self.elsewhere.failed(failure),
        }
    }

    /// Reads the end of the last body, which frees the connection for the next request. That it breaks or never comes
    /// makes no difference, but a body that goes on is not the blob. One that goes on behind the part is left, and a
    /// range is whatever it is.
    async fn finish(&mut self) -> Result<(), Error> {
        let Some(mut body) = self.body.take() else { return Ok(()) };
        if body.blob.until > self.end {
            return Ok(());
        }
        let end = timeout(END, body.blob.read()).await;
        match (end, &mut self.search) {
            _ if body.blob.partial => Ok(()),
            (Ok(Err(failure @ Failure::Size { .. })), _) if body.foreign => {
                self.elsewhere.failed(failure);
                self.elsewhere.given_up(&self.whole).map_or(Ok(()), Err)
            }
            (Ok(Err(failure @ Failure::Size { .. })), Some(search)) => {
                search.failed(failure);
                Err(search.given_up(subject(self.whole.repository, self.whole.descriptor)))
            }
            _ => Ok(()),
        }
    }
}

impl Body {
    fn new(blob: Blob, foreign: bool, position: u64, allowance: Allowance, counter: Counter) -> Self {
        Self {
            at: blob.offset,
            blob,
            foreign,
            allowance,
            counter,
            opened: position,
            recent: 0,
            waited: Duration::ZERO,
        }
    }

    /// The next bytes. Only the time in here counts for a stall: a caller may be slow.
    async fn read(&mut self, stall_timeout: Duration) -> Result<Bytes, Failure> {
        let began = Instant::now();
        match timeout(stall_timeout.saturating_sub(self.waited), self.blob.read()).await {
            Ok(Ok(Some(bytes))) => {
                self.waited += began.elapsed();
                self.recent += bytes.len() as u64;
                if self.recent >= FLOOR {
                    (self.recent, self.waited) = (0, Duration::ZERO);
                }
                Ok(bytes)
            }
            Ok(Ok(None)) => Err(self.blob.truncated()),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(self.blob.stalled()),
        }
    }

    /// What of the body's next bytes the caller does not have yet, and wants.
    fn new_part(&mut self, mut bytes: Bytes, position: u64, end: u64) -> Bytes {
        let known = position.saturating_sub(self.at);
        self.at += bytes.len() as u64;
        let mut bytes = bytes.split_off(usize::try_from(known).unwrap_or(usize::MAX).min(bytes.len()));
        bytes.truncate(usize::try_from(end - position).unwrap_or(usize::MAX));
        bytes
    }
}
