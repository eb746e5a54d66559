//! One header block: V7, ustar, star and GNU, each field as Go's `archive/tar` reads it.

use super::pax::seconds;
use super::{Entry, Kind, Malformed, Segment, Time};

/// Everything in a tar comes in blocks of so many bytes.
pub(super) const BLOCK: usize = 512;

pub(super) type Block = [u8; BLOCK];

/// A header's fields, while extended headers may still change them.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) flag: u8,
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) mode: i64,
    pub(super) uid: i64,
    pub(super) gid: i64,
    pub(super) size: i64,
    pub(super) modified: Time,
    pub(super) accessed: Option<Time>,
    device: (i64, i64),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    V7,
    Ustar,
    Star,
    Gnu,
}

impl Header {
    pub(super) fn parse(block: &Block) -> Result<Self, Malformed> {
        check_sum(block)?;
        let format = match (&block[257..265], &block[508..512]) {
            (b"ustar\x0000", b"tar\0") => Format::Star,
            (b"ustar  \0", _) => Format::Gnu,
            (magic, _) if magic.starts_with(b"ustar\0") => Format::Ustar,
            _ => Format::V7,
        };
        let mut header = Self {
            flag: block[156],
            path: text(&block[..100]).to_vec(),
            link: text(&block[157..257]).to_vec(),
            mode: number(&block[100..108], "its mode")?,
            uid: number(&block[108..116], "its owner")?,
            gid: number(&block[116..124], "its group")?,
            size: number(&block[124..136], "its size")?,
            modified: seconds(number(&block[136..148], "its time")?),
            accessed: None,
            device: (0, 0),
        };
        if format != Format::V7 {
            header.device = (
                number(&block[329..337], "its major number")?,
                number(&block[337..345], "its minor number")?,
            );
        }
        let prefix = match format {
            Format::V7 => &[][..],
            Format::Ustar => text(&block[345..500]),
            Format::Star => {
                header.accessed = Some(seconds(number(&block[476..488], "its access time")?));
                number(&block[488..500], "its change time")?;
                text(&block[345..476])
            }
            Format::Gnu => header.gnu_times(block),
        };
        if !prefix.is_empty() {
            header.path = [prefix, b"/", &header.path].concat();
        }
        Ok(header)
    }

    /// GNU's header has times where ustar's has a prefix. Go before 1.8 wrote the prefix there nevertheless, so what is
    /// no number is taken for that. The prefix.
    fn gnu_times<'a>(&mut self, block: &'a Block) -> &'a [u8] {
        let time = |field: &[u8]| match field[0] {
            0 => Ok(None),
            _ => number(field, "its time").map(|number| Some(seconds(number))),
        };
        if let (Ok(accessed), Ok(_)) = (time(&block[345..357]), time(&block[357..369])) {
            self.accessed = accessed;
            return &[];
        }
        let prefix = text(&block[345..500]);
        if prefix.is_ascii() { prefix } else { &[] }
    }

    /// The type flag of before 1988 told a directory by its name.
    pub(super) fn settle_kind(&mut self) {
        if self.flag == 0 {
            self.flag = if self.path.ends_with(b"/") { b'5' } else { b'0' };
        }
    }

    /// Whether entries of this kind are a header alone, whatever size it states.
    pub(super) fn holds_no_content(&self) -> bool {
        matches!(self.flag, b'1'..=b'6')
    }

    pub(super) fn entry(
        self,
        size: u64,
        segments: Vec<Segment>,
        attributes: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Entry {
        let kind = match self.flag {
            b'0' | b'S' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' => Kind::CharacterDevice,
            b'4' => Kind::BlockDevice,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            b'g' => Kind::Global,
            flag => Kind::Unknown(flag),
        };
        Entry {
            path: self.path,
            kind,
            link: self.link,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            modified: self.modified,
            accessed: self.accessed,
            device: (device_part(self.device.0), device_part(self.device.1)),
            attributes,
            size,
            segments,
        }
    }
}

/// As Go cuts it for `mkdev`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "containerd cuts it the same way"
)]
fn device_part(number: i64) -> u32 {
    number as u32
}

/// The real size of a file in GNU's old sparse form.
pub(super) fn sparse_size(block: &Block) -> Result<u64, Malformed> {
    const WRONG: Malformed = Malformed("the real size of a sparse file");
    if &block[257..265] != b"ustar  \0" {
        return Err(Malformed("GNU's sparse form in a header that is not GNU's"));
    }
    u64::try_from(number(&block[483..495], WRONG.0)?).map_err(|_| WRONG)
}

/// A field's text: up to the first NUL.
pub(super) fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// A field's number: octal digits, or big-endian two's complement where the first bit is set, as GNU writes what has too
/// many digits.
pub(super) fn number(field: &[u8], name: &'static str) -> Result<i64, Malformed> {
    let Some(first) = field.first() else { return Ok(0) };
    if first & 0x80 == 0 {
        return octal(field, name);
    }
    let inverse = if first & 0x40 == 0 { 0 } else { 0xff };
    let mut value: i64 = 0;
    for (at, byte) in field.iter().enumerate() {
        let byte = (byte ^ inverse) & if at == 0 { 0x7f } else { 0xff };
        if value >> 55 != 0 {
            return Err(Malformed(name));
        }
        value = value << 8 | i64::from(byte);
    }
    Ok(if inverse == 0 { value } else { !value })
}

fn octal(field: &[u8], name: &'static str) -> Result<i64, Malformed> {
    let padding = |byte: &u8| matches!(byte, b' ' | 0);
    let begin = field.iter().position(|byte| !padding(byte)).unwrap_or(field.len());
    let end = field.iter().rposition(|byte| !padding(byte)).map_or(begin, |last| last + 1);
    let digits = text(&field[begin..end]);
    let mut value: i64 = 0;
    for digit in digits {
        if !matches!(digit, b'0'..=b'7') || value >> 60 != 0 {
            return Err(Malformed(name));
        }
        value = value << 3 | i64::from(digit - b'0');
    }
    Ok(value)
}

/// The sum of all bytes with the field itself as spaces; old programs added them up as signed ones.
fn check_sum(block: &Block) -> Result<(), Malformed> {
    let (mut unsigned, mut signed) = (0_i64, 0_i64);
    for (at, byte) in block.iter().enumerate() {
        let byte = if (148..156).contains(&at) { b' ' } else { *byte };
        unsigned += i64::from(byte);
        signed += i64::from(byte.cast_signed());
    }
    let stated = number(&block[148..156], "its check sum")?;
    if stated == unsigned || stated == signed {
        return Ok(());
    }
    Err(Malformed("no header: its check sum is wrong"))
}
