//! Waits until containerd's CRI shows the image. It learns of records by events, and kubelet creates the container at
//! once with the ID that it was given.

use std::time::Duration;

use super::Error;
use crate::containerd::{self, Containerd, Kind};
use crate::oci::{Digest, Reference};

/// CRI handles image events one by one and gives each up to 10 s.
const DEADLINE: Duration = Duration::from_secs(30);
/// Longest pause between two looks.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// What CRI says of the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    /// Whether it is one that is never collected.
    pub(super) pinned: bool,
}

/// Returns when CRI knows the ID, and knows the reference. What the reference means is not asked: a tag that moved
/// meanwhile is another pull's, and this one's ID can be used all the same. A containerd or a namespace without a CRI
/// has nobody to wait for.
pub(super) async fn publish(
    containerd: &Containerd,
    reference: &Reference,
    image_id: &Digest,
) -> Result<Shown, Error> {
    if !containerd.has_cri() {
        return Ok(Shown::default());
    }
    let shown = async {
        shows(containerd, image_id.as_str(), |id| id == image_id.as_str()).await?;
        shows(containerd, &reference.to_string(), |_| true).await
    };
    match tokio::time::timeout(DEADLINE, shown).await {
        Ok(Err(error)) if error.kind() == Kind::Unimplemented => Ok(Shown::default()),
        Ok(shown) => {
            shown.map_err(|source| Error::Containerd { step: "see the image in containerd's CRI", source })
        }
        Err(_) => Err(Error::NotPublished { waited: DEADLINE }),
    }
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
