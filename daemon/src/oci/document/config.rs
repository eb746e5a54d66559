//! The image config: what the image runs on and as whom, and which layers it consists of.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::shape::{Object, RawPlatform};
use super::time::Time;
use super::{DocumentError, MAX_CONFIG, platform, read};
use crate::oci::chain::DiffId;
use crate::oci::excerpt::excerpt;
use crate::oci::platform::Platform;

/// The part of an image config that a pull and the CRI answers need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What the image runs on; without names in configs of old tools.
    pub platform: Platform,
    /// Whom containers run as, `user[:group]` by name or number; empty for root.
    pub user: String,
    /// The layers' diff IDs, lowest first.
    pub diff_ids: Vec<DiffId>,
    /// What the diff IDs are; `layers` where it is given at all.
    pub rootfs_type: Option<String>,
}

/// How many fields an error lists of a config that is no image config.
const MAX_LISTED: usize = 8;

impl Config {
    /// Reads an image config; of other configs it says what they look like, since their media type often does not.
    ///
    /// Every field that containerd's own reader gives a type to (image-spec's `Image`) must have that type here, used or
    /// not: containerd reads none of a config that has another one anywhere, and its CRI shows no such image.
    pub fn parse(bytes: &[u8]) -> Result<Self, DocumentError> {
        let raw: RawConfig = read(bytes, MAX_CONFIG)?;
        let Some(Object(rootfs)) = raw.rootfs else {
            return Err(DocumentError::NotAnImage { found: fields(&read(bytes, MAX_CONFIG)?) });
        };
        Ok(Self {
            platform: platform(RawPlatform {
                os: raw.os,
                architecture: raw.architecture,
                variant: raw.variant,
                os_version: raw.os_version,
                os_features: raw.os_features,
            }),
            user: raw.config.and_then(|Object(config)| config.user).unwrap_or_default(),
            diff_ids: diff_ids(&rootfs.diff_ids.unwrap_or_default())?,
            rootfs_type: rootfs.kind.filter(|kind| !kind.is_empty()),
        })
    }
}

#[derive(serde::Deserialize)]
#[allow(dead_code, reason = "some fields are read for their type alone")]
struct RawConfig {
    created: Option<Time>,
    author: Option<String>,
    os: Option<String>,
    architecture: Option<String>,
    variant: Option<String>,
    #[serde(rename = "os.version")]
    os_version: Option<String>,
    #[serde(rename = "os.features")]
    os_features: Option<Vec<String>>,
    config: Option<Object<RawContainer>>,
    rootfs: Option<Object<RawRootfs>>,
    history: Option<Vec<Option<Object<RawHistory>>>>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
#[allow(dead_code, reason = "some fields are read for their type alone")]
struct RawContainer {
    user: Option<String>,
    exposed_ports: Option<Set>,
    env: Option<Vec<Option<String>>>,
    entrypoint: Option<Vec<Option<String>>>,
    cmd: Option<Vec<Option<String>>>,
    volumes: Option<Set>,
    working_dir: Option<String>,
    labels: Option<BTreeMap<String, Option<String>>>,
    stop_signal: Option<String>,
    args_escaped: Option<bool>,
}

#[derive(serde::Deserialize)]
#[allow(dead_code, reason = "read for its types alone")]
struct RawHistory {
    created: Option<Time>,
    created_by: Option<String>,
    author: Option<String>,
    comment: Option<String>,
    empty_layer: Option<bool>,
}

/// A set of names as Go writes it: each is the name of an empty object.
type Set = BTreeMap<String, Option<Object<Empty>>>;

#[derive(serde::Deserialize)]
struct Empty {}

/// Docker leaves `diff_ids` out and Go tools write `null` for an image without layers.
#[derive(serde::Deserialize)]
struct RawRootfs {
    #[serde(rename = "type")]
    kind: Option<String>,
    diff_ids: Option<Vec<String>>,
}

fn diff_ids(texts: &[String]) -> Result<Vec<DiffId>, DocumentError> {
    let parse = |(position, text): (usize, &String)| match text.parse() {
        Ok(digest) => Ok(DiffId(digest)),
        Err(source) => Err(DocumentError::BadDiffId { position, source }),
    };
    texts.iter().enumerate().map(parse).collect()
}

/// The names of an object's fields, for a message.
fn fields(object: &Map<String, Value>) -> String {
    if object.is_empty() {
        return "it is empty".to_owned();
    }
    let names: Vec<String> =
        object.keys().take(MAX_LISTED).map(|name| format!("`{}`", excerpt(name))).collect();
    let more = if object.len() > MAX_LISTED { " and more" } else { "" };
    format!("its fields are {}{more}", names.join(", "))
}

#[cfg(test)]
mod tests;
