//! PAX extended headers: records `length key=value\n` that override what the header of the next entry says.

use std::collections::BTreeMap;

use super::header::Header;
use super::sparse::{self, Form};
use super::{Malformed, Time};

/// Keys of extended attributes begin so (Schily's `star`, and everybody since).
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";

/// The records of one extended header; of those with the same key the last.
#[derive(Debug, Default)]
pub(super) struct Records {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The offsets and lengths of sparse form 0.0, which repeats its keys.
    map: Vec<Vec<u8>>,
}

impl Records {
    pub(super) fn parse(mut text: &[u8]) -> Result<Self, Malformed> {
        const WRONG: Malformed = Malformed("an extended header's record");
        let mut records = Self::default();
        while !text.is_empty() {
            let space = text.iter().position(|byte| *byte == b' ').ok_or(WRONG)?;
            let length = decimal(&text[..space]).and_then(|length| usize::try_from(length).ok());
            let length = length.filter(|length| (5..=text.len()).contains(length)).ok_or(WRONG)?;
            let (record, rest) = text.split_at(length);
            text = rest;
            let record = record.get(space + 1..length - 1).filter(|_| record[length - 1] == b'\n');
            let record = record.ok_or(WRONG)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or(WRONG)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            let guarded = match key {
                b"path" | b"linkpath" | b"uname" | b"gname" => value,
                _ => key,
            };
            if key.is_empty() || guarded.contains(&0) {
                return Err(WRONG);
            }
            records.add(key, value)?;
        }
        Ok(records)
    }

    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), Malformed> {
        const WRONG: Malformed = Malformed("the sparse map of an extended header");
        let expected: &[u8] =
            if self.map.len().is_multiple_of(2) { b"GNU.sparse.offset" } else { b"GNU.sparse.numbytes" };
        match key {
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                if key != expected || value.contains(&b',') {
                    return Err(WRONG);
                }
                self.map.push(value.to_vec());
            }
            _ => {
                self.values.insert(key.to_vec(), value.to_vec());
            }
        }
        Ok(())
    }

    /// Overrides what the header says. An empty value leaves it.
    pub(super) fn apply(&self, header: &mut Header) -> Result<(), Malformed> {
        for (key, value) in self.values.iter().filter(|(_, value)| !value.is_empty()) {
            match key.as_slice() {
                b"path" => header.path.clone_from(value),
                b"linkpath" => header.link.clone_from(value),
                b"uid" => header.uid = decimal(value).ok_or(Malformed("an extended header's owner"))?,
                b"gid" => header.gid = decimal(value).ok_or(Malformed("an extended header's group"))?,
                b"size" => header.size = decimal(value).ok_or(Malformed("an extended header's size"))?,
                b"mtime" => header.modified = time(value)?,
                b"atime" => header.accessed = Some(time(value)?),
                b"ctime" => drop(time(value)?),
                _ => {}
            }
        }
        Ok(())
    }

    /// The sparse form that the records tell of, which also overrides the header's path.
    pub(super) fn sparse(&mut self, header: &mut Header) -> Result<Form, Malformed> {
        let value = |key: &str| self.values.get(key.as_bytes()).map_or(&[][..], Vec::as_slice);
        let map =
            if self.map.is_empty() { value("GNU.sparse.map").to_vec() } else { self.map.join(&b","[..]) };
        let in_content = match (value("GNU.sparse.major"), value("GNU.sparse.minor")) {
            (b"0", b"0" | b"1") => false,
            (b"1", b"0") => true,
            ([], []) if !map.is_empty() => false,
            _ => return Ok(Form::None),
        };
        if !value("GNU.sparse.name").is_empty() {
            header.path = value("GNU.sparse.name").to_vec();
        }
        let stated = [value("GNU.sparse.size"), value("GNU.sparse.realsize")];
        let size = match stated.into_iter().find(|size| !size.is_empty()) {
            None => None,
            Some(size) => {
                let size = decimal(size).and_then(|size| u64::try_from(size).ok());
                Some(size.ok_or(Malformed("the real size of a sparse file"))?)
            }
        };
        if in_content {
            return Ok(Form::InContent(size));
        }
        let count = decimal(value("GNU.sparse.numblocks"));
        Ok(Form::InRecords(sparse::from_record(&map, count)?, size))
    }

    /// The extended attributes.
    pub(super) fn attributes(self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let named = |(key, value): (Vec<u8>, Vec<u8>)| Some((key.strip_prefix(ATTRIBUTE)?.to_vec(), value));
        self.values.into_iter().filter_map(named).collect()
    }
}

/// A decimal number, with a sign or without.
pub(super) fn decimal(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Whole seconds.
pub(super) fn seconds(seconds: i64) -> Time {
    Time { seconds, nanoseconds: 0 }
}

/// `-12.345`: seconds with as many digits behind the point as anybody likes, of which nine count.
fn time(text: &[u8]) -> Result<Time, Malformed> {
    const WRONG: Malformed = Malformed("an extended header's time");
    let (whole, fraction) = match text.iter().position(|byte| *byte == b'.') {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, &[][..]),
    };
    let whole_seconds = decimal(whole).ok_or(WRONG)?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return Err(WRONG);
    }
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nanoseconds = digits.fold(0, |value: u32, digit| value * 10 + u32::from(digit - b'0'));
    if !whole.starts_with(b"-") || nanoseconds == 0 {
        return Ok(Time { seconds: whole_seconds, nanoseconds });
    }
    // Time before the epoch is written backwards from it.
    Ok(Time { seconds: whole_seconds.checked_sub(1).ok_or(WRONG)?, nanoseconds: 1_000_000_000 - nanoseconds })
}
