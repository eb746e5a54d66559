//! Waits until containerd's CRI shows the image. It learns of records by events, and kubelet creates the container at
//! once with the ID that it was given.

use std::time::Duration;

use super::Error;
use crate::containerd::{self, Containerd, Kind};
use crate::oci::{Digest, Reference};

/// CRI handles image events one by one and gives each up to 10 s.
const DEADLINE: Duration = Duration::from_secs(30);
/// For the name after that. CRI takes in the records of one image at about the same time, but a name of which it could
/// once make no image is looked at again only after a wait that grows to minutes.
const NAME_DEADLINE: Duration = Duration::from_secs(10);
/// Longest pause between two looks.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// What CRI says of the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    /// Whether it is one that is never collected.
    pub(super) pinned: bool,
}

/// Returns when CRI knows the ID, without which no container can be made. `None`: a containerd or a namespace without a
/// CRI has nobody to wait for.
pub(super) async fn by_id(containerd: &Containerd, image_id: &Digest) -> Result<Option<Shown>, Error> {
    if !containerd.has_cri() {
        return Ok(None);
    }
    let shown = shows(containerd, image_id.as_str(), |id| id == image_id.as_str());
    match tokio::time::timeout(DEADLINE, shown).await {
        Ok(Err(error)) if error.kind() == Kind::Unimplemented => Ok(None),
        Ok(shown) => shown.map(Some).map_err(failed),
        Err(_) => Err(Error::NotPublished { waited: DEADLINE }),
    }
}

/// Returns when CRI knows the reference of what it shows as `by_id`, if that comes soon. What the reference means is
/// not asked: a tag that moved meanwhile is another pull's, and this one's ID can be used all the same.
pub(super) async fn by_name(
    containerd: &Containerd,
    reference: &Reference,
    by_id: Shown,
) -> Result<Shown, Error> {
    let reference = reference.to_string();
    let shown = shows(containerd, &reference, |_| true);
    if let Ok(shown) = tokio::time::timeout(NAME_DEADLINE, shown).await {
        return shown.map_err(failed);
    }
    tracing::warn!(
        reference,
        "containerd's CRI does not show the name after {} s: it had no image under it before, and looks again within \
         5 minutes; until then containers can be made by the image ID alone",
        NAME_DEADLINE.as_secs()
    );
    Ok(by_id)
}

fn failed(source: containerd::Error) -> Error {
    Error::Containerd { step: "see the image in containerd's CRI", source }
}

/// Returns when CRI has an image of that name whose ID is right.
async fn shows(
    containerd: &Containerd,
    name: &str,
    right: impl Fn(&str) -> bool,
) -> Result<Shown, containerd::Error> {
    let mut pause = Duration::from_millis(2);
    loop {
        match containerd.cri_image(name).await {
            Ok(Some(image)) if right(&image.id) => return Ok(Shown { pinned: image.pinned }),
            Err(error) if matches!(error.kind(), Kind::Unimplemented | Kind::Unavailable) => {
                return Err(error);
            }
            // Not yet; or an answer that CRI gives while it is busy with the same image.
            _ => tokio::time::sleep(pause).await,
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
