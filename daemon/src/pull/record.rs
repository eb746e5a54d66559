//! Makes an unpacked image visible: first the labels that keep its snapshots, then its names.

use std::collections::HashMap;

use super::plan::Plan;
use super::resolve::Resolved;
use super::{Error, Order};
use crate::containerd::images::ImageRecord;
use crate::containerd::{Snapshotter, labels};
use crate::unpack::Context;

/// Writes the records that containerd's CRI expects of an image: the reference if it is a tag, `repository@digest`,
/// and the image ID, each with the label that says that CRI manages it (with it CRI makes no record of its own, so
/// all three are made here). A pinned image has the label that keeps kubelet from collecting it, too; CRI from 2.x on
/// adds that one itself to what it finds without. Returns their names.
pub(super) async fn record(
    context: &Context,
    order: &Order,
    resolved: &Resolved,
    plan: &Plan,
) -> Result<Vec<String>, Error> {
    let failed = |source| Error::Containerd { step: "record the image", source };
    let containerd = &context.containerd;
    keep_layers(context, &order.choice.snapshotter.name, plan).await?;
    let reference = &order.request.reference;
    let tagged = reference.tag().map(|_| reference.to_string());
    let names =
        [Some(reference.with_digest(&resolved.target.digest)), Some(plan.image_id.to_string()), tagged];
    let labels = [Some(labels::CRI_MANAGED), order.sandbox.unwrap_or(false).then_some(labels::CRI_PINNED)]
        .into_iter()
        .flatten();
    let labels: HashMap<_, _> = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let names: Vec<String> = names.into_iter().flatten().collect();
    for name in &names {
        let (name, target) = (name.clone(), resolved.target.clone());
        let record = ImageRecord { name, target, labels: labels.clone() };
        containerd.put_image(&record).await.map_err(failed)?;
    }
    Ok(names)
}

/// Keeps the image's snapshots from collection as long as the image is there: one label for each snapshotter, those of
/// others stay.
pub(super) async fn keep_layers(
    context: &Context,
    snapshotter: &Snapshotter,
    plan: &Plan,
) -> Result<(), Error> {
    let Some(top) = plan.top() else { return Ok(()) };
    let label = (format!("{}.{snapshotter}", labels::GC_REF_SNAPSHOT), top.to_string());
    let labelled = context.containerd.label_blob(&plan.image_id, HashMap::from([label])).await;
    labelled.map_err(|source| Error::Containerd { step: "record the image", source })
}
