//! Writes the entries of a layer's tar as files, as root and below one directory that nothing gets out of. The outcome
//! is the tree that containerd's differ makes of the same tar: its order of steps, its rules for what replaces what,
//! its refusals. Where it differs on purpose, the code says so.

mod attributes;
mod content;
mod error;
mod lower;
mod name;
mod root;
mod staged;

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, XattrFlags, fsetxattr, linkat, makedev, mkdirat, mknodat, openat,
    symlinkat,
};
use rustix::io::Errno;

use super::tar::{Archive, Entry, Kind};
use attributes::Attributes;
use content::Room;
use error::shown;
use lower::Lower;
use name::{Mark, joined};
use root::Root;

pub use error::Error;
pub use staged::{Unfinished, settle};

/// Longest path within the tree; containerd cannot write longer ones either, since the kernel takes none.
const LONGEST_PATH: usize = 4095;

/// What is set on a directory that hides all below it, and the same on mounts with `userxattr`.
const OPAQUE: &str = "trusted.overlay.opaque";
const USER_OPAQUE: &str = "user.overlay.opaque";

/// How the layer's removals are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removals {
    /// By removing: the directory holds the files of all layers below.
    Delete,
    /// By what the overlay filesystem knows them by: devices with the number 0:0, and an attribute of opaque directories.
    Overlay {
        /// Whether that attribute is `user.overlay.opaque`, as on mounts with `userxattr`; else `trusted.overlay.opaque`.
        user_attributes: bool,
    },
}

/// The writer of one layer.
#[derive(Debug)]
pub struct Tree {
    root: Root,
    removals: Removals,
    /// What directories that the tar only implies are made after.
    below: Below,
    /// The directory of the last entry; most entries share it with the one before.
    recent: Option<Recent>,
    /// Directories with the times that they get when nothing is put into them any more.
    dated: Vec<(Vec<u8>, Attributes)>,
    /// Paths of entries, for opaque directories where removals are deletions: what this layer has put there stays.
    written: HashSet<Vec<u8>>,
    /// Paths that this layer has removed and not made again.
    removed: HashSet<Vec<u8>>,
    /// What is left of the disk.
    room: Room,
}

/// The layers below.
#[derive(Debug)]
enum Below {
    /// The highest first.
    Here(Vec<Lower>),
    /// They may not be there yet.
    Later(Unfinished),
}

#[derive(Debug)]
struct Recent {
    /// As the tar has it.
    written: Vec<u8>,
    /// Where that leads.
    path: Vec<u8>,
    directory: OwnedFd,
}

impl Tree {
    /// A writer into the directory `root`. `lowers` are the directories of the layers below, the highest first.
    pub fn new(root: &Path, removals: Removals, lowers: &[PathBuf]) -> Result<Self, Error> {
        let lower = |path: &PathBuf| Lower::new(path.clone()).map_err(Error::open(path));
        Self::above(root, removals, Below::Here(lowers.iter().map(lower).collect::<Result<_, _>>()?))
    }

    /// A writer into the new directory `root` of a layer whose lower ones may not be there yet. What it writes is to be
    /// [settled](settle). A hard link into a lower layer ends it with [`Error::Below`].
    pub fn staged(root: &Path, removals: Removals) -> Result<Self, Error> {
        rustix::fs::mkdir(root, Mode::from_raw_mode(0o700)).map_err(Error::open(root))?;
        Self::above(root, removals, Below::Later(Unfinished::default()))
    }

    fn above(root: &Path, removals: Removals, below: Below) -> Result<Self, Error> {
        Ok(Self {
            root: Root::open(root).map_err(Error::open(root))?,
            removals,
            below,
            recent: None,
            dated: Vec::new(),
            written: HashSet::new(),
            removed: HashSet::new(),
            room: Room::default(),
        })
    }

