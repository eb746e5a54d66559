//! The tar within a layer's blob: gzip of any number of members, Zstandard of any number of frames, or the tar itself.
//! What it is shows in its first bytes, as it does to containerd: labels are wrong at times.
//!
//! Zeros after the end are padding, which some tools write; anything else there is part of no layer.

mod ahead;

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation as _, OutBuffer};

use ahead::Ahead;

/// Largest window of a Zstandard frame, as a power of two: 8 MiB, which the format asks of every decoder (RFC 8878,
/// section 3.1.1.1.2). It is memory that an image claims.
const LARGEST_WINDOW: u32 = 23;
/// What the decoder says of a larger one.
const TOO_LARGE: &str = "Frame requires too much memory for decoding";

/// Why a blob cannot be decompressed. Comes within an [`io::Error`], since it comes while reading.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The compressed data contradicts itself.
    #[error("the {format} data is corrupt")]
    Corrupt {
        /// `gzip` or `zstd`.
        format: &'static str,
        /// What the decoder says.
        source: io::Error,
    },
    /// It ends in the middle.
    #[error("the {0} data is cut off")]
    Truncated(&'static str),
    /// It wants more memory than drayd gives to a layer.
    #[error("the zstd data has a window of more than 8 MiB")]
    Window,
    /// Something follows the compressed data.
    #[error("bytes that are neither {0} nor zeros follow the {0} data")]
    Trailing(&'static str),
}

impl Error {
    fn corrupt(format: &'static str) -> impl Fn(io::Error) -> io::Error {
        move |source| match source.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated(format).into(),
            // Decoders report in these kinds; what else comes is the source's own.
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
                Self::Corrupt { format, source }.into()
            }
            io::ErrorKind::Other if format == ZSTD && source.to_string() == TOO_LARGE => Self::Window.into(),
            io::ErrorKind::Other if format == ZSTD => Self::Corrupt { format, source }.into(),
            _ => source,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

const GZIP: &str = "gzip";
const ZSTD: &str = "zstd";

/// The uncompressed bytes of a blob, as a reader.
pub struct Decompressed<R> {
    form: Form<R>,
}

enum Form<R> {
    Plain(Ahead<R>),
    /// `None` behind the last member.
    Gzip(Box<Option<GzDecoder<Ahead<R>>>>),
    Zstd(Zstd<R>),
}

impl<R: BufRead> Decompressed<R> {
    /// Looks at the first bytes of the blob.
    pub fn new(source: R) -> io::Result<Self> {
        let mut source = Ahead::new(source);
        let beginning = source.peek()?;
        let form = if is_gzip(beginning) {
            Form::Gzip(Box::new(Some(GzDecoder::new(source))))
        } else if is_zstd(beginning) {
            Form::Zstd(Zstd::new(source)?)
        } else {
            Form::Plain(source)
        };
        Ok(Self { form })
    }

    /// What the first bytes told: `tar` for all that is not compressed.
    pub fn format(&self) -> &'static str {
        match self.form {
            Form::Plain(_) => "tar",
            Form::Gzip(_) => GZIP,
            Form::Zstd(_) => ZSTD,
        }
    }
}

impl<R: BufRead> Read for Decompressed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.form {
            Form::Plain(source) => source.read(buffer),
            Form::Zstd(zstd) => zstd.read(buffer),
            Form::Gzip(decoder) => {
                while let Some(member) = decoder.as_mut() {
                    let read = member.read(buffer).map_err(Error::corrupt(GZIP))?;
                    if read > 0 || buffer.is_empty() {
                        return Ok(read);
                    }
                    // A member's end. Empty members are legal, so that this may come many times.
                    let mut source = decoder.take().expect("it is there in this loop").into_inner();
                    if more_follows(&mut source, is_gzip, GZIP)? {
                        **decoder = Some(GzDecoder::new(source));
                    }
                }
                Ok(0)
            }
        }
    }
}

/// Reads frame by frame, since the decoder says of padding only that it is no frame.
struct Zstd<R> {
    source: Ahead<R>,
    decoder: Decoder<'static>,
    /// Whether a frame has begun and not ended.
    within: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(source: Ahead<R>) -> io::Result<Self> {
        let mut decoder = Decoder::new()?;
        decoder.set_parameter(DParameter::WindowLogMax(LARGEST_WINDOW))?;
        Ok(Self { source, decoder, within: false })
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.within && !more_follows(&mut self.source, is_zstd, ZSTD)? {
                return Ok(0);
            }
            self.within = true;
            let input = self.source.fill_buf()?;
            let at_end = input.is_empty();
            let mut input = InBuffer::around(input);
            let mut output = OutBuffer::around(&mut *buffer);
            let left = self.decoder.run(&mut input, &mut output).map_err(Error::corrupt(ZSTD))?;
            let (taken, given) = (input.pos(), output.pos());
            self.source.consume(taken);
            self.within = left > 0;
            if given > 0 {
                return Ok(given);
            }
            if at_end && self.within {
                return Err(Error::Truncated(ZSTD).into());
            }
        }
    }
}

fn is_gzip(beginning: &[u8]) -> bool {
    beginning.starts_with(&[0x1f, 0x8b, 8])
}

/// A frame, or one of those that are to be skipped (RFC 8878, sections 3.1.1 and 3.1.2).
fn is_zstd(beginning: &[u8]) -> bool {
    matches!(beginning, [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18])
}

/// Whether another member or frame comes; `false` at the end and at zeros up to the end.
fn more_follows<R: BufRead>(
    source: &mut Ahead<R>,
    is_one: fn(&[u8]) -> bool,
    format: &'static str,
) -> io::Result<bool> {
    if is_one(source.peek()?) {
        return Ok(true);
    }
    loop {
        let rest = source.fill_buf()?;
        if rest.is_empty() {
            return Ok(false);
        }
        if rest.iter().any(|byte| *byte != 0) {
            return Err(Error::Trailing(format).into());
        }
        let length = rest.len();
        source.consume(length);
    }
}

#[cfg(test)]
mod tests;
