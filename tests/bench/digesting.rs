//! Counts and digests what is written through it.

use std::fmt::Write as _;
use std::io::{self, Write};

use sha2::{Digest as _, Sha256};

pub(crate) struct Digesting<W> {
    output: W,
    state: Sha256,
    length: u64,
}

impl<W: Write> Digesting<W> {
    pub(crate) fn new(output: W) -> Self {
        Self { output, state: Sha256::new(), length: 0 }
    }

    /// What it was written to, `sha256:…`, and the number of bytes.
    pub(crate) fn done(self) -> (W, String, u64) {
        let digest = self.state.finalize().iter().fold("sha256:".to_owned(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        (self.output, digest, self.length)
    }
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.output.write(bytes)?;
        self.state.update(&bytes[..taken]);
        self.length += taken as u64;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}
