//! Reads containerd's native API, in the namespace of Kubernetes if not told otherwise: what is stored, leased and
//! loaded. What changes something says so in its name, and is for what somebody else would do beside drayd.

mod state;

use std::path::Path;
use std::process;

use anyhow::{Context, Result};
use containerd_client::services::v1 as api;
use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::introspection_client::IntrospectionClient;
use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::snapshots::{
    CommitSnapshotRequest, PrepareSnapshotRequest, RemoveSnapshotRequest, ViewSnapshotRequest,
};
use containerd_client::types::{self, Mount};
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::images::Descriptor;
use crate::socket;

pub use state::{Labels, Snapshot, State};

/// As containerd's own clients allow: listings of a full store are long.
const MESSAGE_LIMIT: usize = 16 << 20;
const SNAPSHOTTER_TYPE: &str = "io.containerd.snapshotter.v1";

/// containerd's native API.
#[derive(Clone, Debug)]
pub struct Probe {
    channel: InterceptedService<Channel, Namespace>,
}

/// Puts every call into a namespace.
#[derive(Clone, Copy, Debug)]
pub struct Namespace(&'static str);

impl Interceptor for Namespace {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(self.0));
        Ok(request)
    }
}

/// One plugin of containerd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// `io.containerd.snapshotter.v1`, …
    pub kind: String,
    /// Name within its kind.
    pub id: String,
    /// What it tells others: a proxy has an `address`.
    pub exports: Labels,
    /// What it can.
    pub capabilities: Vec<String>,
    /// Why it was not loaded.
    pub failure: Option<String>,
}

impl Probe {
    /// Connects at the first call.
    pub fn connect(socket: &Path) -> Self {
        Self::connect_in(socket, "k8s.io")
    }

    /// The same in another namespace.
    pub fn connect_in(socket: &Path, namespace: &'static str) -> Self {
        Self { channel: InterceptedService::new(socket::channel(socket), Namespace(namespace)) }
    }

