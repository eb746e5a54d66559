//! Reads a layer's tar as a stream, entry by entry, and reads it as containerd's differ does, which is Go's
//! `archive/tar`: what that refuses is refused, what it takes is taken, and in the same sense. Knows nothing of
//! filesystems; memory does not grow with the archive.

mod header;
mod pax;
mod sparse;

use std::io::{self, BufRead, Read};

use header::{BLOCK, Block, Header};
use pax::Records;

/// Longest extended header or long name (Go's `maxSpecialFileSize`): metadata that is held in memory.
const LONGEST_SPECIAL: u64 = 1 << 20;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// One more name of a file.
    HardLink,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A PAX global header: metadata for all entries that follow, which containerd ignores, after it has made place for
    /// a file of its name.
    Global,
    /// Anything else, with its type flag.
    Unknown(u8),
}

/// A point in time: seconds since the epoch, and nanoseconds that count forward from there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// May be before the epoch.
    pub seconds: i64,
    /// Below 1,000,000,000.
    pub nanoseconds: u32,
}

/// Bytes of a file that the archive holds; between them are holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where in the file they go.
    pub offset: u64,
    /// How many they are.
    pub length: u64,
}

/// One entry, after all extended headers that belong to it. Names are bytes as they are written, not yet cleaned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its path.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Where a link points.
    pub link: Vec<u8>,
    /// Permission bits with setuid, setgid and sticky, and whatever else the field held.
    pub mode: i64,
    /// Owner, as written: more than a user id may be.
    pub uid: i64,
    /// Group, as written.
    pub gid: i64,
    /// When its content was changed last.
    pub modified: Time,
    /// When it was read last, where the archive says so.
    pub accessed: Option<Time>,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Extended attributes by name, each name once.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// Length of the file in bytes, holes and all.
    pub size: u64,
    /// What of the file the archive holds, ascending and without overlap.
    pub segments: Vec<Segment>,
}

/// Why an archive cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes do not come.
    #[error("cannot read the tar")]
    Read(#[source] io::Error),
    /// It stops too early.
    #[error("the tar ends at byte {at}, in the middle of {within}")]
    Truncated {
        /// `a header`, `a file`, …
        within: &'static str,
        /// Offset of its end.
        at: u64,
    },
    /// A header says what no header may.
    #[error("the tar is malformed at byte {at}: {field}")]
    Malformed {
        /// What is wrong.
        field: &'static str,
        /// Offset behind the header.
        at: u64,
    },
}

/// Part of a header that is not as it may be; [`Archive`] adds the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Malformed(&'static str);

/// The reader. After an error it must not be asked for more.
#[derive(Debug)]
pub struct Archive<R> {
    source: R,
    /// Bytes taken from the source.
    position: u64,
    /// Content of the present entry that has not been read.
    content: u64,
    /// What fills the present entry's last block.
    padding: u64,
}

impl<R: Read> Archive<R> {
    /// A reader of the tar that begins here. It reads in pieces of 512 bytes: `source` should have a buffer.
    pub fn new(source: R) -> Self {
        Self { source, position: 0, content: 0, padding: 0 }
    }

