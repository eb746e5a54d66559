//! The content store: blobs by digest. Reading small documents, labels, and the translation of descriptors; writing
//! is in [`ingest`].

pub mod ingest;

use std::collections::HashMap;
use std::time::Duration;

use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::{
    DeleteContentRequest, Info, InfoRequest, ListContentRequest, ReadContentRequest, ReadContentResponse,
    UpdateRequest,
};
use containerd_client::types::Descriptor as WireDescriptor;
use prost_types::FieldMask;
use tonic::Streaming;
use tonic::transport::Channel;

use super::snapshots::Usage;
use super::{Containerd, Error, Kind, MAX_MESSAGE, METADATA_DEADLINE};
use crate::oci::digest::Hasher;
use crate::oci::{Descriptor, Digest};

pub use ingest::{Committed, Ingest, Opened};

/// What the content store knows of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobInfo {
    /// Length in bytes.
    pub size: u64,
    /// Its labels.
    pub labels: HashMap<String, String>,
}

/// A blob that is being read.
#[derive(Debug)]
pub struct BlobParts {
    stream: Streaming<ReadContentResponse>,
    /// For messages.
    digest: Digest,
}

impl BlobParts {
    /// The next part, of 1 MiB at most; `None` at the end of the blob.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let Ok(answer) = tokio::time::timeout(METADATA_DEADLINE, self.stream.message()).await else {
            return Err(Error::late(OPEN, self.digest.as_str(), METADATA_DEADLINE));
        };
        let part = answer.map_err(|status| Error::new(OPEN, self.digest.as_str(), &status))?;
        Ok(part.map(|part| part.data))
    }
}

/// What reading a blob is called in errors.
const OPEN: &str = "read blob";
/// Bytes per second that any disk reads, however busy it is.
const SLOWEST_READ: u64 = 20_000_000;

