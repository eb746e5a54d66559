//! A blob as one stream of bytes in order, whatever happens to the connections under it. A large one comes over several
//! at once, where its host serves ranges. The bytes are not hashed here, but a caller who finds them wrong gets them
//! from another host.

mod elsewhere;
mod pace;
mod part;
mod window;

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use bytes::Bytes;
use tokio::time::Instant;

use super::credentials::Credentials;
use super::error::Error;
use super::search::Search;
use super::spare::{Leave, Reader};
use super::{Registry, Repository};
use crate::oci::Descriptor;
use pace::Pace;
use part::{Came, Part, Whole};
use window::Window;

/// Ranges that must be left for a body to be cut that was to be read to its end.
const WORTH_A_CUT: u64 = 4;

/// The bytes of a blob from an offset on.
///
/// The first request of a host that is not known to serve ranges asks for none, and is a part like those that are read
/// beside it once the host has said that it does: its connection is left where the next part begins. As long as there is
/// no other connection to be had, it is read on to the end. A call to [`Self::next`] may be dropped and made again:
/// nothing is lost.
pub struct Stream<'a> {
    whole: Whole<'a>,
    /// What is read in this task. It ends where the window begins.
    head: Part<'a>,
    window: Window<'a>,
    /// Where the part behind the window begins.
    ahead: u64,
    /// Connections at most, and bytes of one part.
    parallel: usize,
    range: u64,
    /// Its claim to connections beside the first one.
    reader: Reader,
    /// Whether it needs them.
    pace: Pace,
    /// Its first one, taken before it is known whether ranges are served.
    first: Option<Leave>,
    /// Whether the window may be filled.
    ranging: bool,
    /// Where the caller began; what lies before is not from here.
    start: u64,
    /// Of the next byte for the caller.
    position: u64,
    came: Arc<Came>,
    /// Hosts whose ranges were among what was refused.
    suspects: BTreeSet<String>,
}

impl<'a> Stream<'a> {
    pub(super) fn new(
        registry: &'a Registry,
        repository: &'a Repository,
        descriptor: &'a Descriptor,
        offset: u64,
        credentials: &'a Credentials,
    ) -> Self {
        let whole = Whole { registry, repository, descriptor, credentials };
        let came = Arc::default();
        let mut stream = Self {
            whole,
            head: Part::new(whole, offset, descriptor.size, Arc::clone(&came)),
            window: Window::default(),
            ahead: descriptor.size,
            parallel: registry.parallel_ranges,
            range: registry.range_size,
            reader: registry.spare.reader(),
            pace: Pace::new(),
            first: None,
            ranging: false,
            start: offset,
            position: offset,
            came,
            suspects: BTreeSet::new(),
        };
        stream.restart();
        stream
    }

