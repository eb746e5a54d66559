//! Tars for tests, made by hand: a writer would refuse to make most of what is wrong with them.

use super::header::BLOCK;

/// One entry with the extended header before it.
#[derive(Clone)]
pub(crate) struct Sample {
    header: [u8; BLOCK],
    content: Vec<u8>,
    records: Vec<u8>,
}

impl Sample {
    /// An entry of root's, mode 0644, dated 1,600,000,000, in ustar's format. A path beyond its field goes into an
    /// extended header.
    pub(crate) fn of(flag: u8, path: &str) -> Self {
        let mut sample = Self { header: [0; BLOCK], content: Vec::new(), records: Vec::new() };
        sample.header[156] = flag;
        sample.header[257..265].copy_from_slice(b"ustar\x0000");
        sample = sample.octal(100, 8, 0o644).octal(108, 8, 0).octal(116, 8, 0);
        sample = sample.octal(136, 12, 1_600_000_000).octal(329, 8, 0).octal(337, 8, 0);
        if path.len() > 100 {
            return sample.record("path", path.as_bytes());
        }
        sample.bytes(0, path.as_bytes())
    }

    pub(crate) fn file(path: &str, content: &[u8]) -> Self {
        let mut sample = Self::of(b'0', path);
        sample.content = content.to_vec();
        sample
    }

    pub(crate) fn directory(path: &str) -> Self {
        Self::of(b'5', path).mode(0o755)
    }

    pub(crate) fn symlink(path: &str, target: &str) -> Self {
        Self::of(b'2', path).link(target)
    }

    pub(crate) fn hard_link(path: &str, target: &str) -> Self {
        Self::of(b'1', path).link(target)
    }

    /// The marker of a removed file, or of an opaque directory: an empty file of that name.
    pub(crate) fn marker(path: &str) -> Self {
        Self::file(path, b"").mode(0)
    }

    pub(crate) fn link(self, target: &str) -> Self {
        if target.len() > 100 {
            return self.record("linkpath", target.as_bytes());
        }
        self.bytes(157, target.as_bytes())
    }

    pub(crate) fn mode(self, mode: u64) -> Self {
        self.octal(100, 8, mode)
    }

    pub(crate) fn owner(self, uid: u64, gid: u64) -> Self {
        self.octal(108, 8, uid).octal(116, 8, gid)
    }

    pub(crate) fn device(self, major: u64, minor: u64) -> Self {
        self.octal(329, 8, major).octal(337, 8, minor)
    }

    /// A record in the extended header before it.
    pub(crate) fn record(mut self, key: &str, value: &[u8]) -> Self {
        self.records.extend(record(key, value));
        self
    }

    pub(crate) fn content(mut self, content: &[u8]) -> Self {
        self.content = content.to_vec();
        self
    }

    /// Puts bytes into the header.
    pub(crate) fn bytes(mut self, at: usize, bytes: &[u8]) -> Self {
        self.header[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Puts a number into the header, in GNU's form if it has too many digits.
    pub(crate) fn octal(self, at: usize, width: usize, number: u64) -> Self {
        let text = format!("{number:0digits$o}\0", digits = width - 1);
        if text.len() == width {
            return self.bytes(at, text.as_bytes());
        }
        let mut field = vec![0; width];
        field[width - 8..].copy_from_slice(&number.to_be_bytes());
        field[0] |= 0x80;
        self.bytes(at, &field)
    }

    pub(crate) fn gnu(self) -> Self {
        self.bytes(257, b"ustar  \0")
    }

    /// The blocks, with the size of the content in the header unless that has one.
    pub(crate) fn blocks(&self) -> Vec<u8> {
        let mut blocks = Vec::new();
        if !self.records.is_empty() {
            blocks.extend(Self::of(b'x', "PaxHeaders/x").content(&self.records).blocks());
        }
        let mut header = if self.header[124..136] == [0; 12] {
            self.clone().octal(124, 12, self.content.len() as u64).header
        } else {
            self.header
        };
        header[148..156].fill(b' ');
        let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        blocks.extend(header);
        blocks.extend(&self.content);
        blocks.resize(blocks.len().next_multiple_of(BLOCK), 0);
        blocks
    }
}

/// One record of an extended header, whose length counts itself.
pub(crate) fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = [b" ", key.as_bytes(), b"=", value, b"\n"].concat();
    let length = (1..9).find(|digits| (rest.len() + digits).to_string().len() == *digits);
    let length = rest.len() + length.expect("some number of digits fits");
    [length.to_string().as_bytes(), &rest].concat()
}

/// A whole tar of these entries.
pub(crate) fn tar(entries: &[Sample]) -> Vec<u8> {
    let mut bytes: Vec<u8> = entries.iter().flat_map(Sample::blocks).collect();
    bytes.extend([0; 2 * BLOCK]);
    bytes
}
