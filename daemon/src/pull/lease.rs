//! The lease around each pull, and what becomes of it however the pull ends.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::containerd::leases::Collect;
use crate::containerd::{Containerd, Error, Lease};

/// As long as containerd's own pulls hold theirs: longer than any pull, short enough that a crash is reclaimed.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Makes and ends the leases of pulls.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    containerd: Containerd,
    /// Leases that could not be deleted because containerd was away; deleted with the next that can.
    orphans: Arc<Mutex<Vec<String>>>,
    /// Owns calls that outlive their pull, so that a drain can wait for them.
    endings: TaskTracker,
}

/// The lease of one pull. Dropped without [`Held::end`], the pull was given up: it is then deleted behind its back.
#[derive(Debug)]
pub(super) struct Held {
    leases: Leases,
    lease: Lease,
    ended: bool,
}

impl Leases {
    /// Leases on `containerd`.
    pub(super) fn new(containerd: Containerd) -> Self {
        Self { containerd, orphans: Arc::default(), endings: TaskTracker::new() }
    }

    /// Makes the lease of a pull. `reference` is noted on it, for whoever lists leases.
    pub(super) async fn hold(&self, reference: &str) -> Result<Held, Error> {
        let (leases, (sender, made)) = (self.clone(), oneshot::channel());
        let labels = HashMap::from([("drayd.io/reference".to_owned(), reference.to_owned())]);
        // A task of its own: a caller that leaves during the call would leave a lease that nobody knows of.
        self.endings.spawn(async move {
            if let Err(Ok(held)) = sender.send(leases.make(labels).await) {
                held.end(Collect::Later).await;
            }
        });
        made.await.expect("the task above always sends")
    }

    async fn make(&self, labels: HashMap<String, String>) -> Result<Held, Error> {
        let lease = self.containerd.create_lease(&unique_id(), LIFETIME, labels).await?;
        let orphans = std::mem::take(&mut *self.orphans());
        for id in orphans {
            self.delete(&id, Collect::Later).await;
        }
        Ok(Held { leases: self.clone(), lease, ended: false })
    }

    /// Waits for leases that are being made or deleted.
    pub(super) async fn drain(&self) {
        self.endings.close();
        self.endings.wait().await;
        self.endings.reopen();
    }

    async fn delete(&self, id: &str, collect: Collect) {
        if let Err(error) = self.containerd.delete_lease(id, collect).await {
            tracing::debug!(lease = id, %error, "a lease is deleted later");
            self.orphans().push(id.to_owned());
        }
    }

    fn orphans(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// The lease itself.
    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Deletes the lease. With [`Collect::Now`] this returns when nothing that only the lease held is left.
    pub(super) async fn end(mut self, collect: Collect) {
        self.ended = true;
        self.leases.delete(self.lease.id(), collect).await;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.ended {
            let (leases, id) = (self.leases.clone(), self.lease.id().to_owned());
            // Not collected at once: what was fetched so far is what a retry continues from.
            self.leases.endings.spawn(async move { leases.delete(&id, Collect::Later).await });
        }
    }
}

fn unique_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("drayd-{nanos}-{}.{count}", std::process::id())
}
