//! Before a pull fetches layers: its turn in the queue, and room for it on the disks. What is on the node already waits
//! for nobody.

use super::ongoing::Ongoing;
use super::plan::Plan;
use super::queue::Admitted;
use super::room::{self, Need, Room, Target};
use super::survey::{self, Have};
use super::{Error, Puller};
use crate::containerd::Containerd;
use crate::containerd::introspection::LoadedSnapshotter;
use crate::progress::Stage;

/// The directory of the content store, by the name of its plugin.
const CONTENT: &str = "io.containerd.content.v1.content";

impl Puller {
    /// Waits for the pull's turn, if it has anything to fetch, and sees that there is room for it then.
    pub(super) async fn admit(
        &self,
        ongoing: &Ongoing,
        containerd: &Containerd,
        snapshotter: &LoadedSnapshotter,
        plan: &Plan,
    ) -> Result<Option<Admitted>, Error> {
        if survey::is_unpacked(containerd, &snapshotter.name, plan).await? {
            return Ok(None);
        }
        ongoing.progress.enter(Stage::Queued);
        let admitted = self.queue.enter(ongoing.id, &ongoing.reference, &ongoing.priority).await;
        if self.config.check_disk && !snapshotter.remote_capable {
            let have = survey::survey(containerd, &snapshotter.name, plan).await?;
            let short = self.rooms(snapshotter, plan, &have).await.into_iter().find(|room| !room.is_enough());
            if let Some(room) = short {
                return Err(Error::NoRoom(Box::new(room)));
            }
        }
        Ok(Some(admitted))
    }

    /// What the pull needs of the disks and what they have. A snapshotter that may take layers over has not said yet
    /// what it needs: nothing is known of such a pull.
    pub(super) async fn rooms(
        &self,
        snapshotter: &LoadedSnapshotter,
        plan: &Plan,
        have: &[Have],
    ) -> Vec<Room> {
        if snapshotter.remote_capable {
            return Vec::new();
        }
        // It was there when the pull began; without it nothing is known.
        let Ok(table) = self.node.table_soon().await else { return Vec::new() };
        let layers = || plan.layers.iter().map(|layer| &layer.blob).zip(have.iter().copied());
        let blobs = if self.config.keep_layers { Need::of_blobs(layers()) } else { Need::default() };
        // containerd before 2.0 does not tell; it keeps both side by side.
        let beside = || Some(snapshotter.root.as_ref()?.with_file_name(CONTENT));
        let store = table.content_root.clone().or_else(beside).map(|path| Target {
            path,
            used_by: "content store".into(),
            need: blobs,
        });
        let files = snapshotter.root.clone().map(|path| Target {
            path,
            used_by: snapshotter.name.to_string(),
            need: Need::of_files(layers()),
        });
        room::look(store.into_iter().chain(files).collect()).await
    }
}
