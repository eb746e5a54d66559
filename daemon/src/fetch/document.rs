//! Indexes, manifests and configs: small blobs whose bytes the puller reads, and whose labels depend on what they
//! say. So they are loaded first and kept second.

use std::collections::HashMap;

use crate::containerd::content::Committed;
use crate::containerd::{Containerd, Kind};
use crate::oci::Descriptor;
use crate::oci::document::MAX_CONFIG;
use crate::progress::Meter;

use super::{Error, Fetched, Fetcher, Source, ingest_reference, open};

/// A document's bytes, proved by its digest, and where they came from.
#[derive(Clone, Debug)]
pub struct Document {
    /// The bytes as the registry sent them.
    pub bytes: Vec<u8>,
    /// Whether they were read from the content store.
    pub fetched: Fetched,
    /// Whether the content store has something else under that digest, which is to be discarded before they are kept.
    pub contradicted: bool,
}

impl Fetcher {
    /// The document's bytes, from the content store or else from the registry. Writes nothing.
    pub async fn load(
        &self,
        containerd: &Containerd,
        source: &Source,
        document: &Descriptor,
        meter: &Meter,
    ) -> Result<Document, Error> {
        if document.size > MAX_CONFIG as u64 {
            return Err(Error::TooLarge {
                media_type: document.media_type.clone(),
                digest: document.digest.clone(),
                size: document.size,
                limit: MAX_CONFIG as u64,
            });
        }
        let contradicted = match stored(containerd, document).await? {
            Stored::Right(bytes) => {
                return Ok(Document { bytes, fetched: Fetched::Present, contradicted: false });
            }
            Stored::Wrong => true,
            Stored::Nothing => false,
        };
        let (bytes, fetched) = self.newly(source, document, meter).await?;
        Ok(Document { bytes, fetched, contradicted })
    }

    /// The document as the registry has it, or as another pull has just had it from there.
    async fn newly(
        &self,
        source: &Source,
        document: &Descriptor,
        meter: &Meter,
    ) -> Result<(Vec<u8>, Fetched), Error> {
        let _turn = self.turns.take(document.digest.clone()).await;
        // Of another size than this descriptor says, it is for the registry's answer to tell which is wrong.
        let known = self.recent.get(&document.digest).filter(|bytes| bytes.len() as u64 == document.size);
        if let Some(bytes) = known {
            return Ok((bytes, Fetched::Present));
        }
        let registry = self.registry.counting(meter.requests());
        let bytes = registry.document(&source.repository, document, &source.credentials).await?.to_vec();
        meter.received(document.size);
        self.recent.put(document.digest.clone(), bytes.clone());
        Ok((bytes, Fetched::Transferred { continued: 0 }))
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
        let mut all = labels.clone();
        all.extend([source.label()]);
        let mut discarded = false;
        loop {
            let Some(mut ingest) = open(containerd, document, || {}).await? else { break };
            // Complete already when another namespace has the blob and containerd shares content between them, or when
            // an earlier writer was stopped before its commit.
            if ingest.offset() < document.size {
                ingest.rewind();
                ingest.write(bytes.to_vec()).await?;
            }
            match ingest.commit(all.clone()).await {
                Ok(Committed::Now) => return Ok(()),
                Ok(Committed::Before) => break,
                // Ours match; what an earlier writer left does not.
                Err(error) if error.kind() == Kind::Mismatch && !discarded => {
                    containerd.abort_ingest(&ingest_reference(document)).await?;
                    discarded = true;
                }
                Err(error) => return Err(error.into()),
            }
        }
        source.note(containerd, document, labels).await
    }

    /// Throws away a blob that is in the store with other bytes than its records say, as after a loss of power. What
    /// only its labels held goes with it, and this pull makes it anew.
    pub async fn discard(&self, containerd: &Containerd, document: &Descriptor) -> Result<(), Error> {
        let _turn = self.turns.take(document.digest.clone()).await;
        // Another pull may have written it anew meanwhile.
        if !matches!(stored(containerd, document).await?, Stored::Wrong) {
            return Ok(());
        }
        tracing::warn!(digest = %document.digest, "a blob in the content store is broken: it is written anew");
        Ok(containerd.discard_blob(&document.digest).await?)
    }
}

/// What the store has under a document's digest.
enum Stored {
    /// The document.
    Right(Vec<u8>),
    /// A record of it, and other bytes or none.
    Wrong,
    Nothing,
}

async fn stored(containerd: &Containerd, document: &Descriptor) -> Result<Stored, Error> {
    match containerd.read_blob(&document.digest, MAX_CONFIG).await {
        Ok(bytes) if document.digest.matches(&bytes) => Ok(Stored::Right(bytes)),
        Ok(_) => Ok(Stored::Wrong),
        // The record may be there without its file.
        Err(error) if error.kind() == Kind::NotFound => match containerd.blob_info(&document.digest).await? {
            Some(_) => Ok(Stored::Wrong),
            None => Ok(Stored::Nothing),
        },
        Err(error) => Err(error.into()),
    }
}
