//! One layer on its way from a registry into the content store: in its turn, with a download slot, continued where it
//! broke off, proved by the store's commit.

use std::collections::HashMap;
use std::time::Duration;

use crate::containerd::content::ingest::PIECE;
use crate::containerd::content::{Committed, Ingest};
use crate::containerd::{Containerd, Kind};
use crate::oci::Descriptor;
use crate::registry::{self, Registry};

use super::slots::Place;
use super::{Error, Fetched, Meter, Source, ingest_reference, open};

/// How often a broken body is asked for again without a single new byte in between (containerd's own bound).
const BARREN_ATTEMPTS: u32 = 3;
/// Before a broken body is asked for again; doubled with each attempt that brought nothing. Long enough for a
/// connection that was cut by a restart, short beside what a layer takes.
const BREAK_PAUSE: Duration = Duration::from_millis(100);
/// How old bytes become before they are handed to the content store in a piece that is not full. A pull that is given
/// up loses what it still holds, and on a slow wire that was all that an attempt had brought.
const FLUSH: Duration = Duration::from_secs(1);

/// One layer's transfer.
pub(super) struct Transfer<'a> {
    registry: &'a Registry,
    containerd: &'a Containerd,
    source: &'a Source,
    blob: &'a Descriptor,
    meter: &'a Meter,
    /// Where it stands among those that want a download slot.
    place: &'a Place,
    /// The host that sent the last bytes.
    host: Option<String>,
    /// Bytes that an earlier transfer had left and this one did not ask for.
    continued: u64,
}

impl<'a> Transfer<'a> {
    /// The transfer of a layer that stands in `place` among those that want a download slot.
    pub(super) fn new(
        registry: &'a Registry,
        containerd: &'a Containerd,
        source: &'a Source,
        blob: &'a Descriptor,
        meter: &'a Meter,
        place: &'a Place,
    ) -> Self {
        Self { registry, containerd, source, blob, meter, place, host: None, continued: 0 }
    }

    /// Brings the layer into the store, however often its bytes break off.
    pub(super) async fn run(mut self) -> Result<Fetched, Error> {
        let Some(ingest) = self.open().await? else {
            self.source.note(self.containerd, self.blob, HashMap::new()).await?;
            return Ok(Fetched::Present);
        };
        self.continued = ingest.offset();
        let inherited = self.continued > 0;
        let mut whole = self.fill_and_commit(ingest).await?;
        if !whole && inherited {
            // What an earlier transfer left may be what is wrong: once more from the first byte.
            self.continued = 0;
            whole = match self.open().await? {
                Some(ingest) => self.fill_and_commit(ingest).await?,
                None => true,
            };
        }
        if whole {
            return Ok(Fetched::Transferred { continued: self.continued });
        }
        let host = self.host.unwrap_or_else(|| self.source.repository.domain.clone());
        Err(Error::Corrupt { digest: self.blob.digest.clone(), host })
    }

    /// The layer's ingest, with a download slot if bytes are missing; `None` if the layer is in the store. Whether it
    /// is there is asked before a slot is waited for, so that images whose layers are all there never wait behind
    /// downloads. While waiting for a slot no ingest is held, since it keeps other clients of containerd from the blob;
    /// while waiting for an ingest that another client holds no slot is.
    async fn open(&self) -> Result<Option<Box<Ingest>>, Error> {
        loop {
            let aside = || self.place.step_aside();
            let Some(ingest) = open(self.containerd, self.blob, aside).await? else { return Ok(None) };
            if ingest.offset() == self.blob.size || self.place.try_open() {
                return Ok(Some(ingest));
            }
            ingest.leave().await;
            self.place.open().await;
        }
    }

    /// `false` if the digest did not match; the ingest is then gone.
    async fn fill_and_commit(&mut self, mut ingest: Box<Ingest>) -> Result<bool, Error> {
        self.fill(&mut ingest).await?;
        // A commit syncs to disk: another may download meanwhile.
        self.place.step_aside();
        match ingest.commit(HashMap::from([self.source.label()])).await {
            Ok(Committed::Now) => Ok(true),
            Ok(Committed::Before) => {
                self.source.note(self.containerd, self.blob, HashMap::new()).await?;
                Ok(true)
            }
            Err(error) if error.kind() == Kind::Mismatch => {
                self.containerd.abort_ingest(&ingest_reference(self.blob)).await?;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Fills the ingest to the end.
    async fn fill(&mut self, ingest: &mut Ingest) -> Result<(), Error> {
        if self.blob.size == 0 && !self.blob.digest.matches(&[]) {
            // The two contradict each other. What the host sends tells which size is the right one.
            return self.stream(ingest).await;
        }
        let mut barren = 0;
        while ingest.offset() < self.blob.size {
            let before = ingest.offset();
            match self.stream(ingest).await {
                Ok(()) => self.await_slot(ingest).await?,
                Err(Error::Registry(error)) if goes_on(&error) => {
                    barren = if ingest.offset() > before { 0 } else { barren + 1 };
                    if barren >= BARREN_ATTEMPTS {
                        return Err(error.into());
                    }
                    let (digest, offset) = (&self.blob.digest, ingest.offset());
                    tracing::debug!(%digest, offset, %error, "fetch goes on after a break");
                    tokio::time::sleep(BREAK_PAUSE * (1 << barren)).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// One request's body into the ingest, in pieces of [`PIECE`] bytes; what came before an error is kept. Returns at
    /// the body's end, and before it when the slot is asked back.
    async fn stream(&mut self, ingest: &mut Ingest) -> Result<(), Error> {
        let (repository, credentials) = (&self.source.repository, &self.source.credentials);
        let opening = self.registry.open(repository, self.blob, ingest.offset(), credentials);
        let mut body = tokio::select! {
            body = self.meter.waiting(opening) => body?,
            error = ingest.broken() => return Err(error.into()),
        };
        self.host = Some(body.host.clone());
        if body.offset != ingest.offset() {
            ingest.rewind();
            self.continued = 0;
            self.place.keep();
        }
        let mut piece = Vec::with_capacity(PIECE);
        let mut flush = tokio::time::interval(FLUSH);
        loop {
            let next = tokio::select! {
                next = self.meter.waiting(body.next()) => next,
                error = ingest.broken() => return Err(error.into()),
                () = self.place.asked_back() => Ok(None),
                _ = flush.tick(), if !piece.is_empty() => {
                    ingest.write(std::mem::replace(&mut piece, Vec::with_capacity(PIECE))).await?;
                    continue;
                }
            };
            if let Ok(Some(bytes)) = &next {
                self.meter.received(bytes.len());
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

    /// After a body that ended before the layer did, because the slot is wanted elsewhere: waits for the next one. The
    /// ingest stays open, for containerd hashes all that it has again whenever it is opened.
    async fn await_slot(&self, ingest: &mut Ingest) -> Result<(), Error> {
        if ingest.offset() == self.blob.size {
            return Ok(());
        }
        tracing::debug!(digest = %self.blob.digest, offset = ingest.offset(), "fetch makes room for another image's");
        self.place.give_back();
        tokio::select! {
            () = self.place.open() => Ok(()),
            error = ingest.broken() => Err(error.into()),
        }
    }
}

/// Whether a body that broke off so is worth asking for again at once. A registry that is asked too often is not.
fn goes_on(error: &registry::Error) -> bool {
    error.is_transient() && error.kind() != registry::Kind::RateLimited
}
