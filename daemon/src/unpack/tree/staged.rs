//! A layer that was written before the layers below it were there: what is left to do once they are.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    Dir, Gid, RenameFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags, fchown, fgetxattr,
    fsetxattr, fstat, futimens, renameat_with,
};
use rustix::io::Errno;

use super::error::shown;
use super::lower::{self, Lower};
use super::name::split;
use super::root::Root;
use super::{Error, OPAQUE, attributes};

/// When an implied directory into which nothing has been put was changed last: it gets the time of the directory that
/// it hides. A second that no clock shows any more, since not every filesystem keeps less.
const UNTOUCHED: i64 = 1;
/// What a directory hands down to all that is put into it (acl(5)).
const DEFAULT_ACL: &str = "system.posix_acl_default";
const OMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };

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
        futimens(made, &times(OMIT, Timespec { tv_sec: UNTOUCHED, tv_nsec: 0 }))
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
    // Of all directories it alone is not moved with what is set on it.
    if lower::is_opaque(&from).map_err(Error::step("look at", b"/"))? {
        fsetxattr(&into, OPAQUE, b"y", XattrFlags::empty()).map_err(Error::step("make opaque", b"/"))?;
    }
    let lowers = lowers.iter().map(|path| Lower::new(path.clone()).map_err(Error::open(path)));
    let lowers = lowers.collect::<Result<Vec<_>, _>>()?;
    for (path, implied) in &unfinished.0 {
        let finished = finish(&to, &lowers, path, *implied);
        if !finished.map_err(Error::step("set the attributes of", path))? {
            return Err(Error::Below { path: shown(path) });
        }
    }
    Ok(())
}

/// Gives an implied directory what the one that it hides has. An entry of its own has said all but extended attributes.
/// `false` if what was put into it would have been given something by the hidden one.
fn finish(root: &Root, lowers: &[Lower], path: &[u8], implied: Implied) -> Result<bool, Errno> {
    let made = match root.directory(path) {
        // The layer itself has removed it again, or put something else there.
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(true),
        opened => opened?,
    };
    let stat = fstat(&made)?;
    let untouched = stat.st_mtime == UNTOUCHED;
    let hidden = lower::hidden(lowers, path)?;
    if let Some(hidden) = hidden {
        if fgetxattr(&hidden, DEFAULT_ACL, &mut [0_u8; 0]).is_ok() {
            return Ok(false);
        }
        attributes::copy_extended(hidden.as_fd(), made.as_fd())?;
        if !implied.stated {
            attributes::copy_owner_and_mode(hidden.as_fd(), made.as_fd())?;
            let (accessed, modified) = attributes::times_of(hidden.as_fd())?;
            futimens(made, &times(accessed, if untouched { modified } else { OMIT }))?;
        }
        return Ok(true);
    }
    if implied.stated {
        return Ok(true);
    }
    let above = if implied.within_implied { lower::hidden(lowers, split(path).0)? } else { None };
    if let Some(above) = above.map(fstat).transpose()?.filter(|above| above.st_mode & 0o2000 != 0) {
        fchown(&made, None, Some(Gid::from_raw(above.st_gid)))?;
    }
    if untouched {
        futimens(made, &times(OMIT, Timespec { tv_sec: 0, tv_nsec: UTIME_NOW }))?;
    }
    Ok(true)
}

fn times(last_access: Timespec, last_modification: Timespec) -> Timestamps {
    Timestamps { last_access, last_modification }
}