    /// Everything stored, in every loaded snapshotter.
    pub async fn state(&self) -> Result<State> {
        let mut state = State::default();
        let images =
            self.images().list(api::ListImagesRequest::default()).await.context("cannot list images")?;
        for image in images.into_inner().images {
            let target = image.target.map(|target| target.digest).unwrap_or_default();
            state.images.insert(image.name, (target, image.labels.into_iter().collect()));
        }
        let mut content =
            self.content().list(api::ListContentRequest::default()).await.context("cannot list content")?;
        while let Some(page) = content.get_mut().message().await.context("cannot list content")? {
            let blobs = page.info.into_iter().map(|blob| (blob.digest, blob.labels.into_iter().collect()));
            state.content.extend(blobs);
        }
        let ingests = self.content().list_statuses(api::ListStatusesRequest::default()).await;
        let ingests = ingests.context("cannot list ingests")?.into_inner().statuses;
        state.ingests = ingests.into_iter().map(|ingest| (ingest.r#ref, ingest.offset)).collect();
        let leases = self.leases().list(api::ListRequest::default()).await.context("cannot list leases")?;
        let leases = leases.into_inner().leases.into_iter();
        state.leases = leases.map(|lease| (lease.id, lease.labels.into_iter().collect())).collect();
        for snapshotter in self.snapshotters().await? {
            let listed = self.snapshots_of(&snapshotter).await?;
            state.snapshots.insert(snapshotter, listed);
        }
        Ok(state)
    }

    /// Every plugin, loaded or not.
    pub async fn plugins(&self) -> Result<Vec<Plugin>> {
        let mut introspection =
            IntrospectionClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT);
        let answer =
            introspection.plugins(api::PluginsRequest::default()).await.context("cannot list plugins")?;
        let plugins = answer.into_inner().plugins.into_iter();
        Ok(plugins
            .map(|plugin| Plugin {
                kind: plugin.r#type,
                id: plugin.id,
                exports: plugin.exports.into_iter().collect(),
                capabilities: plugin.capabilities,
                failure: plugin.init_err.map(|status| status.message),
            })
            .collect())
    }

    /// Names of the loaded snapshotters.
    pub async fn snapshotters(&self) -> Result<Vec<String>> {
        let plugins = self.plugins().await?.into_iter();
        let loaded = plugins.filter(|plugin| plugin.kind == SNAPSHOTTER_TYPE && plugin.failure.is_none());
        Ok(loaded.map(|plugin| plugin.id).collect())
    }

    /// Collects garbage now: deleting a lease can be told to wait for it.
    pub async fn force_gc(&self) -> Result<()> {
        let id = format!("bed-gc-{}", process::id());
        let create = api::CreateRequest { id: id.clone(), ..api::CreateRequest::default() };
        self.leases().create(create).await.context("cannot create a lease")?;
        let delete = api::DeleteRequest { id, sync: true };
        self.leases().delete(delete).await.context("cannot delete a lease and collect garbage")?;
        Ok(())
    }

    /// Writes an image record without labels, as `ctr image tag` would: containerd's CRI hears of it and has work to do.
    pub async fn tag(&self, name: &str, target: &Descriptor) -> Result<()> {
        let target = types::Descriptor {
            media_type: target.media_type.clone(),
            digest: target.digest.clone(),
            size: i64::try_from(target.size)?,
            ..types::Descriptor::default()
        };
        let image = api::Image { name: name.to_owned(), target: Some(target), ..api::Image::default() };
        let create = api::CreateImageRequest { image: Some(image), source_date_epoch: None };
        self.images().create(create).await.with_context(|| format!("cannot write the record {name}"))?;
        Ok(())
    }

    /// Sets a label of an image record.
    pub async fn label_image(&self, name: &str, key: &str, value: &str) -> Result<()> {
        // With its target: containerd up to 1.7 comes to a crash by an update without one.
        let get = api::GetImageRequest { name: name.to_owned() };
        let image = self.images().get(get).await.with_context(|| format!("there is no record {name}"))?;
        let target = image.into_inner().image.and_then(|image| image.target);
        let labels = [(key.to_owned(), value.to_owned())].into();
        let image = api::Image { name: name.to_owned(), target, labels, ..api::Image::default() };
        let mask = prost_types::FieldMask { paths: vec![format!("labels.{key}")] };
        let update =
            api::UpdateImageRequest { image: Some(image), update_mask: Some(mask), source_date_epoch: None };
        self.images().update(update).await.with_context(|| format!("cannot label the record {name}"))?;
        Ok(())
    }

    /// Deletes an image record.
    pub async fn untag(&self, name: &str) -> Result<()> {
        let delete = api::DeleteImageRequest { name: name.to_owned(), ..api::DeleteImageRequest::default() };
        self.images().delete(delete).await.with_context(|| format!("cannot delete the record {name}"))?;
        Ok(())
    }

    /// Writes bytes into an ingest for the blob of this digest and leaves it, as a writer that dies before its commit.
    pub async fn leave_ingest(&self, reference: &str, digest: &str, bytes: &[u8]) -> Result<()> {
        let write = api::WriteContentRequest {
            action: api::WriteAction::Write.into(),
            r#ref: reference.to_owned(),
            total: i64::try_from(bytes.len())?,
            expected: digest.to_owned(),
            data: bytes.to_vec(),
            ..api::WriteContentRequest::default()
        };
        let answer = self.content().write(tokio_stream::iter([write])).await;
        let mut replies =
            answer.with_context(|| format!("cannot write the ingest {reference}"))?.into_inner();
        while replies.message().await?.is_some() {}
        Ok(())
    }

    /// Writes bytes and commits them as the blob of this digest, for a collection to take.
    pub async fn write_blob(&self, reference: &str, digest: &str, bytes: &[u8]) -> Result<()> {
        self.write(reference, digest, bytes, &[]).await
    }

    /// Writes a blob that no collection takes; [`Probe::delete_blob`] does.
    pub async fn root_blob(&self, digest: &str, bytes: &[u8]) -> Result<()> {
        self.write(digest, digest, bytes, &[("containerd.io/gc.root", digest)]).await
    }

    /// Deletes a blob.
    pub async fn delete_blob(&self, digest: &str) -> Result<()> {
        let delete = api::DeleteContentRequest { digest: digest.to_owned() };
        self.content().delete(delete).await.with_context(|| format!("cannot delete the blob {digest}"))?;
        Ok(())
    }

    async fn write(
        &self,
        reference: &str,
        digest: &str,
        bytes: &[u8],
        labels: &[(&str, &str)],
    ) -> Result<()> {
        let commit = api::WriteContentRequest {
            action: api::WriteAction::Commit.into(),
            r#ref: reference.to_owned(),
            total: i64::try_from(bytes.len())?,
            expected: digest.to_owned(),
            data: bytes.to_vec(),
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            ..api::WriteContentRequest::default()
        };
        let answer = self.content().write(tokio_stream::iter([commit])).await;
        let mut replies = answer.with_context(|| format!("cannot write the blob {digest}"))?.into_inner();
        while replies.message().await?.is_some() {}
        Ok(())
    }

    /// Throws an ingest away.
    pub async fn abort_ingest(&self, reference: &str) -> Result<()> {
        let abort = api::AbortRequest { r#ref: reference.to_owned() };
        self.content().abort(abort).await.with_context(|| format!("cannot abort the ingest {reference}"))?;
        Ok(())
    }

    /// Makes a lease that never expires, as another client of containerd may.
    pub async fn make_lease(&self, id: &str) -> Result<()> {
        let create = api::CreateRequest { id: id.to_owned(), ..api::CreateRequest::default() };
        self.leases().create(create).await.with_context(|| format!("cannot make the lease {id}"))?;
        Ok(())
    }

    /// Deletes a lease, as its expiry would one day.
    pub async fn delete_lease(&self, id: &str) -> Result<()> {
        let delete = api::DeleteRequest { id: id.to_owned(), sync: false };
        self.leases().delete(delete).await.with_context(|| format!("cannot delete the lease {id}"))?;
        Ok(())
    }

    /// The mounts of a read-only view of a committed snapshot; [`Probe::remove_snapshot`] ends it.
    pub async fn view(&self, snapshotter: &str, key: &str, parent: &str) -> Result<Vec<Mount>> {
        let request = ViewSnapshotRequest {
            snapshotter: snapshotter.to_owned(),
            key: key.to_owned(),
            parent: parent.to_owned(),
            // Without a lease, the next garbage collection would take the view.
            labels: [("containerd.io/gc.root".to_owned(), key.to_owned())].into(),
        };
        let answer = self.snapshots().view(request).await;
        Ok(answer.with_context(|| format!("cannot view {parent} in {snapshotter}"))?.into_inner().mounts)
    }

    /// Prepares an active snapshot, for checks of what blocks or survives.
    pub async fn prepare(&self, snapshotter: &str, key: &str, parent: &str) -> Result<Vec<Mount>, Status> {
        let request = PrepareSnapshotRequest {
            snapshotter: snapshotter.to_owned(),
            key: key.to_owned(),
            parent: parent.to_owned(),
            ..PrepareSnapshotRequest::default()
        };
        Ok(self.snapshots().prepare(request).await?.into_inner().mounts)
    }

    /// Commits an active snapshot as it is, without what a pull says of it.
    pub async fn commit(&self, snapshotter: &str, key: &str, name: &str) -> Result<()> {
        let request = CommitSnapshotRequest {
            snapshotter: snapshotter.to_owned(),
            key: key.to_owned(),
            name: name.to_owned(),
            ..CommitSnapshotRequest::default()
        };
        let committed = self.snapshots().commit(request).await;
        committed.with_context(|| format!("cannot commit {name} in {snapshotter}"))?;
        Ok(())
    }

    /// Removes a snapshot.
    pub async fn remove_snapshot(&self, snapshotter: &str, key: &str) -> Result<()> {
        let request = RemoveSnapshotRequest { snapshotter: snapshotter.to_owned(), key: key.to_owned() };
        self.snapshots()
            .remove(request)
            .await
            .with_context(|| format!("cannot remove {key} from {snapshotter}"))?;
        Ok(())
    }

    async fn snapshots_of(&self, snapshotter: &str) -> Result<std::collections::BTreeMap<String, Snapshot>> {
        use containerd_client::services::v1::snapshots::ListSnapshotsRequest;

        let request =
            ListSnapshotsRequest { snapshotter: snapshotter.to_owned(), ..ListSnapshotsRequest::default() };
        let failed = || format!("cannot list the snapshots of {snapshotter}");
        let mut pages = self.snapshots().list(request).await.with_context(failed)?.into_inner();
        let mut snapshots = std::collections::BTreeMap::new();
        while let Some(page) = pages.message().await.with_context(failed)? {
            for info in page.info {
                let kind = info.kind().as_str_name().to_lowercase();
                let snapshot =
                    Snapshot { parent: info.parent, kind, labels: info.labels.into_iter().collect() };
                snapshots.insert(info.name, snapshot);
            }
        }
        Ok(snapshots)
    }

    fn images(&self) -> ImagesClient<InterceptedService<Channel, Namespace>> {
        ImagesClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    fn content(&self) -> ContentClient<InterceptedService<Channel, Namespace>> {
        ContentClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    fn leases(&self) -> LeasesClient<InterceptedService<Channel, Namespace>> {
        LeasesClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    fn snapshots(&self) -> SnapshotsClient<InterceptedService<Channel, Namespace>> {
        SnapshotsClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }
}
