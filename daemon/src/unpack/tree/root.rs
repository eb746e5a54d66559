//! A directory that nothing gets out of: every path below it is walked without the kernel following a symlink. Symlinks
//! are followed here, within the directory, in the way of containerd's `fs.RootPath`.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat, unlinkat};
use rustix::io::Errno;

use super::name::{joined, parts_of, split};

/// How many symlinks one path may lead through (`fs.RootPath`).
const MOST_LINKS: usize = 255;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

#[derive(Debug)]
pub(super) struct Root {
    handle: OwnedFd,
    /// Whether the kernel walks whole paths by these rules (Linux 5.6, and no filter of system calls in between).
    whole_paths: bool,
}

impl Root {
    pub(super) fn open(path: &Path) -> Result<Self, Errno> {
        let handle = rustix::fs::open(path, DIRECTORY, Mode::empty())?;
        let mut root = Self { handle, whole_paths: true };
        root.whole_paths = root.walk_at_once(b".").is_ok();
        Ok(root)
    }

    /// The same without `openat2`.
    #[cfg(test)]
    pub(super) fn step_by_step(mut self) -> Self {
        self.whole_paths = false;
        self
    }

    /// Opens the directory at a path that has neither symlinks nor `..` on it; empty is the root itself.
    pub(super) fn directory(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        if path.is_empty() {
            return openat(&self.handle, ".", DIRECTORY, Mode::empty());
        }
        if self.whole_paths && path.len() < 4096 {
            return self.walk_at_once(path);
        }
        let mut at = openat(&self.handle, ".", DIRECTORY, Mode::empty())?;
        for part in parts_of(path) {
            if part == b".." {
                return Err(Errno::XDEV);
            }
            at = openat(&at, part, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        }
        Ok(at)
    }

    fn walk_at_once(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        loop {
            match openat2(&self.handle, path, DIRECTORY | OFlags::NOFOLLOW, Mode::empty(), resolve) {
                // A rename somewhere on the machine came between.
                Err(Errno::AGAIN) => {}
                // As the other walk says it.
                Err(Errno::LOOP) => return Err(Errno::NOTDIR),
                opened => return opened,
            }
        }
    }

    /// Where a path leads: relative, without symlinks and without `..`. What is missing, or below a file, counts as a name
    /// like others.
    pub(super) fn resolve(&self, path: &[u8]) -> Result<Vec<u8>, Errno> {
        let parts: Vec<&[u8]> = parts_of(path).collect();
        let plain = parts.join(&b"/"[..]);
        if !parts.contains(&&b".."[..]) && self.directory(&plain).is_ok() {
            return Ok(plain);
        }
        let mut pending: VecDeque<Vec<u8>> = parts.into_iter().map(<[u8]>::to_vec).collect();
        let (mut resolved, mut links) = (Vec::new(), 0);
        while let Some(part) = pending.pop_front() {
            if part == b".." {
                resolved.truncate(split(&resolved).0.len());
                continue;
            }
            let Some(target) = self.link(&resolved, &part)? else {
                resolved = joined(&resolved, &part);
                continue;
            };
            links += 1;
            if links > MOST_LINKS {
                return Err(Errno::LOOP);
            }
            if target.starts_with(b"/") {
                resolved.clear();
            }
            for part in parts_of(&target).rev() {
                pending.push_front(part.to_vec());
            }
        }
        Ok(resolved)
    }

    /// Where the symlink `name` in the directory `path` points; `None` if it is none.
    fn link(&self, path: &[u8], name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        let directory = match self.directory(path) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            opened => opened?,
        };
        match readlinkat(directory, name, Vec::new()) {
            Ok(target) => Ok(Some(target.into_bytes())),
            Err(Errno::INVAL | Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Removes whatever is at a path without symlinks on the way, with all that is in it. Nothing there is fine.
    pub(super) fn remove(&self, path: &[u8]) -> Result<(), Errno> {
        if self.unlink(path)? {
            return Ok(());
        }
        self.empty(path, &|_| false)?;
        let (parent, base) = split(path);
        unlinkat(self.directory(parent)?, base, AtFlags::REMOVEDIR)
    }

    /// Removes what is in a directory but for the paths that are kept. In a directory that is kept, the same again.
    pub(super) fn empty(&self, path: &[u8], kept: &dyn Fn(&[u8]) -> bool) -> Result<(), Errno> {
        // One directory is open at a time, however deep they lie; each comes twice, and is removed the second time.
        let mut open = vec![(path.to_vec(), false, false)];
        while let Some((path, doomed, emptied)) = open.pop() {
            if emptied {
                let (parent, base) = split(&path);
                unlinkat(self.directory(parent)?, base, AtFlags::REMOVEDIR)?;
                continue;
            }
            if doomed {
                open.push((path.clone(), true, true));
            }
            let directory = self.directory(&path)?;
            // Read to its end before anything is taken out of it.
            let entries = Dir::read_from(&directory)?.collect::<Result<Vec<_>, _>>()?;
            for entry in entries {
                let name = entry.file_name().to_bytes();
                if matches!(name, b"." | b"..") {
                    continue;
                }
                let child = joined(&path, name);
                let stays = !doomed && kept(&child);
                if stays {
                    if self.directory(&child).is_ok() {
                        open.push((child, false, false));
                    }
                } else if !unlinked(&directory, name)? {
                    open.push((child, true, false));
                }
            }
        }
        Ok(())
    }

    /// Removes what is no directory; `false` if it is one.
    fn unlink(&self, path: &[u8]) -> Result<bool, Errno> {
        let (parent, base) = split(path);
        match self.directory(parent) {
            Ok(parent) => unlinked(&parent, base),
            Err(Errno::NOENT) => Ok(true),
            Err(errno) => Err(errno),
        }
    }
}

fn unlinked(directory: &OwnedFd, name: &[u8]) -> Result<bool, Errno> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ISDIR) => Ok(false),
        Err(errno) => Err(errno),
    }
}
