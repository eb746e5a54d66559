//! The sandbox image goes into every snapshotter that pods run on. containerd makes sandboxes itself and asks nobody to
//! pull for them: where it finds the image and not its layers, it unpacks them without what a remote snapshotter must
//! be told, or fails.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::plan::Plan;
use super::{Error, Order, Puller, record};
use crate::cause::chain;
use crate::containerd::introspection::LoadedSnapshotter;
use crate::progress::Progress;
use crate::unpack::{Context, LayerOutcome};

/// For all snapshotters together. Sandbox images have less than a megabyte, and whoever asked for this one waits.
const DEADLINE: Duration = Duration::from_secs(20);

impl Puller {
    /// Unpacks the image of `plan`, which is recorded, into the other snapshotters as well. What fails there fails no
    /// pull, and neither does what takes too long: no pod that was asked for needs it.
    pub(super) async fn spread(&self, order: &Order, context: &Context, plan: &Plan) {
        let reference = &order.request.reference;
        let until = Instant::now() + DEADLINE;
        for snapshotter in &order.elsewhere {
            // With a progress of its own: the pull is done, and no silence of a registry is to end it.
            let progress = Arc::new(Progress::default());
            let elsewhere = Context { progress: Arc::clone(&progress), ..context.clone() };
            let unpacked = tokio::select! {
                unpacked = self.unpack_there(snapshotter, &elsewhere, plan) => {
                    unpacked.map_err(|error| chain(&error))
                }
                error = self.stall(progress.meter()) => Err(chain(&error)),
                () = sleep_until(until) => Err(format!("not done within {} s", DEADLINE.as_secs())),
            };
            context.progress.meter().received(progress.meter().bytes());
            let name = &snapshotter.name;
            match unpacked {
                Ok(layers) if layers.iter().all(|outcome| *outcome == LayerOutcome::Exists) => {
                    tracing::debug!(snapshotter = %name, "the sandbox image \"{reference}\" is there");
                }
                Ok(_) => {
                    tracing::info!(snapshotter = %name, "unpacked the sandbox image \"{reference}\" there, too");
                }
                Err(cause) => tracing::warn!(
                    snapshotter = %name,
                    cause,
                    "the sandbox image \"{reference}\" is not unpacked there: pods on it may not start"
                ),
            }
        }
    }

    async fn unpack_there(
        &self,
        snapshotter: &LoadedSnapshotter,
        context: &Context,
        plan: &Plan,
    ) -> Result<Vec<LayerOutcome>, Error> {
        let unpacked = self.unpacker.unpack(context, snapshotter, &plan.layers).await;
        let layers = unpacked.map_err(Error::Unpack)?;
        record::keep_layers(context, &snapshotter.name, plan).await?;
        Ok(layers)
    }
}
