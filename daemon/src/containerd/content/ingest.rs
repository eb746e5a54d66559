//! Writing a blob: an ingest is opened under its ref, continues where an earlier writer stopped, and ends in a commit
//! that proves size and digest. Dropping it leaves the bytes for the next writer to continue. Every wait for containerd
//! ends: a frozen one, or one that hangs in a sync to disk, is [`Kind::Deadline`].

use std::collections::HashMap;
use std::time::Duration;

use containerd_client::services::v1::{
    AbortRequest, StatusRequest, WriteAction, WriteContentRequest, WriteContentResponse,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::metadata::{Ascii, MetadataValue};

use crate::containerd::{Containerd, CurrentLease, Error, Kind};
use crate::oci::{Descriptor, Digest};

/// Messages under way to containerd. With pieces of [`PIECE`] bytes it bounds what one blob holds in memory.
const IN_FLIGHT: usize = 3;
/// Bytes per write message: larger ones gained nothing when measured, smaller ones cost throughput.
pub const PIECE: usize = 512 << 10;

/// For opening an ingest. On top comes the time of [`SLOW_DISK`] for the whole blob: containerd reads what an earlier
/// writer left to hash it.
const OPEN_DEADLINE: Duration = Duration::from_secs(30);
/// For a piece that was sent: how long nothing at all may be acknowledged. Writes go to the page cache; they wait for a
/// disk only when that is full, and then still move.
const WRITE_DEADLINE: Duration = Duration::from_secs(60);
/// For a commit, which takes in all that is on its way and syncs the file. On top comes the time of [`SLOW_DISK`].
const COMMIT_DEADLINE: Duration = Duration::from_secs(60);
/// The most that a commit may take.
pub(in crate::containerd) const LONGEST_COMMIT: Duration = COMMIT_DEADLINE.saturating_add(SLOWEST);
/// For containerd to let go of an ingest that is left. It has nothing to do for that.
const LEAVE_DEADLINE: Duration = Duration::from_secs(5);
/// Bytes per second of the slowest disk that is waited for: a worn-out SD card or a throttled network disk.
const SLOW_DISK: u64 = 20_000_000;
/// Most time that a size is given: as long as applying a layer may take. Sizes are what a manifest claims.
const SLOWEST: Duration = Duration::from_secs(3600);

/// What opening an ingest ended in.
#[derive(Debug)]
pub enum Opened {
    /// The blob is in the store already; it is now held by the lease, too.
    Present,
    /// Another writer has the ingest open.
    Locked,
    /// The ingest is ours to continue.
    Ingest(Box<Ingest>),
}

/// What a commit ended in. Either way the blob is in the store, and held by the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// By this ingest, with its labels.
    Now,
    /// By somebody else before; the labels of this commit were not set.
    Before,
}

/// An open ingest.
#[derive(Debug)]
pub struct Ingest {
    reference: String,
    digest: Digest,
    total: u64,
    offset: u64,
    /// What the stream is under, and what the handle that opened it is under: a commit puts the blob under the former.
    lease: Option<(MetadataValue<Ascii>, CurrentLease)>,
    requests: mpsc::Sender<WriteContentRequest>,
    replies: Streaming<WriteContentResponse>,
    /// Messages that containerd has not answered yet; it answers each.
    unanswered: usize,
    /// When the last answer came, or, if none was due, when the message after it was sent.
    moved: Instant,
}

impl Containerd {
    /// Opens the ingest `reference` for the blob.
    pub async fn open_ingest(&self, reference: &str, blob: &Descriptor) -> Result<Opened, Error> {
        let (requests, queue) = mpsc::channel(IN_FLIGHT);
        let open = WriteContentRequest {
            action: WriteAction::Stat.into(),
            r#ref: reference.into(),
            total: wire(blob.size),
            expected: blob.digest.to_string(),
            ..WriteContentRequest::default()
        };
        // The queue is empty, so the first message never waits.
        let _ = requests.try_send(open);
        let request = self.stream_request(ReceiverStream::new(queue));
        // That of the request itself: another may be current by now.
        let header = request.metadata().get("containerd-lease").cloned();
        let lease = header.zip(self.lease.clone());
        let opening = async {
            let mut replies = self.content_client().write(request).await?.into_inner();
            let first = replies.message().await?;
            Ok((replies, first))
        };
        let limit = OPEN_DEADLINE + on_a_slow_disk(blob.size);
        let Ok(opened) = timeout(limit, opening).await else {
            return Err(Error::late("open ingest", reference, limit));
        };
        match opened.map_err(|status| Error::of_open(reference, &status)) {
            Err(error) if error.kind() == Kind::AlreadyExists => Ok(Opened::Present),
            Err(error) if error.kind() == Kind::Locked => Ok(Opened::Locked),
            Err(error) => Err(error),
            Ok((_, None)) => {
                Err(Error::unexpected("open ingest", reference, "the stream ended without an answer"))
            }
            Ok((replies, Some(first))) => Ok(Opened::Ingest(Box::new(Ingest {
                reference: reference.into(),
                digest: blob.digest.clone(),
                total: blob.size,
                offset: u64::try_from(first.offset).unwrap_or(0),
                lease,
                requests,
                replies,
                unanswered: 0,
                moved: Instant::now(),
            }))),
        }
    }

