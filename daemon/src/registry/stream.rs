//! A blob as one stream of bytes in order, whatever happens to the connections under it: where a body breaks, the
//! registry is asked for the rest. The bytes are not hashed here, but a caller who finds them wrong gets them from
//! another host.

use bytes::Bytes;
use tokio::time::{Duration, Instant, timeout};

use super::blob::{self, Blob};
use super::credentials::Credentials;
use super::error::Error;
use super::failure::Failure;
use super::retry;
use super::search::Search;
use super::{Registry, Repository};
use crate::oci::Descriptor;

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

/// The bytes of a blob from an offset on.
///
/// Bodies that break are continued without limit while they bring bytes; without, each host is asked once, and the
/// last one under the policy for retries. A call to [`Self::next`] may be dropped and made again: nothing is lost, but
/// the time that it waited does not count for a stall.
pub struct Stream<'a> {
    registry: &'a Registry,
    repository: &'a Repository,
    descriptor: &'a Descriptor,
    credentials: &'a Credentials,
    /// Who is asked for the rest; begun by the first call, since the hosts are read from files.
    search: Option<Search<'a>>,
    body: Option<Body>,
    /// Where the caller began; what lies before is not from here.
    start: u64,
    /// Of the next byte for the caller.
    position: u64,
    /// Bytes of bodies so far, those that were not for the caller too.
    received: u64,
    /// Whether a host began before the offset that it was asked for.
    repeated: bool,
    /// Whether the bytes were taken back.
    refused: bool,
    /// Bodies in a row that brought too little.
    poor: u32,
}

/// One answer's body.
struct Body {
    blob: Blob,
    /// Of its next byte; behind the stream's where a host did not start at the offset it was asked for.
    at: u64,
    /// The stream's position when it was opened.
    opened: u64,
    /// What came since the last time that it was enough, and how long that was waited for.
    recent: u64,
    waited: Duration,
}

impl<'a> Stream<'a> {
    pub(super) fn new(
        registry: &'a Registry,
        repository: &'a Repository,
        descriptor: &'a Descriptor,
        offset: u64,
        credentials: &'a Credentials,
    ) -> Self {
        Self {
            registry,
            repository,
            descriptor,
            credentials,
            search: None,
            body: None,
            start: offset,
            position: offset,
            received: 0,
            repeated: false,
            refused: false,
            poor: 0,
        }
    }

    /// The next bytes; `None` after the last of the descriptor's size. After an error there are none.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        // A host that has nothing to send is asked for it only when nothing is not what the blob should be.
        if self.refused && self.descriptor.size == 0 {
            self.open().await?;
        }
        while self.position < self.descriptor.size {
            self.open().await?;
            let Some(body) = &mut self.body else { break };
            let open = self.registry.requests.open();
            let read = body.read(self.registry.stall_timeout).await;
            drop(open);
            match read {
                Ok(bytes) => {
                    self.received += bytes.len() as u64;
                    let bytes = body.new_part(bytes, self.position);
                    if !bytes.is_empty() {
                        self.position += bytes.len() as u64;
                        return Ok(Some(bytes));
                    }
                }
                Err(failure) => self.broke(failure),
            }
        }
        self.end().await.map(|()| None)
    }

    /// The host that the last bytes came from, or that was asked last; the registry's name before any was.
    pub fn host(&self) -> &str {
        self.search.as_ref().and_then(Search::host).unwrap_or(&self.repository.domain)
    }

    /// Bytes that came over the wire. Those that a host sent again are among them, so it may be more than the
    /// caller got.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether a host sent from the first byte on what it was asked to continue.
    pub fn repeated(&self) -> bool {
        self.repeated
    }

    /// Closes the connection that is in use: the next call asks the same host for the rest.
    pub fn suspend(&mut self) {
        self.body = None;
    }

    /// Takes back all bytes, since together they are not the blob: the next call begins at its first byte, without
    /// the hosts that sent any of them. Where the caller had the beginning from elsewhere, that may be what is wrong,
    /// so they get another chance first. `actual` is the digest that the bytes have, if it is known.
    pub fn refuse(&mut self, actual: Option<&str>) {
        self.body = None;
        self.position = 0;
        self.refused = true;
        if std::mem::take(&mut self.start) == 0
            && let Some(search) = &mut self.search
        {
            search.refused(actual);
        }
    }

    async fn open(&mut self) -> Result<(), Error> {
        if self.body.is_some() {
            return Ok(());
        }
        let search = match &mut self.search {
            Some(search) => search,
            search => {
                let begun = Search::begin(self.registry, self.repository, self.credentials, |_| true);
                search.insert(begun.await?)
            }
        };
        while let Some(session) = search.next().await {
            let open = self.registry.requests.open();
            let opened = blob::open(&session, self.descriptor, self.position).await;
            drop(open);
            match opened {
                Ok(blob) => {
                    search.served();
                    self.repeated |= blob.offset < self.position;
                    self.body = Some(Body::new(blob, self.position));
                    return Ok(());
                }
                Err(failure) => search.failed(failure),
            }
        }
        Err(search.given_up(subject(self.repository, self.descriptor)))
    }

    /// Settles who goes on after a body broke.
    fn broke(&mut self, failure: Failure) {
        let (Some(body), Some(search)) = (self.body.take(), &mut self.search) else { return };
        let gained = self.position - body.opened;
        let ample = gained >= FLOOR;
        self.poor = if ample { 0 } else { self.poor + 1 };
        let trickled = matches!(failure, Failure::Stalled { .. }) && !ample;
        if gained > 0 && !trickled && self.poor < POOR_BODIES && retry::is_worth_it(&failure) {
            tracing::debug!(digest = %self.descriptor.digest, offset = self.position, %failure, "blob goes on after a break");
            search.progressed(&failure, if ample { Duration::ZERO } else { POOR_PAUSE });
        } else {
            search.failed(failure);
        }
    }

    /// Reads the end of the last body. That it breaks or never comes makes no difference, but a body that goes on is
    /// not the blob.
    async fn end(&mut self) -> Result<(), Error> {
        let Some(body) = &mut self.body else { return Ok(()) };
        let end = timeout(END, body.blob.read()).await;
        self.body = None;
        match (end, &mut self.search) {
            (Ok(Err(failure @ Failure::Size { .. })), Some(search)) => {
                search.failed(failure);
                Err(search.given_up(subject(self.repository, self.descriptor)))
            }
            _ => Ok(()),
        }
    }
}

impl Body {
    fn new(blob: Blob, position: u64) -> Self {
        Self { at: blob.offset, blob, opened: position, recent: 0, waited: Duration::ZERO }
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

    /// What of the body's next bytes the caller does not have yet.
    fn new_part(&mut self, mut bytes: Bytes, position: u64) -> Bytes {
        let known = position.saturating_sub(self.at);
        self.at += bytes.len() as u64;
        bytes.split_off(usize::try_from(known).unwrap_or(usize::MAX).min(bytes.len()))
    }
}

impl std::fmt::Debug for Stream<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({} at {})", subject(self.repository, self.descriptor), self.position)
    }
}

/// What errors are about.
pub(super) fn subject(repository: &Repository, descriptor: &Descriptor) -> String {
    format!("{repository}@{}", descriptor.digest)
}
