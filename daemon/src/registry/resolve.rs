//! Resolving: what a tag or digest points to on one host. A digest is taken from a header only for a valid and
//! complete answer to HEAD; in every other case the manifest is read and hashed. What it then is, its bytes say.

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::Value;

use super::failure::{Failure, redacted};
use super::retry;
use super::session::{Ask, Session};
use super::wire::{Answer, Role};
use crate::oci::digest::Hasher;
use crate::oci::document::MAX_MANIFEST;
use crate::oci::media_type::{self, Kind};
use crate::oci::{Descriptor, Digest};

/// What is accepted for a reference. A registry may keep several forms of one tag and chooses by this, so it is the
/// same on every retry.
const ACCEPT: &str = "application/vnd.docker.distribution.manifest.v2+json, \
                      application/vnd.docker.distribution.manifest.list.v2+json, \
                      application/vnd.oci.image.manifest.v1+json, \
                      application/vnd.oci.image.index.v1+json, */*";

/// What a reference points to.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The index or manifest.
    pub target: Descriptor,
    /// Its bytes, when they had to be read to learn the digest.
    pub body: Option<Bytes>,
    /// The host that answered.
    pub host: String,
}

/// Asks one host.
pub(super) async fn resolve(session: &Session<'_>, object: &str) -> Result<Resolved, Failure> {
    let wanted = object.parse::<Digest>().ok();
    match session.send(ask(&Method::HEAD, object)).await {
        Ok(answer) if answer.response.status().is_success() => {
            if let Some(target) = target_of_headers(&answer, wanted.as_ref()) {
                return Ok(Resolved { target, body: None, host: session.host.authority.clone() });
            }
        }
        // It asks for a wait that it will get: GET would be refused as well. Without one, or with one that nobody can
        // be kept for, GET gets the registry's own words, which an answer to HEAD cannot hold.
        Ok(answer)
            if answer.response.status() == StatusCode::TOO_MANY_REQUESTS && answer.told().is_some() =>
        {
            let refusal = session.refusal(answer).await;
            if retry::is_worth_it(&refusal) {
                return Err(refusal);
            }
        }
        // Some registries refuse or break on HEAD only, with any status.
        Ok(_) | Err(Failure::Broken { .. }) => {}
        Err(failure) => return Err(failure),
    }
    Ok(read(session, object).await?.0)
}

/// Asks one host for the manifest itself, whatever it says to HEAD. What came by that was wrong already, so bytes that
/// are not what this answer's own header says are not taken, either: they are broken on the way.
pub(super) async fn resolve_by_body(session: &Session<'_>, object: &str) -> Result<Resolved, Failure> {
    let (resolved, answer) = read(session, object).await?;
    let told = answer.header("docker-content-digest").and_then(|told| told.trim().parse::<Digest>().ok());
    match (told, &resolved.body) {
        (Some(told), Some(body)) if !told.matches(body) => {
            let actual = Some(resolved.target.digest.to_string());
            Err(Failure::Corrupt { url: redacted(&answer.url), actual })
        }
        _ => Ok(resolved),
    }
}

async fn read(session: &Session<'_>, object: &str) -> Result<(Resolved, Answer), Failure> {
    let wanted = object.parse::<Digest>().ok();
    let mut answer = session.send(ask(&Method::GET, object)).await?;
    if !answer.response.status().is_success() {
        return Err(session.refusal(answer).await);
    }
    let body = answer.document(MAX_MANIFEST).await?;
    let target = target_of_body(&answer, &body, wanted)?;
    Ok((Resolved { target, body: Some(body), host: session.host.authority.clone() }, answer))
}

fn ask<'a>(method: &'a Method, object: &'a str) -> Ask<'a> {
    Ask {
        method,
        collection: "manifests",
        object,
        accept: ACCEPT,
        offset: 0,
        end: None,
        role: Role::Document,
    }
}

/// The target as the headers of a HEAD tell it, if they tell all of it and make sense.
fn target_of_headers(answer: &Answer, wanted: Option<&Digest>) -> Option<Descriptor> {
    let told = match answer.header("docker-content-digest") {
        Some(header) => Some(header.trim().parse::<Digest>().ok()?),
        None => None,
    };
    let digest = match (told, wanted) {
        (Some(told), Some(wanted)) if told != *wanted => return None,
        (told, wanted) => told.or_else(|| wanted.cloned())?,
    };
    let size = answer.length().filter(|&size| size > 0 && size <= MAX_MANIFEST as u64)?;
    let media_type = answer.media_type().filter(|media_type| is_manifest(media_type))?;
    Some(descriptor(media_type, digest, size))
}

fn target_of_body(answer: &Answer, body: &[u8], wanted: Option<Digest>) -> Result<Descriptor, Failure> {
    let announced = answer.media_type().unwrap_or_default();
    if announced == "text/html" {
        return Err(answer.unusable("the answer is an HTML page, not a manifest: is this a registry?"));
    }
    let digest = match wanted {
        Some(wanted) if !wanted.matches(body) => {
            let mut hasher = Hasher::new(wanted.algorithm());
            hasher.update(body);
            let actual = Some(hasher.finish().to_string());
            return Err(Failure::Corrupt { url: redacted(&answer.url), actual });
        }
        Some(wanted) => wanted,
        None => Digest::of(body),
    };
    // Schema 1 is handed on, too: whoever reads it says what it is.
    let told = is_manifest(&announced) || media_type::is_schema_1(&announced);
    let media_type = if told { Some(announced.clone()) } else { media_type_of(body) };
    let media_type = media_type.ok_or_else(|| {
        answer.unusable(format!("content type `{announced}` is neither a manifest nor an index"))
    })?;
    Ok(descriptor(media_type, digest, body.len() as u64))
}

/// The media type a document itself shows, for registries that announce it as plain JSON.
fn media_type_of(body: &[u8]) -> Option<String> {
    let json: Value = serde_json::from_slice(body).ok()?;
    if let Some(own) = json.get("mediaType") {
        return own.as_str().filter(|own| is_manifest(own)).map(String::from);
    }
    let has = |key| json.get(key).is_some();
    if has("fsLayers") {
        return Some(media_type::DOCKER_SCHEMA_1.into());
    }
    match (has("manifests"), has("config") && has("layers")) {
        (true, false) => Some(media_type::OCI_INDEX.into()),
        (false, true) => Some(media_type::OCI_MANIFEST.into()),
        _ => None,
    }
}

pub(super) fn is_manifest(media_type: &str) -> bool {
    matches!(media_type::kind(media_type), Kind::Index | Kind::Manifest)
}

fn descriptor(media_type: String, digest: Digest, size: u64) -> Descriptor {
    let annotations = std::collections::BTreeMap::new();
    Descriptor { media_type, digest, size, annotations, urls: Vec::new() }
}
