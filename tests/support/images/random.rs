//! Stacks of layers at random: what layers do to one another, in more combinations than anybody thinks of. The same seed
//! gives the same image. Only what containerd's differ takes on every snapshotter; what it refuses is in `hostile`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::recipes::architecture;
use super::{Draft, Image, cached};
use crate::layer::{Compression, LayerTar, Meta, noise};

/// Independent stacks in one image, each below a directory of its own: a pull costs more than a stack.
const STACKS: usize = 50;
const LAYERS: usize = 5;
/// Entries that a stack adds with one layer.
const ENTRIES: u64 = 14;

/// The image of a seed, and the directories whose time no unpacking can know: those that got something put into them
/// without an entry of their own.
pub fn random(seed: u64) -> Result<(Image, Vec<String>)> {
    let mut stacks: Vec<Stack> =
        (0..STACKS as u64).map(|number| Stack::new(seed * STACKS as u64 + number)).collect();
    let mut layers = Vec::with_capacity(LAYERS);
    for _ in 0..LAYERS {
        let mut layer = LayerTar::default();
        for stack in &mut stacks {
            stack.add_layer(&mut layer)?;
        }
        layers.push(layer.finish()?);
    }
    let undated = stacks.into_iter().flat_map(|stack| stack.undated).chain([".".to_owned()]).collect();
    let image = cached(&format!("random:{seed}"), |name| {
        let mut draft = Draft::oci(architecture());
        let compressions = [Compression::Gzip, Compression::Zstd, Compression::Plain];
        for (layer, compression) in layers.into_iter().zip(compressions.into_iter().cycle()) {
            draft.add(layer, compression)?;
        }
        draft.finish(name, &["/none"])
    })?;
    Ok((image, undated))
}

/// What a path is in the layers so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Directory,
    File,
    Other,
}

struct Stack {
    dice: Dice,
    /// All that shows of the layers so far, by path.
    merged: BTreeMap<String, What>,
    undated: BTreeSet<String>,
    /// Paths at which a layer below has a file, or a removal. When one becomes a directory again, containerd fails to
    /// make directories below it that have no entry of their own.
    scars: BTreeSet<String>,
    /// Numbers names that nothing has had before.
    names: u32,
    layer: Layer,
}

/// What the layer in the making has done.
#[derive(Default)]
struct Layer {
    /// Paths with an entry, and how it may be linked to.
    written: BTreeMap<String, Meta>,
    /// Directories that something was put into.
    used: BTreeSet<String>,
    /// Directories with an entry.
    stated: BTreeSet<String>,
    removed: BTreeSet<String>,
    opaque: BTreeSet<String>,
    /// Symlinks of this layer to directories that it states.
    links: Vec<(String, String)>,
}

impl Stack {
    fn new(seed: u64) -> Self {
        let top = format!("s{seed}");
        Self {
            dice: Dice(seed),
            merged: BTreeMap::from([(top, What::Directory)]),
            undated: BTreeSet::new(),
            scars: BTreeSet::new(),
            names: 0,
            layer: Layer::default(),
        }
    }

    fn add_layer(&mut self, tar: &mut LayerTar) -> Result<()> {
        self.layer = Layer::default();
        for _ in 0..ENTRIES {
            match self.dice.below(16) {
                0..=3 => self.file(tar)?,
                4 => self.replacement(tar)?,
                5 | 6 => self.directory(tar)?,
                7 => self.symlink(tar)?,
                8 => self.special(tar)?,
                9 => self.hard_link(tar)?,
                10 | 11 => self.removal(tar)?,
                12 => self.needless_removal(tar)?,
                13 => self.opaque(tar)?,
                14 => self.through_link(tar)?,
                _ => self.return_of_a_file(tar)?,
            }
        }
        for directory in self.layer.used.difference(&self.layer.stated) {
            self.undated.insert(directory.clone());
        }
        for directory in &self.layer.stated {
            self.undated.remove(directory);
        }
        let files = self.layer.written.keys().filter(|path| !self.layer.stated.contains(*path));
        self.scars.extend(files.chain(&self.layer.removed).cloned());
        Ok(())
    }

    fn file(&mut self, tar: &mut LayerTar) -> Result<()> {
        let path = self.new_path();
        let (meta, content) = (self.meta(0o6777), self.content());
        tar.file(&path, &meta, &content)?;
        // A link to it would have to set the same bits again, which containerd 1.6 does not.
        self.put(&path, What::File, meta);
        Ok(())
    }

