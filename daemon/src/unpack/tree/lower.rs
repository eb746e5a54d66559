//! A layer below, on an overlay: read to make directories like those that they hide, and for the files that hard links
//! lead to.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fgetxattr, openat, statat};
use rustix::io::Errno;

use super::name::{prefixes, split};
use super::root::Root;
use super::{OPAQUE, USER_OPAQUE};

/// Opened whenever it is asked: an image may have more layers than a process has files.
#[derive(Debug)]
pub(super) struct Lower(PathBuf);

/// What a layer has at a path.
enum Found {
    Nothing,
    Directory(OwnedFd),
    /// A file, or that it removes one.
    Other,
}

impl Lower {
    /// Fails if it cannot be opened.
    pub(super) fn new(path: PathBuf) -> Result<Self, Errno> {
        Root::open(&path).map(|_| Self(path))
    }

    /// Follows symlinks within this layer, as containerd does: a directory that takes a symlink's place gets the
    /// attributes of where it led.
    fn directory(&self, path: &[u8]) -> Result<Found, Errno> {
        let root = Root::open(&self.0)?;
        match root.directory(&root.resolve(path)?) {
            Ok(directory) => Ok(Found::Directory(directory)),
            Err(Errno::NOENT) => Ok(Found::Nothing),
            Err(Errno::NOTDIR) => Ok(Found::Other),
            Err(errno) => Err(errno),
        }
    }

    /// What the overlay filesystem finds here.
    pub(super) fn look(&self, path: &[u8]) -> Result<Look, Errno> {
        look(&Root::open(&self.0)?, path)
    }
}

/// The directory that is hidden by one of the same path above the layers, the highest first. None shows through a layer
/// that has something else there.
pub(super) fn hidden(lowers: &[Lower], path: &[u8]) -> Result<Option<OwnedFd>, Errno> {
    for lower in lowers {
        match lower.directory(path)? {
            Found::Nothing => {}
            Found::Other => break,
            Found::Directory(hidden) => return Ok(Some(hidden)),
        }
    }
    Ok(None)
}

/// What one layer of an overlay has at a path, and lets through of the layers below.
pub(super) enum Look {
    /// A regular file.
    File(OwnedFd),
    /// Something else, a removal too: what lies below does not show.
    Other,
    /// Nothing. Below an opaque directory nothing else shows either.
    Absent { opaque: bool },
}

/// Symlinks are not followed: on the mount, they would not lead through this layer alone.
pub(super) fn look(layer: &Root, path: &[u8]) -> Result<Look, Errno> {
    let (parent, base) = split(path);
    let mut opaque = false;
    for prefix in prefixes(parent) {
        match layer.directory(prefix) {
            Ok(directory) => opaque |= is_opaque(&directory)?,
            Err(Errno::NOENT) => return Ok(Look::Absent { opaque }),
            Err(Errno::NOTDIR) => return Ok(Look::Other),
            Err(errno) => return Err(errno),
        }
    }
    let directory = layer.directory(parent)?;
    match statat(&directory, base, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(&directory, base, flags, Mode::empty()).map(Look::File)
        }
        Ok(_) => Ok(Look::Other),
        Err(Errno::NOENT) => Ok(Look::Absent { opaque }),
        Err(errno) => Err(errno),
    }
}

pub(super) fn is_opaque(directory: &OwnedFd) -> Result<bool, Errno> {
    for name in [OPAQUE, USER_OPAQUE] {
        match fgetxattr(directory, name, &mut [0_u8; 1]) {
            Ok(_) => return Ok(true),
            // A longer value is none of the overlay filesystem's.
            Err(Errno::NODATA | Errno::NOTSUP | Errno::RANGE) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(false)
}
