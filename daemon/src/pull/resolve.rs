//! From a reference to an image's documents: target, platform manifest and config, all in the content store with the
//! labels that keep their children from collection.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::Error;
use crate::containerd::images::{Found, ImageRecord};
use crate::containerd::{Containerd, labels};
use crate::fetch::{Fetched, Fetcher, Source};
use crate::oci::digest::Algorithm;
use crate::oci::document::DocumentError;
use crate::oci::media_type::Kind;
use crate::oci::walk::{Documents, Parsed, Step};
use crate::oci::{
    Config, Descriptor, DiffId, Digest, Index, IndexEntry, Manifest, Platform, Reference, Walk, WalkError,
};
use crate::progress::Meter;
use crate::unpack::Context;
use crate::{fetch, registry};

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

/// What a reference points to.
pub(super) struct Named {
    target: Descriptor,
    told: Told,
}

/// Who says so.
enum Told {
    /// The registry, by these bytes.
    Body(Bytes),
    /// The registry, by the headers of HEAD alone.
    Headers,
    /// The record that the node has of it.
    Record,
}

/// Asks the registry what the reference points to. Writes nothing.
pub(super) async fn name(
    fetcher: &Fetcher,
    source: &Source,
    reference: &Reference,
    meter: &Meter,
) -> Result<Named, Error> {
    if let Some(digest) = reference.digest() {
        storable("digest", digest)?;
    }
    let registry = fetcher.registry().counting(meter.requests());
    let answer = registry.resolve(&source.repository, reference.object(), &source.credentials);
    let registry::Resolved { target, body, .. } = answer.await.map_err(Error::Resolve)?;
    meter.received(body.as_ref().map_or(0, |body| body.len() as u64));
    Ok(Named { target, told: body.map_or(Told::Headers, Told::Body) })
}

/// The same without asking the registry: what a reference by digest points to if the node has that image, and if the
/// registry has shown it to the same credentials before. Being on the node is not enough: it may have come there with
/// the credentials of another.
pub(super) async fn known(
    fetcher: &Fetcher,
    containerd: &Containerd,
    source: &Source,
    reference: &Reference,
) -> Result<Option<Named>, Error> {
    let Some(digest) = reference.digest() else { return Ok(None) };
    let shown = fetcher.registry().has_shown(&source.repository, digest, &source.credentials).await;
    if !shown.map_err(Error::Resolve)? {
        return Ok(None);
    }
    let record = containerd.find_image(&reference.with_digest(digest)).await;
    let Found::Record(ImageRecord { target, .. }) =
        record.map_err(|source| Error::Containerd { step: "look the image up", source })?
    else {
        return Ok(None);
    };
    // Others write records, too.
    let right = target.digest == *digest && matches!(target.kind(), Kind::Index | Kind::Manifest);
    Ok(right.then(|| Named { target, told: Told::Record }))
}

/// Brings the documents of the image for `platform` into the content store.
pub(super) async fn resolve(
    fetcher: &Arc<Fetcher>,
    context: &Context,
    reference: &Reference,
    named: Named,
    platform: &Platform,
) -> Result<Resolved, Error> {
    let mut desk = Desk::new(fetcher, context);
    let (target, documents) = desk.read(reference, named, platform).await?;
    desk.keep_all(&documents).await?;
    Ok(desk.resolved(target, documents))
}

/// Reads them alone, and writes nothing.
pub(super) async fn read(
    fetcher: &Arc<Fetcher>,
    context: &Context,
    reference: &Reference,
    named: Named,
    platform: &Platform,
) -> Result<Resolved, Error> {
    let mut desk = Desk::new(fetcher, context);
    let (target, documents) = desk.read(reference, named, platform).await?;
    Ok(desk.resolved(target, documents))
}

/// Where the documents come in, and from where they go into the content store.
struct Desk<'a> {
    fetcher: &'a Arc<Fetcher>,
    context: &'a Context,
    /// The target's bytes, if resolving had to read them: taken instead of asking again.
    given: Option<Bytes>,
    loaded: Vec<(Descriptor, Fetched)>,
    /// Documents under whose digests the content store has something else.
    contradicted: Vec<Descriptor>,
}

impl<'a> Desk<'a> {
    fn new(fetcher: &'a Arc<Fetcher>, context: &'a Context) -> Self {
        Self { fetcher, context, given: None, loaded: Vec::new(), contradicted: Vec::new() }
    }

    /// Reads the documents.
    ///
    /// A target of which only the headers of HEAD or a record are known may turn out not to be there, or not to be what
    /// they say. Then the manifest that `reference` leads to is read: they do not decide what its bytes can.
    async fn read(
        &mut self,
        reference: &Reference,
        named: Named,
        platform: &Platform,
    ) -> Result<(Descriptor, Documents), Error> {
        let Named { mut target, told } = named;
        let (given, hearsay) = match told {
            Told::Body(body) => (Some(body), None),
            Told::Headers => (None, Some("the headers of HEAD")),
            Told::Record => (None, Some("the image record")),
        };
        self.given = given;
        let documents = match self.walk(Walk::new(target.clone(), platform.clone())).await {
            Err(error) if hearsay.is_some() && self.denies_hearsay(&error, &target) => {
                let Ok(read) = self.read_target(reference).await else { return Err(error) };
                tracing::debug!(%reference, by = hearsay, told = %target.digest, %error, "the manifest is not what was told");
                target = read;
                self.walk(Walk::new(target.clone(), platform.clone())).await?
            }
            walked => walked?,
        };
        // What is in the content store is taken whatever length a header told.
        let first = documents.indexes.first();
        target.size = first.map_or(documents.manifest.bytes.len(), |index| index.bytes.len()) as u64;
        Ok((target, documents))
    }

