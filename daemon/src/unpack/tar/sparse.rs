//! Maps of sparse files, in GNU's old form and in the three that PAX has.

use super::header::{BLOCK, Block, number};
use super::pax::decimal;
use super::{Malformed, Segment};

/// Longest map that is held in memory: 4 MiB of segments.
const LONGEST: usize = 1 << 18;
/// A segment in GNU's old form: an offset and a length of twelve bytes each.
const OLD: usize = 24;

const WRONG: Malformed = Malformed("a sparse map");
const TOO_LONG: Malformed = Malformed("a sparse map of more segments than drayd holds");

/// Where an extended header says that the map is; beside it the real size, if it states one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The file is not sparse.
    None,
    /// The map was in the records: forms 0.0 and 0.1.
    InRecords(Vec<Segment>, Option<u64>),
    /// The map begins the content: form 1.0.
    InContent(Option<u64>),
}

/// Takes the segments of a header in GNU's old form; whether they go on in a block of their own.
pub(super) fn from_header(block: &Block, map: &mut Vec<Segment>) -> Result<bool, Malformed> {
    old(&block[386..482], map)?;
    Ok(block[482] != 0)
}

/// Takes the segments of such a block of their own; whether another one follows.
pub(super) fn from_extension(block: &Block, map: &mut Vec<Segment>) -> Result<bool, Malformed> {
    old(&block[..504], map)?;
    Ok(block[504] != 0)
}

fn old(fields: &[u8], map: &mut Vec<Segment>) -> Result<(), Malformed> {
    for field in fields.chunks_exact(OLD).take_while(|field| field[0] != 0) {
        add(map, number(&field[..12], WRONG.0).ok(), number(&field[12..], WRONG.0).ok())?;
    }
    Ok(())
}

/// The map of form 0.1: `offset,length,offset,length`.
pub(super) fn from_record(text: &[u8], count: Option<i64>) -> Result<Vec<Segment>, Malformed> {
    let numbers: Vec<&[u8]> =
        if text.is_empty() { Vec::new() } else { text.split(|byte| *byte == b',').collect() };
    if count.and_then(|count| usize::try_from(count).ok()).is_none_or(|count| numbers.len() != count * 2) {
        return Err(WRONG);
    }
    let mut map = Vec::new();
    for pair in numbers.chunks_exact(2) {
        add(&mut map, decimal(pair[0]), decimal(pair[1]))?;
    }
    Ok(map)
}

fn add(map: &mut Vec<Segment>, offset: Option<i64>, length: Option<i64>) -> Result<(), Malformed> {
    if map.len() == LONGEST {
        return Err(TOO_LONG);
    }
    let positive = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok()).ok_or(WRONG);
    map.push(Segment { offset: positive(offset)?, length: positive(length)? });
    Ok(())
}

/// The map of form 1.0 while its blocks come in: the number of segments, then two numbers for each, a line for each
/// number.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The line that has no end yet.
    open: Vec<u8>,
    /// How many numbers are to come, once the first line has said so.
    expected: Option<usize>,
    numbers: Vec<i64>,
}

impl Lines {
    pub(super) fn add(&mut self, block: &[u8; BLOCK]) -> Result<(), Malformed> {
        for byte in block {
            if *byte != b'\n' {
                self.open.push(*byte);
                continue;
            }
            let number = decimal(&std::mem::take(&mut self.open)).ok_or(WRONG)?;
            match self.expected {
                None => {
                    let count = usize::try_from(number).map_err(|_| WRONG)?;
                    self.expected = Some(if count > LONGEST { Err(TOO_LONG) } else { Ok(count * 2) }?);
                }
                Some(_) => self.numbers.push(number),
            }
            // The rest of the block fills it.
            if self.expected == Some(self.numbers.len()) {
                return Ok(());
            }
        }
        // A number has twenty characters at most, so this is none.
        if self.open.len() > BLOCK { Err(WRONG) } else { Ok(()) }
    }

    /// The map, once it is whole.
    pub(super) fn map(&self) -> Result<Option<Vec<Segment>>, Malformed> {
        if self.expected != Some(self.numbers.len()) {
            return Ok(None);
        }
        let mut map = Vec::with_capacity(self.numbers.len() / 2);
        for pair in self.numbers.chunks_exact(2) {
            add(&mut map, Some(pair[0]), Some(pair[1]))?;
        }
        Ok(Some(map))
    }
}

/// The segments must ascend, lie within the file, and be as many bytes as the archive has for it.
pub(super) fn check(map: &[Segment], size: u64, physical: u64) -> Result<(), Malformed> {
    let (mut end, mut sum) = (0, 0);
    for Segment { offset, length } in map {
        if *offset < end {
            return Err(Malformed("a sparse map with overlapping segments"));
        }
        end = offset.checked_add(*length).ok_or(WRONG)?;
        sum += length;
    }
    if end > size {
        return Err(Malformed("a sparse map that goes beyond the file's size"));
    }
    if sum != physical {
        return Err(Malformed("a sparse map of another size than the file's content"));
    }
    Ok(())
}