    /// The next entry, whatever of the one before has been read; `None` at the end, which is two blocks of zeros or the
    /// end of the source.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, Error> {
        let mut records = Records::default();
        let (mut long_path, mut long_link) = (Vec::new(), Vec::new());
        loop {
            let Some(block) = self.header()? else { return Ok(None) };
            let mut header = Header::parse(&block).map_err(|malformed| self.malformed(malformed))?;
            match header.flag {
                b'x' | b'g' => {
                    let text = self.special(header.size)?;
                    let read = Records::parse(&text).map_err(|malformed| self.malformed(malformed))?;
                    if header.flag == b'x' {
                        records = read;
                        continue;
                    }
                    // It stands for itself, and takes nothing from what came before it.
                    read.apply(&mut header).map_err(|malformed| self.malformed(malformed))?;
                    header.flag = b'g';
                    return Ok(Some(header.entry(0, Vec::new(), Vec::new())));
                }
                b'L' => long_path = header::text(&self.special(header.size)?).to_vec(),
                b'K' => long_link = header::text(&self.special(header.size)?).to_vec(),
                _ => {
                    records.apply(&mut header).map_err(|malformed| self.malformed(malformed))?;
                    if !long_path.is_empty() {
                        header.path = long_path;
                    }
                    if !long_link.is_empty() {
                        header.link = long_link;
                    }
                    return self.entry(header, &block, records).map(Some);
                }
            }
        }
    }

    /// Bytes of the present entry's content, those of its segments one after another; 0 when there are no more.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        let wanted = buffer.len().min(usize::try_from(self.content).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let read = self.take(&mut buffer[..wanted])?;
        if read == 0 {
            return Err(self.truncated("a file"));
        }
        self.content -= read as u64;
        Ok(read)
    }

    /// What is read next of the present entry's content, where it lies; empty when there is no more. Ends with
    /// [`Self::consume`].
    pub fn content(&mut self) -> Result<&[u8], Error>
    where
        R: BufRead,
    {
        if self.content == 0 {
            return Ok(&[]);
        }
        // Looked at twice, since a loop cannot hand out what it borrows.
        while let Err(error) = self.source.fill_buf() {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(Error::Read(error));
            }
        }
        let at = self.position;
        let part = self.source.fill_buf().map_err(Error::Read)?;
        if part.is_empty() {
            return Err(Error::Truncated { within: "a file", at });
        }
        Ok(&part[..part.len().min(usize::try_from(self.content).unwrap_or(usize::MAX))])
    }

    /// Leaves so many bytes behind of what [`Self::content`] has shown.
    pub fn consume(&mut self, length: usize)
    where
        R: BufRead,
    {
        self.source.consume(length);
        self.position += length as u64;
        self.content -= length as u64;
    }

    /// The source, at the place behind what was read.
    pub fn into_source(self) -> R {
        self.source
    }

    /// The entry of a header that nothing more changes.
    fn entry(&mut self, mut header: Header, block: &Block, mut records: Records) -> Result<Entry, Error> {
        header.settle_kind();
        self.begin(&header)?;
        let (physical, mut size) = (self.content, self.content);
        let map = if header.flag == b'S' {
            size = header::sparse_size(block).map_err(|malformed| self.malformed(malformed))?;
            Some(self.old_sparse_map(block)?)
        } else {
            match records.sparse(&mut header).map_err(|malformed| self.malformed(malformed))? {
                sparse::Form::None => None,
                sparse::Form::InRecords(map, stated) => {
                    size = stated.unwrap_or(size);
                    Some(map)
                }
                sparse::Form::InContent(stated) => {
                    size = stated.unwrap_or(size);
                    Some(self.sparse_map_in_content()?)
                }
            }
        };
        let segments = match map {
            Some(map) => {
                if header.holds_no_content() {
                    return Err(self.malformed(Malformed("a sparse map on what is no file")));
                }
                sparse::check(&map, size, self.content).map_err(|malformed| self.malformed(malformed))?;
                map
            }
            None => vec![Segment { offset: 0, length: physical }],
        };
        Ok(header.entry(size, segments, records.attributes()))
    }

    /// The next header; `None` at the end of the archive.
    fn header(&mut self) -> Result<Option<Block>, Error> {
        self.skip()?;
        let Some(block) = self.block()? else { return Ok(None) };
        if block != [0; BLOCK] {
            return Ok(Some(block));
        }
        match self.block()? {
            Some(block) if block != [0; BLOCK] => {
                Err(self.malformed(Malformed("a header after a block of zeros, two of which are the end")))
            }
            _ => Ok(None),
        }
    }

    /// Says how much content follows the header that was read.
    fn begin(&mut self, header: &Header) -> Result<(), Error> {
        let size = if header.holds_no_content() { 0 } else { header.size };
        self.content = u64::try_from(size).map_err(|_| self.malformed(Malformed("a negative size")))?;
        self.padding = self.content.wrapping_neg() % BLOCK as u64;
        Ok(())
    }

    /// The content of an extended header or a long name.
    fn special(&mut self, size: i64) -> Result<Vec<u8>, Error> {
        let size = u64::try_from(size).map_err(|_| self.malformed(Malformed("a negative size")))?;
        if size > LONGEST_SPECIAL {
            return Err(self.malformed(Malformed("an extended header or a name of more than 1 MiB")));
        }
        (self.content, self.padding) = (size, size.wrapping_neg() % BLOCK as u64);
        let mut text = Vec::new();
        let mut part = [0; 4096];
        loop {
            match self.read(&mut part)? {
                0 => return Ok(text),
                read => text.extend_from_slice(&part[..read]),
            }
        }
    }

    /// The map of GNU's old form, which goes on in blocks of its own behind the header.
    fn old_sparse_map(&mut self, block: &Block) -> Result<Vec<Segment>, Error> {
        let mut map = Vec::new();
        let mut more = sparse::from_header(block, &mut map).map_err(|malformed| self.malformed(malformed))?;
        while more {
            let block = self.block()?.ok_or_else(|| self.truncated("a sparse map"))?;
            more = sparse::from_extension(&block, &mut map).map_err(|malformed| self.malformed(malformed))?;
        }
        Ok(map)
    }

    /// The map of PAX sparse 1.0, lines of decimal numbers in whole blocks before the content.
    fn sparse_map_in_content(&mut self) -> Result<Vec<Segment>, Error> {
        let mut lines = sparse::Lines::default();
        loop {
            if let Some(map) = lines.map().map_err(|malformed| self.malformed(malformed))? {
                return Ok(map);
            }
            let mut block = [0; BLOCK];
            let mut filled = 0;
            while filled < BLOCK {
                match self.read(&mut block[filled..])? {
                    0 => return Err(self.truncated("a sparse map")),
                    read => filled += read,
                }
            }
            lines.add(&block).map_err(|malformed| self.malformed(malformed))?;
        }
    }

    /// One whole block; `None` if the source is at its end.
    fn block(&mut self) -> Result<Option<Block>, Error> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.take(&mut block[filled..])? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(self.truncated("a header")),
                read => filled += read,
            }
        }
        Ok(Some(block))
    }

    /// Leaves the present entry behind. The last padding of an archive may be missing.
    fn skip(&mut self) -> Result<(), Error> {
        let mut waste = [0; 8192];
        while self.content > 0 {
            self.read(&mut waste)?;
        }
        while self.padding > 0 {
            let length = usize::try_from(self.padding).unwrap_or(BLOCK).min(BLOCK);
            match self.take(&mut waste[..length])? {
                0 => break,
                read => self.padding -= read as u64,
            }
        }
        self.padding = 0;
        Ok(())
    }

    fn take(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        loop {
            match self.source.read(buffer) {
                Ok(read) => {
                    self.position += read as u64;
                    return Ok(read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::Read(error)),
            }
        }
    }

    fn truncated(&self, within: &'static str) -> Error {
        Error::Truncated { within, at: self.position }
    }

    fn malformed(&self, Malformed(field): Malformed) -> Error {
        Error::Malformed { field, at: self.position }
    }
}

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;
