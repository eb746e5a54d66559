//! Values that are written as text in the file: the bridge between their written form and serde, so that every such
//! value is refused in the same words, whether the type or the text is wrong.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

/// A value with a written form.
pub(super) trait Written: Sized {
    /// What the text must be, as it follows "expected".
    const FORM: &'static str;

    /// The meaning of `text`, if it has one.
    fn read(text: &str) -> Option<Self>;

    /// The text that reads as this value.
    fn write(&self) -> String;
}

pub(super) fn deserialize<'de, T: Written, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_str(TextVisitor(PhantomData))
}

pub(super) fn serialize<T: Written, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.write())
}

/// Lists of such values.
pub(super) mod list {
    use super::{Deserialize, Deserializer, Item, Serializer, Written};

    pub(in super::super) fn deserialize<'de, T: Written, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        let items = Vec::<Item<T>>::deserialize(deserializer)?;
        Ok(items.into_iter().map(|Item(value)| value).collect())
    }

    pub(in super::super) fn serialize<T: Written, S: Serializer>(
        values: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(T::write))
    }
}

#[derive(Deserialize, Serialize)]
#[serde(transparent, bound = "T: Written")]
struct Item<T: Written>(#[serde(with = "self")] T);

struct TextVisitor<T>(PhantomData<T>);

impl<T: Written> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::FORM)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::read(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}
