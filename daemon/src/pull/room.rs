//! What a pull needs of the disks and what they have.
//!
//! The need is estimated low, since a pull that is refused for nothing is worse than one that fails at its end: blobs as
//! long as the manifest says, the files of a layer twice as long as its compressed blob, and a file for each 128 KiB of
//! those. Images of programs have three times, and a file for each 20 to 70 KiB.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use nix::unistd::geteuid;
use tokio::time::timeout;

use super::survey::Have;
use crate::oci::{Descriptor, media_type};

/// Bytes of files for a byte of a compressed blob.
const UNPACKED: u64 = 2;
/// Bytes of files for each inode.
const FILE: u64 = 128 << 10;
/// How long a filesystem may take to say what it has. One that hangs is not what a pull waits for here.
const PATIENCE: Duration = Duration::from_secs(2);

/// One filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// A directory on it.
    pub path: PathBuf,
    /// Who writes there, in words.
    pub used_by: String,
    /// What it needs and what is free.
    pub bytes: Demand,
    /// The same of inodes; `None` where the filesystem does not count them.
    pub inodes: Option<Demand>,
}

/// What is needed of something and what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// By the estimate.
    pub needed: u64,
    /// To whom drayd runs as.
    pub free: u64,
}

/// A directory that a pull writes into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) path: PathBuf,
    pub(super) used_by: String,
    pub(super) need: Need,
}

/// What a pull adds to a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) bytes: u64,
    pub(super) inodes: u64,
}

impl Demand {
    fn is_met(self) -> bool {
        self.needed <= self.free
    }
}

impl Room {
    /// Whether the pull fits.
    pub fn is_enough(&self) -> bool {
        self.bytes.is_met() && self.inodes.is_none_or(Demand::is_met)
    }
}

impl Need {
    /// Of the content store.
    pub(super) fn of_blobs<'a>(layers: impl Iterator<Item = (&'a Descriptor, Have)>) -> Self {
        let missing = layers.filter(|(_, have)| have.is_missing());
        missing.fold(Self::default(), |need, (blob, have)| need.and(blob.size.saturating_sub(have.begun), 1))
    }

    /// Of the snapshotter.
    pub(super) fn of_files<'a>(layers: impl Iterator<Item = (&'a Descriptor, Have)>) -> Self {
        layers.filter(|(_, have)| !have.unpacked).fold(Self::default(), |need, (blob, _)| {
            let plain = media_type::is_plain(&blob.media_type);
            let bytes = blob.size.saturating_mul(if plain { 1 } else { UNPACKED });
            need.and(bytes, 1 + bytes / FILE)
        })
    }

    fn and(self, bytes: u64, inodes: u64) -> Self {
        Self { bytes: self.bytes.saturating_add(bytes), inodes: self.inodes.saturating_add(inodes) }
    }
}

/// What there is for these directories, each filesystem once. A directory that cannot be looked at from here is left
/// out: drayd may run where it does not see it.
pub(super) async fn look(targets: Vec<Target>) -> Vec<Room> {
    let looked = tokio::task::spawn_blocking(move || look_now(targets));
    if let Ok(Ok(rooms)) = timeout(PATIENCE, looked).await {
        return rooms;
    }
    tracing::debug!("the disks are not looked at: they do not answer");
    Vec::new()
}

fn look_now(targets: Vec<Target>) -> Vec<Room> {
    let mut rooms: Vec<(u64, Room)> = Vec::new();
    for Target { path, used_by, need } in targets {
        let Some((device, free)) = free(&path) else {
            tracing::debug!(path = %path.display(), "a disk cannot be looked at");
            continue;
        };
        if let Some((_, room)) = rooms.iter_mut().find(|(known, _)| *known == device) {
            room.bytes.needed = room.bytes.needed.saturating_add(need.bytes);
            if let Some(inodes) = &mut room.inodes {
                inodes.needed = inodes.needed.saturating_add(need.inodes);
            }
            room.used_by = format!("{}, {used_by}", room.used_by);
            continue;
        }
        let bytes = Demand { needed: need.bytes, free: free.bytes };
        // Some make inodes as they need them, and say that they have none.
        let inodes = free.inodes.map(|free| Demand { needed: need.inodes, free });
        rooms.push((device, Room { path, used_by, bytes, inodes }));
    }
    rooms.into_iter().map(|(_, room)| room).collect()
}

struct Free {
    bytes: u64,
    inodes: Option<u64>,
}

fn free(path: &Path) -> Option<(u64, Free)> {
    let device = fs::metadata(path).ok()?.dev();
    let found = statvfs(path).ok()?;
    // What is kept for root is for drayd and containerd, which run as root.
    let root = geteuid().is_root();
    let blocks = if root { found.blocks_free() } else { found.blocks_available() };
    let bytes = blocks.saturating_mul(found.fragment_size());
    let inodes = if root { found.files_free() } else { found.files_available() };
    let inodes = (found.files() > 0).then_some(inodes);
    Some((device, Free { bytes, inodes }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::oci::Digest;

    fn blob(media_type: &str, size: u64) -> Descriptor {
        let digest = Digest::of(media_type.as_bytes());
        let (annotations, urls) = (BTreeMap::new(), Vec::new());
        Descriptor { media_type: media_type.into(), digest, size, annotations, urls }
    }

    #[test]
    fn only_what_is_missing_is_needed() {
        let blobs = [
            blob("application/vnd.oci.image.layer.v1.tar+gzip", 1 << 20),
            blob("application/vnd.oci.image.layer.v1.tar", 1 << 20),
        ];
        let nothing = Have::default();
        let stored = Have { stored: true, ..nothing };
        let all = Have { unpacked: true, ..nothing };
        let begun = Have { begun: 1 << 19, ..nothing };
        let mib = |bytes: u64, inodes| Need { bytes: bytes << 20, inodes };
        for (have, of_blobs, of_files) in [
            ([nothing, nothing], mib(2, 2), mib(3, 2 + 16 + 8)),
            ([begun, begun], mib(1, 2), mib(3, 2 + 16 + 8)),
            ([stored, nothing], mib(1, 1), mib(3, 2 + 16 + 8)),
            ([all, stored], mib(0, 0), mib(1, 1 + 8)),
            ([all, all], mib(0, 0), mib(0, 0)),
        ] {
            let layers = || blobs.iter().zip(have);
            assert_eq!(
                (Need::of_blobs(layers()), Need::of_files(layers())),
                (of_blobs, of_files),
                "{have:?}"
            );
        }
    }

    #[test]
    fn what_is_on_one_filesystem_is_needed_of_it_together() {
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("other");
        fs::create_dir(&other).unwrap();
        let target = |path: &Path, used_by: &str, bytes| Target {
            path: path.into(),
            used_by: used_by.into(),
            need: Need { bytes, inodes: 1 },
        };
        let rooms = look_now(vec![
            target(directory.path(), "content store", 10),
            target(Path::new("/nonexistent"), "nobody", 10),
            target(&other, "overlayfs", 20),
        ]);
        let [room] = rooms.as_slice() else { panic!("{rooms:?}") };
        assert_eq!((room.bytes.needed, room.used_by.as_str()), (30, "content store, overlayfs"));
        assert!(room.is_enough() && room.bytes.free > 30, "{room:?}");
        let rooms = look_now(vec![target(&other, "overlayfs", u64::MAX)]);
        assert!(!rooms[0].is_enough());
    }
}
