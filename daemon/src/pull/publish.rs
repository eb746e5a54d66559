//! Waits until containerd's CRI shows the image. It learns of records by events, and kubelet creates the container at
//! once with the ID that it was given.

use std::time::Duration;

use tokio::time::Instant;

use super::Error;
use crate::containerd::{Containerd, Kind};
use crate::oci::{Digest, Reference};

/// CRI handles image events one by one and gives each up to 10 s.
const DEADLINE: Duration = Duration::from_secs(30);
/// Longest pause between two looks.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Returns when both the ID and the reference are known to CRI and mean this image. A containerd without a CRI
/// plugin has nobody to wait for.
pub(super) async fn publish(
    containerd: &Containerd,
    reference: &Reference,
    image_id: &Digest,
) -> Result<(), Error> {
    let give_up = Instant::now() + DEADLINE;
    let mut pause = Duration::from_millis(2);
    for name in [image_id.to_string(), reference.to_string()] {
        loop {
            match containerd.cri_image_id(&name).await {
                Ok(Some(id)) if id == image_id.as_str() => break,
                Err(error) if error.kind() == Kind::Unimplemented => return Ok(()),
                Err(error) if error.kind() == Kind::Unavailable => {
                    return Err(Error::Containerd {
                        step: "see the image in containerd's CRI",
                        source: error,
                    });
                }
                Err(error) if Instant::now() >= give_up => {
                    return Err(Error::Containerd {
                        step: "see the image in containerd's CRI",
                        source: error,
                    });
                }
                Ok(_) if Instant::now() >= give_up => return Err(Error::NotPublished { waited: DEADLINE }),
                _ => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
    Ok(())
}