    /// The next bytes; `None` after the last of the descriptor's size. After an error there are none.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let began = Instant::now();
        let next = self.advance().await;
        self.pace.waited_since(began);
        next
    }

    async fn advance(&mut self) -> Result<Option<Bytes>, Error> {
        let size = self.whole.descriptor.size;
        // A host that has nothing to send is asked for it only when nothing is not what the blob should be: what it
        // sends tells whether the size is wrong or the digest.
        if size == 0 && !self.whole.descriptor.digest.matches(&[]) {
            self.head.open().await?;
        }
        while self.position < size {
            if self.window.rangeless {
                self.give_up_ranging();
            }
            if self.head.position == self.head.end {
                self.head.next().await?;
                self.fill();
            }
            let next = if self.head.position < self.head.end {
                self.next_of_head().await?
            } else {
                self.next_of_window().await?
            };
            if let Some(bytes) = next {
                self.position += bytes.len() as u64;
                return Ok(Some(bytes));
            }
        }
        if self.head.position == size { self.head.next().await } else { Ok(None) }
    }

    /// The host that the last bytes came from, or that was asked last; the registry's name before any was.
    pub fn host(&self) -> &str {
        self.window
            .gave
            .last()
            .map(String::as_str)
            .or(self.head.host())
            .unwrap_or(&self.whole.repository.domain)
    }

    /// Bytes that came over the wire. Those that a host sent again are among them, so it may be more than the
    /// caller got; and those that were read ahead.
    pub fn received(&self) -> u64 {
        self.came.bytes.load(Ordering::Relaxed)
    }

    /// Whether a host sent from the first byte on what it was asked to continue.
    pub fn repeated(&self) -> bool {
        self.head.repeated
    }

    /// Closes the connections that are in use: the next call asks the same host for the rest.
    pub fn suspend(&mut self) {
        self.restart();
    }

    /// Takes back all bytes, since together they are not the blob: the next call begins at its first byte, without
    /// the hosts that sent any of them. `actual` is the digest that the bytes have, if it is known.
    ///
    /// They get another chance first where the caller had the beginning from elsewhere, since that may be what is
    /// wrong, and where any of them sent a range: there are hosts that send other bytes than they say, and the whole
    /// in one piece is what a host is for. Each host's ranges are the excuse once.
    pub fn refuse(&mut self, actual: Option<&str>) {
        self.position = 0;
        // Of one host, so that the next refusal knows whose bytes they were.
        self.parallel = 1;
        self.restart();
        let gave = std::mem::take(&mut self.window.gave);
        let by_range = self.came.take_by_range();
        let excused = !by_range.is_subset(&self.suspects) || self.head.is_suspect_elsewhere();
        for host in &by_range {
            self.whole.registry.standing.distrust_ranges(host);
        }
        self.suspects.extend(by_range);
        let begun_here = std::mem::take(&mut self.start) == 0;
        if excused {
            self.head.again();
        } else if begun_here {
            self.head.refuse(actual, &gave);
        }
    }

    /// Begins a head at the stream's position, without a window.
    fn restart(&mut self) {
        let size = self.whole.descriptor.size;
        self.first = self.leave_for_a_part_behind(self.position);
        self.ahead = if self.first.is_some() { self.position + self.range } else { size };
        self.ranging = false;
        self.window.close();
        self.head.restart(self.position, self.ahead);
    }

    /// Opens the window once the head's host has said whether it serves ranges.
    fn settle(&mut self) {
        match self.head.serves_ranges() {
            Some(true) => {
                if self.first.is_none() {
                    // Where the connection is left it was at its fastest: only much that is left is worth another one.
                    let left = self.whole.descriptor.size - self.head.position;
                    self.first = (left > WORTH_A_CUT * self.range)
                        .then(|| self.leave_for_a_part_behind(self.head.position))
                        .flatten();
                    if self.first.is_none() {
                        return;
                    }
                    self.ahead = self.head.position + self.range;
                    self.head.end = self.ahead;
                }
                self.ranging = true;
                self.fill();
            }
            Some(false) => {
                self.parallel = 1;
                self.first = None;
                self.reader.is_content();
                self.ahead = self.whole.descriptor.size;
                self.head.end = self.ahead;
            }
            None => {}
        }
    }

    /// Leave for the part behind the one that begins here, if what is left is large.
    fn leave_for_a_part_behind(&mut self, position: u64) -> Option<Leave> {
        let left = self.whole.descriptor.size.saturating_sub(position);
        let large = self.parallel > 1 && left > 2 * self.range;
        if large { self.leave(left - self.range) } else { None }
    }

    /// Begins as many parts as may be read at once. The first of them is the head, whose bytes are taken as they come;
    /// those beside it wait in memory, and need leave for that.
    fn fill(&mut self) {
        let size = self.whole.descriptor.size;
        if self.window.len() == 0 && self.head.position == self.head.end && self.ahead < size {
            let begin = self.ahead;
            self.ahead = size.min(begin + self.range);
            self.head.restart(begin, self.ahead);
        }
        let head = usize::from(self.head.position < self.head.end);
        while self.ahead < size && self.window.len() + head < self.parallel {
            let leave = self.first.take().or_else(|| self.leave(size - self.ahead));
            if leave.is_none() && !self.is_near_the_end_of_all(head) {
                return;
            }
            let (begin, end) = (self.ahead, size.min(self.ahead + self.range));
            let (whole, came) = (self.whole, Arc::clone(&self.came));
            let first = self.head.search.as_ref().and_then(Search::host).map(str::to_owned);
            self.window.push(leave, |requests| Part::new(whole, begin, end, came).beside(first, requests));
            self.ahead = end;
        }
        if self.window.holds_back()
            && let Some(leave) = self.leave(size - self.ahead)
        {
            self.window.give(leave);
        }
        if !self.window.holds_back() {
            self.reader.is_content();
        }
    }

    /// Leave to read ahead, of a blob of which so much is not asked for yet.
    fn leave(&mut self, left: u64) -> Option<Leave> {
        if self.pace.is_of_the_hosts() {
            return self.reader.take(left);
        }
        self.reader.is_content();
        None
    }

    /// Whether what is asked for comes to its end soon: the next part is asked for then, so that it begins when that one
    /// ends, and not an answer later.
    fn is_near_the_end_of_all(&self, head: usize) -> bool {
        let left = match (head, self.window.len()) {
            (1, 0) => self.head.end - self.head.position,
            (0, 1) => self.window.first_left(),
            _ => return false,
        };
        left <= self.range / 4
    }

    /// The rest comes over one connection: that of the head, as long as it is in use.
    fn give_up_ranging(&mut self) {
        let size = self.whole.descriptor.size;
        self.parallel = 1;
        self.first = None;
        self.ahead = size;
        self.reader.is_content();
        self.window.close();
        if self.head.position == self.position && self.head.position < self.head.end {
            self.head.end = size;
        } else {
            self.head.restart(self.position, size);
        }
    }

    async fn next_of_head(&mut self) -> Result<Option<Bytes>, Error> {
        let next = {
            let mut next = pin!(self.head.next());
            let window = &mut self.window;
            poll_fn(|context| {
                window.drive(context);
                next.as_mut().poll(context)
            })
            .await?
        };
        if self.ranging {
            self.fill();
        } else if self.parallel > 1 {
            self.settle();
        }
        Ok(next)
    }

    async fn next_of_window(&mut self) -> Result<Option<Bytes>, Error> {
        let window = &mut self.window;
        let requests = &self.whole.registry.requests;
        // Held while any part waits for a host: pauses that hosts ask for are no silence.
        let mut waiting = None;
        poll_fn(|context| {
            window.drive(context);
            if window.rangeless {
                return Poll::Ready(Ok(None));
            }
            let next = window.poll_first();
            waiting = (next.is_pending() && window.is_waiting()).then(|| requests.open());
            next
        })
        .await
    }
}

impl std::fmt::Debug for Stream<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Whole { repository, descriptor, .. } = self.whole;
        write!(f, "Stream({} at {})", subject(repository, descriptor), self.position)
    }
}

/// What errors are about.
fn subject(repository: &Repository, descriptor: &Descriptor) -> String {
    format!("{repository}@{}", descriptor.digest)
}
