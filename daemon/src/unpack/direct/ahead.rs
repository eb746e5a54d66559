//! Decompresses in a thread of its own, ahead of whoever writes the files: the two take about as long as each other.

use std::io::{self, BufRead, Read};
use std::mem;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, Scope};

use crate::oci::Digest;
use crate::oci::digest::{Algorithm, Hasher};

/// Uncompressed bytes of one buffer.
const BUFFER: usize = 256 << 10;
/// Full buffers that wait to be written. One more is being filled, and one is being written.
const WAITING: usize = 3;

/// What was decompressed, hashed as it is read.
pub(super) struct Ahead {
    full: Receiver<io::Result<Vec<u8>>>,
    /// Buffers go back, so that no new ones are made.
    empty: SyncSender<Vec<u8>>,
    buffer: Vec<u8>,
    taken: usize,
    ended: bool,
    hasher: Hasher,
}

impl Ahead {
    /// Begins to read `source`. The thread ends when that does, with an error, or when this is dropped.
    pub(super) fn of<'scope, R: Read + Send + 'scope>(
        source: R,
        scope: &'scope Scope<'scope, '_>,
        algorithm: Algorithm,
    ) -> io::Result<Self> {
        let (filled, full) = sync_channel(WAITING);
        let (empty, emptied) = sync_channel(WAITING + 2);
        let thread = Builder::new().name("decompress".into());
        thread.spawn_scoped(scope, move || decompress(source, &filled, &emptied))?;
        let (buffer, hasher) = (Vec::new(), Hasher::new(algorithm));
        Ok(Self { full, empty, buffer, taken: 0, ended: false, hasher })
    }

    /// Of all bytes that were read, which are those up to the end if a read has said so.
    pub(super) fn digest(self) -> Digest {
        self.hasher.finish()
    }
}

fn decompress(mut source: impl Read, filled: &SyncSender<io::Result<Vec<u8>>>, emptied: &Receiver<Vec<u8>>) {
    loop {
        let mut buffer = emptied.try_recv().unwrap_or_default();
        buffer.resize(BUFFER, 0);
        let result = fill(&mut source, &mut buffer).map(|length| {
            buffer.truncate(length);
            buffer
        });
        let last = !matches!(&result, Ok(buffer) if buffer.len() == BUFFER);
        // Nobody reads any more: an error of the reader's own.
        if filled.send(result).is_err() || last {
            return;
        }
    }
}

/// As much as there is, and no more than the buffer takes.
fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match source.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

impl BufRead for Ahead {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.taken == self.buffer.len() && !self.ended {
            let next = self.full.recv().unwrap_or_else(|_| Ok(Vec::new()))?;
            self.ended = next.len() < BUFFER;
            self.hasher.update(&next);
            self.taken = 0;
            // The thread may have ended: then nobody needs it.
            let _ = self.empty.try_send(mem::replace(&mut self.buffer, next));
        }
        Ok(&self.buffer[self.taken..])
    }

    fn consume(&mut self, amount: usize) {
        self.taken += amount;
    }
}

impl Read for Ahead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let ready = self.fill_buf()?;
        let length = ready.len().min(buffer.len());
        buffer[..length].copy_from_slice(&ready[..length]);
        self.consume(length);
        Ok(length)
    }
}
