//! The machine's own files as what layers are made of: real names, sizes and contents, which no generator has.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io::Write;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use drayd_tests::layer::{LayerTar, Meta};

/// Where the files are taken from.
const TOP: &str = "/usr";
/// In the name of a file it would mean to whoever unpacks the layer that another one is gone.
const WHITEOUT: &str = ".wh.";

/// All files, always in the same order, and once more from the beginning when they are used up.
pub(crate) struct Trees {
    entries: Vec<Entry>,
    next: usize,
    /// How often they have been used up.
    again: u32,
}

struct Entry {
    /// Without the leading slash, as it stands in a layer.
    path: String,
    kind: Kind,
    meta: Meta,
}

enum Kind {
    Directory,
    /// With its size in bytes.
    File(u64),
    Symlink(String),
}

/// What a layer holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    pub(crate) entries: u64,
    /// Bytes of its files.
    pub(crate) bytes: u64,
}

impl Trees {
    pub(crate) fn walk() -> Result<Self> {
        let mut entries = Vec::new();
        let device = fs::symlink_metadata(TOP).with_context(|| format!("cannot look at {TOP}"))?.dev();
        collect(Path::new(TOP), device, &mut entries)?;
        let usable = entries.iter().any(|entry| matches!(entry.kind, Kind::File(1..)));
        ensure!(usable, "{TOP} has no files to make images of");
        Ok(Self { entries, next: 0, again: 0 })
    }

    /// Puts files of about `budget` bytes into a layer, each with the directories above it.
    pub(crate) fn fill<W: Write>(&mut self, tar: &mut LayerTar<W>, budget: u64) -> Result<Held> {
        let mut held = Held::default();
        let mut present = BTreeSet::new();
        let mut fruitless = 0;
        while held.bytes < budget {
            ensure!(fruitless < self.entries.len(), "{TOP} has no files for a layer of {budget} bytes");
            let prefix = if self.again == 0 { String::new() } else { format!("again{}/", self.again) };
            let before = held.bytes;
            self.put(tar, &prefix, budget, &mut present, &mut held)?;
            fruitless = if held.bytes == before { fruitless + 1 } else { 0 };
            self.next += 1;
            if self.next == self.entries.len() {
                (self.next, self.again) = (0, self.again + 1);
            }
        }
        Ok(held)
    }

    fn put<W: Write>(
        &self,
        tar: &mut LayerTar<W>,
        prefix: &str,
        budget: u64,
        present: &mut BTreeSet<String>,
        held: &mut Held,
    ) -> Result<()> {
        let Entry { path, kind, meta } = &self.entries[self.next];
        let content = match kind {
            // One that is most of its layer would make all layers of small images alike.
            Kind::File(size) if *size > budget / 2 => return Ok(()),
            Kind::File(_) => match fs::read(Path::new("/").join(path)) {
                Ok(content) => content,
                // Others use the machine, too: a file may be gone since the walk.
                Err(_) => return Ok(()),
            },
            Kind::Directory | Kind::Symlink(_) => Vec::new(),
        };
        let path = format!("{prefix}{path}");
        held.entries += directories(tar, &path, present)?;
        if !present.insert(path.clone()) {
            return Ok(());
        }
        held.entries += 1;
        match kind {
            Kind::Directory => tar.directory(&path, meta),
            Kind::Symlink(target) => tar.symlink(&path, target),
            Kind::File(_) => {
                let mut content = content;
                if self.again > 0 {
                    content.extend(self.again.to_le_bytes());
                }
                held.bytes += content.len() as u64;
                tar.file(&path, meta, &content)
            }
        }
    }
}

/// Puts those directories above `path` into the layer that it does not have yet; says how many.
fn directories<W: Write>(tar: &mut LayerTar<W>, path: &str, present: &mut BTreeSet<String>) -> Result<u64> {
    let mut made = 0;
    for (at, _) in path.match_indices('/') {
        let above = &path[..at];
        if present.insert(above.to_owned()) {
            tar.directory(above, &Meta::mode(0o755))?;
            made += 1;
        }
    }
    Ok(made)
}

/// A directory and all below it, by name.
fn collect(directory: &Path, device: u64, entries: &mut Vec<Entry>) -> Result<()> {
    let listed = fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    let mut paths: Vec<PathBuf> = listed.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        let Some(text) = path.to_str().filter(|text| !text.contains(WHITEOUT)) else { continue };
        let kind = if found.is_dir() && found.dev() == device {
            Kind::Directory
        } else if found.is_file() {
            Kind::File(found.len())
        } else if let Some(target) =
            fs::read_link(&path).ok().and_then(|target| target.to_str().map(str::to_owned))
        {
            Kind::Symlink(target)
        } else {
            continue;
        };
        let below = matches!(kind, Kind::Directory);
        entries.push(Entry { path: text.trim_start_matches('/').to_owned(), kind, meta: meta(&found) });
        if below {
            collect(&path, device, entries)?;
        }
    }
    Ok(())
}

/// In whole seconds, as builders of images write times.
fn meta(found: &Metadata) -> Meta {
    Meta::mode(found.mode() & 0o7777).owner(found.uid().into(), found.gid().into()).at(found.mtime(), 0)
}