    /// Writes one entry, with its content from `archive`.
    pub fn write<R: BufRead>(&mut self, entry: &Entry, archive: &mut Archive<R>) -> Result<(), Error> {
        let path = name::clean(&entry.path);
        let (parent, base) = name::split(&path);
        // Whatever leads to the root itself is not for this layer to say.
        if matches!(base, b"" | b"." | b"..") {
            return Ok(());
        }
        let mark =
            Mark::of(base).ok_or_else(|| Error::refused(&entry.path, "it removes its own directory"))?;
        let Some(recent) = self.directory(parent, mark != Mark::None)? else { return Ok(()) };
        let path = joined(&recent.path, base);
        if path.len() > LONGEST_PATH {
            return Err(Error::refused(&entry.path, "its path is longer than 4095 bytes"));
        }
        let result = match mark {
            Mark::Opaque => self.make_opaque(&recent),
            Mark::Removes(name) => self.remove(&recent, name, entry),
            Mark::None => self.create(&recent, base, path, entry, archive),
        };
        // Something that was removed may have been on the way to this very directory.
        if result? {
            self.recent = Some(recent);
        }
        Ok(())
    }

    /// Gives directories their times. What it returns is for [`settle`], and empty where the layers below were there.
    pub fn finish(self) -> Result<Unfinished, Error> {
        for (path, attributes) in &self.dated {
            let failed = Error::step("set the times of", path);
            let resolved = self.root.resolve(path).map_err(Error::step("find", path))?;
            let (parent, base) = name::split(&resolved);
            let directory = self.root.directory(parent).map_err(Error::step("find", path))?;
            attributes.set_times_at(directory.as_fd(), base).map_err(failed)?;
        }
        match self.below {
            Below::Here(_) => Ok(Unfinished::default()),
            Below::Later(unfinished) => Ok(unfinished),
        }
    }

    /// The directory that an entry goes into, made if it is missing. `None` for a removal from what this layer has
    /// removed as a whole: there containerd fails, or makes an empty directory, where nothing is to be done.
    fn directory(&mut self, written: &[u8], removal: bool) -> Result<Option<Recent>, Error> {
        if let Some(recent) = self.recent.take_if(|recent| recent.written == written) {
            return Ok(Some(recent));
        }
        self.recent = None;
        let path = self.root.resolve(written).map_err(Error::step("find", written))?;
        let recent = |path, directory| Ok(Some(Recent { written: written.to_vec(), path, directory }));
        let missing = match self.root.directory(&path) {
            Ok(directory) => return recent(path, directory),
            Err(errno) => errno,
        };
        if removal && name::prefixes(&path).any(|prefix| self.removed.contains(prefix)) {
            return Ok(None);
        }
        if missing != Errno::NOENT {
            return Err(Error::step("find the directory", written)(missing));
        }
        if path.len() > LONGEST_PATH {
            return Err(Error::refused(written, "its path is longer than 4095 bytes"));
        }
        for prefix in name::prefixes(&path) {
            self.imply(prefix).map_err(Error::step("create the directory", prefix))?;
            self.removed.remove(prefix);
        }
        let directory = self.root.directory(&path).map_err(Error::step("find the directory", written))?;
        recent(path, directory)
    }

    /// Makes a directory that has no entry of its own yet, like the one that it hides.
    fn imply(&mut self, path: &[u8]) -> Result<(), Errno> {
        let (parent, base) = name::split(path);
        let above = self.root.directory(parent)?;
        match mkdirat(&above, base, Mode::from_raw_mode(0o755)) {
            Err(Errno::EXIST) => return Ok(()),
            made => made?,
        }
        let made = self.root.directory(path)?;
        rustix::fs::fchmod(&made, Mode::from_raw_mode(0o755))?;
        match &mut self.below {
            Below::Here(lowers) => match lower::hidden(lowers, path)? {
                Some(hidden) => attributes::copy(hidden.as_fd(), made.as_fd()),
                None => Ok(()),
            },
            Below::Later(unfinished) => unfinished.implied(path, made.as_fd()),
        }
    }

    /// Marks the entry's directory as one that hides what lies below it. All three actions say whether the directory is
    /// still where it was.
    fn make_opaque(&mut self, recent: &Recent) -> Result<bool, Error> {
        match self.removals {
            Removals::Overlay { user_attributes } => {
                let name = if user_attributes { USER_OPAQUE } else { OPAQUE };
                fsetxattr(&recent.directory, name, b"y", XattrFlags::empty())
                    .map_err(Error::step("make opaque", &recent.path))?;
                Ok(true)
            }
            Removals::Delete => {
                let kept = |path: &[u8]| self.written.contains(path);
                self.root.empty(&recent.path, &kept).map_err(Error::step("empty", &recent.path))?;
                Ok(false)
            }
        }
    }

