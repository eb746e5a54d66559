//! Leases: what keeps content and snapshots from collection while a pull runs. A lease always carries an expiry, so
//! that a crash of drayd is reclaimed by containerd itself.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::{AddResourceRequest, CreateRequest, DeleteRequest, Resource};
use prost_types::Timestamp;
use tonic::metadata::{Ascii, MetadataValue};

use super::{Containerd, Error, Kind, labels};

/// A lease that was made and not yet deleted.
#[derive(Debug)]
pub struct Lease {
    id: String,
    header: MetadataValue<Ascii>,
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

    pub(super) fn header(&self) -> &MetadataValue<Ascii> {
        &self.header
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

    /// Puts a resource under the lease that this handle is under; nothing to do without one. The resource need not
    /// exist. `kind` is containerd's own name for it, as `snapshots/overlayfs`.
    pub(super) async fn add_to_lease(&self, kind: String, name: &str) -> Result<(), Error> {
        let Some(lease) = self.lease.as_ref().and_then(|lease| lease.to_str().ok()) else { return Ok(()) };
        let resource = Resource { id: name.into(), r#type: kind };
        let message = AddResourceRequest { id: lease.into(), resource: Some(resource) };
        let mut client = LeasesClient::new(self.channel());
        let added = client.add_resource(self.request(message)).await;
        added.map(drop).map_err(|status| Error::new("add to the lease", name, &status))
    }
}
