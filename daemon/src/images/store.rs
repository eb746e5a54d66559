//! The catalogue in memory. containerd is the truth: the catalogue is read whole whenever a connection comes up, follows
//! containerd's events after that, and is nothing while there is no connection.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::watch;

use super::catalogue::Catalogue;
use super::inspect::{InspectError, Inspected, Inspector};
use crate::cause::chain;
use crate::containerd::events::{Event, Marker};
use crate::containerd::images::{Found, ImageRecord};
use crate::containerd::{Containerd, Error};

/// Between two looks at a containerd that is away.
const RETRY: Duration = Duration::from_millis(250);
/// Before all is read again from a containerd that is there and refuses to tell.
const REFUSED: Duration = Duration::from_secs(5);
/// For a mark among containerd's events to come back. What comes before it is read from containerd record by record.
const SETTLES_WITHIN: Duration = Duration::from_secs(30);
/// Events that are taken in together.
const BATCH: usize = 256;
/// Questions to containerd at a time, when many records changed or a node with many is seen for the first time.
const AT_ONCE: usize = 8;

/// What is known of the images.
#[derive(Debug)]
pub(super) struct Store {
    containerd: Containerd,
    inspector: Inspector,
    /// `None` while it cannot be true. Guards the value only; never held across an await.
    catalogue: Mutex<Option<Catalogue>>,
    /// Whether there is a catalogue.
    known: watch::Sender<bool>,
    /// Held from a look at containerd until what was seen is in the catalogue: two looks at one record would else be
    /// able to overtake each other.
    look: tokio::sync::Mutex<()>,
    /// How often the catalogue has changed.
    changes: AtomicU64,
    marker: Marker,
    /// The last mark that was set.
    marked: AtomicU64,
    /// The highest mark that came back, with all events before it taken in.
    seen: watch::Sender<u64>,
    /// Records that could not be read and were told of, by name; told again only if the reason is another.
    told: Mutex<BTreeMap<String, String>>,
    /// What containerd said when it was there and did not let the images be read.
    trouble: Mutex<Option<String>>,
}

/// Keeps the catalogue true; see [`Keeper::run`].
#[derive(Debug)]
pub struct Keeper {
    store: Arc<Store>,
}

impl Store {
    /// A store that knows nothing yet, and the keeper that has to run for it to learn.
    pub(super) fn new(containerd: Containerd) -> (Arc<Self>, Keeper) {
        // Several daemons may be there at one containerd, if only for the time of an upgrade.
        let subscriber = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let store = Arc::new(Self {
            marker: containerd.marker(&subscriber),
            marked: AtomicU64::default(),
            seen: watch::Sender::new(0),
            inspector: Inspector::new(containerd.clone()),
            containerd,
            catalogue: Mutex::default(),
            known: watch::Sender::new(false),
            look: tokio::sync::Mutex::default(),
            changes: AtomicU64::default(),
            told: Mutex::default(),
            trouble: Mutex::default(),
        });
        (Arc::clone(&store), Keeper { store })
    }

