//! Makes an unpacked image visible: first the labels that keep its snapshots, then its names; and takes the names back
//! where that is of no use.

use std::collections::HashMap;

use super::plan::Plan;
use super::publish::{self, Shown};
use super::resolve::Resolved;
use super::{Error, Order};
use crate::containerd::images::{Found, ImageRecord};
use crate::containerd::leases::Collect;
use crate::containerd::{self, Containerd, Snapshotter, labels};
use crate::fetch::{Turn, Turns};
use crate::unpack::Context;

/// An image that containers can be created from.
pub(super) struct Recorded {
    /// Names of its records.
    pub(super) names: Vec<String>,
    /// What CRI says of it.
    pub(super) shown: Shown,
}

/// What is to be done to a record that is of no use.
#[derive(Debug, PartialEq, Eq)]
enum Undo {
    /// Nothing: it was like that before, or is another's by now.
    Nothing,
    /// There was none before.
    Delete,
    /// It gets this target back, and these values of labels; an empty value is none.
    Restore(ImageRecord),
}

/// Records the image and returns when CRI shows it. What CRI does not show is taken back: kubelet would take the image
/// for pulled and could make no container.
///
/// A record is one pull's from before it is written until CRI shows the image or the record is taken back (`turns`, by
/// name): the next one then finds what is there for sure, and nobody takes back what another pull stands on.
pub(super) async fn record(
    turns: &Turns<String>,
    context: &Context,
    order: &Order,
    resolved: &Resolved,
    plan: &Plan,
) -> Result<Recorded, Error> {
    keep_layers(context, &order.choice.snapshotter.name, plan).await?;
    let records = records(order, resolved, plan);
    let names: Vec<_> = records.iter().map(|record| record.name.clone()).collect();
    let turns = turns_at(turns, &names).await;
    let containerd = &context.containerd;
    let mut written = Vec::with_capacity(records.len());
    for record in records {
        let before = containerd.put_image(&record).await;
        let before = before.map_err(|source| Error::Containerd { step: "record the image", source })?;
        written.push((record, before));
    }
    let by_id = publish::by_id(containerd, &plan.image_id).await;
    if matches!(by_id, Err(Error::NotPublished { .. })) && withdraw(containerd, &written).await {
        return Err(Error::Removed);
    }
    drop(turns);
    let shown = match by_id? {
        Some(by_id) => publish::by_name(containerd, &order.request.reference, by_id).await?,
        None => Shown::default(),
    };
    Ok(Recorded { names, shown })
}

/// The records that containerd's CRI expects of an image: `repository@digest`, the image ID, and the reference if it is
/// a tag, each with the label that says that CRI manages it (with it CRI makes no record of its own, so all three are
/// made here). A pinned image has the label that keeps kubelet from collecting it, too; CRI from 2.x on adds that one
/// itself to what it finds without.
fn records(order: &Order, resolved: &Resolved, plan: &Plan) -> Vec<ImageRecord> {
    let reference = &order.request.reference;
    let tagged = reference.tag().map(|_| reference.to_string());
    let names =
        [Some(reference.with_digest(&resolved.target.digest)), Some(plan.image_id.to_string()), tagged];
    let labels = [Some(labels::CRI_MANAGED), order.sandbox.unwrap_or(false).then_some(labels::CRI_PINNED)]
        .into_iter()
        .flatten();
    let labels: HashMap<_, _> = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let record = |name| ImageRecord { name, target: resolved.target.clone(), labels: labels.clone() };
    names.into_iter().flatten().map(record).collect()
}

/// The turn at each of these names.
async fn turns_at(turns: &Turns<String>, names: &[String]) -> Vec<Turn> {
    // In the same order by all, so that no two wait for each other.
    let mut names = names.to_vec();
    names.sort_unstable();
    names.dedup();
    let mut taken = Vec::with_capacity(names.len());
    for name in names {
        taken.push(turns.take(name).await);
    }
    taken
}

/// Undoes what was written, the last first, and says whether somebody else has removed some of it before. What cannot
/// be undone is left and told in the log.
async fn withdraw(containerd: &Containerd, written: &[(ImageRecord, Found)]) -> bool {
    let mut removed = false;
    for (record, before) in written.iter().rev() {
        match take_back(containerd, record, before).await {
            Ok(was_there) => removed |= !was_there,
            Err(error) => {
                tracing::warn!(name = record.name, %error, "the record of an image that CRI does not show stays");
            }
        }
    }
    removed
}

