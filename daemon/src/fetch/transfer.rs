//! One layer on its way from a registry into the content store: in its turn, with a download slot, proved by the
//! store's commit. What happens to the connections on the way is the stream's matter.

use std::collections::HashMap;
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{MissedTickBehavior, interval};

use crate::containerd::content::ingest::PIECE;
use crate::containerd::content::{Committed, Ingest};
use crate::containerd::{Containerd, Kind};
use crate::registry::{Registry, Stream};

use super::{Audience, Error, Fetched, Source, Tap, Wanted, ingest_reference, open};

/// How old bytes become before they are handed to the content store in a piece that is not full. A pull that is given
/// up loses what it still holds, and on a slow wire that was all that an attempt had brought.
const FLUSH: Duration = Duration::from_secs(1);

/// A piece is full once it has [`PIECE`] bytes; what came with the last of them is in it, too.
pub(super) const PIECE_AND_MORE: usize = PIECE + PIECE / 4;

/// One layer's transfer.
pub(super) struct Transfer<'a> {
    pub(super) registry: &'a Registry,
    pub(super) containerd: &'a Containerd,
    pub(super) wanted: Wanted<'a>,
}

impl Transfer<'_> {
    /// Brings the layer into the store, from the first host whose bytes are those that the digest names.
    pub(super) async fn run(self, audience: Option<Audience<'_>>) -> Result<Fetched, Error> {
        let Wanted { source, blob, place, .. } = self.wanted;
        let Some(mut ingest) = self.open().await? else {
            source.note(self.containerd, blob, HashMap::new()).await?;
            return Ok(Fetched::Present);
        };
        let Source { repository, credentials, .. } = source;
        let mut continued = ingest.offset();
        // What came before, nobody can be told.
        let audience = audience.filter(|_| continued == 0 && blob.size > 0);
        let mut tap = audience.and_then(|Audience { taps, listen }| {
            let permit = Arc::clone(taps).try_acquire_owned().ok()?;
            Some(listen(permit))
        });
        let mut stream = self.registry.stream(repository, blob, continued, credentials);
        loop {
            self.fill(&mut ingest, &mut stream, &mut tap).await?;
            if stream.repeated() {
                continued = 0;
            }
            // A commit syncs to disk: another may download meanwhile.
            place.step_aside();
            tracing::debug!(digest = %blob.digest, "all bytes of a layer are there");
            if ingest.is_outlived() {
                ingest.leave().await;
                let Some(opened) = self.open().await? else { break };
                ingest = opened;
            }
            match ingest.commit(HashMap::from([source.label()])).await {
                Ok(Committed::Now) => {
                    tracing::debug!(digest = %blob.digest, "a layer is in the content store");
                    if let Some(tap) = tap {
                        tap.end().await;
                    }
                    return Ok(Fetched::Transferred { continued });
                }
                Ok(Committed::Before) => break,
                Err(error) if error.kind() == Kind::Mismatch => {}
                Err(error) => return Err(error.into()),
            }
            tracing::debug!(digest = %blob.digest, host = stream.host(), "the bytes do not match the digest");
            stream.refuse(None);
            // Whoever listens has heard what is not the layer.
            tap = None;
            continued = 0;
            self.containerd.abort_ingest(&ingest_reference(blob)).await?;
            let Some(opened) = self.open().await? else { break };
            ingest = opened;
            ingest.rewind();
        }
        source.note(self.containerd, blob, HashMap::new()).await?;
        Ok(Fetched::Transferred { continued })
    }

    /// The layer's ingest, with a download slot if bytes are missing; `None` if the layer is in the store. Whether it
    /// is there is asked before a slot is waited for, so that images whose layers are all there never wait behind
    /// downloads. While waiting for a slot no ingest is held, since it keeps other clients of containerd from the blob;
    /// while waiting for an ingest that another client holds no slot is.
    async fn open(&self) -> Result<Option<Box<Ingest>>, Error> {
        let Wanted { blob, place, .. } = self.wanted;
        loop {
            let aside = || place.step_aside();
            let Some(ingest) = open(self.containerd, blob, aside).await? else { return Ok(None) };
            if ingest.offset() == blob.size || place.try_open() {
                return Ok(Some(ingest));
            }
            ingest.leave().await;
            place.open().await;
        }
    }

    /// Fills the ingest to the end, in pieces of [`PIECE`] bytes or of what came within [`FLUSH`]; what came before an
    /// error is kept. Each goes into the tap, too, as long as somebody listens.
    async fn fill(
        &self,
        ingest: &mut Ingest,
        stream: &mut Stream<'_>,
        tap: &mut Option<Tap>,
    ) -> Result<(), Error> {
        let Wanted { blob, meter, told, place, .. } = self.wanted;
        let mut piece = Vec::with_capacity(PIECE_AND_MORE);
        told.fetching(stream.host());
        let mut flush = interval(FLUSH);
        flush.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let counted = stream.received();
            let next = {
                let mut next = pin!(stream.next());
                loop {
                    tokio::select! {
                        next = &mut next => break Some(next),
                        error = ingest.broken() => return Err(error.into()),
                        () = place.asked_back() => break None,
                        // A listener without room has bytes enough, and none may be waited for in here: a request is open.
                        _ = flush.tick(), if !piece.is_empty() && tap.as_ref().is_none_or(Tap::has_room) => {
                            give(&mut piece, ingest, tap).await?;
                        }
                    }
                }
            };
            meter.received(stream.received() - counted);
            if let Some(Ok(Some(bytes))) = &next {
                piece.extend_from_slice(bytes);
                told.has(ingest.offset() + piece.len() as u64);
                told.fetching(stream.host());
            }
            let goes_on = matches!(next, Some(Ok(Some(_))));
            if piece.len() >= PIECE || (!goes_on && !piece.is_empty()) {
                give(&mut piece, ingest, tap).await?;
            }
            match next {
                Some(Ok(Some(_))) if stream.repeated() => place.keep(),
                Some(Ok(Some(_))) => {}
                Some(Ok(None)) => return Ok(()),
                Some(Err(error)) => return Err(error.into()),
                None if ingest.offset() == blob.size => return Ok(()),
                None => self.make_room(ingest, stream).await?,
            }
        }
    }

    /// Gives the slot to whom it was asked back for, and waits for the next one. The ingest stays open, for containerd
    /// hashes all that it has again whenever it is opened.
    async fn make_room(&self, ingest: &mut Ingest, stream: &mut Stream<'_>) -> Result<(), Error> {
        let Wanted { blob, told, place, .. } = self.wanted;
        tracing::debug!(digest = %blob.digest, offset = ingest.offset(), "fetch makes room for another image's");
        stream.suspend();
        place.give_back();
        told.waiting();
        tokio::select! {
            () = place.open() => Ok(()),
            error = ingest.broken() => Err(error.into()),
        }
    }
}

/// Gives a piece to the store and to whoever listens. A listener who is slow holds the wire back; the store's answers
/// are looked at meanwhile.
async fn give(piece: &mut Vec<u8>, ingest: &mut Ingest, tap: &mut Option<Tap>) -> Result<(), Error> {
    let piece = mem::replace(piece, Vec::with_capacity(PIECE_AND_MORE));
    if let Some(listening) = tap {
        let heard = listening.send(Bytes::copy_from_slice(&piece));
        let heard = tokio::select! {
            heard = heard => heard,
            error = ingest.broken() => return Err(error.into()),
        };
        if !heard {
            *tap = None;
        }
    }
    Ok(ingest.write(piece).await?)
}
