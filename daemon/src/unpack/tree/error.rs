//! Why a layer's entry is not written, and what of it is the layer's fault.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::io::Errno;

use crate::oci::excerpt::excerpt;
use crate::unpack::tar;

/// Why an entry is not written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The tar cannot be read.
    #[error(transparent)]
    Archive(#[from] tar::Error),
    /// A directory that the snapshotter named cannot be opened.
    #[error("cannot open {path}")]
    Open {
        /// The directory.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// The system refused a step.
    #[error("cannot {step} `{path}`")]
    Step {
        /// As "create".
        step: &'static str,
        /// The entry.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// What it comes to depends on the layers below, which are not there yet.
    #[error("`{path}` depends on the layers below")]
    Below {
        /// The entry.
        path: String,
    },
    /// The disk is about to be full.
    #[error(
        "cannot write `{path}`: the disk has {free} bytes left, and the last {reserve} are left to containerd"
    )]
    NoRoom {
        /// The entry.
        path: String,
        /// Bytes free.
        free: u64,
        /// Bytes that are not used.
        reserve: u64,
    },
    /// An entry must not be written.
    #[error("entry `{path}` is refused: {reason}")]
    Refused {
        /// The entry.
        path: String,
        /// Why.
        reason: &'static str,
    },
}

impl Error {
    pub(super) fn step(step: &'static str, path: &[u8]) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Step { step, path: shown(path), source: errno.into() }
    }

    pub(super) fn open(path: &Path) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Open { path: shown(path.as_os_str().as_bytes()), source: errno.into() }
    }

    pub(super) fn refused(path: &[u8], reason: &'static str) -> Self {
        Self::Refused { path: shown(path), reason }
    }

    /// Whether this process lacks what containerd may have: the directory itself, or the right to write there. Nothing
    /// is wrong with the layer then.
    pub(in crate::unpack) fn is_want_of_rights(&self) -> bool {
        let denied = [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem];
        match self {
            Self::Open { .. } => true,
            Self::Step { source, .. } => denied.contains(&source.kind()),
            Self::Archive(_) | Self::Below { .. } | Self::NoRoom { .. } | Self::Refused { .. } => false,
        }
    }

    /// Whether the disk, or what may be used of it, is full.
    pub fn is_full_disk(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        match self {
            Self::NoRoom { .. } => true,
            Self::Step { source, .. } => full.contains(&source.kind()),
            Self::Archive(_) | Self::Open { .. } | Self::Below { .. } | Self::Refused { .. } => false,
        }
    }
}

pub(super) fn shown(path: &[u8]) -> String {
    excerpt(&String::from_utf8_lossy(path))
}
