//! Listening unix sockets: bound so that no client ever reaches one with the wrong owner or mode, that two daemons
//! never serve the same path, and that nobody's living socket is taken away. Knows nothing of what is served.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use nix::unistd::Gid;
use tokio::net::{UnixListener, UnixSocket, UnixStream};

/// The longest path that a socket address holds: `sun_path` has 108 bytes and the last one is the NUL (unix(7)).
pub const MAX_PATH: usize = 107;

/// Connections that wait for an accept. Clients are a kubelet and a few tools, each with one or two connections; this
/// is what the standard library uses.
const BACKLOG: u32 = 128;

/// Who may connect: the permission bits of the socket file. Connecting needs the write bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(u32);

/// The group that the socket file belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Group {
    /// Looked up in the group database when the socket is bound.
    Name(String),
    /// A number, which needs no entry in the group database.
    Id(u32),
}

/// Keeps a bound path ours: holds the lock file, and removes the socket when dropped.
#[derive(Debug)]
pub struct SocketGuard {
    path: PathBuf,
    /// Device and inode of the socket file made by us, so that a file which took its place is left alone.
    identity: (u64, u64),
    /// Released after the socket was removed: fields are dropped after `drop` has run.
    _lock: File,
}

/// Why a socket could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path does not fit into a socket address.
    #[error("socket path {path} is {length} bytes long, the kernel allows {MAX_PATH}", length = .path.as_os_str().len())]
    PathTooLong {
        /// The path asked for.
        path: PathBuf,
    },
    /// The group database has no such group.
    #[error("group `{name}` of socket {path} does not exist")]
    UnknownGroup {
        /// The path asked for.
        path: PathBuf,
        /// The name that was looked up.
        name: String,
    },
    /// The group database cannot be read.
    #[error("cannot look up group `{name}` of socket {path}")]
    Group {
        /// The path asked for.
        path: PathBuf,
        /// The name that was looked up.
        name: String,
        /// What the lookup said.
        source: io::Error,
    },
    /// The directory is missing and cannot be made.
    #[error("cannot create directory {directory}")]
    Directory {
        /// The directory of the socket.
        directory: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The lock file next to the socket cannot be opened or locked.
    #[error("cannot lock {lock}")]
    Lock {
        /// The lock file.
        lock: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another process holds the lock or answers on the socket.
    #[error("socket {path} is in use by another process")]
    InUse {
        /// The path asked for.
        path: PathBuf,
    },
    /// Something that is not a socket is at the path; drayd does not remove what it cannot have made.
    #[error("{path} exists and is not a socket")]
    NotASocket {
        /// The path asked for.
        path: PathBuf,
    },
    /// Whether the socket at the path is alive cannot be told.
    #[error("cannot tell whether socket {path} is in use")]
    Probe {
        /// The path asked for.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A socket that nobody serves any more cannot be removed.
    #[error("cannot remove stale socket {path}")]
    Stale {
        /// The path asked for.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The socket cannot be made, given its mode or group, or listened on.
    #[error("cannot listen on socket {path}")]
    Listen {
        /// The path asked for.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Mode {
    /// `0660`: who owns the socket and who is in its group.
    pub const OWNER_AND_GROUP: Self = Self(0o660);

    /// Permission bits from a number; none if there are others than `rwxrwxrwx`.
    pub fn new(bits: u32) -> Option<Self> {
        (bits & !0o777 == 0).then_some(Self(bits))
    }

    /// The permission bits.
    pub fn bits(self) -> u32 {
        self.0
    }
}

/// Listens on `path`, with `mode` and, if given, `group`; its directory is made (0755) if missing.
///
/// The order is what makes it safe. A lock file, `<path>.lock`, is held as long as the guard lives, so of two daemons
/// that start at once one gets [`SocketError::InUse`]. What is at the path is removed only if it is a socket that
/// refuses connections. Mode and group are set between bind and listen: until then the kernel refuses every client,
/// so there is no moment at which one gets in under the umask's mode.
pub async fn bind(
    path: &Path,
    mode: Mode,
    group: Option<&Group>,
) -> Result<(UnixListener, SocketGuard), SocketError> {
    if path.as_os_str().as_bytes().len() > MAX_PATH {
        return Err(SocketError::PathTooLong { path: path.into() });
    }
    let gid = group.map(|group| group_id(path, group)).transpose()?;
    create_directory(path)?;
    let lock = lock(path)?;
    remove_stale(path).await?;
    listen(path, mode, gid, lock).map_err(|source| SocketError::Listen { path: path.into(), source })
}

fn group_id(path: &Path, group: &Group) -> Result<u32, SocketError> {
    let name = match group {
        Group::Id(id) => return Ok(*id),
        Group::Name(name) => name,
    };
    match nix::unistd::Group::from_name(name) {
        Ok(Some(found)) => Ok(Gid::as_raw(found.gid)),
        Ok(None) => Err(SocketError::UnknownGroup { path: path.into(), name: name.clone() }),
        Err(errno) => Err(SocketError::Group { path: path.into(), name: name.clone(), source: errno.into() }),
    }
}

fn create_directory(path: &Path) -> Result<(), SocketError> {
    let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.exists())
    else {
        return Ok(());
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        // Again, because the umask took bits away: a group that may use the socket must reach it.
        .and_then(|()| fs::set_permissions(directory, Permissions::from_mode(0o755)))
        .map_err(|source| SocketError::Directory { directory: directory.into(), source })
}

/// The lock file stays when the process ends: removing it would let a third process lock a new file while a second
/// one still holds the removed one.
fn lock(path: &Path) -> Result<File, SocketError> {
    let mut lock = path.as_os_str().to_owned();
    lock.push(".lock");
    let lock = PathBuf::from(lock);
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&lock)
        .map_err(|source| SocketError::Lock { lock: lock.clone(), source })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(SocketError::InUse { path: path.into() }),
        Err(TryLockError::Error(source)) => Err(SocketError::Lock { lock, source }),
    }
}

async fn remove_stale(path: &Path) -> Result<(), SocketError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => return Err(SocketError::NotASocket { path: path.into() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(SocketError::Probe { path: path.into(), source }),
    }
    // A unix connect on a non-blocking socket answers at once, so this wait needs no deadline.
    match UnixStream::connect(path).await {
        Ok(_) => return Err(SocketError::InUse { path: path.into() }),
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused => {}
            io::ErrorKind::NotFound => return Ok(()),
            // The backlog is full: somebody listens, but does not come round to accepting.
            io::ErrorKind::WouldBlock => return Err(SocketError::InUse { path: path.into() }),
            _ => return Err(SocketError::Probe { path: path.into(), source: error }),
        },
    }
    fs::remove_file(path).map_err(|source| SocketError::Stale { path: path.into(), source })
}

fn listen(
    path: &Path,
    mode: Mode,
    gid: Option<u32>,
    lock: File,
) -> Result<(UnixListener, SocketGuard), io::Error> {
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let found = fs::symlink_metadata(path)?;
    let guard = SocketGuard { path: path.into(), identity: (found.dev(), found.ino()), _lock: lock };
    if let Some(gid) = gid {
        std::os::unix::fs::chown(path, None, Some(gid))?;
    }
    fs::set_permissions(path, Permissions::from_mode(mode.bits()))?;
    Ok((socket.listen(BACKLOG)?, guard))
}

impl Drop for SocketGuard {
    fn drop(&mut self) {
        let ours =
            fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity);
        if ours {
            // Nothing to do if it fails: the next start finds a stale socket and removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests;
