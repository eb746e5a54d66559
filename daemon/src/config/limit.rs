//! Limits that are written as a number, where 0 is no limit.

use std::fmt;
use std::num::NonZeroUsize;

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::ser::{Serialize as _, Serializer};

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<NonZeroUsize>, D::Error> {
    deserializer.deserialize_i64(LimitVisitor)
}

#[expect(clippy::ref_option, clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
pub(super) fn serialize<S: Serializer>(
    limit: &Option<NonZeroUsize>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    limit.map_or(0, NonZeroUsize::get).serialize(serializer)
}

struct LimitVisitor;

impl Visitor<'_> for LimitVisitor {
    type Value = Option<NonZeroUsize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, or 0 for no limit")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        usize::try_from(number)
            .map(NonZeroUsize::new)
            .map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }
}
