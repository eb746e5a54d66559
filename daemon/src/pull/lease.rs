//! The lease around each pull, and what becomes of it however the pull ends.

use std::collections::HashMap;
use std::convert::Infallible;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::containerd::leases::{CarriedOver, Collect};
use crate::containerd::{Containerd, CurrentLease, Error, LONGEST_CALL, Lease};

/// Between two tries while containerd is away; doubles up to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// A lifetime below this may be too short. What a call leaves that was begun just before a renewal is under the former
/// lease alone until all of that goes over for the last time, which is a quarter of a lifetime after.
pub(super) const SHORT: Duration = LONGEST_CALL.saturating_mul(4);

/// Makes and ends the leases of pulls.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    containerd: Containerd,
    /// After this a lease that nobody renews is void.
    lifetime: Duration,
    /// Owns calls that outlive their pull, so that a drain can wait for them.
    endings: TaskTracker,
    /// Set by a drain: what cannot be deleted now is left to its expiry.
    closing: CancellationToken,
    /// Makes names unique within the process.
    count: Arc<AtomicU64>,
}

/// What keeps the work of one pull: a lease, and the next one in good time.
#[derive(Debug)]
pub(super) struct Held {
    /// What calls are under.
    current: CurrentLease,
    newest: Single,
    /// The one before, until nothing of it is needed any more: calls may be under way that were made under it.
    former: Option<Single>,
    /// The pull's reference, noted on each.
    reference: String,
}

/// One lease. Dropped without [`Single::end`], the pull was given up: it is then deleted behind its back.
#[derive(Debug)]
struct Single {
    leases: Leases,
    lease: Lease,
    /// When it was asked for: it expires no sooner than its lifetime after that.
    made: Instant,
    ended: bool,
}

/// Tries of what only containerd can do: less and less often, and told of once.
struct Tries {
    pause: Duration,
    longest: Duration,
    told: bool,
}

impl Leases {
    /// Leases on `containerd`, each for so long.
    pub(super) fn new(containerd: Containerd, lifetime: Duration) -> Self {
        Self {
            containerd,
            lifetime,
            endings: TaskTracker::new(),
            closing: CancellationToken::new(),
            count: Arc::default(),
        }
    }

    /// Makes the lease of a pull. `reference` is noted on it, for whoever lists leases.
    pub(super) async fn hold(&self, reference: &str) -> Result<Held, Error> {
        let newest = self.single(reference).await?;
        let current = CurrentLease::new(&newest.lease);
        Ok(Held { current, newest, former: None, reference: reference.to_owned() })
    }

    async fn single(&self, reference: &str) -> Result<Single, Error> {
        let (leases, (sender, made)) = (self.clone(), oneshot::channel());
        let labels = HashMap::from([("drayd.io/reference".to_owned(), reference.to_owned())]);
        // A task of its own: a caller that leaves during the call would leave a lease that nobody knows of.
        self.endings.spawn(async move {
            if let Err(Ok(lease)) = sender.send(leases.make(labels).await) {
                lease.end(Collect::Later).await;
            }
        });
        made.await.expect("the task above always sends")
    }

    async fn make(&self, labels: HashMap<String, String>) -> Result<Single, Error> {
        let (id, made) = (self.unique_id(), Instant::now());
        match self.containerd.create_lease(&id, self.lifetime, labels).await {
            Ok(lease) => Ok(Single { leases: self.clone(), lease, made, ended: false }),
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
                    () = sleep(pause) => pause = (pause * 2).min(RETRY.1),
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
    /// The lease that calls are to be under.
    pub(super) fn current(&self) -> &CurrentLease {
        &self.current
    }

    /// Does the work of the pull, however long it takes: what it made stays under a lease that has not expired.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            done = work => done,
            never = self.renew() => match never {},
        }
    }

    /// containerd cannot prolong a lease, and one that is deleted and made anew leaves a gap, in which a collection
    /// takes all. So there is a next lease at half of each one's time, and all goes over to it: what was there by then
    /// at once, and what calls under way have added since well before the former expires.
    async fn renew(&mut self) -> Infallible {
        loop {
            sleep_until(self.newest.made + self.newest.leases.lifetime / 2).await;
            self.succeed().await;
            self.take_over().await;
        }
    }

    /// Puts the pull under a lease that was just made.
    async fn succeed(&mut self) {
        let next = self.next().await;
        self.current.replace(&next.lease, &self.newest.lease);
        let former = mem::replace(&mut self.newest, next);
        // The one before has expired by now, and all of it went over long ago.
        if let Some(expired) = self.former.replace(former) {
            expired.end(Collect::Later).await;
        }
    }

