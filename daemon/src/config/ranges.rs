//! How many ranges of a layer come at once, and how large each is. Both have a most, since their product is memory that
//! one layer may take; a slip of a unit is refused here instead of killing the daemon during a pull.

use std::fmt;
use std::num::NonZeroUsize;

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::ser::{Serialize as _, Serializer};

use super::size::Size;
use super::written::Written;

/// More connections than this to one host gain nothing, and hosts refuse them.
const MOST_PARALLEL: usize = 32;
/// Large enough that asking for the next range is no cost; 4 ranges of this are 1 GiB.
const LARGEST: u64 = 256 << 20;

/// The bytes of one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeSize(pub u64);

impl Written for RangeSize {
    const FORM: &'static str =
        "a number of bytes above zero and up to 256MiB, such as \"8MiB\" or \"512KiB\"";

    fn read(text: &str) -> Option<Self> {
        let Size(bytes) = Size::read(text)?;
        (bytes <= LARGEST).then_some(Self(bytes))
    }

    fn write(&self) -> String {
        Size(self.0).write()
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NonZeroUsize, D::Error> {
    deserializer.deserialize_i64(ParallelVisitor)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
pub(super) fn serialize<S: Serializer>(parallel: &NonZeroUsize, serializer: S) -> Result<S::Ok, S::Error> {
    parallel.get().serialize(serializer)
}

struct ParallelVisitor;

impl Visitor<'_> for ParallelVisitor {
    type Value = NonZeroUsize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 1 to {MOST_PARALLEL}")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        let parallel = usize::try_from(number).ok().filter(|parallel| *parallel <= MOST_PARALLEL);
        parallel
            .and_then(NonZeroUsize::new)
            .ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
    }
}
