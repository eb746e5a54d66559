//! What breaks, by a seed: the same request of the same repository meets the same fault whatever goes on beside it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use drayd_tests::layer::{digest, noise};
use drayd_tests::scripted::{End, Reply, Request, Scripted};
use tonic::Code;

/// Requests that break, of a hundred.
const BROKEN: u64 = 20;

/// One way to break an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Fault {
    /// The connection is reset before a word.
    Reset,
    /// 500, 502, 503 or 504.
    ServerError,
    /// 429.
    Limited,
    /// 429 with `Retry-After: 1`.
    LimitedForASecond,
    /// The body comes to half and no further.
    Stall,
    /// The body ends in its middle, in order.
    Truncate,
    /// The connection is reset in the middle of the body.
    ResetInside,
    /// 206, honestly, with other bytes than were asked for.
    OtherRange,
    /// 206 that claims to be what was asked for, with other bytes.
    FalseRange,
    /// 200 with the whole where a part was asked for.
    WholeForPart,
}

use Fault::{
    FalseRange, Limited, LimitedForASecond, OtherRange, Reset, ResetInside, ServerError, Stall, Truncate,
    WholeForPart,
};

impl Fault {
    /// The code of a pull that this ended; `None` if it is never to end one.
    pub(crate) fn code(self) -> Option<Code> {
        match self {
            Reset | ServerError | Stall | Truncate | ResetInside => Some(Code::Unavailable),
            Limited | LimitedForASecond => Some(Code::ResourceExhausted),
            FalseRange => Some(Code::DataLoss),
            OtherRange | WholeForPart => None,
        }
    }

    /// The faults that an answer can have.
    fn of(request: &Request, reply: &Reply) -> &'static [Self] {
        match (request.method.as_str(), reply.status_code()) {
            ("HEAD", _) => &[Reset, ServerError, Limited, LimitedForASecond],
            // Parts are few, and their own faults are the rarest.
            (_, 206) => &[
                Reset,
                ServerError,
                Stall,
                Truncate,
                OtherRange,
                OtherRange,
                FalseRange,
                FalseRange,
                WholeForPart,
                WholeForPart,
            ],
            _ => &[Reset, ServerError, Limited, LimitedForASecond, Stall, Truncate, ResetInside],
        }
    }

    fn put(self, dice: u64, request: &Request, reply: Reply, whole: Option<Vec<u8>>) -> Reply {
        let length = reply.length();
        let inside = if length == 0 { 0 } else { usize::try_from(dice >> 32).unwrap_or_default() % length };
        let whole = whole.unwrap_or_default();
        match self {
            Reset => Reply::nothing(End::Reset),
            ServerError => Reply::status([500, 502, 503, 504][(dice >> 8) as usize % 4]),
            Limited => Reply::error(429, "TOOMANYREQUESTS", "slow down"),
            LimitedForASecond => Reply::error(429, "TOOMANYREQUESTS", "slow down").header("Retry-After", "1"),
            Stall => reply.cut_after(inside, End::Stall),
            Truncate => reply.cut_after(inside, End::Close),
            ResetInside => reply.cut_after(inside, End::Reset),
            OtherRange => {
                let range = format!("bytes 0-{}/{}", length.saturating_sub(1), whole.len());
                Reply::ok("application/octet-stream", &whole[..length.min(whole.len())])
                    .with_status(206)
                    .header("Content-Range", &range)
            }
            FalseRange => {
                let start = request.range_start().unwrap_or_default();
                let range = format!("bytes {start}-{}/{}", whole.len().saturating_sub(1), whole.len());
                Reply::ok("application/octet-stream", &noise(dice, length))
                    .with_status(206)
                    .header("Content-Range", &range)
            }
            WholeForPart => Reply::ok("application/octet-stream", &whole),
        }
    }
}

/// The faults that were met.
#[derive(Clone, Default)]
pub(crate) struct Faults {
    met: Arc<Mutex<Met>>,
}

#[derive(Default)]
struct Met {
    /// How often each method and path was asked.
    asked: HashMap<(String, String), u64>,
    /// By repository, since they were taken last.
    faults: HashMap<String, Vec<Fault>>,
    requests: usize,
}

impl Faults {
    /// Lets `registry` break. `blob` finds the whole of a blob by its path.
    pub(crate) fn break_some(
        registry: &Scripted,
        seed: u64,
        blob: impl Fn(&str) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let faults = Self::default();
        let met = Arc::clone(&faults.met);
        registry.change(move |request, reply| {
            let mut met = met.lock().unwrap_or_else(PoisonError::into_inner);
            met.requests += 1;
            let count = met.asked.entry((request.method.clone(), request.path().to_owned())).or_default();
            *count += 1;
            let dice = dice(&format!("{seed} {} {} {count}", request.method, request.path()));
            if dice % 100 >= BROKEN {
                return reply;
            }
            let possible = Fault::of(request, &reply);
            let fault = possible[(dice >> 16) as usize % possible.len()];
            let repository = request.repository().unwrap_or_default().to_owned();
            met.faults.entry(repository).or_default().push(fault);
            drop(met);
            fault.put(dice, request, reply, blob(request.path()))
        });
        faults
    }

    /// What the repository met since this was asked last.
    pub(crate) fn take(&self, repository: &str) -> Vec<Fault> {
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        met.faults.remove(repository).unwrap_or_default()
    }

    /// Every request so far, broken or not.
    pub(crate) fn requests(&self) -> usize {
        self.met.lock().unwrap_or_else(PoisonError::into_inner).requests
    }
}

/// A number that only these words lead to.
fn dice(words: &str) -> u64 {
    u64::from_str_radix(&digest(words.as_bytes())["sha256:".len()..][..16], 16).unwrap_or_default()
}
