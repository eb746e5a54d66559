//! Waiting for something that is going to be true, with a deadline.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

const TICK: Duration = Duration::from_millis(10);

/// Looks again and again until `condition` holds; fails after `within`. `what` says what did not come.
pub async fn until(
    what: &str,
    within: Duration,
    mut condition: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + within;
    while !condition().await? {
        if Instant::now() > deadline {
            bail!("after {within:?} it had not come to this: {what}");
        }
        sleep(TICK).await;
    }
    Ok(())
}
