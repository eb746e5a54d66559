//! Header blocks as Go's encoder writes them and as any peer may (RFC 7541): names from the static table first, every
//! field into the dynamic table, Huffman codes where they are shorter.

use std::collections::{HashMap, VecDeque};

use anyhow::{Context, Result, bail, ensure};

/// Of the dynamic table, when no settings say otherwise.
const TABLE_SIZE: usize = 4096;
/// Beside name and value, in the size of an entry.
const OVERHEAD: usize = 32;

/// Entries 1 to 61 (RFC 7541, appendix A).
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// Printable characters by the bits of their code. The code is canonical: within a length it counts up with the
/// character, and it goes on from one length to the next (RFC 7541, appendix B). NUL is among them to keep count.
const CODES: [(u32, &str); 10] = [
    (5, "012aceiost"),
    (6, " %-./3456789=A_bdfghlmnpru"),
    (7, ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, "&*,;XZ"),
    (10, "!\"()?"),
    (11, "'+|"),
    (12, "#>"),
    (13, "\0$@[]~"),
    (14, "^}"),
    (15, "<`{"),
];

/// A field's name and value.
pub type Field = (String, String);

/// The dynamic table of one direction.
#[derive(Debug, Default)]
struct Table {
    /// The newest first.
    entries: VecDeque<Field>,
    size: usize,
}

impl Table {
    fn insert(&mut self, field: Field) {
        self.size += size(&field);
        self.entries.push_front(field);
        while self.size > TABLE_SIZE {
            self.size -= self.entries.pop_back().as_ref().map_or(0, size);
        }
    }

    fn get(&self, index: usize) -> Option<Field> {
        let fixed = STATIC.get(index.checked_sub(1)?);
        match fixed {
            Some((name, value)) => Some(((*name).to_owned(), (*value).to_owned())),
            None => self.entries.get(index - 1 - STATIC.len()).cloned(),
        }
    }

    /// The index of what is equal in this way, 0 for none; the static table first.
    fn find(&self, equal: impl Fn(&str, &str) -> bool) -> usize {
        let fixed = STATIC.iter().map(|(name, value)| (*name, *value));
        let dynamic = self.entries.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        fixed.chain(dynamic).position(|(name, value)| equal(name, value)).map_or(0, |at| at + 1)
    }
}

fn size((name, value): &Field) -> usize {
    name.len() + value.len() + OVERHEAD
}

/// Go's encoder, with its state for one connection.
#[derive(Debug)]
pub struct Encoder {
    table: Table,
    /// Bits and code of each character that has a short one.
    codes: HashMap<u8, (u32, u32)>,
}

impl Default for Encoder {
    fn default() -> Self {
        let codes = codes().map(|(character, bits, code)| (character, (bits, code))).collect();
        Self { table: Table::default(), codes }
    }
}

impl Encoder {
    /// A block of these fields, in this order.
    pub fn encode(&mut self, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        for &(name, value) in fields {
            let whole = self.table.find(|a, b| (a, b) == (name, value));
            if whole > 0 {
                put_integer(&mut block, 0x80, 7, whole);
                continue;
            }
            let named = self.table.find(|a, _| a == name);
            let field = (name.to_owned(), value.to_owned());
            let (pattern, prefix) = if size(&field) <= TABLE_SIZE { (0x40, 6) } else { (0, 4) };
            put_integer(&mut block, pattern, prefix, named);
            if named == 0 {
                self.put_string(&mut block, name);
            }
            self.put_string(&mut block, value);
            if pattern == 0x40 {
                self.table.insert(field);
            }
        }
        block
    }

    fn put_string(&self, block: &mut Vec<u8>, text: &str) {
        let coded = self.huffman(text.as_bytes()).filter(|coded| coded.len() < text.len());
        let (pattern, bytes) = match &coded {
            Some(coded) => (0x80, coded.as_slice()),
            None => (0, text.as_bytes()),
        };
        put_integer(block, pattern, 7, bytes.len());
        block.extend(bytes);
    }

    /// `None` for characters whose code is longer than they are anyway.
    fn huffman(&self, text: &[u8]) -> Option<Vec<u8>> {
        let (mut coded, mut gathered, mut bits) = (Vec::new(), 0_u64, 0);
        for byte in text {
            let (length, code) = self.codes.get(byte)?;
            gathered = gathered << length | u64::from(*code);
            bits += length;
            while bits >= 8 {
                bits -= 8;
                coded.push(u8::try_from(gathered >> bits & 0xff).unwrap_or_default());
            }
        }
        if bits > 0 {
            // Filled up with ones.
            let filled = gathered << (8 - bits) | (0xff >> bits);
            coded.push(u8::try_from(filled & 0xff).unwrap_or_default());
        }
        Some(coded)
    }
}

/// A decoder, with its state for one connection.
#[derive(Debug, Default)]
pub struct Decoder {
    table: Table,
}