    /// Bytes that an unfinished ingest has; 0 if there is none.
    pub async fn ingested(&self, reference: &str) -> Result<u64, Error> {
        let request = self.request(StatusRequest { r#ref: reference.into() });
        let status = self.content_client().status(request).await;
        match status.map_err(|status| Error::new("look up ingest", reference, &status)) {
            Ok(response) => {
                let offset = response.into_inner().status.map_or(0, |status| status.offset);
                Ok(u64::try_from(offset).unwrap_or_default())
            }
            Err(error) if error.kind() == Kind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Throws away what an ingest has; one that is gone already counts as thrown away.
    pub async fn abort_ingest(&self, reference: &str) -> Result<(), Error> {
        let request = self.request(AbortRequest { r#ref: reference.into() });
        let aborted = self.content_client().abort(request).await;
        match aborted.map_err(|status| Error::new("abort ingest", reference, &status)) {
            Err(error) if error.kind() != Kind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl Ingest {
    /// How many bytes of the blob the store has: where the next byte belongs.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether another lease has become current since this was opened. It must then be left and opened again before its
    /// commit, which else fails or leaves the blob without protection once the former lease has expired.
    pub fn is_outlived(&self) -> bool {
        self.lease.as_ref().is_some_and(|(opened_under, current)| current.header() != *opened_under)
    }

    /// Sends the next bytes. They are on their way when this returns, and stored when [`Ingest::commit`] does.
    pub async fn write(&mut self, data: Vec<u8>) -> Result<(), Error> {
        let length = data.len() as u64;
        let offset = self.offset;
        self.send(WriteContentRequest {
            action: WriteAction::Write.into(),
            offset: wire(offset),
            data,
            ..WriteContentRequest::default()
        })
        .await?;
        self.offset += length;
        Ok(())
    }

    /// Starts again at the first byte; containerd truncates an ingest that is written at offset 0.
    pub fn rewind(&mut self) {
        self.offset = 0;
    }

    /// Returns when the ingest can take no more: containerd went away, gave the ingest up, or does not acknowledge
    /// what was written. For whoever waits for bytes from elsewhere in between.
    pub async fn broken(&mut self) -> Error {
        loop {
            if let Err(error) = self.answered().await {
                return error;
            }
        }
    }

    /// Leaves the ingest to the next writer and returns when it can be opened again.
    pub async fn leave(self) {
        let Self { requests, mut replies, .. } = self;
        drop(requests);
        let ended = async { while let Ok(Some(_)) = replies.message().await {} };
        // One that takes longer is found locked, and waited for.
        let _ = timeout(LEAVE_DEADLINE, ended).await;
    }

    /// Proves size and digest and makes the blob visible with these labels. [`Kind::Mismatch`] if they are others; the
    /// ingest is then still there.
    pub async fn commit(mut self, labels: HashMap<String, String>) -> Result<Committed, Error> {
        let message = WriteContentRequest {
            action: WriteAction::Commit.into(),
            total: wire(self.total),
            expected: self.digest.to_string(),
            offset: wire(self.offset),
            labels,
            ..WriteContentRequest::default()
        };
        let limit = COMMIT_DEADLINE + on_a_slow_disk(self.total);
        let committing = async {
            self.send(message).await?;
            self.committed().await
        };
        match timeout(limit, committing).await {
            Err(_) => Err(Error::late("commit blob", self.digest.as_str(), limit)),
            Ok(Err(error)) if error.kind() == Kind::AlreadyExists => Ok(Committed::Before),
            Ok(other) => other.map(|()| Committed::Now),
        }
    }

    /// Not by way of [`Ingest::answered`]: a commit has more time than a write.
    async fn committed(&mut self) -> Result<(), Error> {
        loop {
            let reply = self.replies.message().await;
            match reply.map_err(|status| Error::of_commit(self.digest.as_str(), &status))? {
                Some(reply) if reply.action() == WriteAction::Commit => return Ok(()),
                Some(_) => {}
                None => return Err(self.ended()),
            }
        }
    }

    /// Queues a message while taking in the replies, which would otherwise fill the stream's window.
    async fn send(&mut self, message: WriteContentRequest) -> Result<(), Error> {
        let requests = self.requests.clone();
        let permit = loop {
            tokio::select! {
                permit = requests.reserve() => break permit,
                answered = self.answered() => answered?,
            }
        };
        let Ok(permit) = permit else {
            // The stream is closed: its last reply says why.
            return Err(self.broken().await);
        };
        permit.send(message);
        if self.unanswered == 0 {
            self.moved = Instant::now();
        }
        self.unanswered += 1;
        Ok(())
    }

    /// Takes in the next reply, which has a deadline if one is due.
    async fn answered(&mut self) -> Result<(), Error> {
        let reply = if self.unanswered == 0 {
            self.replies.message().await
        } else {
            match timeout_at(self.moved + WRITE_DEADLINE, self.replies.message()).await {
                Ok(reply) => reply,
                Err(_) => return Err(Error::late("write blob", self.digest.as_str(), WRITE_DEADLINE)),
            }
        };
        match reply {
            Ok(Some(_)) => {
                self.unanswered = self.unanswered.saturating_sub(1);
                self.moved = Instant::now();
                Ok(())
            }
            Ok(None) => Err(self.ended()),
            Err(status) => Err(Error::new("write blob", self.digest.as_str(), &status)),
        }
    }

    fn ended(&self) -> Error {
        let message = format!("the stream of ingest {} ended early", self.reference);
        Error::unexpected("write blob", self.digest.as_str(), message)
    }
}

/// How long the slowest disk takes for so many bytes.
fn on_a_slow_disk(bytes: u64) -> Duration {
    Duration::from_secs(bytes / SLOW_DISK).min(SLOWEST)
}

/// Sizes are signed on the wire; no blob is that large.
fn wire(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_blob_has_more_time_and_none_has_time_without_end() {
        for (bytes, seconds) in [(0, 0), (19_999_999, 0), (2_000_000_000, 100), (u64::MAX, 3600)] {
            assert_eq!(on_a_slow_disk(bytes), Duration::from_secs(seconds), "{bytes}");
        }
    }
}
