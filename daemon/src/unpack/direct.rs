//! The direct engine: a layer's blob becomes files in one pass, without containerd's differ. The blob comes from a
//! registry or from the content store while it is decompressed, hashed and written; nothing of it is held but what is
//! on its way.

mod ahead;
mod place;

use std::io::{self, Read as _};
use std::path::Path;
use std::thread;

use tokio::task::JoinError;

use super::decompress::{self, Decompressed};
use super::tar::{self, Archive};
use super::tree::{self, Tree, Unfinished};
use crate::containerd::{self, Containerd};
use crate::fetch::{Tap, Tapped, tap};
use crate::oci::digest::Algorithm;
use crate::oci::{Descriptor, DiffId, Digest};
use ahead::Ahead;

pub(super) use place::{Place, Unfit, is_tar};

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

    /// Whether the same layer may well be written elsewhere or by somebody else.
    pub(super) fn is_of_the_place(&self) -> bool {
        let below = matches!(self, Self::Tree(tree::Error::Below { .. }));
        below || self.is_full_disk() || self.is_window()
    }

    /// Whether the blob wants more memory for decompression than a layer gets.
    fn is_window(&self) -> bool {
        let (Self::Blob(source) | Self::Tree(tree::Error::Archive(tar::Error::Read(source)))) = self else {
            return false;
        };
        let inner = source.get_ref().and_then(|inner| inner.downcast_ref());
        matches!(inner, Some(decompress::Error::Window))
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

/// A layer whose files are there.
#[derive(Debug)]
pub(super) struct Written {
    /// What its uncompressed bytes hash to.
    pub(super) diff_id: DiffId,
    /// Nothing, if the layers below were there.
    pub(super) unfinished: Unfinished,
}

/// Writes the layer from the content store into `place` and says what its uncompressed bytes hash to. Once this is
/// dropped, writing ends with the part of the blob that is at hand.
pub(super) async fn write(
    containerd: &Containerd,
    blob: &Descriptor,
    place: Place,
) -> Result<DiffId, Failure> {
    let (tap, tapped) = tap(None);
    let writer = tokio::task::spawn_blocking(move || written(&place.root, place.tree(), tapped));
    let sent = send_blob(containerd, &blob.digest, tap).await;
    let written = ended(writer.await);
    // Without its blob the writer fails, too, and less to the point.
    sent.map_err(Failure::Containerd)?;
    match written {
        Ok(written) => Ok(written.diff_id),
        Err(Error::Tree(error)) if error.is_want_of_rights() => Err(Failure::Unfit(Unfit::Rights(error))),
        Err(error) if error.is_window() => Err(Failure::Unfit(Unfit::Window)),
        Err(error) => Err(Failure::Layer(error)),
    }
}

/// Sends a blob of the content store; ends early, without an error, when nobody takes it any more.
pub(super) async fn send_blob(
    containerd: &Containerd,
    digest: &Digest,
    tap: Tap,
) -> Result<(), containerd::Error> {
    let mut blob = containerd.open_blob(digest).await?;
    while let Some(part) = blob.next().await? {
        if !tap.send(part.into()).await {
            return Ok(());
        }
    }
    tap.end().await;
    Ok(())
}

/// Returns when all files of the place's filesystem are on the disk.
pub(super) async fn sync(place: Place) -> Result<(), Error> {
    let synced = tokio::task::spawn_blocking(move || tree::sync(&place.root)).await;
    Ok(ended(synced)?)
}

/// What a thread that blocks came to. Its panic is one of whoever waits for it.
pub(super) fn ended<T>(joined: Result<T, JoinError>) -> T {
    joined.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Writes the layer into `tree`, which is in the directory `root`. Blocks.
pub(super) fn written(
    root: &Path,
    tree: Result<Tree, tree::Error>,
    source: Tapped,
) -> Result<Written, Error> {
    let mut tree = tree?;
    let decompressed = Decompressed::new(source).map_err(Error::Blob)?;
    tracing::debug!(root = %root.display(), format = decompressed.format(), "a layer is written directly");
    thread::scope(|scope| {
        // A diff ID is a sha256 digest wherever containerd knows the layer.
        let ahead = Ahead::of(decompressed, scope, Algorithm::Sha256).map_err(Error::Blob)?;
        let mut archive = Archive::new(ahead);
        while let Some(entry) = archive.next_entry().map_err(tree::Error::Archive)? {
            tree.write(&entry, &mut archive)?;
        }
        let unfinished = tree.finish()?;
        // What follows the end of the tar belongs to the diff ID all the same.
        let mut rest = archive.into_source();
        while rest.read(&mut [0; 4096]).map_err(Error::Blob)? > 0 {}
        Ok(Written { diff_id: DiffId(rest.digest()), unfinished })
    })
}

#[cfg(test)]
mod tests;
