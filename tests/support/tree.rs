//! The filesystem that a snapshot holds, as a listing that two unpackers can be compared by: paths, types, modes,
//! owners, times, attributes, links, devices and contents.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use containerd_client::types::Mount;
use rustix::fs::{lgetxattr, llistxattr};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind_recursive, unmount};

use crate::difference::difference;
use crate::layer::digest;
use crate::probe::Probe;

/// Makes view keys and mount points of this program distinct.
static VIEWS: AtomicU32 = AtomicU32::new(0);

/// A filesystem by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// What is known of each path; the root is `.`.
    pub entries: BTreeMap<PathBuf, Entry>,
}

/// All that is compared of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// `file`, `directory`, `symlink`, `character`, `block`, `fifo`, `socket` or `removal`.
    pub kind: &'static str,
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Seconds and nanoseconds of the last change.
    pub mtime: (i64, i64),
    /// Number of names; 0 for a directory, where filesystems disagree on what to count.
    pub links: u64,
    /// Device number; 0 for what is no device.
    pub device: u64,
    /// Extended attributes.
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// Where a symlink points, or the digest of a file's content.
    pub content: String,
}

impl Tree {
    /// Mounts a view of the snapshot `name` under `scratch`, reads it, and takes the view away again.
    pub async fn of(probe: &Probe, snapshotter: &str, name: &str, scratch: &Path) -> Result<Self> {
        let key = format!("bed-view-{}-{}", process::id(), VIEWS.fetch_add(1, Ordering::Relaxed));
        let mounts = probe.view(snapshotter, &key, name).await?;
        let read = Mounted::at(&mounts, scratch.join(&key)).and_then(|mounted| Self::read(&mounted.point));
        probe.remove_snapshot(snapshotter, &key).await?;
        read.with_context(|| format!("cannot read the tree of {name} in {snapshotter}"))
    }

    /// Reads a directory of the machine.
    pub fn read(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        let mut pending = vec![PathBuf::from(".")];
        while let Some(path) = pending.pop() {
            let full = root.join(&path);
            let entry = Entry::read(&full).with_context(|| format!("cannot read {}", full.display()))?;
            if entry.kind == "directory" {
                for child in fs::read_dir(&full).with_context(|| format!("cannot list {}", full.display()))? {
                    pending.push(path.join(child?.file_name()));
                }
            }
            tree.entries.insert(path, entry);
        }
        Ok(tree)
    }

    /// The entry of a path relative to the root.
    pub fn get(&self, path: &str) -> Option<&Entry> {
        self.entries.get(&Path::new(".").join(path))
    }

    /// The tree without the times of these paths: those that no layer states come out as the time of unpacking.
    #[must_use]
    pub fn without_times_of(mut self, paths: &[&str]) -> Self {
        for path in paths {
            if let Some(entry) = self.entries.get_mut(&Path::new(".").join(path)) {
                entry.mtime = (0, 0);
            }
        }
        self
    }

    /// The tree without the times of directories: the native snapshotter's copies lose them.
    #[must_use]
    pub fn without_directory_times(mut self) -> Self {
        for entry in self.entries.values_mut().filter(|entry| entry.kind == "directory") {
            entry.mtime = (0, 0);
        }
        self
    }

    /// What `self` has otherwise than `expected`, one line each.
    pub fn difference_from(&self, expected: &Self) -> Vec<String> {
        difference(&expected.listing(), &self.listing())
    }

    fn listing(&self) -> BTreeMap<String, String> {
        self.entries.iter().map(|(path, entry)| (path.display().to_string(), entry.shown())).collect()
    }
}

impl Entry {
    fn read(path: &Path) -> Result<Self> {
        let metadata = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::listed_only()),
            metadata => metadata?,
        };
        let kind = kind(&metadata);
        Ok(Self {
            kind,
            mode: metadata.mode() & 0o7777,
            owner: (metadata.uid(), metadata.gid()),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            links: if kind == "directory" { 0 } else { metadata.nlink() },
            device: metadata.rdev(),
            xattrs: xattrs(path)?,
            content: match kind {
                "file" => digest(&fs::read(path)?),
                "symlink" => fs::read_link(path)?.display().to_string(),
                _ => String::new(),
            },
        })
    }

    /// A removal in a directory that no lower layer has: the overlay filesystem lists it and has no such file.
    fn listed_only() -> Self {
        Self {
            kind: "removal",
            mode: 0,
            owner: (0, 0),
            mtime: (0, 0),
            links: 0,
            device: 0,
            xattrs: BTreeMap::new(),
            content: String::new(),
        }
    }

    fn shown(&self) -> String {
        let (uid, gid) = self.owner;
        let (seconds, nanoseconds) = self.mtime;
        let xattrs: Vec<String> =
            self.xattrs.iter().map(|(name, value)| format!("{name}={}", value.escape_ascii())).collect();
        format!(
            "{} {:04o} {uid}:{gid} {seconds}.{nanoseconds:09} links={} device={:#x} [{}] {}",
            self.kind,
            self.mode,
            self.links,
            self.device,
            xattrs.join(" "),
            self.content
        )
    }
}

/// Mounts that go when this is dropped, with the directory they were on.
struct Mounted {
    point: PathBuf,
}

impl Mounted {
    fn at(mounts: &[Mount], point: PathBuf) -> Result<Self> {
        fs::create_dir_all(&point).with_context(|| format!("cannot create {}", point.display()))?;
        let mounted = Self { point };
        for each in mounts {
            mounted.add(each).with_context(|| {
                format!("cannot mount {} {} with {}", each.r#type, each.source, each.options.join(","))
            })?;
        }
        Ok(mounted)
    }

    fn add(&self, each: &Mount) -> Result<()> {
        match each.r#type.as_str() {
            "bind" => mount_bind_recursive(&each.source, &self.point)?,
            "overlay" => {
                let data: Vec<&str> =
                    each.options.iter().map(String::as_str).filter(|option| *option != "ro").collect();
                let data = std::ffi::CString::new(data.join(","))?;
                mount("overlay", &self.point, "overlay", MountFlags::RDONLY, data.as_c_str())?;
            }
            other => bail!("the test bed mounts bind and overlay only, not {other}"),
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Fails when nothing got mounted; then there is nothing to undo.
        let _ = unmount(&self.point, UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.point);
    }
}

fn kind(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    match () {
        () if kind.is_file() => "file",
        () if kind.is_dir() => "directory",
        () if kind.is_symlink() => "symlink",
        () if kind.is_char_device() => "character",
        () if kind.is_block_device() => "block",
        () if kind.is_fifo() => "fifo",
        () => "socket",
    }
}

fn xattrs(path: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut list = vec![0_u8; 64 << 10];
    let length = llistxattr(path, &mut list).context("cannot list extended attributes")?;
    let names = list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut found = BTreeMap::new();
    for name in names {
        let mut value = vec![0_u8; 64 << 10];
        let name = std::ffi::OsStr::from_bytes(name);
        let length = lgetxattr(path, name, &mut value).context("cannot read an extended attribute")?;
        value.truncate(length);
        found.insert(name.to_string_lossy().into_owned(), value);
    }
    Ok(found)
}
