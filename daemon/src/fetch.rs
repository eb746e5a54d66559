//! Moves blobs from a registry into containerd's content store: one transfer per digest at a time, continued where an
//! earlier one stopped, proved by the store's commit. Owns the limit on downloads; decides nothing about which blobs
//! an image needs.

mod document;
pub mod meter;
pub mod turns;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

pub use document::Document;
pub use meter::Meter;
pub use turns::Turns;

use crate::containerd::content::ingest::PIECE;
use crate::containerd::content::{Committed, Ingest, Opened};
use crate::containerd::{self, Containerd, labels};
use crate::oci::media_type::Kind;
use crate::oci::{Descriptor, Digest};
use crate::registry::{self, Credentials, Registry, Repository};

/// How often a broken body is asked for again without a single new byte in between (containerd's own bound).
const BARREN_ATTEMPTS: u32 = 3;
/// Longest pause between two looks at an ingest that another writer holds; containerd's own client uses the same.
const LOCKED_PAUSE_MAX: Duration = Duration::from_secs(2);
/// After this long another writer's ingest is taken for dead.
const LOCKED_LIMIT: Duration = Duration::from_secs(900);

/// Where a blob comes from: a repository, and who is asking.
#[derive(Clone, Debug)]
pub struct Source {
    /// The repository at its registry.
    pub repository: Repository,
    /// The credentials that the pull request brought.
    pub credentials: Credentials,
}

/// How a blob came to be in the content store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// It was there.
    Present,
    /// It came over the wire: this many bytes of it, fewer than its size if an earlier transfer was continued.
    Transferred(u64),
}

/// Why a blob is not in the content store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The registry did not give it.
    #[error(transparent)]
    Registry(#[from] registry::Error),
    /// containerd did not take it.
    #[error(transparent)]
    Containerd(#[from] containerd::Error),
    /// The bytes are not those that the digest names.
    #[error("blob {digest} from {host}: the bytes do not match the digest")]
    Corrupt {
        /// The digest that was asked for.
        digest: Digest,
        /// The host that sent the last of them.
        host: String,
    },
    /// The document is larger than any that drayd keeps in memory.
    #[error("{media_type} {digest} is {size} bytes long, more than the {limit} that drayd accepts")]
    TooLarge {
        /// The document's media type.
        media_type: String,
        /// Its digest.
        digest: Digest,
        /// Size by the descriptor, in bytes.
        size: u64,
        /// The bound, in bytes.
        limit: u64,
    },
    /// Another client of containerd has held the ingest for too long.
    #[error(
        "blob {digest}: another client of containerd has been writing it for {} s; \
         look for it with `ctr -n k8s.io content active`",
        LOCKED_LIMIT.as_secs()
    )]
    Locked {
        /// The blob's digest.
        digest: Digest,
    },
}

/// Fetches blobs for all pulls of this node.
pub struct Fetcher {
    /// The one registry client.
    registry: Registry,
    /// Open layer downloads, over all pulls: `max_concurrent_downloads`.
    slots: Semaphore,
    /// One transfer per digest; whoever comes second finds the blob present.
    turns: Turns<Digest>,
}

impl Fetcher {
    /// A fetcher that downloads at most `max_concurrent_downloads` layers at once; `None` is no limit.
    pub fn new(registry: Registry, max_concurrent_downloads: Option<NonZeroUsize>) -> Self {
        let slots = max_concurrent_downloads.map_or(Semaphore::MAX_PERMITS, NonZeroUsize::get);
        let slots = Semaphore::new(slots.min(Semaphore::MAX_PERMITS));
        Self { registry, slots, turns: Turns::default() }
    }

    /// The registry client, for resolving names.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Brings a layer blob into the content store, held by the lease that `containerd` is under.
    pub async fn blob(
        &self,
        containerd: &Containerd,
        source: &Source,
        blob: &Descriptor,
        meter: &Meter,
    ) -> Result<Fetched, Error> {
        let _turn = self.turns.take(blob.digest.clone()).await;
        let Some((ingest, _slot)) = self.open_with_slot(containerd, blob).await? else {
            note_source(containerd, source, blob).await?;
            return Ok(Fetched::Present);
        };
        let from = ingest.offset();
        if let Some(bytes) = self.transfer(containerd, source, blob, ingest, meter).await? {
            return Ok(Fetched::Transferred(bytes));
        }
        // What an earlier transfer left may be what is wrong: once more from the first byte.
        let again = if from > 0 { open(containerd, blob).await? } else { None };
        match again {
            Some(ingest) => match self.transfer(containerd, source, blob, ingest, meter).await? {
                Some(bytes) => Ok(Fetched::Transferred(bytes)),
                None => Err(corrupt(source, blob)),
            },
            None => Err(corrupt(source, blob)),
        }
    }

    /// The blob's ingest and a download slot, or `None` if the blob is present. Whether it is present is asked before
    /// a slot is waited for, so that images whose blobs are all there never wait behind downloads; and no ingest is
    /// held open while waiting, since it keeps other clients of containerd from the blob.
    async fn open_with_slot(
        &self,
        containerd: &Containerd,
        blob: &Descriptor,
    ) -> Result<Option<(Box<Ingest>, SemaphorePermit<'_>)>, Error> {
        let Some(ingest) = open(containerd, blob).await? else { return Ok(None) };
        if let Ok(slot) = self.slots.try_acquire() {
            return Ok(Some((ingest, slot)));
        }
        drop(ingest);
        let slot = self.slots.acquire().await.expect("the slots are never closed");
        Ok(open(containerd, blob).await?.map(|ingest| (ingest, slot)))
    }

