//! From a reference to an image's documents: target, platform manifest and config, all in the content store with the
//! labels that keep their children from collection.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::Error;
use super::request::Request;
use crate::containerd::labels;
use crate::fetch::{Fetched, Fetcher};
use crate::oci::document::{Config, Document, Index, Manifest};
use crate::oci::media_type::Kind;
use crate::oci::platform::{self, Platform};
use crate::oci::{Descriptor, Digest, IndexEntry};
use crate::registry;
use crate::unpack::Context;

/// Indexes in indexes: one level is in use (an index of variants); more is a mistake or an attack.
const MAX_NESTING: usize = 4;

/// An image whose documents are in the content store.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// What the name points to: an index or a manifest.
    pub target: Descriptor,
    /// The platform's manifest.
    pub manifest: Descriptor,
    /// Digest of the image config.
    pub config_digest: Digest,
    /// The image config.
    pub config: Config,
    /// Layers by the manifest, lowest first.
    pub layers: Vec<Descriptor>,
    /// Every document above, and whether it had to be fetched.
    pub documents: Vec<(Descriptor, Fetched)>,
}

/// Resolves the request's reference for `platform`. With `keep_layers` the manifest holds its layer blobs.
pub(super) async fn resolve(
    fetcher: &Arc<Fetcher>,
    context: &Context,
    request: &Request,
    platform: &Platform,
    keep_layers: bool,
) -> Result<Resolved, Error> {
    let source = &context.source;
    let answer = {
        let _open = context.meter.open();
        let registry = fetcher.registry();
        registry.resolve(&source.repository, request.reference.object(), &source.credentials).await
    };
    let registry::Resolved { target, body, .. } = answer.map_err(Error::Resolve)?;
    context.meter.received(body.as_ref().map_or(0, Bytes::len));
    let mut walk = Walk { fetcher, context, given: body, documents: Vec::new() };
    let (manifest_descriptor, manifest) = walk.manifest(target.clone(), platform, keep_layers).await?;
    let config = walk.config(&manifest.config).await?;
    Ok(Resolved {
        target,
        manifest: manifest_descriptor,
        config_digest: manifest.config.digest,
        config,
        layers: manifest.layers,
        documents: walk.documents,
    })
}

struct Walk<'a> {
    fetcher: &'a Arc<Fetcher>,
    context: &'a Context,
    /// The target's bytes, if resolving had to read them: taken instead of asking again.
    given: Option<Bytes>,
    documents: Vec<(Descriptor, Fetched)>,
}

impl Walk<'_> {
    /// Descends from the target to the manifest of the platform.
    async fn manifest(
        &mut self,
        target: Descriptor,
        platform: &Platform,
        keep_layers: bool,
    ) -> Result<(Descriptor, Manifest), Error> {
        let mut next = target;
        for _ in 0..=MAX_NESTING {
            let what = if next.kind() == Kind::Index { "index" } else { "manifest" };
            let bytes = self.load(what, &next).await?;
            let document = Document::parse(Some(&next.media_type), &bytes)
                .map_err(|source| Error::Malformed { what, digest: next.digest.clone(), source })?;
            match document {
                Document::Manifest(manifest) => {
                    self.keep(what, &next, &bytes, manifest_labels(&manifest, keep_layers)).await?;
                    return Ok((next, manifest));
                }
                Document::Index(index) => {
                    // Chosen first: an image that is not for this machine leaves nothing behind.
                    let entry = platform::select(&index.entries, platform)?.descriptor.clone();
                    self.keep(what, &next, &bytes, index_labels(&index)).await?;
                    next = entry;
                }
            }
        }
        Err(Error::Nesting { limit: MAX_NESTING })
    }

    async fn config(&mut self, descriptor: &Descriptor) -> Result<Config, Error> {
        let bytes = self.load("config", descriptor).await?;
        let config = Config::parse(&bytes).map_err(|source| Error::Malformed {
            what: "config",
            digest: descriptor.digest.clone(),
            source,
        })?;
        self.keep("config", descriptor, &bytes, HashMap::new()).await?;
        Ok(config)
    }

    async fn load(&mut self, what: &'static str, descriptor: &Descriptor) -> Result<Vec<u8>, Error> {
        if let Some(bytes) = self.given.take() {
            self.documents.push((descriptor.clone(), Fetched::Transferred { continued: 0 }));
            return Ok(bytes.into());
        }
        let Context { containerd, source, meter, .. } = self.context;
        let loaded = self.fetcher.load(containerd, source, descriptor, meter).await;
        let document = loaded.map_err(|source| Error::Document { what, source })?;
        self.documents.push((descriptor.clone(), document.fetched));
        Ok(document.bytes)
    }

    async fn keep(
        &self,
        what: &'static str,
        descriptor: &Descriptor,
        bytes: &[u8],
        labels: HashMap<String, String>,
    ) -> Result<(), Error> {
        let Context { containerd, source, .. } = self.context;
        let kept = self.fetcher.keep(containerd, source, descriptor, bytes, labels).await;
        kept.map_err(|source| Error::Document { what, source })
    }
}

/// All children, chosen or not, as containerd labels them: an entry that is fetched later is then kept, too.
fn index_labels(index: &Index) -> HashMap<String, String> {
    let label = |(n, entry): (usize, &IndexEntry)| {
        (format!("{}.{n}", labels::GC_REF_MANIFEST), entry.descriptor.digest.to_string())
    };
    index.entries.iter().enumerate().map(label).collect()
}

/// Layers that are never fetched are labelled, too: a reference to nothing is harmless, and a later pull for another
/// snapshotter may bring them. Without `keep_layers` they are not, and go once the lease does.
fn manifest_labels(manifest: &Manifest, keep_layers: bool) -> HashMap<String, String> {
    let mut all = HashMap::from([(labels::GC_REF_CONFIG.to_owned(), manifest.config.digest.to_string())]);
    let (mut layers, mut others) = (0, 0);
    for child in &manifest.layers {
        let (prefix, n) = match child.kind() {
            Kind::Layer if !keep_layers => continue,
            Kind::Layer => (labels::GC_REF_LAYER, &mut layers),
            _ => (labels::GC_REF_OTHER, &mut others),
        };
        all.insert(format!("{prefix}.{n}"), child.digest.to_string());
        *n += 1;
    }
    all
}