    /// What `read` finds in the catalogue, as soon as there is one; `None` if there is none within `patience`.
    pub(super) async fn with<T>(&self, patience: Duration, read: impl Fn(&Catalogue) -> T) -> Option<T> {
        let found = async {
            let mut known = self.known.subscribe();
            loop {
                known.wait_for(|known| *known).await.ok()?;
                // It may be gone again by now.
                if let Some(catalogue) = &*self.catalogue() {
                    return Some(read(catalogue));
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(patience, found).await.ok().flatten()
    }

    /// Returns when all that happened before the call is in the catalogue: a mark is set among containerd's events, and
    /// has come back. Whether it did: `false` after too long a wait.
    pub(super) async fn settle(&self) -> Result<bool, Error> {
        let mark = self.marked.fetch_add(1, Ordering::Relaxed) + 1;
        self.marker.mark(mark).await?;
        // A later one was set after this call began, so it will do.
        let mut seen = self.seen.subscribe();
        let seen = tokio::time::timeout(SETTLES_WITHIN, seen.wait_for(|seen| *seen >= mark)).await;
        Ok(seen.is_ok())
    }

    /// Why the images could not be read, if that is what became of the last try.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks at these records again, and returns when the catalogue has what containerd has of them.
    pub(super) async fn look_again(&self, names: Vec<String>) -> Result<(), Error> {
        // Without one, all is going to be read, and that has the lock for as long as it takes.
        if self.catalogue().is_none() {
            return Ok(());
        }
        let _look = self.look.lock().await;
        let looks = names.into_iter().map(async |name| self.look_at(&name).await);
        let mut looks = futures_util::stream::iter(looks).buffer_unordered(AT_ONCE);
        while let Some(looked) = looks.next().await {
            looked?;
        }
        Ok(())
    }

    /// A catalogue as containerd has it now, for what must not be done by memory.
    pub(super) async fn read(&self) -> Result<Catalogue, Error> {
        let (records, odd) = self.containerd.list_images().await?;
        let targets: HashSet<_> = records.iter().map(|record| record.target.digest.clone()).collect();
        let mut catalogue = Catalogue::default();
        for name in odd {
            self.put_odd(&mut catalogue, name);
        }
        let mut inspected = futures_util::stream::iter(records)
            .map(async |record| (self.inspector.inspect(&record.target).await, record))
            .buffered(AT_ONCE);
        while let Some((inspected, record)) = inspected.next().await {
            self.put(&mut catalogue, record, inspected)?;
        }
        self.inspector.retain(&targets);
        self.told().retain(|name, _| catalogue.has(name));
        Ok(catalogue)
    }

    /// How often the catalogue has changed: the same number again means that nothing has.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    async fn look_at(&self, name: &str) -> Result<(), Error> {
        let found = self.containerd.find_image(name).await?;
        let inspected = match &found {
            Found::Record(record) => Some(self.inspector.inspect(&record.target).await),
            Found::Odd | Found::Nothing => None,
        };
        let mut catalogue = self.catalogue();
        let Some(catalogue) = &mut *catalogue else { return Ok(()) };
        if found == Found::Nothing && !catalogue.has(name) {
            return Ok(());
        }
        self.changes.fetch_add(1, Ordering::Relaxed);
        let before = catalogue.target(name).cloned();
        match (found, inspected) {
            (Found::Record(record), Some(inspected)) => self.put(catalogue, record, inspected)?,
            (Found::Odd, _) => self.put_odd(catalogue, name.to_owned()),
            _ => {
                catalogue.remove(name);
                self.told().remove(name);
            }
        }
        // A name may come back when the documents of what it meant are gone.
        if let Some(before) = before
            && catalogue.target(name) != Some(&before)
        {
            self.inspector.forget(&before);
        }
        Ok(())
    }

    fn put(
        &self,
        catalogue: &mut Catalogue,
        record: ImageRecord,
        inspected: Result<Inspected, InspectError>,
    ) -> Result<(), Error> {
        match inspected {
            Ok(inspected) => {
                self.told().remove(&record.name);
                catalogue.put(inspected, record);
            }
            Err(InspectError::Containerd(error)) if error.is_away() => return Err(error),
            Err(error) => {
                self.tell(&record.name, chain(&error));
                catalogue.put_unreadable(record.name, Some(&record.target.digest));
            }
        }
        Ok(())
    }

    fn put_odd(&self, catalogue: &mut Catalogue, name: String) {
        self.tell(&name, "its target cannot be read".to_owned());
        catalogue.put_unreadable(name, None);
    }

    /// Says once why a record is in no list.
    fn tell(&self, name: &str, cause: String) {
        if self.told().get(name) != Some(&cause) {
            tracing::info!(name, cause, "an image record is left out: no image can be made of it");
            self.told().insert(name.to_owned(), cause);
        }
    }

    fn set(&self, catalogue: Option<Catalogue>) {
        let known = catalogue.is_some();
        *self.catalogue() = catalogue;
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.known.send_replace(known);
    }

    fn catalogue(&self) -> MutexGuard<'_, Option<Catalogue>> {
        self.catalogue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keeper {
    /// Keeps the catalogue true whenever containerd is there; runs until dropped.
    pub async fn run(self) {
        loop {
            let Err(error) = self.follow().await;
            self.store.set(None);
            self.tell(&error);
            tokio::time::sleep(if error.is_away() { RETRY } else { REFUSED }).await;
        }
    }

    /// Losing containerd is told by whoever watches the node; a containerd that is there and refuses is told of once.
    fn tell(&self, error: &Error) {
        let cause = chain(error);
        let refused = (!error.is_away()).then(|| cause.clone());
        let mut trouble = self.store.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.is_some() && *trouble != refused {
            tracing::warn!(
                cause,
                "containerd does not let its images be read: they are unknown until it does"
            );
        } else {
            tracing::debug!(cause, "the images are not known any more");
        }
        *trouble = refused;
    }

    async fn follow(&self) -> Result<std::convert::Infallible, Error> {
        // Subscribed before the images are read: what changes while they are is looked at again after that.
        let mut events = self.store.marker.subscribe().await?;
        {
            let _look = self.store.look.lock().await;
            // Whatever was marked by now is going to be in what is read, even if its event went to a lost connection.
            let read = self.store.marked.load(Ordering::Relaxed);
            // Nobody saw which documents went meanwhile.
            self.store.inspector.retain(&HashSet::new());
            let catalogue = self.store.read().await?;
            tracing::debug!(images = catalogue.images().len(), "the images are known");
            self.store.set(Some(catalogue));
            *self.store.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
            self.store.seen.send_replace(read);
        }
        loop {
            // What has come meanwhile is looked at together, each record once.
            let (mut names, mut seen) = (BTreeSet::new(), None);
            let mut next = Some(events.next().await);
            let mut taken = 0;
            while let Some(event) = next {
                match event? {
                    Event::Image(name) => drop(names.insert(name)),
                    Event::Mark(mark) => seen = seen.max(Some(mark)),
                }
                taken += 1;
                next = if taken < BATCH { events.next().now_or_never() } else { None };
            }
            self.store.look_again(names.into_iter().collect()).await?;
            if let Some(mark) = seen {
                self.store.seen.send_if_modified(|seen| std::mem::replace(seen, mark.max(*seen)) < mark);
            }
        }
    }
}
