//! Writes the content of files, as long as the disk has room: how much a layer unpacks to cannot be known before.

use std::io::BufRead;
use std::os::fd::OwnedFd;

use rustix::fs::{SeekFrom, fstatvfs, ftruncate, seek};
use rustix::io::Errno;

use super::error::{Error, shown};
use super::root::Root;
use crate::unpack::tar::{Archive, Entry, Segment};

/// Bytes between two looks at what is left of the disk. Others write to it, too.
const LOOK: u64 = 16 << 20;
/// Bytes that are left free, but for at most a twentieth of the disk: containerd must be able to write its records, or
/// nothing can be removed any more.
const RESERVE: u64 = 64 << 20;

/// What is left of a disk.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Bytes that may be written before the next look.
    until_look: u64,
}

impl Room {
    /// Writes the content; what the archive does not hold of it stays a hole.
    pub(super) fn fill<R: BufRead>(
        &mut self,
        file: &OwnedFd,
        root: &Root,
        entry: &Entry,
        archive: &mut Archive<R>,
    ) -> Result<(), Error> {
        let failed = |step| Error::step(step, &entry.path);
        let mut end = 0;
        for Segment { offset, length } in entry.segments.iter().copied() {
            if offset != end {
                seek(file, SeekFrom::Start(offset)).map_err(failed("write"))?;
            }
            end = offset + length;
            let mut left = length;
            while left > 0 {
                let part = archive.content()?;
                let part = &part[..part.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
                if part.is_empty() {
                    return Err(Error::refused(&entry.path, "its content is shorter than its map"));
                }
                self.take(part.len() as u64, root, entry)?;
                let written = match rustix::io::write(file, part) {
                    Err(Errno::INTR) => 0,
                    written => written.map_err(failed("write"))?,
                };
                archive.consume(written);
                left -= written as u64;
            }
        }
        if end < entry.size {
            ftruncate(file, entry.size).map_err(failed("write"))?;
        }
        Ok(())
    }

    /// Fails if there is no room for so many bytes.
    fn take(&mut self, bytes: u64, root: &Root, entry: &Entry) -> Result<(), Error> {
        if let Some(left) = self.until_look.checked_sub(bytes) {
            self.until_look = left;
            return Ok(());
        }
        let looked = root.directory(b"").and_then(fstatvfs);
        let disk = looked.map_err(Error::step("look at the disk of", &entry.path))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let reserve = RESERVE.min(disk.f_blocks.saturating_mul(disk.f_frsize) / 20);
        if free < reserve + bytes {
            return Err(Error::NoRoom { path: shown(&entry.path), free, reserve });
        }
        self.until_look = LOOK.min(free - reserve - bytes);
        Ok(())
    }
}