    /// Removes `name` from what lies below. Files that this layer has put there before go, too, in either way; on an
    /// overlay containerd fails over them.
    fn remove(&mut self, recent: &Recent, name: &[u8], entry: &Entry) -> Result<bool, Error> {
        let path = joined(&recent.path, name);
        self.removed.insert(path.clone());
        let failed = |step| Error::step(step, &path);
        if self.removals == Removals::Delete {
            self.root.remove(&path).map_err(failed("remove"))?;
            return Ok(false);
        }
        let (uid, gid) = owner(entry)?;
        let device =
            || mknodat(&recent.directory, name, FileType::CharacterDevice, Mode::empty(), makedev(0, 0));
        let replaced = match device() {
            Err(Errno::EXIST) => {
                self.root.remove(&path).map_err(failed("replace"))?;
                device().map_err(failed("remove"))?;
                true
            }
            made => made.map(|()| false).map_err(failed("remove"))?,
        };
        attributes::set_owner_at(recent.directory.as_fd(), name, (uid, gid))
            .map_err(failed("set the owner of"))?;
        Ok(!replaced)
    }

    fn create<R: BufRead>(
        &mut self,
        recent: &Recent,
        base: &[u8],
        path: Vec<u8>,
        entry: &Entry,
        archive: &mut Archive<R>,
    ) -> Result<bool, Error> {
        let attributes = Attributes::of(entry, owner(entry)?, self.hides_overlay_attributes());
        let mut made = self.make(recent, base, entry);
        if entry.kind == Kind::HardLink && made.as_ref().is_err_and(|error| *error == Errno::NOENT) {
            let known = self.bring_up(&entry.link);
            if !known.map_err(Error::step("copy the file that is linked to by", &entry.path))? {
                return Err(Error::Below { path: shown(&entry.path) });
            }
            made = self.make(recent, base, entry);
        }
        let mut replaced = false;
        if made.as_ref().is_err_and(|error| *error == Errno::EXIST)
            && !(entry.kind == Kind::Directory && self.root.directory(&path).is_ok())
        {
            replaced = true;
            self.root.remove(&path).map_err(Error::step("replace", &entry.path))?;
            made = self.make(recent, base, entry);
        }
        let failed = |step| Error::step(step, &entry.path);
        match (entry.kind, &made) {
            // It is only marked as seen, and it has removed what was there.
            (Kind::Global, _) => {
                self.root.remove(&path).map_err(failed("replace"))?;
                self.written.extend(self.keeps_paths().then_some(path));
                return Ok(false);
            }
            (Kind::Unknown(_), _) => {
                return Err(Error::refused(&entry.path, "its type is none that a layer may have"));
            }
            (Kind::Directory, Ok(_) | Err(Errno::EXIST)) => {
                if let Below::Later(unfinished) = &mut self.below {
                    unfinished.stated(&path, made.is_ok());
                }
                let directory = self.root.directory(&path).map_err(failed("find"))?;
                attributes.set_on(directory.as_fd()).map_err(failed("set the attributes of"))?;
                self.dated.push((name::clean(&entry.path), attributes));
            }
            (Kind::File, Ok(Some(file))) => {
                self.room.fill(file, &self.root, entry, archive)?;
                attributes.set_on(file.as_fd()).map_err(failed("set the attributes of"))?;
            }
            (_, Ok(_)) => {
                let set = attributes.set_at(recent.directory.as_fd(), base);
                set.map_err(failed("set the attributes of"))?;
            }
            (_, Err(errno)) => return Err(failed("create")(*errno)),
        }
        self.removed.remove(&path);
        self.written.extend(self.keeps_paths().then_some(path));
        Ok(!replaced)
    }

