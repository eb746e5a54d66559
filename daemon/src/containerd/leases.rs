//! Leases: what keeps content and snapshots from collection while a pull runs. A lease always carries an expiry, so
//! that a crash of drayd is reclaimed by containerd itself. containerd has no call that prolongs one: work that lasts
//! goes from one lease to the next.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::{
    AddResourceRequest, CreateRequest, DeleteRequest, DeleteResourceRequest, ListResourcesRequest, Resource,
};
use prost_types::Timestamp;
use tonic::metadata::{Ascii, MetadataValue};

use super::{Containerd, Error, Kind, MAX_MESSAGE, labels};
use crate::oci::Digest;

/// A lease that was made and not yet deleted.
#[derive(Debug)]
pub struct Lease {
    id: String,
    header: MetadataValue<Ascii>,
}

/// The lease that calls are under, for all handles of one piece of work: the next one takes its place while they are in
/// use.
#[derive(Clone, Debug)]
pub struct CurrentLease(
    /// Guards the headers; never held across an await.
    Arc<Mutex<Headers>>,
);

#[derive(Debug)]
struct Headers {
    current: MetadataValue<Ascii>,
    /// Of the lease before, which still keeps what it kept.
    former: Option<MetadataValue<Ascii>>,
}

/// What putting all of one lease under another ended in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarriedOver {
    /// All that was under the one is under the other, too.
    All,
    /// The lease that it was to come from does not exist any more.
    FromIsGone,
    /// The lease that it was to come under does not exist any more.
    ToIsGone,
}

impl CurrentLease {
    /// Begins with this lease.
    pub fn new(lease: &Lease) -> Self {
        Self(Arc::new(Mutex::new(Headers { current: lease.header.clone(), former: None })))
    }

    /// Puts calls from now on under another one. Calls that are under way stay under the one that was current; `former`
    /// is the one whose work goes over to it.
    pub fn replace(&self, lease: &Lease, former: &Lease) {
        let headers = Headers { current: lease.header.clone(), former: Some(former.header.clone()) };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = headers;
    }

    pub(super) fn header(&self) -> MetadataValue<Ascii> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).current.clone()
    }

    /// Names of all leases that keep what was made so far: the former first, which goes over to the other.
    fn ids(&self) -> Vec<String> {
        let headers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = headers.former.iter().chain([&headers.current]);
        all.filter_map(|header| header.to_str().ok().map(str::to_owned)).collect()
    }
}

/// Whether deleting a lease waits until the collector has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collect {
    /// Return at once; containerd collects when its own schedule says so.
    Later,
    /// Return when what the lease alone kept is gone.
    Now,
}

/// A collection walks all of containerd's metadata and removes directories of snapshots.
pub(super) const COLLECT_DEADLINE: Duration = Duration::from_secs(120);

impl Lease {
    /// The lease's name in containerd.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl Containerd {
    /// Makes a lease that the collector ignores after `lifetime`. `labels` say whose it is.
    pub async fn create_lease(
        &self,
        id: &str,
        lifetime: Duration,
        mut labels: HashMap<String, String>,
    ) -> Result<Lease, Error> {
        let expiry = Timestamp::from(SystemTime::now() + lifetime);
        labels.insert(labels::GC_EXPIRE.into(), expiry.to_string());
        let header =
            id.parse().map_err(|_| Error::unexpected("create lease", id, "not a legal header value"))?;
        let mut client = LeasesClient::new(self.channel());
        client
            .create(self.request(CreateRequest { id: id.into(), labels }))
            .await
            .map_err(|status| Error::new("create lease", id, &status))?;
        Ok(Lease { id: id.into(), header })
    }

