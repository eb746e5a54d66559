//! A reader whose next four bytes can be looked at before they are taken.

use std::io::{self, BufRead, Read};

/// What tells one format from another has so many bytes.
const AHEAD: usize = 4;

pub(super) struct Ahead<R> {
    source: R,
    /// Bytes that were looked at and not yet taken: these before anything else.
    front: Vec<u8>,
}

impl<R: BufRead> Ahead<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, front: Vec::with_capacity(AHEAD) }
    }

    /// The next four bytes, or those that are left.
    pub(super) fn peek(&mut self) -> io::Result<&[u8]> {
        while self.front.len() < AHEAD {
            let next = match self.source.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                filled => filled?,
            };
            if next.is_empty() {
                break;
            }
            let taken = next.len().min(AHEAD - self.front.len());
            self.front.extend_from_slice(&next[..taken]);
            self.source.consume(taken);
        }
        Ok(&self.front)
    }
}

impl<R: BufRead> BufRead for Ahead<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.front.is_empty() { self.source.fill_buf() } else { Ok(&self.front) }
    }

    fn consume(&mut self, amount: usize) {
        if self.front.is_empty() {
            self.source.consume(amount);
        } else {
            self.front.drain(..amount);
        }
    }
}

impl<R: BufRead> Read for Ahead<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.front.is_empty() {
            return self.source.read(buffer);
        }
        let length = self.front.len().min(buffer.len());
        for (to, from) in buffer.iter_mut().zip(self.front.drain(..length)) {
            *to = from;
        }
        Ok(length)
    }
}
