//! Owner, mode, extended attributes and times of what was written, in the order in which they do not undo each other:
//! a change of owner takes setuid bits and capabilities away, so it is first; writing changes times, so they are last.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat, fchmod, fchown,
    fgetxattr, flistxattr, fsetxattr, fstat, futimens, lsetxattr, statat, utimensat,
};
use rustix::io::Errno;

use crate::unpack::tar::{Entry, Time};

/// Longest list of names, and longest value, that Linux keeps (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const LONGEST: usize = 64 << 10;

/// What one entry says of its file.
#[derive(Clone, Debug)]
pub(super) struct Attributes {
    owner: (u32, u32),
    mode: Mode,
    extended: Vec<(Vec<u8>, Vec<u8>)>,
    times: Timestamps,
}

impl Attributes {
    /// `guarded`: leaves out what the overlay filesystem would take for commands. Attributes in `trusted.` are never
    /// taken from an archive.
    pub(super) fn of(entry: &Entry, owner: (u32, u32), guarded: bool) -> Self {
        let modified = bounded(entry.modified);
        let accessed = bounded(entry.modified.max(entry.accessed.unwrap_or(entry.modified)));
        let taken =
            |name: &[u8]| !(name.starts_with(b"trusted.") || guarded && name.starts_with(b"user.overlay."));
        Self {
            owner,
            // Only these bits are kept.
            mode: Mode::from_raw_mode(u32::try_from(entry.mode & 0o7777).unwrap_or_default()),
            extended: entry.attributes.iter().filter(|(name, _)| taken(name)).cloned().collect(),
            times: Timestamps { last_access: accessed, last_modification: modified },
        }
    }

    /// Sets all on an open file or directory.
    pub(super) fn set_on(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let (uid, gid) = self.owner;
        fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        for (name, value) in &self.extended {
            tolerated(fsetxattr(file, name.as_slice(), value, XattrFlags::empty()), name, true)?;
        }
        fchmod(file, self.mode)?;
        futimens(file, &self.times)
    }

    /// Sets all on a name that may be a symlink, a device or one more name of a file.
    pub(super) fn set_at(&self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
        set_owner_at(directory, name, self.owner)?;
        let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !self.extended.is_empty() {
            let has_user_attributes = matches!(kind, FileType::RegularFile | FileType::Directory);
            // There is no call that takes a directory and a name; the last name of this path is not followed.
            let path = [format!("/proc/self/fd/{}/", directory.as_raw_fd()).as_bytes(), name].concat();
            for (key, value) in &self.extended {
                let set = lsetxattr(path.as_slice(), key.as_slice(), value, XattrFlags::empty());
                tolerated(set, key, has_user_attributes)?;
            }
        }
        if kind != FileType::Symlink {
            chmodat(directory, name, self.mode, AtFlags::empty())?;
        }
        self.set_times_at(directory, name)
    }

    /// Sets the times alone; of the directory itself if the name is empty.
    pub(super) fn set_times_at(&self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
        if name.is_empty() {
            return futimens(directory, &self.times);
        }
        utimensat(directory, name, &self.times, AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// Sets the owner of a name, which may be a symlink.
pub(super) fn set_owner_at(
    directory: BorrowedFd<'_>,
    name: &[u8],
    (uid, gid): (u32, u32),
) -> Result<(), Errno> {
    chownat(directory, name, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::SYMLINK_NOFOLLOW)
}

/// Gives one directory or file the owner, mode, times and attributes of another one.
pub(super) fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), Errno> {
    copy_owner_and_mode(from, to)?;
    let (last_access, last_modification) = times_of(from)?;
    futimens(to, &Timestamps { last_access, last_modification })?;
    copy_extended(from, to)
}

/// Its owner and mode alone.
pub(super) fn copy_owner_and_mode(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), Errno> {
    let stat = fstat(from)?;
    fchown(to, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
    fchmod(to, Mode::from_raw_mode(stat.st_mode & 0o7777))
}

/// When it was read last, and when it was changed last.
pub(super) fn times_of(file: BorrowedFd<'_>) -> Result<(Timespec, Timespec), Errno> {
    let stat = fstat(file)?;
    let nanoseconds = |number| i64::try_from(number).unwrap_or_default();
    let accessed = Timespec { tv_sec: stat.st_atime, tv_nsec: nanoseconds(stat.st_atime_nsec) };
    Ok((accessed, Timespec { tv_sec: stat.st_mtime, tv_nsec: nanoseconds(stat.st_mtime_nsec) }))
}

/// Its extended attributes, but for those that the other one has already.
pub(super) fn copy_extended(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut names = vec![0; LONGEST];
    let length = match flistxattr(from, names.as_mut_slice()) {
        Err(Errno::NOTSUP) => return Ok(()),
        listed => listed?,
    };
    let mut value = vec![0; LONGEST];
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if name.starts_with(b"trusted.") || name.starts_with(b"user.overlay.") {
            continue;
        }
        let length = match fgetxattr(from, name, value.as_mut_slice()) {
            Err(Errno::NOTSUP | Errno::NODATA) => continue,
            read => read?,
        };
        match fsetxattr(to, name, &value[..length], XattrFlags::CREATE) {
            Err(Errno::NOTSUP | Errno::NODATA | Errno::EXIST) => {}
            set => set?,
        }
    }
    Ok(())
}

/// An attribute that the filesystem does not have, or that no file of this kind may have, is left out: other tools make
/// such layers, and the image works without.
fn tolerated(set: Result<(), Errno>, name: &[u8], has_user_attributes: bool) -> Result<(), Errno> {
    match set {
        Err(Errno::NOTSUP) => {}
        Err(Errno::PERM) if name.starts_with(b"user.") && !has_user_attributes => {}
        set => return set,
    }
    tracing::debug!(name = %name.escape_ascii(), "an attribute of a layer is left out: the filesystem has no place for it");
    Ok(())
}

/// Times outside of 1970 to 2262 become the epoch, as with containerd, which counts in nanoseconds.
fn bounded(time: Time) -> Timespec {
    let last = Time { seconds: i64::MAX / 1_000_000_000, nanoseconds: 854_775_807 };
    let time = if time < Time::default() || time > last { Time::default() } else { time };
    Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) }
}
