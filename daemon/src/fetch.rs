//! Moves blobs from a registry into containerd's content store: one transfer per digest at a time, continued where an
//! earlier one stopped, proved by the store's commit. Owns the limit on downloads; decides nothing about which blobs
//! an image needs.

mod document;
mod fetching;
mod pass;
mod recent;
pub mod slots;
mod source;
mod tap;
mod transfer;
pub mod turns;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

pub use document::Document;
pub use slots::{Line, Place};
pub use source::Source;
pub use tap::{Listen, Tap, Tapped, tap};
pub use turns::{Turn, Turns};

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::containerd::content::{Ingest, Opened};
use fetching::Fetching;
use pass::Pass;
use recent::Recent;

use crate::containerd::{self, Containerd};
use crate::oci::media_type::Kind;
use crate::oci::{Descriptor, Digest};
use crate::priority::Priority;
use crate::progress::{self, Meter};
use crate::registry::{self, Registry};
use slots::Slots;
use transfer::Transfer;

/// First pause between two looks at an ingest that another writer holds.
const LOCKED_PAUSE: Duration = Duration::from_millis(10);
/// Longest such pause; containerd's own client uses the same.
const LOCKED_PAUSE_MAX: Duration = Duration::from_secs(2);
/// After this long another writer's ingest is taken for dead.
const LOCKED_LIMIT: Duration = Duration::from_secs(900);

/// Layers at once that are listened to while they come, whatever the limit on downloads. Each costs memory, and may be
/// on a wire that brings next to nothing: others then come into the content store without a listener, and wait for none.
const TAPS: usize = 4;

/// How a blob came to be in the content store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// It was there.
    Present,
    /// It came over the wire.
    Transferred {
        /// But for these bytes, which an earlier transfer had left.
        continued: u64,
    },
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

/// A layer's blob that a pull wants.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Where it comes from.
    pub source: &'a Source,
    /// The blob.
    pub blob: &'a Descriptor,
    /// Counts what comes of it over the wire.
    pub meter: &'a Meter,
    /// Tells how far it is.
    pub told: &'a progress::Layer,
    /// Where it stands among those that want a download slot.
    pub place: &'a Place,
}

/// Fetches blobs for all pulls of this node.
pub struct Fetcher {
    /// The one registry client.
    registry: Registry,
    /// Open layer downloads, over all pulls: `max_concurrent_downloads`.
    slots: Arc<Slots>,
    /// One transfer per digest; whoever comes second finds the blob present.
    turns: Turns<Digest>,
    /// Whose turns they are.
    fetching: Fetching,
    /// Listeners, over all pulls.
    taps: Arc<Semaphore>,
    /// Documents between their download and their place in the content store.
    recent: Recent,
}

impl Fetcher {
    /// A fetcher that downloads at most `max_concurrent_downloads` layers at once; `None` is no limit. Documents are
    /// outside of it: an image that is still being resolved waits behind no layer.
    pub fn new(registry: Registry, max_concurrent_downloads: Option<NonZeroUsize>) -> Self {
        Self {
            registry,
            slots: Slots::new(max_concurrent_downloads),
            turns: Turns::default(),
            fetching: Fetching::default(),
            taps: Arc::new(Semaphore::new(TAPS)),
            recent: Recent::default(),
        }
    }

    /// The registry client, for resolving names.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The line in which the layers of one pull wait for download slots.
    pub fn line(&self, priority: &Priority) -> Line {
        self.slots.line(priority)
    }

    /// Brings a layer blob into the content store, held by the lease that `containerd` is under. `listen` is called if
    /// all of it comes over the wire now; its tap ends when the store has proved the bytes.
    pub async fn blob(
        &self,
        containerd: &Containerd,
        wanted: Wanted<'_>,
        listen: Option<Listen<'_>>,
    ) -> Result<Fetched, Error> {
        let digest = &wanted.blob.digest;
        let _turn = if let Some(turn) = self.turns.try_take(digest.clone()) {
            turn
        } else {
            wanted.place.step_aside();
            self.fetching.raise(digest, wanted.place.priority().level());
            self.turns.take(digest.clone()).await
        };
        let _fetching = self.fetching.enter(digest, wanted.place.priority());
        let registry = self.registry.counting(wanted.meter.requests()).urgent(wanted.place.priority());
        let audience = listen.map(|listen| Audience { taps: &self.taps, listen });
        Transfer { registry: &registry, containerd, wanted }.run(audience).await
    }

    /// Brings a layer blob to a listener alone, and proves its digest. `false` if that cannot be done, or has failed in
    /// a way in which [`Self::blob`] may do better: it is to be asked then, with the same place.
    pub async fn pass(
        &self,
        containerd: &Containerd,
        wanted: Wanted<'_>,
        listen: Listen<'_>,
    ) -> Result<bool, Error> {
        let digest = &wanted.blob.digest;
        // Somebody who is fetching it now may be putting it into the store.
        let Some(_turn) = self.turns.try_take(digest.clone()) else { return Ok(false) };
        if containerd.blob_info(digest).await?.is_some() {
            return Ok(false);
        }
        wanted.place.open().await;
        let Ok(permit) = Arc::clone(&self.taps).try_acquire_owned() else { return Ok(false) };
        let _fetching = self.fetching.enter(digest, wanted.place.priority());
        let registry = self.registry.counting(wanted.meter.requests()).urgent(wanted.place.priority());
        Pass { registry: &registry, wanted }.run(listen(permit)).await
    }

    /// Fetches a layer blob anew if what the content store has under its digest is something else or nothing. `false`:
    /// the store is right.
    pub async fn mend(&self, containerd: &Containerd, wanted: Wanted<'_>) -> Result<bool, Error> {
        let Wanted { blob, .. } = wanted;
        if containerd.blob_is_intact(blob).await? {
            return Ok(false);
        }
        tracing::warn!(digest = %blob.digest, "a layer in the content store is broken: it is fetched anew");
        containerd.discard_blob(&blob.digest).await?;
        self.blob(containerd, wanted, None).await?;
        Ok(true)
    }
}

/// Somebody who would listen to a transfer, if there is room.
struct Audience<'a> {
    taps: &'a Arc<Semaphore>,
    listen: Listen<'a>,
}

/// Opens the blob's ingest, waiting while another client writes it; `None` if the blob is in the store. `aside` is
/// called before such a wait, which may be long.
async fn open(
    containerd: &Containerd,
    blob: &Descriptor,
    aside: impl Fn(),
) -> Result<Option<Box<Ingest>>, Error> {
    let mut pause = LOCKED_PAUSE;
    let give_up = Instant::now() + LOCKED_LIMIT;
    loop {
        match containerd.open_ingest(&ingest_reference(blob), blob).await? {
            Opened::Present => return Ok(None),
            Opened::Ingest(ingest) => return Ok(Some(ingest)),
            Opened::Locked if Instant::now() >= give_up => {
                return Err(Error::Locked { digest: blob.digest.clone() });
            }
            Opened::Locked => {
                aside();
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LOCKED_PAUSE_MAX);
            }
        }
    }
}

/// The ingest ref that containerd's own puller uses for the same blob, so that the two never write it twice at once
/// and continue each other's work (`remotes.MakeRefKey`).
pub(crate) fn ingest_reference(blob: &Descriptor) -> String {
    let kind = match blob.kind() {
        Kind::Index => "index",
        Kind::Manifest => "manifest",
        Kind::Config => "config",
        Kind::Layer => "layer",
        Kind::Unknown => "unknown",
    };
    format!("{kind}-{}", blob.digest)
}
