//! Writes one layer as a tar, entry by entry, with everything that an image may hold: owners, setuid bits, nanosecond
//! times, extended attributes, devices, links, whiteouts. The same calls give the same bytes on every machine.

use std::io::{Read as _, Write};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

/// Seconds since the epoch that entries carry unless they say otherwise: in the past, so that "now" stands out.
const DATED: i64 = 1_600_000_000;

/// What an entry carries besides its name and content.
#[derive(Clone, Debug)]
pub struct Meta {
    mode: u32,
    uid: u64,
    gid: u64,
    seconds: i64,
    nanoseconds: u32,
    xattrs: Vec<(String, Vec<u8>)>,
}

impl Meta {
    /// Root's, with this mode.
    pub fn mode(mode: u32) -> Self {
        Self { mode, uid: 0, gid: 0, seconds: DATED, nanoseconds: 0, xattrs: Vec::new() }
    }

    /// Owned by these numbers.
    #[must_use]
    pub fn owner(mut self, uid: u64, gid: u64) -> Self {
        (self.uid, self.gid) = (uid, gid);
        self
    }

    /// Changed last at this time.
    #[must_use]
    pub fn at(mut self, seconds: i64, nanoseconds: u32) -> Self {
        (self.seconds, self.nanoseconds) = (seconds, nanoseconds);
        self
    }

    /// Whether a change of owner takes something away: setuid and setgid bits.
    pub(crate) fn is_special(&self) -> bool {
        self.mode & 0o6000 != 0
    }

    /// Carries an extended attribute.
    #[must_use]
    pub fn xattr(mut self, name: &str, value: &[u8]) -> Self {
        self.xattrs.push((name.to_owned(), value.to_vec()));
        self
    }
}

/// A layer in the making: in memory, or written to where it goes.
pub struct LayerTar<W: Write = Vec<u8>> {
    builder: Builder<W>,
}

impl Default for LayerTar {
    fn default() -> Self {
        Self::onto(Vec::new())
    }
}

impl<W: Write> LayerTar<W> {
    /// One that is written to `output` as it is made.
    pub fn onto(output: W) -> Self {
        Self { builder: Builder::new(output) }
    }

    /// A directory.
    pub fn directory(&mut self, path: &str, meta: &Meta) -> Result<()> {
        self.entry(&format!("{path}/"), EntryType::Directory, meta, None, (0, 0), &[])
    }

    /// A regular file.
    pub fn file(&mut self, path: &str, meta: &Meta, content: &[u8]) -> Result<()> {
        self.entry(path, EntryType::Regular, meta, None, (0, 0), content)
    }

