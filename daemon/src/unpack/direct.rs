//! The direct engine: a layer's blob becomes files in one pass, without containerd's differ. The blob comes from the
//! content store while it is decompressed, hashed and written; nothing of it is held but what is on its way.

mod parts;
mod place;

use std::io::{self, BufReader, Read};

use super::decompress::Decompressed;
use super::tar::Archive;
use super::tree::{self, Tree};
use crate::containerd::{self, Containerd};
use crate::oci::digest::{Algorithm, Hasher};
use crate::oci::{Descriptor, DiffId, Digest};
use parts::Parts;

pub(super) use place::{Place, Unfit};

/// Uncompressed bytes that are hashed at once and wait to be written.
const BUFFER: usize = 256 << 10;

/// Why a layer's blob did not become files.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its bytes cannot be read to their end.
    #[error("cannot read the blob")]
    Blob(#[source] io::Error),
    /// An entry cannot be written.
    #[error(transparent)]
    Tree(#[from] tree::Error),
}

impl Error {
    /// Whether the disk, or what may be used of it, is full.
    pub fn is_full_disk(&self) -> bool {
        matches!(self, Self::Tree(error) if error.is_full_disk())
    }
}

/// What ended an attempt.
#[derive(Debug)]
pub(super) enum Failure {
    /// containerd did not give the blob.
    Containerd(containerd::Error),
    /// The layer, or the disk.
    Layer(Error),
    /// This process may not do what containerd may do.
    Unfit(Unfit),
}

/// Writes the layer into `place` and says what its uncompressed bytes hash to. Once this is dropped, writing ends with
/// the part of the blob that is at hand.
pub(super) async fn write(
    containerd: &Containerd,
    blob: &Descriptor,
    place: Place,
) -> Result<DiffId, Failure> {
    let (sender, parts) = parts::channel();
    // A diff ID is a sha256 digest wherever containerd knows the layer.
    let writer = tokio::task::spawn_blocking(move || written(&place, parts, Algorithm::Sha256));
    let sent = sender.send_blob(containerd, &blob.digest).await;
    let written = match writer.await {
        Ok(written) => written,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    // Without its blob the writer fails, too, and less to the point.
    sent.map_err(Failure::Containerd)?;
    match written {
        Ok(digest) => Ok(DiffId(digest)),
        Err(Error::Tree(error)) if error.is_want_of_rights() => Err(Failure::Unfit(Unfit::Rights(error))),
        Err(error) => Err(Failure::Layer(error)),
    }
}

fn written(place: &Place, parts: Parts, algorithm: Algorithm) -> Result<Digest, Error> {
    let mut tree = Tree::new(&place.root, place.removals, &place.lowers)?;
    let decompressed = Decompressed::new(parts).map_err(Error::Blob)?;
    tracing::debug!(root = %place.root.display(), format = decompressed.format(), "a layer is written directly");
    let hashed = Hashed { source: decompressed, hasher: Hasher::new(algorithm) };
    let mut archive = Archive::new(BufReader::with_capacity(BUFFER, hashed));
    while let Some(entry) = archive.next_entry().map_err(tree::Error::Archive)? {
        tree.write(&entry, &mut archive)?;
    }
    tree.finish()?;
    // What follows the end of the tar belongs to the diff ID all the same.
    let mut rest = archive.into_source();
    io::copy(&mut rest, &mut io::sink()).map_err(Error::Blob)?;
    Ok(rest.into_inner().hasher.finish())
}

/// Hashes what is read through it.
struct Hashed<R> {
    source: R,
    hasher: Hasher,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}

#[cfg(test)]
mod tests;
