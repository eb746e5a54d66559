//! Brings one layer: its blob into the content store, and its files where they can be written while it comes, in one
//! pass over the same bytes. What goes wrong with the files alone fails nothing here: the layer is then unpacked from the
//! store, when it is its turn, and says what is wrong.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use super::direct::{self, Place, Written};
use super::staging::{REMOVALS, Staged, Staging};
use super::tree::Tree;
use super::{Context, Layer};
use crate::cause;
use crate::containerd::labels;
use crate::fetch::{self, Fetched, Fetcher, Listen, Tapped, slots, tap};
use crate::oci::DiffId;
use crate::progress;

/// Brings layers for all pulls of this node.
#[derive(Clone)]
pub(super) struct Bringer {
    pub(super) fetcher: Arc<Fetcher>,
    /// Layers at once that are written ahead from the content store, for it gives them as fast as they can be written.
    pub(super) readers: Arc<Semaphore>,
    /// Threads that write for one pull, so that nothing is removed under their hands.
    pub(super) writers: TaskTracker,
}

/// Where a layer is written while it comes.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// Into its own snapshot, which is prepared.
    Active(Place),
    /// Ahead of it.
    Staged(Arc<Staging>),
}

/// What was brought.
#[derive(Debug)]
pub(super) struct Brought {
    /// How the blob came.
    pub(super) fetched: Fetched,
    /// Whether the content store has it.
    pub(super) stored: bool,
    pub(super) files: Files,
}

/// A layer's files, as far as they are there.
#[derive(Debug)]
pub(super) enum Files {
    /// Nothing was written that counts.
    Unwritten,
    /// Nothing, and only where the layers below are can it be written.
    InItsTurn,
    /// All, in the layer's own snapshot.
    InPlace(DiffId),
    /// Some, in the layer's own snapshot, which is of no use any more.
    Spoilt,
    /// All, to be moved.
    Staged(Staged),
    /// The disk is full.
    NoRoom(direct::Error),
}

impl Bringer {
    /// Brings the layer, whose place in the pull's line is `place`.
    pub(super) async fn bring(
        &self,
        context: &Context,
        layer: &Layer,
        told: &progress::Layer,
        place: &slots::Place,
        target: Option<Target>,
    ) -> Result<Brought, fetch::Error> {
        let Context { containerd, keep_layers, .. } = context;
        let wanted = context.wanted(layer, told, place);
        let mut target = target.filter(|_| direct::is_tar(&layer.blob.media_type));
        let mut spoilt = Files::Unwritten;
        if let Some(direct) = target.as_ref().filter(|_| !keep_layers) {
            let mut writing = None;
            let listen = self.listen(direct, told, &mut writing);
            let passed = self.fetcher.pass(containerd, wanted, listen).await?;
            match Writing::end(writing).await {
                files @ (Files::InPlace(_) | Files::Staged(_)) if passed => {
                    let fetched = Fetched::Transferred { continued: 0 };
                    return Ok(Brought { fetched, stored: false, files });
                }
                Files::NoRoom(error) => return Ok(Brought::full(error)),
                // Not into the same directory again.
                Files::InPlace(_) | Files::Spoilt => (target, spoilt) = (None, Files::Spoilt),
                Files::InItsTurn => target = None,
                Files::Staged(_) | Files::Unwritten => {}
            }
        }
        let mut writing = None;
        let listen = target.as_ref().map(|target| self.listen(target, told, &mut writing));
        let fetched = self.fetcher.blob(containerd, wanted, listen).await?;
        told.unpacking();
        // Those above it need not wait for what happens here now.
        place.step_aside();
        let files = match (writing, target) {
            (Some(writing), _) => Writing::end(Some(writing)).await,
            (None, Some(target @ Target::Staged(..))) => {
                told.written_by(progress::Engine::Direct, &"");
                self.write_stored(context, layer, &target).await?
            }
            (None, _) => spoilt,
        };
        if let Files::InPlace(diff_id) | Files::Staged(Staged { diff_id, .. }) = &files
            && *diff_id == layer.diff_id
        {
            let label = (labels::UNCOMPRESSED.to_owned(), diff_id.to_string());
            containerd.label_blob(&layer.blob.digest, HashMap::from([label])).await?;
        }
        Ok(Brought { fetched, stored: true, files })
    }

    /// Writes a layer ahead that the content store has.
    async fn write_stored(
        &self,
        context: &Context,
        layer: &Layer,
        target: &Target,
    ) -> Result<Files, fetch::Error> {
        // It is never closed.
        let permit = Arc::clone(&self.readers).acquire_owned().await.ok();
        let (tap, tapped) = tap(permit);
        let writing = self.begin(target, tapped);
        direct::send_blob(&context.containerd, &layer.blob.digest, tap).await?;
        Ok(Writing::end(Some(writing)).await)
    }

    /// Begins to write when the first bytes come, and says so in `writing`.
    fn listen<'a>(
        &'a self,
        target: &'a Target,
        told: &'a progress::Layer,
        writing: &'a mut Option<Writing>,
    ) -> Listen<'a> {
        Box::new(move |permit| {
            told.written_by(progress::Engine::Direct, &"");
            let (tap, tapped) = tap(Some(permit));
            *writing = Some(self.begin(target, tapped));
            tap
        })
    }

    /// Writes what is tapped, in a thread of its own.
    fn begin(&self, target: &Target, tapped: Tapped) -> Writing {
        match target.clone() {
            Target::Active(place) => {
                let write = move || direct::written(&place.root, place.tree(), tapped);
                Writing { staged: None, task: self.writers.spawn_blocking(write) }
            }
            Target::Staged(staging) => {
                let root = staging.directory();
                let staged = Some(root.clone());
                let write = move || {
                    let written = direct::written(&root, Tree::staged(&root, REMOVALS), tapped);
                    if written.is_err() {
                        // What stays goes with the snapshot.
                        let _ = fs::remove_dir_all(&root);
                    }
                    written
                };
                Writing { staged, task: self.writers.spawn_blocking(write) }
            }
        }
    }
}

impl Brought {
    fn full(error: direct::Error) -> Self {
        let fetched = Fetched::Transferred { continued: 0 };
        Self { fetched, stored: false, files: Files::NoRoom(error) }
    }
}

/// A layer that is being written.
#[derive(Debug)]
struct Writing {
    /// `None` if it is its own snapshot's directory.
    staged: Option<PathBuf>,
    task: JoinHandle<Result<Written, direct::Error>>,
}

impl Writing {
    /// What came of it.
    async fn end(writing: Option<Self>) -> Files {
        let Some(Self { staged, task }) = writing else { return Files::Unwritten };
        match (direct::ended(task.await), staged) {
            (Ok(Written { diff_id, unfinished }), Some(root)) => {
                Files::Staged(Staged { root, unfinished, diff_id })
            }
            (Ok(Written { diff_id, .. }), None) => Files::InPlace(diff_id),
            (Err(error), None) if error.is_full_disk() => Files::NoRoom(error),
            (Err(error), staged) => {
                tracing::debug!(error = cause::chain(&error), "a layer is not written while it comes");
                match staged {
                    None => Files::Spoilt,
                    // In its turn there may be room: others are committed by then, or gone.
                    Some(_) if error.is_of_the_place() => Files::InItsTurn,
                    Some(_) => Files::Unwritten,
                }
            }
        }
    }
}
