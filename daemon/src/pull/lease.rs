//! The lease around each pull, and what becomes of it however the pull ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::containerd::leases::Collect;
use crate::containerd::{Containerd, Error, Lease};

/// As long as containerd's own pulls hold theirs: longer than any pull, short enough that a crash is reclaimed.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Between two tries to delete a lease while containerd is away; doubles up to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// Makes and ends the leases of pulls.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    containerd: Containerd,
    /// Owns calls that outlive their pull, so that a drain can wait for them.
    endings: TaskTracker,
    /// Set by a drain: what cannot be deleted now is left to its expiry.
    closing: CancellationToken,
    /// Makes names unique within the process.
    count: Arc<AtomicU64>,
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
        Self {
            containerd,
            endings: TaskTracker::new(),
            closing: CancellationToken::new(),
            count: Arc::default(),
        }
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
        let id = self.unique_id();
        match self.containerd.create_lease(&id, LIFETIME, labels).await {
            Ok(lease) => Ok(Held { leases: self.clone(), lease, ended: false }),
            Err(error) => {
                // An answer that came too late, or got lost with the connection, may have made it all the same.
                self.delete_behind(id);
                Err(error)
            }
        }
    }

    /// Waits for leases that are being made or deleted. Those that containerd does not take back now expire.
    pub(super) async fn drain(&self) {
        self.closing.cancel();
        self.endings.close();
        self.endings.wait().await;
    }

    async fn delete(&self, id: &str, collect: Collect) {
        if let Err(error) = self.containerd.delete_lease(id, collect).await {
            tracing::debug!(lease = id, %error, "a lease is deleted later");
            self.delete_behind(id.to_owned());
        }
    }

    /// Deletes a lease as soon as containerd takes it back. Not collected at once: what was fetched so far is what a
    /// retry continues from.
    fn delete_behind(&self, id: String) {
        let leases = self.clone();
        self.endings.spawn(async move {
            let mut pause = RETRY.0;
            while leases.containerd.delete_lease(&id, Collect::Later).await.is_err() {
                tokio::select! {
                    () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY.1),
                    () = leases.closing.cancelled() => return,
                }
            }
        });
    }

    fn unique_id(&self) -> String {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        format!("drayd-{nanos}-{}.{count}", std::process::id())
    }
}

impl Held {
    /// The lease itself.
    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Deletes the lease. With [`Collect::Now`] this returns when nothing that only the lease held is left.
    pub(super) async fn end(mut self, collect: Collect) {
        self.leases.delete(self.lease.id(), collect).await;
        // Only now: dropped while it waits above, the lease is still to be deleted.
        self.ended = true;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.ended {
            self.leases.delete_behind(self.lease.id().to_owned());
        }
    }
}
