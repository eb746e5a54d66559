//! The JSON shapes of indexes and manifests. Every field may be missing or `null`; what that means is decided where
//! the shape is read.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::DocumentError;
use crate::oci::media_type::Kind;

/// A struct that is read from a JSON object only. A derived `Deserialize` would also take an array, its elements in
/// the order of the fields, which no other reader does.
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

/// An index and a manifest at once, so that a document that is both shows it.
///
/// What containerd's own reader gives a type to must have it, used or not: it reads nothing of a document that has
/// another type anywhere.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "some fields are read for their type alone")]
pub(super) struct RawDocument {
    schema_version: Option<i64>,
    pub(super) media_type: Option<String>,
    pub(super) artifact_type: Option<String>,
    fs_layers: Option<IgnoredAny>,
    pub(super) manifests: Option<Vec<Object<RawDescriptor>>>,
    pub(super) config: Option<Object<RawDescriptor>>,
    pub(super) layers: Option<Vec<Object<RawDescriptor>>>,
    subject: Option<Object<RawDescriptor>>,
    annotations: Option<BTreeMap<String, Option<String>>>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawDescriptor {
    pub(super) media_type: Option<String>,
    pub(super) digest: Option<String>,
    /// Any value, so that the error about a wrong one can name its descriptor.
    pub(super) size: Option<serde_json::Value>,
    pub(super) annotations: Option<BTreeMap<String, Option<String>>>,
    pub(super) urls: Option<Vec<String>>,
    pub(super) platform: Option<Object<RawPlatform>>,
    pub(super) artifact_type: Option<String>,
}

#[derive(serde::Deserialize)]
pub(super) struct RawPlatform {
    pub(super) os: Option<String>,
    pub(super) architecture: Option<String>,
    pub(super) variant: Option<String>,
    #[serde(rename = "os.version")]
    pub(super) os_version: Option<String>,
    #[serde(rename = "os.features")]
    pub(super) os_features: Option<Vec<String>>,
}

impl RawDocument {
    pub(super) fn is_schema_1(&self) -> bool {
        self.fs_layers.is_some() || self.schema_version == Some(1)
    }

    /// Index or manifest, by the fields. An empty list counts as present, `null` does not.
    pub(super) fn kind(&self) -> Result<Kind, DocumentError> {
        match (self.manifests.is_some(), self.config.is_some() || self.layers.is_some()) {
            (true, false) => Ok(Kind::Index),
            (false, true) => Ok(Kind::Manifest),
            (true, true) => Err(DocumentError::Ambiguous),
            (false, false) => Err(DocumentError::Neither),
        }
    }
}