impl Decoder {
    /// The fields of a block.
    pub fn decode(&mut self, mut block: &[u8]) -> Result<Vec<Field>> {
        let mut fields = Vec::new();
        while let Some(&first) = block.first() {
            match first.leading_zeros() {
                0 => {
                    let index = integer(&mut block, 7)?;
                    fields.push(self.table.get(index).with_context(|| format!("no entry {index}"))?);
                }
                2 => ensure!(integer(&mut block, 5)? <= TABLE_SIZE, "a table larger than allowed"),
                zeros => {
                    let field = self.literal(&mut block, if zeros == 1 { 6 } else { 4 })?;
                    if zeros == 1 {
                        self.table.insert(field.clone());
                    }
                    fields.push(field);
                }
            }
        }
        Ok(fields)
    }

    fn literal(&self, block: &mut &[u8], prefix: u32) -> Result<Field> {
        let name = match integer(block, prefix)? {
            0 => string(block)?,
            index => self.table.get(index).with_context(|| format!("no name {index}"))?.0,
        };
        Ok((name, string(block)?))
    }
}

fn put_integer(block: &mut Vec<u8>, pattern: u8, prefix: u32, value: usize) {
    let mask = (1_usize << prefix) - 1;
    let byte = |value: usize| u8::try_from(value & 0xff).unwrap_or_default();
    if value < mask {
        return block.push(pattern | byte(value));
    }
    block.push(pattern | byte(mask));
    let mut rest = value - mask;
    while rest > 0x7f {
        block.push(0x80 | byte(rest & 0x7f));
        rest >>= 7;
    }
    block.push(byte(rest));
}

fn integer(block: &mut &[u8], prefix: u32) -> Result<usize> {
    let mask = (1_usize << prefix) - 1;
    let mut value = usize::from(take(block, 1)?[0]) & mask;
    if value == mask {
        for shift in (0..28).step_by(7) {
            let more = usize::from(take(block, 1)?[0]);
            value += (more & 0x7f) << shift;
            if more & 0x80 == 0 {
                return Ok(value);
            }
        }
        bail!("an integer without end");
    }
    Ok(value)
}

/// Codes of the characters in [`CODES`]: character, bits, code.
fn codes() -> impl Iterator<Item = (u8, u32, u32)> {
    let (mut next, mut before) = (0_u32, 5);
    CODES.into_iter().flat_map(move |(bits, characters)| {
        next <<= bits - before;
        before = bits;
        let from = next;
        next += u32::try_from(characters.len()).unwrap_or_default();
        characters.bytes().zip(from..).map(move |(character, code)| (character, bits, code))
    })
}

fn string(block: &mut &[u8]) -> Result<String> {
    let huffman = block.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(block, 7)?;
    let text = take(block, length)?;
    if !huffman {
        return Ok(String::from_utf8(text.to_vec())?);
    }
    let table: Vec<_> = codes().collect();
    let (mut decoded, mut code, mut bits) = (String::new(), 0_u32, 0);
    for bit in text.iter().flat_map(|byte| (0..8).rev().map(move |at| u32::from(byte >> at & 1))) {
        (code, bits) = (code << 1 | bit, bits + 1);
        if let Some((character, ..)) = table.iter().find(|(_, b, c)| (*b, *c) == (bits, code)) {
            decoded.push(char::from(*character));
            (code, bits) = (0, 0);
        }
        ensure!(bits <= 15, "a character that is not printable");
    }
    Ok(decoded)
}

fn take<'a>(block: &mut &'a [u8], length: usize) -> Result<&'a [u8]> {
    let (taken, rest) = block.split_at_checked(length).context("the block ends in a field")?;
    *block = rest;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_specification_are_encoded_and_decoded() {
        // RFC 7541, C.4: three requests on one connection.
        let of = |authority| vec![(":method", "GET"), (":scheme", "http"), (":path", "/"), authority];
        let authority = (":authority", "www.example.com");
        let mut second = of(authority);
        second.push(("cache-control", "no-cache"));
        let third = vec![
            (":method", "GET"),
            (":scheme", "https"),
            (":path", "/index.html"),
            authority,
            ("custom-key", "custom-value"),
        ];
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        for (fields, expected) in [
            (of(authority), b"\x82\x86\x84A\x8c\xf1\xe3\xc2\xe5\xf2:k\xa0\xab\x90\xf4\xff".as_slice()),
            (second, b"\x82\x86\x84\xbeX\x86\xa8\xeb\x10d\x9c\xbf".as_slice()),
            (third, b"\x82\x87\x85\xbf@\x88%\xa8I\xe9[\xa9}\x7f\x89%\xa8I\xe9[\xb8\xe8\xb4\xbf".as_slice()),
        ] {
            let block = encoder.encode(&fields);
            assert_eq!(block, expected);
            let read = decoder.decode(&block).expect("a block");
            let read: Vec<_> = read.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            assert_eq!(read, fields);
        }
    }
}
