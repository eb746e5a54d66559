//! A layer below, on an overlay: read to make directories like those that they hide.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::root::Root;

#[derive(Debug)]
pub(super) struct Lower(pub(super) Root);

/// What a layer has at a path.
pub(super) enum Found {
    Nothing,
    Directory(OwnedFd),
    /// A file, or that it removes one.
    Other,
}

impl Lower {
    /// Follows symlinks within this layer, as containerd does: a directory that takes a symlink's place gets the
    /// attributes of where it led.
    pub(super) fn directory(&self, path: &[u8]) -> Result<Found, Errno> {
        match self.0.directory(&self.0.resolve(path)?) {
            Ok(directory) => Ok(Found::Directory(directory)),
            Err(Errno::NOENT) => Ok(Found::Nothing),
            Err(Errno::NOTDIR) => Ok(Found::Other),
            Err(errno) => Err(errno),
        }
    }
}
