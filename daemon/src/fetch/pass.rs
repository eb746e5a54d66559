//! One layer on its way from a registry to whoever listens, and into no store: for layers whose blobs are not kept. What
//! goes wrong beyond the connections is left to a transfer into the content store, which can begin anew.

use std::mem;
use std::pin::pin;

use bytes::Bytes;

use super::slots::Place;
use super::tap::Tap;
use super::transfer::PIECE_AND_MORE;
use super::{Error, Meter, Source};
use crate::containerd::content::ingest::PIECE;
use crate::oci::Descriptor;
use crate::oci::digest::Hasher;
use crate::registry::{Registry, Stream};

pub(super) struct Pass<'a> {
    pub(super) registry: &'a Registry,
    pub(super) source: &'a Source,
    pub(super) blob: &'a Descriptor,
    pub(super) meter: &'a Meter,
    /// Where it stands among those that want a download slot. Held open.
    pub(super) place: &'a Place,
}

impl Pass<'_> {
    /// Sends the whole blob; `false` if nobody reads to its end, or if the bytes are not those that the digest names.
    pub(super) async fn run(self, tap: Tap) -> Result<bool, Error> {
        let Source { repository, credentials, .. } = self.source;
        let mut stream = self.registry.stream(repository, self.blob, 0, credentials);
        let mut hasher = Hasher::new(self.blob.digest.algorithm());
        let mut piece = Vec::with_capacity(PIECE_AND_MORE);
        loop {
            let next = self.next(&mut stream).await?;
            if let Some(bytes) = &next {
                piece.extend_from_slice(bytes);
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
        self.place.step_aside();
        let right = hasher.finish() == self.blob.digest;
        if right {
            tap.end().await;
        } else {
            tracing::debug!(digest = %self.blob.digest, host = stream.host(), "the bytes do not match the digest");
        }
        Ok(right)
    }

    /// The next bytes, over as many turns as the layer is asked to make room.
    async fn next(&self, stream: &mut Stream<'_>) -> Result<Option<Bytes>, Error> {
        loop {
            let counted = stream.received();
            let next = {
                let mut next = pin!(stream.next());
                tokio::select! {
                    next = &mut next => Some(next),
                    () = self.place.asked_back() => None,
                }
            };
            self.meter.received(stream.received() - counted);
            if stream.repeated() {
                self.place.keep();
            }
            if let Some(next) = next {
                return Ok(next?);
            }
            stream.suspend();
            self.place.give_back();
            self.place.open().await;
        }
    }
}