    /// Tries for as long as the pull goes on: without a lease that is renewed nothing of it is safe.
    async fn next(&self) -> Single {
        let leases = &self.newest.leases;
        let mut tries = Tries::new(leases.lifetime);
        loop {
            match leases.single(&self.reference).await {
                Ok(next) => return next,
                Err(error) => tries.failed(self.newest.lease.id(), &error).await,
            }
        }
    }

    /// Puts what the former lease keeps under the newest, twice. The second time is a quarter of its time before it
    /// expires, and late for what is under way for longer.
    async fn take_over(&mut self) {
        let Some(former) = &self.former else { return };
        let lifetime = former.leases.lifetime;
        let (last, end) = (former.made + lifetime / 4 * 3, former.made + lifetime);
        for at in [former.made, last] {
            sleep_until(at).await;
            if !self.carry_over(end).await {
                return;
            }
        }
    }

    /// `false` if there is nothing more to carry over: the former lease is gone, or expires at `end`.
    async fn carry_over(&mut self, end: Instant) -> bool {
        let mut tries = Tries::new(self.newest.leases.lifetime);
        while let Some(former) = &self.former {
            let (id, containerd) = (former.lease.id(), &former.leases.containerd);
            match containerd.carry_over(&former.lease, &self.newest.lease).await {
                Ok(CarriedOver::All) => return true,
                Ok(CarriedOver::FromIsGone) => {
                    tracing::warn!(
                        lease = id,
                        reference = self.reference,
                        "somebody deleted the lease of a pull, or the clock was set forward: what the pull has brought may \
                         be collected before it ends"
                    );
                    return false;
                }
                Ok(CarriedOver::ToIsGone) if Instant::now() < end => self.replace_newest(&mut tries).await,
                Err(error) if Instant::now() < end => tries.failed(id, &error).await,
                Ok(CarriedOver::ToIsGone) | Err(_) => {
                    tracing::warn!(
                        lease = id,
                        reference = self.reference,
                        "the lease of a pull expired before its work was under the next one, and may be collected"
                    );
                    return false;
                }
            }
        }
        false
    }

    /// Another lease in the place of the newest, which is gone. The former is still what the work goes over from.
    async fn replace_newest(&mut self, tries: &mut Tries) {
        let next = self.next().await;
        if let Some(former) = &self.former {
            self.current.replace(&next.lease, &former.lease);
        }
        let gone = mem::replace(&mut self.newest, next);
        tracing::warn!(
            lease = gone.lease.id(),
            reference = self.reference,
            "somebody deleted the lease of a pull, or the clock was set forward: it has another one"
        );
        gone.end(Collect::Later).await;
        // Whoever deletes each as it comes is not raced.
        tries.pause().await;
    }

    /// Deletes what kept the pull's work. With [`Collect::Now`] this returns when nothing that only the lease held is
    /// left.
    pub(super) async fn end(self, collect: Collect) {
        if let Some(former) = self.former {
            former.end(Collect::Later).await;
        }
        self.newest.end(collect).await;
    }
}

impl Tries {
    /// For leases of that lifetime, in which there must be room for many.
    fn new(lifetime: Duration) -> Self {
        let longest = RETRY.1.min(lifetime / 16);
        Self { pause: RETRY.0.min(longest), longest, told: false }
    }

    /// Waits for the next try: nothing else is to be done about a containerd that is away, and the pull finds out itself.
    async fn failed(&mut self, lease: &str, error: &Error) {
        if !mem::replace(&mut self.told, true) {
            tracing::warn!(lease, %error, "the lease of a pull cannot be renewed yet: it is tried again");
        }
        self.pause().await;
    }

    async fn pause(&mut self) {
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(self.longest);
    }
}

impl Single {
    async fn end(mut self, collect: Collect) {
        self.leases.delete(self.lease.id(), collect).await;
        // Only now: dropped while it waits above, the lease is still to be deleted.
        self.ended = true;
    }
}

impl Drop for Single {
    fn drop(&mut self) {
        if !self.ended {
            self.leases.delete_behind(self.lease.id().to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tries_come_less_and_less_often_and_there_is_room_for_many() {
        for (lifetime, pauses) in [
            (Duration::from_secs(24 * 3600), [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]),
            (Duration::from_secs(16), [250, 500, 1000, 1000, 1000, 1000, 1000, 1000, 1000]),
            (Duration::from_millis(1600), [100; 9]),
        ] {
            let mut tries = Tries::new(lifetime);
            for millis in pauses {
                let begun = Instant::now();
                tries.pause().await;
                assert_eq!(begun.elapsed(), Duration::from_millis(millis), "{lifetime:?}");
            }
        }
    }
}