    /// Deletes a lease by name; one that is gone already counts as deleted.
    pub async fn delete_lease(&self, id: &str, collect: Collect) -> Result<(), Error> {
        let message = DeleteRequest { id: id.into(), sync: collect == Collect::Now };
        let request = match collect {
            Collect::Later => self.request(message),
            Collect::Now => self.request_within(COLLECT_DEADLINE, message),
        };
        let mut client = LeasesClient::new(self.channel());
        match client.delete(request).await.map_err(|status| Error::new("delete lease", id, &status)) {
            Err(error) if error.kind() != Kind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Collects garbage, and returns when that is done. `subject` is what it is done for.
    pub async fn collect(&self, subject: &Digest) -> Result<(), Error> {
        // The end of a lease is what can be told to wait for a collection.
        let id = format!("drayd-collect-{}", subject.as_str().replace(':', "-"));
        match self.create_lease(&id, COLLECT_DEADLINE, HashMap::new()).await {
            Err(error) if error.kind() != Kind::AlreadyExists => return Err(error),
            _ => {}
        }
        self.delete_lease(&id, Collect::Now).await
    }

    /// Puts all that is under the lease `from` under `to` as well.
    pub async fn carry_over(&self, from: &Lease, to: &Lease) -> Result<CarriedOver, Error> {
        let mut client = LeasesClient::new(self.channel()).max_decoding_message_size(MAX_MESSAGE);
        let listed = client.list_resources(self.request(ListResourcesRequest { id: from.id.clone() })).await;
        let listed =
            match listed.map_err(|status| Error::new("list what is under the lease", from.id(), &status)) {
                Err(error) if error.kind() == Kind::NotFound => return Ok(CarriedOver::FromIsGone),
                listed => listed?,
            };
        for Resource { id, r#type } in listed.into_inner().resources {
            match self.add_resource(to.id(), r#type, &id).await {
                // It is the lease that has to exist, not the resource.
                Err(error) if error.kind() == Kind::NotFound => return Ok(CarriedOver::ToIsGone),
                added => added?,
            }
        }
        Ok(CarriedOver::All)
    }

    /// Puts a resource under the lease that this handle is under; nothing to do without one. The resource need not
    /// exist. `kind` is containerd's own name for it, as `snapshots/overlayfs`.
    pub(super) async fn add_to_lease(&self, kind: String, name: &str) -> Result<(), Error> {
        let Some(lease) = self.lease.as_ref().map(CurrentLease::header) else { return Ok(()) };
        let Ok(lease) = lease.to_str() else { return Ok(()) };
        self.add_resource(lease, kind, name).await
    }

    /// Takes a resource from under the lease that this handle is under, and from under the one before, which keeps it
    /// just as well until it expires; nothing to do where it is not there.
    pub(super) async fn remove_from_lease(&self, kind: String, name: &str) -> Result<(), Error> {
        for id in self.lease.iter().flat_map(CurrentLease::ids) {
            let resource = Resource { id: name.into(), r#type: kind.clone() };
            let message = DeleteResourceRequest { id, resource: Some(resource) };
            let removed = LeasesClient::new(self.channel()).delete_resource(self.request(message)).await;
            match removed.map_err(|status| Error::new("take from under the lease", name, &status)) {
                Err(error) if error.kind() != Kind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    async fn add_resource(&self, lease: &str, kind: String, name: &str) -> Result<(), Error> {
        let resource = Resource { id: name.into(), r#type: kind };
        let message = AddResourceRequest { id: lease.into(), resource: Some(resource) };
        let added = LeasesClient::new(self.channel()).add_resource(self.request(message)).await;
        added.map(drop).map_err(|status| Error::new("add to the lease", name, &status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(id: &str) -> Lease {
        Lease { id: id.into(), header: id.parse().expect("a legal header value") }
    }

    #[test]
    fn work_is_kept_by_the_lease_before_as_well() {
        let current = CurrentLease::new(&lease("a"));
        assert_eq!(current.ids(), ["a"]);
        current.replace(&lease("b"), &lease("a"));
        assert_eq!((current.header(), current.ids()), ("b".parse().unwrap(), vec!["a".into(), "b".into()]));
        // Another in the place of one that is gone.
        current.replace(&lease("c"), &lease("a"));
        assert_eq!(current.ids(), ["a", "c"]);
    }
}