impl Containerd {
    /// Whether the blob is there, and its labels.
    pub async fn blob_info(&self, digest: &Digest) -> Result<Option<BlobInfo>, Error> {
        const OPERATION: &str = "look up blob";
        let request = self.request(InfoRequest { digest: digest.to_string() });
        match self
            .content_client()
            .info(request)
            .await
            .map_err(|status| Error::new(OPERATION, digest.as_str(), &status))
        {
            Ok(response) => {
                let info = response.into_inner().info.unwrap_or_default();
                let size = u64::try_from(info.size).unwrap_or(0);
                Ok(Some(BlobInfo { size, labels: info.labels }))
            }
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Digests of all blobs that have a label of this name.
    pub async fn labelled_blobs(&self, label: &str) -> Result<Vec<Digest>, Error> {
        let failed = |status| Error::new("list blobs with the label", label, &status);
        let message = ListContentRequest { filters: vec![format!("labels.\"{label}\"")] };
        let listed = self.content_client().list(self.request(message)).await;
        let mut stream = listed.map_err(failed)?.into_inner();
        let mut digests = Vec::new();
        while let Some(page) = stream.message().await.map_err(failed)? {
            // What is not a digest names no blob.
            digests.extend(page.info.into_iter().filter_map(|info| info.digest.parse::<Digest>().ok()));
        }
        Ok(digests)
    }

    /// How many blobs the namespace has, and how many bytes they are. One blob is one file.
    pub async fn content_usage(&self) -> Result<Usage, Error> {
        const OPERATION: &str = "list blobs";
        let failed = |status| Error::new(OPERATION, "", &status);
        let listed =
            self.content_client().list(self.request(ListContentRequest { filters: Vec::new() })).await;
        let mut stream = listed.map_err(failed)?.into_inner();
        let mut usage = Usage::default();
        while let Some(page) = stream.message().await.map_err(failed)? {
            usage.inodes += page.info.len() as u64;
            usage.bytes += page.info.iter().map(|info| u64::try_from(info.size).unwrap_or(0)).sum::<u64>();
        }
        Ok(usage)
    }

    /// The bytes of a blob that is known to be small, and an error if it is larger than `limit` bytes.
    pub async fn read_blob(&self, digest: &Digest, limit: usize) -> Result<Vec<u8>, Error> {
        const OPERATION: &str = "read blob";
        let failed = |status| Error::new(OPERATION, digest.as_str(), &status);
        let message = ReadContentRequest { digest: digest.to_string(), offset: 0, size: 0 };
        let reading = async {
            let read = self.content_client().read(self.request(message)).await;
            let mut stream = read.map_err(failed)?.into_inner();
            let mut bytes = Vec::new();
            while let Some(part) = stream.message().await.map_err(failed)? {
                bytes.extend_from_slice(&part.data);
                if bytes.len() > limit {
                    let message = format!("longer than {limit} bytes");
                    return Err(Error::unexpected(OPERATION, digest.as_str(), message));
                }
            }
            Ok(bytes)
        };
        // The deadline of the call itself ends with the first part of its answer.
        let read = tokio::time::timeout(METADATA_DEADLINE, reading).await;
        read.unwrap_or_else(|_| Err(Error::late(OPERATION, digest.as_str(), METADATA_DEADLINE)))
    }

    /// Opens a blob of any length for reading, part by part.
    pub async fn open_blob(&self, digest: &Digest) -> Result<BlobParts, Error> {
        let message = ReadContentRequest { digest: digest.to_string(), offset: 0, size: 0 };
        let mut client = self.content_client();
        let read = client.read(self.stream_request(message));
        let answer = tokio::time::timeout(METADATA_DEADLINE, read).await;
        let answer = answer.map_err(|_| Error::late(OPEN, digest.as_str(), METADATA_DEADLINE))?;
        let stream = answer.map_err(|status| Error::new(OPEN, digest.as_str(), &status))?.into_inner();
        Ok(BlobParts { stream, digest: digest.clone() })
    }

    /// Whether the store still has the bytes that the digest names: a disk that lost power or a file may have others, or
    /// none, under records that say otherwise.
    pub async fn blob_is_intact(&self, blob: &Descriptor) -> Result<bool, Error> {
        const OPERATION: &str = "verify blob";
        let failed = |status| Error::new(OPERATION, blob.digest.as_str(), &status);
        let message = ReadContentRequest { digest: blob.digest.to_string(), offset: 0, size: 0 };
        let reading = async {
            let read = self.content_client().read(self.stream_request(message)).await;
            let mut stream = read.map_err(failed)?.into_inner();
            let mut hasher = Hasher::new(blob.digest.algorithm());
            while let Some(part) = stream.message().await.map_err(failed)? {
                hasher.update(&part.data);
            }
            Ok::<_, Error>(hasher.finish() == blob.digest)
        };
        let limit = METADATA_DEADLINE + Duration::from_secs(blob.size / SLOWEST_READ);
        match tokio::time::timeout(limit, reading).await {
            Ok(Err(error)) if matches!(error.kind(), Kind::NotFound | Kind::Failed) => Ok(false),
            Ok(intact) => intact,
            Err(_) => Err(Error::late(OPERATION, blob.digest.as_str(), limit)),
        }
    }

    /// Throws a blob away whose bytes are not those of its digest, and returns when its file is gone: as long as that
    /// is there, containerd takes it for the blob whatever is written.
    pub async fn discard_blob(&self, digest: &Digest) -> Result<(), Error> {
        let message = DeleteContentRequest { digest: digest.to_string() };
        let deleted = self.content_client().delete(self.request(message)).await;
        match deleted.map_err(|status| Error::new("delete blob", digest.as_str(), &status)) {
            Err(error) if error.kind() != Kind::NotFound => return Err(error),
            _ => {}
        }
        // Files go with a collection.
        self.collect(digest).await
    }

    /// Adds labels to a blob; labels that others set stay.
    pub async fn label_blob(&self, digest: &Digest, labels: HashMap<String, String>) -> Result<(), Error> {
        if labels.is_empty() {
            return Ok(());
        }
        let paths = labels.keys().map(|key| format!("labels.{key}")).collect();
        let info = Info { digest: digest.to_string(), labels, ..Info::default() };
        let message = UpdateRequest { info: Some(info), update_mask: Some(FieldMask { paths }) };
        self.content_client()
            .update(self.request(message))
            .await
            .map(drop)
            .map_err(|status| Error::new("label blob", digest.as_str(), &status))
    }

    /// Takes a label off a blob.
    pub async fn unlabel_blob(&self, digest: &Digest, label: &str) -> Result<(), Error> {
        // containerd keeps no empty label.
        self.label_blob(digest, HashMap::from([(label.to_owned(), String::new())])).await
    }

    fn content_client(&self) -> ContentClient<Channel> {
        ContentClient::new(self.channel()).max_decoding_message_size(MAX_MESSAGE)
    }
}

pub(super) fn wire_descriptor(descriptor: &Descriptor) -> WireDescriptor {
    WireDescriptor {
        media_type: descriptor.media_type.clone(),
        digest: descriptor.digest.to_string(),
        size: i64::try_from(descriptor.size).unwrap_or(i64::MAX),
        annotations: descriptor.annotations.clone().into_iter().collect(),
    }
}

/// `None` for a digest or size that no blob can have: other clients may have written such records.
pub(super) fn own_descriptor(descriptor: &WireDescriptor) -> Option<Descriptor> {
    Some(Descriptor {
        media_type: descriptor.media_type.clone(),
        digest: descriptor.digest.parse().ok()?,
        size: u64::try_from(descriptor.size).ok()?,
        annotations: descriptor.annotations.clone().into_iter().collect(),
        urls: Vec::new(),
    })
}
