//! The frames that a client sends (RFC 9113 §4): finds the header blocks among them and passes over everything else.

use super::fields::Fields;

/// What a client's connection begins with (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length in three bytes, type, flags, stream in four.
const HEAD: usize = 9;
/// Stream dependency and weight in a HEADERS frame.
const PRIORITY: usize = 5;

const TYPE_HEADERS: u8 = 1;
const TYPE_PUSH_PROMISE: u8 = 5;
const TYPE_CONTINUATION: u8 = 9;

const FLAG_END_HEADERS: u8 = 0x4;
const FLAG_PADDED: u8 = 0x8;
const FLAG_PRIORITY: u8 = 0x20;

/// Where in a client's bytes the next one is.
#[derive(Debug)]
pub(super) struct Frames {
    state: State,
    /// The header block that is open, which is the one of the last HEADERS frame until its end.
    fields: Option<Fields>,
}

#[derive(Debug)]
enum State {
    /// So many bytes of the preface were seen.
    Preface(usize),
    /// So many bytes of a frame's head were seen.
    Head([u8; HEAD], usize),
    /// At the length of the padding of a HEADERS frame, with its flags and what is left of it.
    Padding { flags: u8, left: usize },
    /// In a frame: other bytes, then some of a header block, then other bytes again.
    Body { before: usize, block: usize, after: usize, flags: u8 },
    /// Nothing more is looked at: this is not HTTP/2, and h2 will say so.
    Off,
}

/// What h2 ends the connection for.
struct Malformed;

impl Frames {
    pub(super) fn new() -> Self {
        Self { state: State::Preface(0), fields: None }
    }

    /// Looks at the bytes that follow those seen, and renames fields in them. Returns for how many of them that is
    /// done; the others, fewer than [`super::fields::UNDECIDED`], are to be given again with more behind them.
    pub(super) fn scan(&mut self, bytes: &mut [u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            match self.step(&mut bytes[at..]) {
                Ok(0) => return at,
                Ok(done) => at += done,
                Err(Malformed) => self.state = State::Off,
            }
        }
        at
    }

    /// One step, which ends within `bytes`. None of them are done if more are needed.
    fn step(&mut self, bytes: &mut [u8]) -> Result<usize, Malformed> {
        match &mut self.state {
            State::Off => Ok(bytes.len()),
            State::Preface(seen) => {
                let rest = &PREFACE[*seen..];
                let done = rest.len().min(bytes.len());
                if rest[..done] != bytes[..done] {
                    return Err(Malformed);
                }
                *seen += done;
                if *seen == PREFACE.len() {
                    self.state = State::Head([0; HEAD], 0);
                }
                Ok(done)
            }
            State::Head(head, seen) => {
                let done = (HEAD - *seen).min(bytes.len());
                head[*seen..*seen + done].copy_from_slice(&bytes[..done]);
                *seen += done;
                if *seen == HEAD {
                    let head = *head;
                    self.begin(head)?;
                }
                Ok(done)
            }
            State::Padding { flags, left } => {
                let (flags, left) = (*flags, *left);
                self.headers(flags, left, usize::from(bytes[0]))?;
                Ok(1)
            }
            State::Body { before, block, after, flags } => {
                let done = match &mut self.fields {
                    _ if *before > 0 => pass(before, bytes.len()),
                    Some(fields) if *block > 0 => {
                        let here = (*block).min(bytes.len());
                        let done = fields.scan(&mut bytes[..here], here == *block).ok_or(Malformed)?;
                        *block -= done;
                        done
                    }
                    _ => pass(after, bytes.len()),
                };
                if *before + *block + *after == 0 {
                    let flags = *flags;
                    self.end(flags)?;
                }
                Ok(done)
            }
        }
    }

    fn begin(&mut self, head: [u8; HEAD]) -> Result<(), Malformed> {
        let [a, b, c, kind, flags, ..] = head;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        match (kind, self.fields.is_some()) {
            (TYPE_HEADERS, false) => {
                self.fields = Some(Fields::default());
                if flags & FLAG_PADDED == 0 {
                    return self.headers(flags, length, 0);
                }
                let left = length.checked_sub(1).ok_or(Malformed)?;
                self.state = State::Padding { flags, left };
                Ok(())
            }
            (TYPE_CONTINUATION, true) => self.body(0, length, 0, flags),
            // A server is promised nothing, and nothing may come between the frames of a block.
            (TYPE_PUSH_PROMISE | TYPE_CONTINUATION, _) | (_, true) => Err(Malformed),
            // A flag of the same bit means something else in other frames.
            _ => self.body(0, 0, length, 0),
        }
    }

    /// Enters a HEADERS frame behind the length of its padding.
    fn headers(&mut self, flags: u8, left: usize, padding: usize) -> Result<(), Malformed> {
        let before = if flags & FLAG_PRIORITY == 0 { 0 } else { PRIORITY };
        let block = left.checked_sub(before + padding).ok_or(Malformed)?;
        self.body(before, block, padding, flags)
    }

    fn body(&mut self, before: usize, block: usize, after: usize, flags: u8) -> Result<(), Malformed> {
        self.state = State::Body { before, block, after, flags };
        if before + block + after == 0 { self.end(flags) } else { Ok(()) }
    }

    /// Leaves a frame.
    fn end(&mut self, flags: u8) -> Result<(), Malformed> {
        if flags & FLAG_END_HEADERS != 0 {
            let whole = self.fields.take().is_none_or(|fields| fields.is_between());
            whole.then_some(()).ok_or(Malformed)?;
        }
        self.state = State::Head([0; HEAD], 0);
        Ok(())
    }
}

/// Passes over as many of `left` bytes as are there.
fn pass(left: &mut usize, there: usize) -> usize {
    let done = (*left).min(there);
    *left -= done;
    done
}
