//! One layer on its way from a registry to whoever listens, and into no store: for layers whose blobs are not kept. What
//! goes wrong beyond the connections is left to a transfer into the content store, which can begin anew.

use std::mem;
use std::pin::pin;

use bytes::Bytes;

use super::tap::Tap;
use super::transfer::PIECE_AND_MORE;
use super::{Error, Source, Wanted};
use crate::containerd::content::ingest::PIECE;
use crate::oci::digest::Hasher;
use crate::registry::{Registry, Stream};

pub(super) struct Pass<'a> {
    pub(super) registry: &'a Registry,
    /// What is to come; its place is held open.
    pub(super) wanted: Wanted<'a>,
}

impl Pass<'_> {
    /// Sends the whole blob; `false` if nobody reads to its end, or if the bytes are not those that the digest names.
    pub(super) async fn run(self, tap: Tap) -> Result<bool, Error> {
        let Wanted { source, blob, told, .. } = self.wanted;
        let Source { repository, credentials, .. } = source;
        let mut stream = self.registry.stream(repository, blob, 0, credentials);
        let mut hasher = Hasher::new(blob.digest.algorithm());
        let mut piece = Vec::with_capacity(PIECE_AND_MORE);
        let mut came = 0;
        told.fetching(stream.host());
        loop {
            let next = self.next(&mut stream).await?;
            if let Some(bytes) = &next {
                piece.extend_from_slice(bytes);
                came += bytes.len() as u64;
                told.has(came);
                told.fetching(stream.host());
            }
            if piece.len() >= PIECE || (next.is_none() && !piece.is_empty()) {
                hasher.update(&piece);
                if !tap.send(mem::replace(&mut piece, Vec::with_capacity(PIECE_AND_MORE)).into()).await {
                    return Ok(false);
                }
            }
            if next.is_none() {
                break;
            }
        }
        self.wanted.place.step_aside();
        let right = hasher.finish() == blob.digest;
        if right {
            tap.end().await;
        } else {
            tracing::debug!(digest = %blob.digest, host = stream.host(), "the bytes do not match the digest");
        }
        Ok(right)
    }

    /// The next bytes, over as many turns as the layer is asked to make room.
    async fn next(&self, stream: &mut Stream<'_>) -> Result<Option<Bytes>, Error> {
        let Wanted { meter, place, .. } = self.wanted;
        loop {
            let counted = stream.received();
            let next = {
                let mut next = pin!(stream.next());
                tokio::select! {
                    next = &mut next => Some(next),
                    () = place.asked_back() => None,
                }
            };
            meter.received(stream.received() - counted);
            if stream.repeated() {
                place.keep();
            }
            if let Some(next) = next {
                return Ok(next?);
            }
            stream.suspend();
            place.give_back();
            self.wanted.told.waiting();
            place.open().await;
        }
    }
}
