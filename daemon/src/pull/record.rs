//! Makes an unpacked image visible: first the labels that keep its snapshots, then its names; and takes the names back
//! where that is of no use.

use std::collections::HashMap;

use super::plan::Plan;
use super::resolve::Resolved;
use super::{Error, Order};
use crate::containerd::images::{Found, ImageRecord};
use crate::containerd::leases::Collect;
use crate::containerd::{Containerd, labels};
use crate::unpack::Context;

/// A record that a pull has written or found right, and what was under its name before.
pub(super) struct Recorded {
    record: ImageRecord,
    before: Found,
}

impl Recorded {
    /// The record's name.
    pub(super) fn name(&self) -> &str {
        &self.record.name
    }
}

/// Writes the records that containerd's CRI expects of an image: the reference if it is a tag, `repository@digest`,
/// and the image ID, each with the label that says that CRI manages it (with it CRI makes no record of its own, so
/// all three are made here). A pinned image has the label that keeps kubelet from collecting it, too; CRI from 2.x on
/// adds that one itself to what it finds without.
pub(super) async fn record(
    context: &Context,
    order: &Order,
    resolved: &Resolved,
    plan: &Plan,
) -> Result<Vec<Recorded>, Error> {
    let failed = |source| Error::Containerd { step: "record the image", source };
    let containerd = &context.containerd;
    if let Some(top) = plan.top() {
        // One label per snapshotter: those of other snapshotters stay.
        let label =
            (format!("{}.{}", labels::GC_REF_SNAPSHOT, order.choice.snapshotter.name), top.to_string());
        let labelled = containerd.label_blob(&plan.image_id, HashMap::from([label])).await;
        labelled.map_err(failed)?;
    }
    let reference = &order.request.reference;
    let tagged = reference.tag().map(|_| reference.to_string());
    let names =
        [Some(reference.with_digest(&resolved.target.digest)), Some(plan.image_id.to_string()), tagged];
    let labels =
        [Some(labels::CRI_MANAGED), order.pinned.then_some(labels::CRI_PINNED)].into_iter().flatten();
    let labels: HashMap<_, _> = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let mut recorded = Vec::new();
    for name in names.into_iter().flatten() {
        let record = ImageRecord { name, target: resolved.target.clone(), labels: labels.clone() };
        let before = containerd.put_image(&record).await.map_err(failed)?;
        recorded.push(Recorded { record, before });
    }
    Ok(recorded)
}

/// Undoes [`record`] as far as it changed what the names stand for. What cannot be undone is left and told in the log.
pub(super) async fn withdraw(containerd: &Containerd, recorded: &[Recorded]) {
    for Recorded { record: ImageRecord { name, target, .. }, before } in recorded.iter().rev() {
        let undone = match before {
            Found::Nothing => containerd.delete_image(name, Collect::Later).await,
            Found::Record(before) if before.target.digest != target.digest => {
                containerd.put_image(before).await.map(drop)
            }
            Found::Record(_) | Found::Odd => Ok(()),
        };
        if let Err(error) = undone {
            tracing::warn!(name, %error, "the record of an image that CRI does not show stays");
        }
    }
}
