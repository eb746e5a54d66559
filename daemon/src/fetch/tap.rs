//! A blob's bytes for somebody who uses them while they come: from calls that are awaited to a reader that blocks. What
//! is on its way is bounded, so that a slow reader holds the wire back.

use std::io::{self, BufRead, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Pieces that wait for the reader: of about half a mebibyte each from a registry, of one from the content store.
const WAITING: usize = 2;

/// What goes over: a piece, or that the last one was the last and that all are proved.
type Message = Option<Bytes>;

/// Makes a tap once the bytes of a blob begin to come, from the first one on. What it is given is for [`tap`].
pub type Listen<'a> = Box<dyn FnOnce(OwnedSemaphorePermit) -> Tap + Send + 'a>;

/// The end that bytes are put into.
#[derive(Debug)]
pub struct Tap {
    sender: mpsc::Sender<Message>,
    given_up: Arc<AtomicBool>,
    ended: bool,
}

/// The end that they are read from. A tap that goes away before the end of the blob is an error, not an end.
#[derive(Debug)]
pub struct Tapped {
    receiver: mpsc::Receiver<Message>,
    given_up: Arc<AtomicBool>,
    piece: Bytes,
    ended: bool,
    /// The right to read beside others, held as long as there is something to read.
    _permit: Option<OwnedSemaphorePermit>,
}

/// Both ends. The reader's goes with `permit`.
pub fn tap(permit: Option<OwnedSemaphorePermit>) -> (Tap, Tapped) {
    let (sender, receiver) = mpsc::channel(WAITING);
    let given_up = Arc::new(AtomicBool::new(false));
    let (piece, told) = (Bytes::new(), Arc::clone(&given_up));
    let tapped = Tapped { receiver, given_up: told, piece, ended: false, _permit: permit };
    (Tap { sender, given_up, ended: false }, tapped)
}

impl Tap {
    /// Waits until the reader has room for the next bytes; `false` if nobody reads any more.
    pub async fn send(&self, piece: Bytes) -> bool {
        self.sender.send(Some(piece)).await.is_ok()
    }

    /// Whether the next bytes need not wait.
    pub(super) fn has_room(&self) -> bool {
        self.sender.capacity() > 0
    }

    /// Says that the blob is complete, and proved as far as the one who sends can prove it.
    pub async fn end(mut self) {
        self.ended = true;
        // Nobody there: the reader has ended with an error of its own.
        let _ = self.sender.send(None).await;
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.given_up.store(!self.ended, Ordering::Relaxed);
    }
}

impl BufRead for Tapped {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.piece.is_empty() && !self.ended {
            let message = self.receiver.blocking_recv();
            // What is still on its way is of no use either.
            match message.filter(|_| !self.given_up.load(Ordering::Relaxed)) {
                Some(Some(piece)) => self.piece = piece,
                Some(None) => self.ended = true,
                None => return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the pull was given up")),
            }
        }
        Ok(&self.piece)
    }

    fn consume(&mut self, amount: usize) {
        drop(self.piece.split_to(amount));
    }
}

impl Read for Tapped {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let piece = self.fill_buf()?;
        let length = piece.len().min(buffer.len());
        buffer[..length].copy_from_slice(&piece[..length]);
        self.consume(length);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    #[test]
    fn the_right_to_read_lasts_until_the_reader_goes() {
        let rights = Arc::new(Semaphore::new(1));
        let (tap, tapped) = tap(Arc::clone(&rights).try_acquire_owned().ok());
        drop(tap);
        assert_eq!(rights.available_permits(), 0);
        drop(tapped);
        assert_eq!(rights.available_permits(), 1);
    }
}