    /// A file in the place of whatever is there.
    fn replacement(&mut self, tar: &mut LayerTar) -> Result<()> {
        let Some(path) = self.pick(Self::is_untouched) else { return Ok(()) };
        let (meta, content) = (self.meta(0o777), self.content());
        tar.file(&path, &meta, &content)?;
        self.forget(&path);
        self.put(&path, What::File, meta);
        Ok(())
    }

    /// A new one, one that is there already, or one in the place of a file.
    fn directory(&mut self, tar: &mut LayerTar) -> Result<()> {
        let there = self.pick(|stack, path| {
            stack.merged[path] == What::Directory && stack.is_shown(path) || stack.is_untouched(path)
        });
        let path = match there {
            Some(path) if self.dice.below(3) > 0 => path,
            _ => self.new_path(),
        };
        let meta = self.meta(0o3777);
        tar.directory(&path, &meta)?;
        self.put(&path, What::Directory, meta);
        self.layer.stated.insert(path);
        Ok(())
    }

    fn symlink(&mut self, tar: &mut LayerTar) -> Result<()> {
        let path = self.new_path();
        let stated: Vec<String> = self.layer.stated.iter().cloned().collect();
        if !stated.is_empty() && self.dice.below(2) == 0 {
            let target = stated[self.dice.index(stated.len())].clone();
            tar.symlink(&path, &format!("/{target}"))?;
            self.layer.links.push((path.clone(), target));
        } else {
            tar.symlink(&path, ["nowhere", "../..", "/etc", "."][self.dice.index(4)])?;
        }
        self.put(&path, What::Other, Meta::mode(0o777));
        Ok(())
    }

    fn special(&mut self, tar: &mut LayerTar) -> Result<()> {
        let path = self.new_path();
        let meta = self.plain_meta(0o777);
        match self.dice.below(3) {
            0 => tar.fifo(&path, &meta)?,
            1 => tar.character_device(&path, &meta, (1, 3))?,
            _ => tar.block_device(&path, &meta, (7, 300))?,
        }
        self.put(&path, What::Other, meta);
        Ok(())
    }

    fn hard_link(&mut self, tar: &mut LayerTar) -> Result<()> {
        let file = |stack: &Self, path: &str| {
            stack.merged[path] == What::File
                && stack.layer.written.get(path).is_some_and(|meta| !meta.is_special())
        };
        let Some(target) = self.pick(file) else { return Ok(()) };
        let path = self.new_path();
        let meta = self.layer.written[&target].clone();
        tar.hard_link(&path, &target, &meta)?;
        self.put(&path, What::File, meta);
        Ok(())
    }

    fn removal(&mut self, tar: &mut LayerTar) -> Result<()> {
        let Some(path) = self.pick(Self::is_untouched) else { return Ok(()) };
        tar.whiteout(&path)?;
        self.forget(&path);
        self.use_parents(&path);
        self.layer.removed.insert(path);
        Ok(())
    }

    fn needless_removal(&mut self, tar: &mut LayerTar) -> Result<()> {
        let path = self.new_path();
        tar.whiteout(&path)?;
        self.use_parents(&path);
        self.layer.removed.insert(path);
        Ok(())
    }

    /// Where what this layer has put below has an entry for each directory in between: containerd's deletions know
    /// entries only.
    fn opaque(&mut self, tar: &mut LayerTar) -> Result<()> {
        let chosen = self.pick(|stack, path| {
            let implied = |used: &&String| is_below(used, path) && !stack.layer.stated.contains(*used);
            stack.merged[path] == What::Directory
                && stack.is_shown(path)
                && stack.may_be_used(path)
                && !stack.layer.opaque.contains(path)
                && !stack.layer.used.iter().any(|used| implied(&used))
        });
        let Some(path) = chosen else { return Ok(()) };
        tar.opaque(&path)?;
        self.use_parents(&format!("{path}/x"));
        let written: BTreeSet<String> = self.layer.written.keys().cloned().collect();
        self.merged.retain(|known, _| !is_below(known, &path) || written.contains(known));
        self.layer.opaque.insert(path);
        Ok(())
    }

    fn through_link(&mut self, tar: &mut LayerTar) -> Result<()> {
        if self.layer.links.is_empty() {
            return Ok(());
        }
        let (link, target) = self.layer.links[self.dice.index(self.layer.links.len())].clone();
        let name = self.new_name();
        let (meta, content) = (self.meta(0o777), self.content());
        tar.file(&format!("{link}/{name}"), &meta, &content)?;
        self.put(&format!("{target}/{name}"), What::File, meta);
        Ok(())
    }

