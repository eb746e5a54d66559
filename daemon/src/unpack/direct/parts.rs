//! A blob on its way from containerd, where calls are awaited, to the writer, which blocks.

use std::io::{self, BufRead, Read};

use tokio::sync::mpsc;

use crate::containerd::{Containerd, Error};
use crate::oci::Digest;

/// Parts of at most 1 MiB each that wait for the writer.
const WAITING: usize = 4;

/// What goes over: a part, or that the last one was the last.
type Part = Option<Vec<u8>>;

pub(super) fn channel() -> (Sender, Parts) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (Sender(sender), Parts { receiver, part: Vec::new(), taken: 0, ended: false })
}

pub(super) struct Sender(mpsc::Sender<Part>);

impl Sender {
    /// Sends the whole blob; ends early, without an error, when nobody takes it any more.
    pub(super) async fn send_blob(self, containerd: &Containerd, digest: &Digest) -> Result<(), Error> {
        let mut blob = containerd.open_blob(digest).await?;
        while let Some(part) = blob.next().await? {
            if self.0.send(Some(part)).await.is_err() {
                return Ok(());
            }
        }
        // Nobody there: the writer has ended with an error of its own.
        let _ = self.0.send(None).await;
        Ok(())
    }

    /// Sends bytes that are at hand.
    #[cfg(test)]
    pub(super) async fn send(&self, part: Part) {
        self.0.send(part).await.expect("the test keeps the other end");
    }
}

/// The writer's end. A sender that goes away before the end of the blob is an error, not an end.
pub(super) struct Parts {
    receiver: mpsc::Receiver<Part>,
    part: Vec<u8>,
    /// How much of the part has been read.
    taken: usize,
    ended: bool,
}

impl BufRead for Parts {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.taken == self.part.len() && !self.ended {
            match self.receiver.blocking_recv() {
                Some(Some(part)) => (self.part, self.taken) = (part, 0),
                Some(None) => self.ended = true,
                None => return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the pull was given up")),
            }
        }
        Ok(&self.part[self.taken..])
    }

    fn consume(&mut self, amount: usize) {
        self.taken += amount;
    }
}

impl Read for Parts {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let part = self.fill_buf()?;
        let length = part.len().min(buffer.len());
        buffer[..length].copy_from_slice(&part[..length]);
        self.consume(length);
        Ok(length)
    }
}