    fn resolved(self, target: Descriptor, documents: Documents) -> Resolved {
        let Documents { manifest, config, .. } = documents;
        Resolved {
            target,
            manifest: manifest.descriptor,
            config_digest: config.descriptor.digest,
            config: config.document,
            layers: manifest.document.layers,
            documents: self.loaded,
        }
    }

    /// Whether an error shows that what was told of the target, and not by its bytes, is wrong.
    fn denies_hearsay(&self, error: &Error, target: &Descriptor) -> bool {
        use registry::Kind::{Answer, Corrupt, NotFound, Size};
        match error {
            Error::Document { source: fetch::Error::Registry(error), .. } => {
                self.loaded.is_empty() && matches!(error.kind(), NotFound | Answer | Corrupt | Size)
            }
            Error::Walk(WalkError::Malformed { digest, source, .. }) => {
                *digest == target.digest && matches!(**source, DocumentError::Contradiction { .. })
            }
            _ => false,
        }
    }

    /// Begins anew with the bytes that the registry has under the reference.
    async fn read_target(&mut self, reference: &Reference) -> Result<Descriptor, registry::Error> {
        let Context { source, progress, .. } = self.context;
        let meter = progress.meter();
        let registry = self.fetcher.registry().counting(meter.requests());
        let registry::Resolved { target, body, .. } =
            registry.resolve_by_body(&source.repository, reference.object(), &source.credentials).await?;
        meter.received(body.as_ref().map_or(0, |body| body.len() as u64));
        self.given = body;
        self.loaded.clear();
        Ok(target)
    }

    async fn walk(&mut self, mut walk: Walk) -> Result<Documents, Error> {
        loop {
            storable(walk.what(), &walk.wanted().digest)?;
            for layer in walk.manifest().map(|manifest| manifest.layers.as_slice()).unwrap_or_default() {
                storable("layer", &layer.digest)?;
            }
            let bytes = self.load(walk.what(), walk.wanted()).await?;
            match walk.read(bytes)? {
                Step::Next(next) => walk = next,
                Step::End(documents) => {
                    for DiffId(diff_id) in &documents.config.document.diff_ids {
                        storable("diff ID", diff_id)?;
                    }
                    return Ok(documents);
                }
            }
        }
    }

    async fn load(&mut self, what: &'static str, descriptor: &Descriptor) -> Result<Vec<u8>, Error> {
        if let Some(bytes) = self.given.take() {
            self.loaded.push((descriptor.clone(), Fetched::Transferred { continued: 0 }));
            return Ok(bytes.into());
        }
        let Context { containerd, source, progress, .. } = self.context;
        let loaded = self.fetcher.load(containerd, source, descriptor, progress.meter()).await;
        let document = loaded.map_err(|source| Error::Document { what, source })?;
        if document.contradicted {
            self.contradicted.push(descriptor.clone());
        }
        self.loaded.push((descriptor.clone(), document.fetched));
        Ok(document.bytes)
    }

    /// Only once all are read: an image that is broken or not for this machine leaves nothing behind.
    async fn keep_all(&self, documents: &Documents) -> Result<(), Error> {
        for document in &self.contradicted {
            let discarded = self.fetcher.discard(&self.context.containerd, document).await;
            discarded.map_err(|source| Error::Document { what: "document", source })?;
        }
        let Documents { indexes, manifest, config } = documents;
        for index in indexes {
            self.keep("index", index, index_labels(&index.document)).await?;
        }
        self.keep("manifest", manifest, manifest_labels(&manifest.document, self.context.keep_layers))
            .await?;
        self.keep("config", config, HashMap::new()).await
    }

    async fn keep<T>(
        &self,
        what: &'static str,
        Parsed { descriptor, bytes, .. }: &Parsed<T>,
        labels: HashMap<String, String>,
    ) -> Result<(), Error> {
        let Context { containerd, source, .. } = self.context;
        let kept = self.fetcher.keep(containerd, source, descriptor, bytes, labels).await;
        kept.map_err(|source| Error::Document { what, source })
    }
}

/// Refuses what containerd could not keep before any of it is downloaded. Its content store hashes all that is written
/// with sha256 and knows it by that name alone, and so does its differ with what it unpacks.
fn storable(what: &'static str, digest: &Digest) -> Result<(), Error> {
    match digest.algorithm() {
        Algorithm::Sha256 => Ok(()),
        Algorithm::Sha384 | Algorithm::Sha512 => Err(Error::Algorithm { what, digest: digest.clone() }),
    }
}

/// All children, chosen or not, as containerd labels them: an entry that is fetched later is then kept, too.
fn index_labels(index: &Index) -> HashMap<String, String> {
    let label = |(n, entry): (usize, &IndexEntry)| {
        let child = entry.descriptor.as_ref().ok()?;
        Some((format!("{}.{n}", labels::GC_REF_MANIFEST), child.digest.to_string()))
    };
    index.entries.iter().enumerate().filter_map(label).collect()
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
