//! Writing a blob: an ingest is opened under its ref, continues where an earlier writer stopped, and ends in a commit
//! that proves size and digest. Dropping it leaves the bytes for the next writer to continue.

use std::collections::HashMap;

use containerd_client::services::v1::{AbortRequest, WriteAction, WriteContentRequest, WriteContentResponse};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::containerd::{Containerd, Error, Kind};
use crate::oci::{Descriptor, Digest};

/// Messages under way to containerd. With pieces of [`PIECE`] bytes it bounds what one blob holds in memory.
const IN_FLIGHT: usize = 3;
/// Bytes per write message: larger ones gained nothing when measured, smaller ones cost throughput.
pub const PIECE: usize = 1 << 20;

/// What opening an ingest ended in.
#[derive(Debug)]
pub enum Opened {
    /// The blob is in the store already; it is now held by the lease, too.
    Present,
    /// The ingest is ours to continue.
    Ingest(Box<Ingest>),
}

/// An open ingest.
#[derive(Debug)]
pub struct Ingest {
    reference: String,
    digest: Digest,
    total: u64,
    offset: u64,
    requests: mpsc::Sender<WriteContentRequest>,
    replies: Streaming<WriteContentResponse>,
}

impl Containerd {
    /// Opens the ingest `reference` for the blob. [`Kind::Locked`] if another writer has it open.
    pub async fn open_ingest(&self, reference: &str, blob: &Descriptor) -> Result<Opened, Error> {
        let failed = |status| Error::new("open ingest", reference, &status);
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
        let opened = async {
            let mut replies = self.content_client().write(request).await?.into_inner();
            let first = replies.message().await?;
            Ok((replies, first))
        };
        match opened.await.map_err(failed) {
            Err(error) if error.kind() == Kind::AlreadyExists => Ok(Opened::Present),
            Err(error) => Err(error),
            Ok((_, None)) => {
                Err(Error::unexpected("open ingest", reference, "the stream ended without an answer"))
            }
            Ok((replies, Some(first))) => Ok(Opened::Ingest(Box::new(Ingest {
                reference: reference.into(),
                digest: blob.digest.clone(),
                total: blob.size,
                offset: u64::try_from(first.offset).unwrap_or(0),
                requests,
                replies,
            }))),
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

    /// Proves size and digest and makes the blob visible with these labels. A digest mismatch is
    /// [`Kind::Refused`]; the ingest is then gone.
    pub async fn commit(mut self, labels: HashMap<String, String>) -> Result<(), Error> {
        let message = WriteContentRequest {
            action: WriteAction::Commit.into(),
            total: wire(self.total),
            expected: self.digest.to_string(),
            offset: wire(self.offset),
            labels,
            ..WriteContentRequest::default()
        };
        let committed = match self.send(message).await {
            Ok(()) => self.committed().await,
            Err(error) => Err(error),
        };
        match committed {
            Err(error) if error.kind() == Kind::AlreadyExists => Ok(()),
            other => other,
        }
    }

    async fn committed(&mut self) -> Result<(), Error> {
        loop {
            match self.replies.message().await.map_err(|status| self.error(&status))? {
                Some(reply) if reply.action() == WriteAction::Commit => return Ok(()),
                Some(_) => {}
                None => return Err(self.ended()),
            }
        }
    }

    /// Queues a message while taking in the replies, which would otherwise fill the stream's window.
    async fn send(&mut self, message: WriteContentRequest) -> Result<(), Error> {
        loop {
            tokio::select! {
                permit = self.requests.reserve() => {
                    if let Ok(permit) = permit {
                        permit.send(message);
                        return Ok(());
                    }
                    // The stream is closed: its last reply says why.
                    return Err(match self.replies.message().await {
                        Err(status) => self.error(&status),
                        Ok(_) => self.ended(),
                    });
                }
                reply = self.replies.message() => {
                    if reply.map_err(|status| self.error(&status))?.is_none() {
                        return Err(self.ended());
                    }
                }
            }
        }
    }

    fn error(&self, status: &tonic::Status) -> Error {
        Error::new("write blob", self.digest.as_str(), status)
    }

    fn ended(&self) -> Error {
        let message = format!("the stream of ingest {} ended early", self.reference);
        Error::unexpected("write blob", self.digest.as_str(), message)
    }
}

/// Sizes are signed on the wire; no blob is that large.
fn wire(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
