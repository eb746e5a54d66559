//! One header block (HPACK, RFC 7541 §6): finds an `:authority` that is a path or empty, and gives it another name.

/// A field may be held back while it has fewer bytes than this: its first one, the length of its value in up to five,
/// and the value's first.
pub(super) const UNDECIDED: usize = 7;

/// Bytes that an integer may have behind its first; h2 refuses longer ones (RFC 7541 §5.1 leaves the limit open).
const MORE: u8 = 4;

/// In the first byte of a field: the pattern of a whole entry, and that of a literal with an entry's name which is to be
/// put into the dynamic table, as grpc-go writes `:authority` every time. The entry's number is the rest of the byte.
const INDEXED: u8 = 0x80;
const LITERAL: u8 = 0x40;
/// Entry 1 of the static table: `:authority`, with an empty value.
const AUTHORITY: u8 = 1;
/// Entry 55: `set-cookie`, ten bytes as well, with an empty value, too.
const STAND_IN: u8 = 55;

const INDEXED_AUTHORITY: u8 = INDEXED | AUTHORITY;
const LITERAL_AUTHORITY: u8 = LITERAL | AUTHORITY;

/// Where in a block the next byte is. It does not matter which frames of the block the bytes come in.
#[derive(Debug, Default)]
pub(super) struct Fields {
    next: Next,
    /// An `:authority` was met. A second one is an error, which h2 must see.
    met: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum Next {
    /// The first byte of a field or of a size update.
    #[default]
    Field,
    /// A further byte of an index or a size, the last of which is followed by so many strings.
    Index { seen: u8, strings: u8 },
    /// The first byte of the length of the first of so many strings.
    Length { strings: u8 },
    /// A further byte of it.
    LengthMore { seen: u8, length: usize, strings: u8 },
    /// In the first of so many strings.
    Text { left: usize, strings: u8 },
}

impl Fields {
    /// Looks at the next bytes of the block, and renames an `:authority` in them. Returns for how many of them that
    /// is done; the others need more bytes to be judged. None of them wait at the end of a frame (`last`): a field
    /// that goes on in the next frame is left as it is. `None` if this is not HPACK as h2 reads it.
    pub(super) fn scan(&mut self, bytes: &mut [u8], last: bool) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            let byte = bytes[at];
            match self.next {
                Next::Field => {
                    if !self.rename(&mut bytes[at..], last) {
                        return Some(at);
                    }
                    self.next = first(byte);
                    at += 1;
                }
                Next::Index { seen, strings } => {
                    self.next = match byte & 0x80 {
                        0 => strings_follow(strings),
                        _ if seen + 1 == MORE => return None,
                        _ => Next::Index { seen: seen + 1, strings },
                    };
                    at += 1;
                }
                Next::Length { strings } => {
                    let length = usize::from(byte & 0x7f);
                    self.next = match length {
                        0x7f => Next::LengthMore { seen: 0, length, strings },
                        _ => text(length, strings),
                    };
                    at += 1;
                }
                Next::LengthMore { seen, length, strings } => {
                    let length = length + (usize::from(byte & 0x7f) << (7 * seen));
                    self.next = match byte & 0x80 {
                        0 => text(length, strings),
                        _ if seen + 1 == MORE => return None,
                        _ => Next::LengthMore { seen: seen + 1, length, strings },
                    };
                    at += 1;
                }
                Next::Text { left, strings } => {
                    let here = left.min(bytes.len() - at);
                    self.next = text(left - here, strings);
                    at += here;
                }
            }
        }
        Some(at)
    }

    /// Whether a block may end here.
    pub(super) fn is_between(&self) -> bool {
        matches!(self.next, Next::Field)
    }

    /// Gives the field that begins here another name if it is an `:authority` that h2 would refuse. False if that
    /// cannot be told yet.
    fn rename(&mut self, field: &mut [u8], last: bool) -> bool {
        match field[0] {
            _ if self.met => {}
            INDEXED_AUTHORITY => {
                self.met = true;
                field[0] = INDEXED | STAND_IN;
            }
            LITERAL_AUTHORITY => {
                let path = is_path(&field[1..]);
                if path.is_none() && !last {
                    return false;
                }
                self.met = true;
                if path == Some(true) {
                    field[0] = LITERAL | STAND_IN;
                }
            }
            _ => {}
        }
        true
    }
}

/// What follows the first byte of a field.
fn first(byte: u8) -> Next {
    // Indexed, literal to be indexed, size update, literal not to be indexed: the rest of the byte is an integer.
    let (mask, literal) = match byte.leading_zeros() {
        0 => (0x7f, false),
        1 => (0x3f, true),
        2 => (0x1f, false),
        _ => (0x0f, true),
    };
    let strings = match byte & mask {
        _ if !literal => 0,
        // The name is not in a table, but comes as a string, too.
        0 => 2,
        _ => 1,
    };
    if byte & mask == mask { Next::Index { seen: 0, strings } } else { strings_follow(strings) }
}

fn strings_follow(strings: u8) -> Next {
    if strings == 0 { Next::Field } else { Next::Length { strings } }
}

fn text(left: usize, strings: u8) -> Next {
    if left == 0 { strings_follow(strings - 1) } else { Next::Text { left, strings } }
}

/// Whether a string is empty or begins as a path does, percent-encoded or not: no host begins like that, so one
/// character tells. `None` if it is not there yet.
fn is_path(string: &[u8]) -> Option<bool> {
    let length = *string.first()?;
    let huffman = length & 0x80 != 0;
    let text = match length & 0x7f {
        0 => return Some(true),
        0x7f => {
            let more = string[1..].iter().take(usize::from(MORE)).position(|byte| byte & 0x80 == 0);
            match more {
                Some(last) => last + 2,
                None if string.len() > usize::from(MORE) => return Some(false),
                None => return None,
            }
        }
        _ => 1,
    };
    let first = *string.get(text)?;
    // The codes of `/` and `%` have six bits each (RFC 7541, appendix B).
    Some(if huffman { matches!(first >> 2, 0b01_1000 | 0b01_0101) } else { matches!(first, b'/' | b'%') })
}
