//! The sandbox image goes into every snapshotter that pods run on. containerd makes sandboxes itself and asks nobody to
//! pull for them: where it finds the image and not its layers, it unpacks them without what a remote snapshotter must
//! be told, or fails.

use super::plan::Plan;
use super::{Error, Order, Puller, record};
use crate::cause::chain;
use crate::unpack::{Context, LayerOutcome};

impl Puller {
    /// Unpacks the image of `plan`, which is recorded, into the other snapshotters as well. What fails there fails no
    /// pull: no pod that was asked for needs it.
    pub(super) async fn spread(&self, order: &Order, context: &Context, plan: &Plan) {
        let reference = &order.request.reference;
        for snapshotter in &order.elsewhere {
            let unpacked = async {
                let unpacked = self.unpacker.unpack(context, snapshotter, &plan.layers).await;
                let layers = unpacked.map_err(Error::Unpack)?;
                record::keep_layers(context, &snapshotter.name, plan).await?;
                Ok::<_, Error>(layers)
            };
            let name = &snapshotter.name;
            match unpacked.await {
                Ok(layers) if layers.iter().all(|outcome| *outcome == LayerOutcome::Exists) => {
                    tracing::debug!(snapshotter = %name, "the sandbox image \"{reference}\" is there");
                }
                Ok(_) => {
                    tracing::info!(snapshotter = %name, "unpacked the sandbox image \"{reference}\" there, too");
                }
                Err(error) => tracing::warn!(
                    snapshotter = %name,
                    cause = chain(&error),
                    "the sandbox image \"{reference}\" is not unpacked there: pods on it may not start"
                ),
            }
        }
    }
}