    /// Copies the target of a hard link up from the layer that has it, as the overlay filesystem does where the two are
    /// linked on a mount. containerd fails on such a layer here, and takes it where all files are in one directory.
    /// Only files: whatever else there may be is left, and the link fails.
    /// `false` if the layers below are not there to be asked.
    fn bring_up(&mut self, target: &[u8]) -> Result<bool, Errno> {
        let (parent, base) = name::split(target);
        let path = joined(&self.root.resolve(parent)?, base);
        if self.removed.contains(&path) {
            return Ok(true);
        }
        let mut hidden = match lower::look(&self.root, &path)? {
            lower::Look::Absent { opaque } => opaque,
            lower::Look::File(_) | lower::Look::Other => return Ok(true),
        };
        let Below::Here(lowers) = &self.below else { return Ok(hidden) };
        for lower in lowers {
            match lower.look(&path)? {
                _ if hidden => return Ok(true),
                lower::Look::Absent { opaque } => hidden = opaque,
                lower::Look::Other => return Ok(true),
                lower::Look::File(file) => return self.copy_up(&path, &file).map(|()| true),
            }
        }
        Ok(true)
    }

    fn copy_up(&mut self, path: &[u8], file: &OwnedFd) -> Result<(), Errno> {
        let (parent, base) = name::split(path);
        name::prefixes(parent).try_for_each(|prefix| self.imply(prefix))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let directory = self.root.directory(parent)?;
        let mode = Mode::from_raw_mode(0o600);
        let mut copy = File::from(openat(&directory, base, flags | OFlags::CLOEXEC, mode)?);
        let mut original = File::from(file.try_clone().map_err(|error| errno(&error))?);
        io::copy(&mut original, &mut copy).map_err(|error| errno(&error))?;
        attributes::copy(file.as_fd(), copy.as_fd())
    }

    /// Creates the entry's file if there is none of its name; a regular one is open then.
    fn make(&self, recent: &Recent, base: &[u8], entry: &Entry) -> Result<Option<OwnedFd>, Errno> {
        let directory = recent.directory.as_fd();
        // Modes come last, whatever this process masks.
        let mode = Mode::from_raw_mode(0o600);
        let special = |kind, (major, minor)| mknodat(directory, base, kind, mode, makedev(major, minor));
        match entry.kind {
            Kind::File => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                return openat(directory, base, flags, mode).map(Some);
            }
            Kind::Directory => mkdirat(directory, base, Mode::from_raw_mode(0o700))?,
            Kind::Symlink => symlinkat(entry.link.as_slice(), directory, base)?,
            Kind::HardLink => {
                let (parent, name) = name::split(&entry.link);
                let parent = self.root.resolve(parent)?;
                // What stands there then is the mark of the removal.
                if self.removed.contains(&joined(&parent, name)) {
                    return Err(Errno::NOENT);
                }
                linkat(self.root.directory(&parent)?, name, directory, base, AtFlags::empty())?;
            }
            Kind::CharacterDevice => special(FileType::CharacterDevice, entry.device)?,
            Kind::BlockDevice => special(FileType::BlockDevice, entry.device)?,
            Kind::Fifo => special(FileType::Fifo, (0, 0))?,
            Kind::Global | Kind::Unknown(_) => {}
        }
        Ok(None)
    }

    fn keeps_paths(&self) -> bool {
        self.removals == Removals::Delete
    }

    /// Whether attributes that an archive may set would be commands to the overlay filesystem.
    fn hides_overlay_attributes(&self) -> bool {
        self.removals == Removals::Overlay { user_attributes: true }
    }
}

/// Returns when all files of the filesystem that `root` is on are on its disk.
pub fn sync(root: &Path) -> Result<(), Error> {
    let handle = Root::open(root).and_then(|root| root.directory(b"")).map_err(Error::open(root))?;
    rustix::fs::syncfs(handle).map_err(Error::step("sync to disk", root.as_os_str().as_bytes()))
}

/// The system's own number of an error; of one that is not the system's, that it failed.
fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Owner and group as the system has them: 32 bits, the highest of which means "leave it as it is". containerd up to
/// 2.1 cuts larger ones, so that what belongs to nobody comes to belong to root.
fn owner(entry: &Entry) -> Result<(u32, u32), Error> {
    let id = |id: i64| u32::try_from(id).ok().filter(|id| *id != u32::MAX);
    match (id(entry.uid), id(entry.gid)) {
        (Some(uid), Some(gid)) => Ok((uid, gid)),
        _ => Err(Error::refused(&entry.path, "its owner or group is none that a file can have")),
    }
}

#[cfg(test)]
mod tests;