    /// Removed and made again by the same layer.
    fn return_of_a_file(&mut self, tar: &mut LayerTar) -> Result<()> {
        let Some(path) = self.pick(Self::is_untouched) else { return Ok(()) };
        let (meta, content) = (self.meta(0o777), self.content());
        tar.whiteout(&path)?;
        tar.file(&path, &meta, &content)?;
        self.forget(&path);
        self.put(&path, What::File, meta);
        Ok(())
    }

    fn put(&mut self, path: &str, what: What, meta: Meta) {
        self.use_parents(path);
        self.merged.insert(path.to_owned(), what);
        self.layer.written.insert(path.to_owned(), meta);
    }

    fn forget(&mut self, path: &str) {
        self.merged.retain(|known, _| known != path && !is_below(known, path));
    }

    /// The directories on the way to it are there from now on, and something was put into them.
    fn use_parents(&mut self, path: &str) {
        let ends = path.match_indices('/').map(|(at, _)| at);
        for parent in ends.map(|end| path[..end].to_owned()) {
            self.merged.insert(parent.clone(), What::Directory);
            self.layer.used.insert(parent);
        }
    }

    /// A path that nothing has had, in a directory that is there or in one that is not.
    fn new_path(&mut self) -> String {
        let directory = self.pick(|stack, path| {
            stack.merged[path] == What::Directory && stack.is_shown(path) && stack.may_be_used(path)
        });
        let directory = directory.unwrap_or_else(|| self.merged.keys().next().cloned().unwrap_or_default());
        let name = self.new_name();
        let implied = format!("{directory}/implied{}", self.dice.below(3));
        let free = self.merged.get(&implied).is_none_or(|what| *what == What::Directory);
        if self.dice.below(4) == 0 && free && self.is_shown(&implied) && self.may_be_used(&implied) {
            format!("{implied}/{name}")
        } else {
            format!("{directory}/{name}")
        }
    }

    fn new_name(&mut self) -> String {
        self.names += 1;
        match self.dice.below(12) {
            0 => format!("ü {}", self.names),
            1 => format!("{}{}", "long".repeat(30), self.names),
            _ => format!("n{}", self.names),
        }
    }

    fn pick(&mut self, fits: impl Fn(&Self, &str) -> bool) -> Option<String> {
        let fitting: Vec<&String> = self.merged.keys().filter(|path| fits(self, path)).collect();
        let count = fitting.len();
        let index = self.dice.clone().index(count.max(1));
        let picked = fitting.get(index).map(|path| (*path).clone());
        self.dice.next();
        picked
    }

    /// Whether this layer has done nothing at the path, below it or to a directory that it is in; never so of the top.
    fn is_untouched(&self, path: &str) -> bool {
        let touched = |known: &String| known == path || is_below(known, path);
        path.contains('/')
            && self.is_shown(path)
            && ![&self.layer.used, &self.layer.stated, &self.layer.removed, &self.layer.opaque]
                .into_iter()
                .any(|paths| paths.iter().any(touched))
            && !self.layer.written.keys().any(touched)
    }

    /// Whether something may be put into the directory.
    fn may_be_used(&self, directory: &str) -> bool {
        !self.scars.iter().any(|scar| is_below(directory, scar))
    }

    /// Whether an entry may stand at the path: this layer has not removed it, nor a directory that it is in.
    fn is_shown(&self, path: &str) -> bool {
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        self.may_be_used(directory)
            && !self.layer.removed.iter().any(|removed| removed == path || is_below(path, removed))
    }

    fn content(&mut self) -> Vec<u8> {
        let length = [0, 1, 511, 512, 513, 5000][self.dice.index(6)];
        noise(self.dice.next(), length)
    }

    /// With extended attributes at times.
    fn meta(&mut self, bits: u64) -> Meta {
        let meta = self.plain_meta(bits);
        match self.dice.below(4) {
            0 => meta.xattr("user.random", &noise(self.dice.next(), 20)),
            1 => meta.xattr("user.text", b"text").xattr("trusted.ignored", b"never"),
            _ => meta,
        }
    }

    fn plain_meta(&mut self, bits: u64) -> Meta {
        let mode = u32::try_from(self.dice.next() & bits).unwrap_or_default();
        let owner = [0, 1, 1000, 65_534, 3_000_000_000][self.dice.index(5)];
        let seconds = i64::try_from(self.dice.below(2_000_000_000)).unwrap_or_default();
        let nanoseconds = if self.dice.below(2) == 0 { 0 } else { 123_456_789 };
        Meta::mode(mode).owner(owner, owner / 2).at(seconds, nanoseconds)
    }
}

fn is_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

/// Numbers that look random and are the same every time: `SplitMix64`.
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or_default()
    }
}