/// Undoes what was written to one record; `false` if there is none any more.
async fn take_back(
    containerd: &Containerd,
    record: &ImageRecord,
    before: &Found,
) -> Result<bool, containerd::Error> {
    let now = containerd.find_image(&record.name).await?;
    match undo(record, before, &now) {
        Undo::Nothing => {}
        Undo::Delete => containerd.delete_image(&record.name, Collect::Later).await?,
        Undo::Restore(former) => containerd.change_image(&former).await?,
    }
    Ok(now != Found::Nothing)
}

fn undo(record: &ImageRecord, before: &Found, now: &Found) -> Undo {
    // Others write records, too: a tag that points elsewhere by now is theirs.
    let Found::Record(now) = now else { return Undo::Nothing };
    if now.target.digest != record.target.digest {
        return Undo::Nothing;
    }
    match before {
        Found::Nothing => Undo::Delete,
        Found::Odd => Undo::Nothing,
        Found::Record(before) => {
            let former = |key: &String| before.labels.get(key).cloned().unwrap_or_default();
            let labels: HashMap<_, _> = record.labels.keys().map(|key| (key.clone(), former(key))).collect();
            if labels == record.labels && before.target.digest == record.target.digest {
                return Undo::Nothing;
            }
            Undo::Restore(ImageRecord { name: record.name.clone(), target: before.target.clone(), labels })
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::{Descriptor, Digest};

    fn record(target: &[u8], labels: &[(&str, &str)]) -> ImageRecord {
        let target = Descriptor {
            media_type: "application/vnd.oci.image.manifest.v1+json".into(),
            digest: Digest::of(target),
            size: 1,
            annotations: [].into(),
            urls: Vec::new(),
        };
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        ImageRecord { name: "r.io/a:1".into(), target, labels }
    }

    #[test]
    fn a_record_is_taken_back_only_as_far_as_it_was_changed_and_is_still_the_same() {
        let found = |target, labels| Found::Record(record(target, labels));
        let ours = [("managed", "1")];
        for (case, before, now, expected) in [
            ("new", Found::Nothing, found(b"ours", &ours), Undo::Delete),
            ("removed", Found::Nothing, Found::Nothing, Undo::Nothing),
            ("moved on", Found::Nothing, found(b"theirs", &ours), Undo::Nothing),
            ("moved, and on", found(b"former", &[]), found(b"theirs", &ours), Undo::Nothing),
            ("found right", found(b"ours", &ours), found(b"ours", &ours), Undo::Nothing),
            ("odd before", Found::Odd, found(b"ours", &ours), Undo::Nothing),
            (
                "moved, with the labels",
                found(b"former", &ours),
                found(b"ours", &ours),
                Undo::Restore(record(b"former", &ours)),
            ),
            (
                "moved and labelled, among labels of others",
                found(b"former", &[("theirs", "2")]),
                found(b"ours", &[("theirs", "2"), ("managed", "1")]),
                Undo::Restore(record(b"former", &[("managed", "")])),
            ),
            (
                "labelled",
                found(b"ours", &[("managed", "0")]),
                found(b"ours", &ours),
                Undo::Restore(record(b"ours", &[("managed", "0")])),
            ),
        ] {
            assert_eq!(undo(&record(b"ours", &ours), &before, &now), expected, "{case}");
        }
    }

    #[tokio::test]
    async fn pulls_of_the_same_names_in_any_order_come_one_after_the_other() {
        let turns = Turns::default();
        let first = turns_at(&turns, &["b".to_owned(), "a".to_owned()]).await;
        let mut waiting = [["a", "b"], ["b", "a"], ["a", "c"]].map(|names| {
            let (turns, names) = (&turns, names.map(str::to_owned));
            Box::pin(async move { turns_at(turns, &names).await.len() })
        });
        for pull in &mut waiting {
            assert!(futures_util::poll!(pull).is_pending(), "two pulls have the same record");
        }
        drop(first);
        assert_eq!(futures_util::future::join_all(waiting).await, [2, 2, 2]);
    }
}
