//! Indexes, manifests and configs: small blobs whose bytes the puller reads, and whose labels depend on what they
//! say. So they are loaded first and kept second.

use std::collections::HashMap;

use crate::containerd::content::Committed;
use crate::containerd::{Containerd, Kind};
use crate::oci::Descriptor;

use super::{Error, Fetched, Fetcher, Meter, Source, note_source, open, source_label};

/// Larger ones are refused rather than held in memory: four times containerd's limit for manifests, since configs
/// carry an image's whole history.
const MAX_DOCUMENT: u64 = 16 << 20;

/// A document's bytes, proved by its digest, and where they came from.
#[derive(Clone, Debug)]
pub struct Document {
    /// The bytes as the registry sent them.
    pub bytes: Vec<u8>,
    /// Whether they were read from the content store.
    pub fetched: Fetched,
}

impl Fetcher {
    /// The document's bytes, from the content store or else from the registry.
    pub async fn load(
        &self,
        containerd: &Containerd,
        source: &Source,
        document: &Descriptor,
        meter: &Meter,
    ) -> Result<Document, Error> {
        if document.size > MAX_DOCUMENT {
            return Err(Error::TooLarge {
                media_type: document.media_type.clone(),
                digest: document.digest.clone(),
                size: document.size,
                limit: MAX_DOCUMENT,
            });
        }
        match containerd
            .read_blob(&document.digest, usize::try_from(MAX_DOCUMENT).unwrap_or(usize::MAX))
            .await
        {
            // A store that lost power may hold other bytes than its records say: those are fetched again.
            Ok(bytes) if document.digest.matches(&bytes) => {
                return Ok(Document { bytes, fetched: Fetched::Present });
            }
            Ok(_) => {}
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        let bytes = self.download(source, document, meter).await?;
        let fetched = Fetched::Transferred(bytes.len() as u64);
        Ok(Document { bytes, fetched })
    }

    /// Puts the document into the content store with these labels, held by the lease that `containerd` is under.
    pub async fn keep(
        &self,
        containerd: &Containerd,
        source: &Source,
        document: &Descriptor,
        bytes: &[u8],
        labels: HashMap<String, String>,
    ) -> Result<(), Error> {
        let _turn = self.turns.take(document.digest.clone()).await;
        let Some(mut ingest) = open(containerd, document).await? else {
            note_source(containerd, source, document).await?;
            return add_labels(containerd, document, labels).await;
        };
        // Complete already when another namespace has the blob and containerd shares content between them.
        if ingest.offset() < document.size {
            ingest.rewind();
            ingest.write(bytes.to_vec()).await?;
        }
        let mut all = labels;
        all.extend([source_label(source, None)]);
        match ingest.commit(all.clone()).await? {
            Committed::Now => Ok(()),
            Committed::Before => add_labels(containerd, document, all).await,
        }
    }

    async fn download(
        &self,
        source: &Source,
        document: &Descriptor,
        meter: &Meter,
    ) -> Result<Vec<u8>, Error> {
        let _open = meter.open();
        let mut body = self.registry.open(&source.repository, document, 0, &source.credentials).await?;
        let mut bytes = Vec::new();
        while let Some(part) = body.next().await? {
            meter.received(part.len());
            bytes.extend_from_slice(&part);
        }
        if !document.digest.matches(&bytes) {
            let host = source.repository.domain.clone();
            return Err(Error::Corrupt { digest: document.digest.clone(), host });
        }
        Ok(bytes)
    }
}

/// Writes only labels that are missing, so that a repeated pull changes nothing.
async fn add_labels(
    containerd: &Containerd,
    document: &Descriptor,
    mut labels: HashMap<String, String>,
) -> Result<(), Error> {
    if let Some(info) = containerd.blob_info(&document.digest).await? {
        labels.retain(|key, value| info.labels.get(key) != Some(value));
    }
    Ok(containerd.label_blob(&document.digest, labels).await?)
}
