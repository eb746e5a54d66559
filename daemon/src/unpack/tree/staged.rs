//! A layer that was written before the layers below it were there: what is left to do once they are.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    Dir, Gid, RenameFlags, Timespec, Timestamps, UTIME_NOW, XattrFlags, fchown, fgetxattr, fsetxattr, fstat,
    futimens, renameat_with,
};
use rustix::io::Errno;

use super::lower::{self, Lower};
use super::name::split;
use super::root::Root;
use super::{Error, attributes};

/// The time of an implied directory into which nothing has been put: it gets that of the directory that it hides. A
/// nanosecond that no clock shows any more.
const UNTOUCHED: Timespec = Timespec { tv_sec: 0, tv_nsec: 1 };
/// What is set on a directory that hides all below it. Of a layer, the root alone may carry it on its way.
const OPAQUE: &str = "trusted.overlay.opaque";

/// Directories that the tar has only implied.
#[derive(Debug, Default)]
pub struct Unfinished(BTreeMap<Vec<u8>, Implied>);

#[derive(Clone, Copy, Debug)]
struct Implied {
    /// Whether it was made in one that was implied itself, and would have the group of that if its set-group-ID bit
    /// were there by then.
    within_implied: bool,
    /// Whether an entry of its own came afterwards.
    stated: bool,
}

impl Unfinished {
    /// Notes that the directory was made without an entry of its own.
    pub(super) fn implied(&mut self, path: &[u8], made: BorrowedFd<'_>) -> Result<(), Errno> {
        let within_implied = self.0.get(split(path).0).is_some_and(|above| !above.stated);
        self.0.insert(path.to_vec(), Implied { within_implied, stated: false });
        futimens(made, &Timestamps { last_access: UNTOUCHED, last_modification: UNTOUCHED })
    }

    /// Notes that an entry of the directory's own came, and whether that has made it.
    pub(super) fn stated(&mut self, path: &[u8], made: bool) {
        if made {
            self.0.remove(path);
        } else if let Some(implied) = self.0.get_mut(path) {
            implied.stated = true;
        }
    }
}

/// Moves what was written into `staged` into the empty directory `root` on the same filesystem, and finishes it after
/// `lowers`, the directories of the layers below, the highest first.
pub fn settle(staged: &Path, root: &Path, lowers: &[PathBuf], unfinished: &Unfinished) -> Result<(), Error> {
    let from =
        Root::open(staged).map_err(Error::open(staged))?.directory(b"").map_err(Error::open(staged))?;
    let to = Root::open(root).map_err(Error::open(root))?;
    let into = to.directory(b"").map_err(Error::open(root))?;
    // Read to its end before anything is taken out of it.
    let entries = Dir::read_from(&from).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    for entry in entries.map_err(Error::open(staged))? {
        let name = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b"..") {
            renameat_with(&from, name, &into, name, RenameFlags::NOREPLACE)
                .map_err(Error::step("move", name.to_bytes()))?;
        }
    }
    if fgetxattr(&from, OPAQUE, &mut [0_u8; 1]).is_ok() {
        fsetxattr(&into, OPAQUE, b"y", XattrFlags::empty()).map_err(Error::step("make opaque", b"/"))?;
    }
    let lowers = lowers.iter().map(|path| Lower::new(path.clone()).map_err(Error::open(path)));
    let lowers = lowers.collect::<Result<Vec<_>, _>>()?;
    for (path, implied) in &unfinished.0 {
        finish(&to, &lowers, path, *implied).map_err(Error::step("set the attributes of", path))?;
    }
    Ok(())
}

/// Gives an implied directory what the one that it hides has. An entry of its own has said all but extended attributes.
fn finish(root: &Root, lowers: &[Lower], path: &[u8], implied: Implied) -> Result<(), Errno> {
    let made = match root.directory(path) {
        // The layer itself has removed it again, or put something else there.
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        opened => opened?,
    };
    let hidden = lower::hidden(lowers, path)?;
    if let Some(hidden) = &hidden {
        attributes::copy_extended(hidden.as_fd(), made.as_fd())?;
    }
    if implied.stated {
        return Ok(());
    }
    let stat = fstat(&made)?;
    let untouched =
        stat.st_mtime == UNTOUCHED.tv_sec && i64::try_from(stat.st_mtime_nsec) == Ok(UNTOUCHED.tv_nsec);
    if let Some(hidden) = hidden {
        attributes::copy_owner_and_mode(hidden.as_fd(), made.as_fd())?;
        return if untouched { attributes::copy_times(hidden.as_fd(), made.as_fd()) } else { Ok(()) };
    }
    let above = if implied.within_implied { lower::hidden(lowers, split(path).0)? } else { None };
    if let Some(above) = above.map(fstat).transpose()?.filter(|above| above.st_mode & 0o2000 != 0) {
        fchown(&made, None, Some(Gid::from_raw(above.st_gid)))?;
    }
    if untouched {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        futimens(made, &Timestamps { last_access: now, last_modification: now })?;
    }
    Ok(())
}