    /// Fills the ingest and commits it; returns the bytes that came over the wire, or `None` if the digest did not
    /// match, in which case the ingest is gone.
    async fn transfer(
        &self,
        containerd: &Containerd,
        source: &Source,
        blob: &Descriptor,
        mut ingest: Box<Ingest>,
        meter: &Meter,
    ) -> Result<Option<u64>, Error> {
        let mut received = 0;
        let mut barren = 0;
        while ingest.offset() < blob.size {
            let before = ingest.offset();
            match self.stream(source, blob, &mut ingest, meter, &mut received).await {
                Ok(()) => {}
                Err(Error::Registry(error)) if error.is_transient() => {
                    barren = if ingest.offset() > before { 0 } else { barren + 1 };
                    if barren >= BARREN_ATTEMPTS {
                        return Err(error.into());
                    }
                    tracing::debug!(digest = %blob.digest, offset = ingest.offset(), %error, "fetch goes on after a break");
                }
                Err(error) => return Err(error),
            }
        }
        let labels = HashMap::from([source_label(source, None)]);
        match ingest.commit(labels).await {
            Ok(Committed::Now) => Ok(Some(received)),
            Ok(Committed::Before) => {
                note_source(containerd, source, blob).await?;
                Ok(Some(received))
            }
            Err(error) if error.kind() == containerd::Kind::Mismatch => {
                containerd.abort_ingest(&ingest_reference(blob)).await?;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// One request's body into the ingest, in pieces of [`PIECE`] bytes; what came before an error is kept.
    async fn stream(
        &self,
        source: &Source,
        blob: &Descriptor,
        ingest: &mut Ingest,
        meter: &Meter,
        received: &mut u64,
    ) -> Result<(), Error> {
        let _open = meter.open();
        let mut body =
            self.registry.open(&source.repository, blob, ingest.offset(), &source.credentials).await?;
        if body.offset != ingest.offset() {
            ingest.rewind();
        }
        let mut piece = Vec::with_capacity(PIECE);
        loop {
            let next = body.next().await;
            if let Ok(Some(bytes)) = &next {
                meter.received(bytes.len());
                *received += bytes.len() as u64;
                piece.extend_from_slice(bytes);
            }
            let ended = !matches!(next, Ok(Some(_)));
            if piece.len() >= PIECE || (ended && !piece.is_empty()) {
                ingest.write(std::mem::replace(&mut piece, Vec::with_capacity(PIECE))).await?;
            }
            if ended {
                return next.map(drop).map_err(Error::from);
            }
        }
    }
}

fn corrupt(source: &Source, blob: &Descriptor) -> Error {
    Error::Corrupt { digest: blob.digest.clone(), host: source.repository.domain.clone() }
}

/// Opens the blob's ingest, waiting while another client writes it; `None` if the blob is present.
async fn open(containerd: &Containerd, blob: &Descriptor) -> Result<Option<Box<Ingest>>, Error> {
    let reference = ingest_reference(blob);
    let mut pause = Duration::from_millis(10);
    let give_up = tokio::time::Instant::now() + LOCKED_LIMIT;
    loop {
        match containerd.open_ingest(&reference, blob).await? {
            Opened::Present => return Ok(None),
            Opened::Ingest(ingest) => return Ok(Some(ingest)),
            Opened::Locked if tokio::time::Instant::now() >= give_up => {
                return Err(Error::Locked { digest: blob.digest.clone() });
            }
            Opened::Locked => tokio::time::sleep(pause).await,
        }
        pause = (pause * 2).min(LOCKED_PAUSE_MAX);
    }
}

/// The ingest ref that containerd's own puller uses for the same blob, so that the two never write it twice at once
/// and continue each other's work (`remotes.MakeRefKey`).
fn ingest_reference(blob: &Descriptor) -> String {
    let kind = match blob.kind() {
        Kind::Index => "index",
        Kind::Manifest => "manifest",
        Kind::Config => "config",
        Kind::Layer => "layer",
        Kind::Unknown => "unknown",
    };
    format!("{kind}-{}", blob.digest)
}

/// Records on a blob that was present that this repository has it, too.
async fn note_source(containerd: &Containerd, source: &Source, blob: &Descriptor) -> Result<(), Error> {
    let Some(info) = containerd.blob_info(&blob.digest).await? else { return Ok(()) };
    let (key, value) = source_label(source, Some(&info.labels));
    if info.labels.get(&key) != Some(&value) {
        containerd.label_blob(&blob.digest, HashMap::from([(key, value)])).await?;
    }
    Ok(())
}

/// The host as it stands in that label: without port, and without the brackets of an IPv6 address.
fn host_name(domain: &str) -> &str {
    match domain.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => domain.split(':').next().unwrap_or_default(),
    }
}

/// `containerd.io/distribution.source.<host>` = the repositories known to hold the blob, sorted. A list that would
/// break containerd's limit on labels stays as it was.
fn source_label(source: &Source, present: Option<&HashMap<String, String>>) -> (String, String) {
    let key = format!("{}.{}", labels::DISTRIBUTION_SOURCE, host_name(&source.repository.domain));
    let known = present.and_then(|labels| labels.get(&key)).cloned().unwrap_or_default();
    let mut paths: Vec<&str> = known.split(',').filter(|path| !path.is_empty()).collect();
    let path = source.repository.path.as_str();
    if !paths.contains(&path) {
        paths.push(path);
    }
    paths.sort_unstable();
    let value = paths.join(",");
    if key.len() + value.len() > labels::MAX_LABEL { (key, known) } else { (key, value) }
}