    /// A symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) -> Result<()> {
        self.entry(path, EntryType::Symlink, &Meta::mode(0o777), Some(target), (0, 0), &[])
    }

    /// A hard link to a path of this layer or of one below.
    pub fn hard_link(&mut self, path: &str, target: &str, meta: &Meta) -> Result<()> {
        self.entry(path, EntryType::Link, meta, Some(target), (0, 0), &[])
    }

    /// A character device.
    pub fn character_device(&mut self, path: &str, meta: &Meta, number: (u32, u32)) -> Result<()> {
        self.entry(path, EntryType::Char, meta, None, number, &[])
    }

    /// A block device.
    pub fn block_device(&mut self, path: &str, meta: &Meta, number: (u32, u32)) -> Result<()> {
        self.entry(path, EntryType::Block, meta, None, number, &[])
    }

    /// A named pipe.
    pub fn fifo(&mut self, path: &str, meta: &Meta) -> Result<()> {
        self.entry(path, EntryType::Fifo, meta, None, (0, 0), &[])
    }

    /// An entry with this type flag, which may be none that a layer has.
    pub fn other(&mut self, kind: u8, path: &str, content: &[u8]) -> Result<()> {
        self.entry(path, EntryType::new(kind), &Meta::mode(0o644), None, (0, 0), content)
    }

    /// Says that `path` of the layers below is gone.
    pub fn whiteout(&mut self, path: &str) -> Result<()> {
        let (parent, name) = path.rsplit_once('/').map_or(("", path), |(parent, name)| (parent, name));
        let separator = if parent.is_empty() { "" } else { "/" };
        self.file(&format!("{parent}{separator}.wh.{name}"), &Meta::mode(0), &[])
    }

    /// Says that nothing of the layers below shows through the directory.
    pub fn opaque(&mut self, directory: &str) -> Result<()> {
        self.file(&format!("{directory}/.wh..wh..opq"), &Meta::mode(0), &[])
    }

    /// The finished tar, or what it was written to.
    pub fn finish(self) -> Result<W> {
        self.builder.into_inner().context("cannot finish a layer")
    }

    fn entry(
        &mut self,
        path: &str,
        kind: EntryType,
        meta: &Meta,
        target: Option<&str>,
        device: (u32, u32),
        content: &[u8],
    ) -> Result<()> {
        let mut header = Header::new_ustar();
        let mut extended: Vec<(String, Vec<u8>)> = Vec::new();
        if header.set_path(path).is_err() {
            extended.push(("path".to_owned(), path.as_bytes().to_vec()));
        }
        if let Some(target) = target
            && header.set_link_name(target).is_err()
        {
            extended.push(("linkpath".to_owned(), target.as_bytes().to_vec()));
        }
        header.set_entry_type(kind);
        header.set_mode(meta.mode);
        header.set_uid(meta.uid);
        header.set_gid(meta.gid);
        header.set_mtime(meta.seconds.unsigned_abs());
        header.set_size(content.len() as u64);
        header.set_device_major(device.0)?;
        header.set_device_minor(device.1)?;
        header.set_cksum();
        if meta.nanoseconds != 0 {
            let time = format!("{}.{:09}", meta.seconds, meta.nanoseconds);
            extended.push(("mtime".to_owned(), time.into_bytes()));
        }
        for (name, value) in &meta.xattrs {
            extended.push((format!("SCHILY.xattr.{name}"), value.clone()));
        }
        if !extended.is_empty() {
            let records = extended.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
            self.builder.append_pax_extensions(records)?;
        }
        self.builder.append(&header, content).with_context(|| format!("cannot add {path} to a layer"))
    }
}

/// How a layer is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    Plain,
    /// By gzip(1), without a time stamp.
    Gzip,
    /// By zstd(1).
    Zstd,
    /// By zstd(1), with a window of 128 MiB.
    ZstdLong,
}

impl Compression {
    /// Compresses a finished tar.
    pub fn of(self, tar: Vec<u8>) -> Result<Vec<u8>> {
        match self {
            Self::Plain => Ok(tar),
            Self::Gzip => piped("gzip", &["-n", "-6"], tar),
            Self::Zstd => piped("zstd", &["-q", "-3"], tar),
            Self::ZstdLong => piped("zstd", &["-q", "-3", "--long=27"], tar),
        }
    }

    /// The tar of a compressed layer.
    pub fn undone(self, layer: Vec<u8>) -> Result<Vec<u8>> {
        match self {
            Self::Plain => Ok(layer),
            Self::Gzip => piped("gzip", &["-d"], layer),
            Self::Zstd | Self::ZstdLong => piped("zstd", &["-q", "-d", "--long=27"], layer),
        }
    }
}

/// `sha256:…` of some bytes.
pub fn digest(bytes: &[u8]) -> String {
    use std::fmt::Write as _;

    Sha256::digest(bytes).iter().fold("sha256:".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Bytes that no compressor shortens and that are the same every time.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        // SplitMix64: well mixed even from small seeds.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bytes.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn piped(program: &str, arguments: &[&str], input: Vec<u8>) -> Result<Vec<u8>> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {program}; run `make install`"))?;
    let mut stdin = child.stdin.take().context("a pipe was asked for")?;
    let mut stdout = child.stdout.take().context("a pipe was asked for")?;
    // Both ends at once: the program stops reading while nobody takes what it writes.
    let feeder = thread::spawn(move || stdin.write_all(&input));
    let mut output = Vec::new();
    stdout.read_to_end(&mut output)?;
    feeder.join().ok().with_context(|| format!("writing to {program} panicked"))??;
    let status = child.wait()?;
    ensure!(status.success(), "{program} ended with {status}");
    Ok(output)
}
