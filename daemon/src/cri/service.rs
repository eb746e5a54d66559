//! `ImageService` itself: each method converts, asks the house that decides, and converts back.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use drayd_proto::cri::image_service_server::ImageService;
use drayd_proto::cri::{
    FilesystemIdentifier, FilesystemUsage, Image, ImageFilter, ImageFsInfoRequest, ImageFsInfoResponse,
    ImageSpec, ImageStatusRequest, ImageStatusResponse, Int64Value, ListImagesRequest, ListImagesResponse,
    PullImageRequest, PullImageResponse, RemoveImageRequest, RemoveImageResponse, StreamImagesRequest,
    StreamImagesResponse, UInt64Value,
};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::{convert, status};
use crate::containerd::Snapshotter;
use crate::images::{self, Images};
use crate::pull::Puller;
use crate::trace::Caller;

/// Images in one message of a stream: a few hundred bytes each, and clients take 16 MiB.
const BATCH: usize = 1000;

/// Answers for one containerd.
#[derive(Clone)]
pub struct ImageEndpoint {
    puller: Arc<Puller>,
    images: Arc<Images>,
    /// Whether failed pulls have the code that lets kubelet show a reason of its own.
    kubelet_reasons: bool,
}

/// What a verbose status tells, in the form that containerd gives it, and beside it where the image is unpacked.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Info<'a> {
    #[serde(rename = "chainID")]
    chain_id: String,
    /// As it is written, with the fields that nobody here knows.
    image_spec: &'a RawValue,
    snapshotters: Vec<&'a str>,
}

impl ImageEndpoint {
    /// An endpoint that pulls with `puller` and looks with `images`. `kubelet_reasons` is that of [`status::of_pull`].
    pub fn new(puller: Arc<Puller>, images: Arc<Images>, kubelet_reasons: bool) -> Self {
        Self { puller, images, kubelet_reasons }
    }
}

#[tonic::async_trait]
impl ImageService for ImageEndpoint {
    async fn pull_image(
        &self,
        request: Request<PullImageRequest>,
    ) -> Result<Response<PullImageResponse>, Status> {
        let caller = Caller::read(|name| request.metadata().get(name)?.to_str().ok());
        let mut request = convert::pull_request(request.into_inner()).map_err(|error| {
            let refused = status::of_convert(&error);
            self.puller.refused();
            tracing::error!("PullImage refused: {}", refused.message());
            refused
        })?;
        request.caller = caller;
        let reference = request.reference.to_string();
        let pulled = self.puller.pull(request).await;
        let outcome = pulled.map_err(|error| status::of_pull(&reference, &error, self.kubelet_reasons))?;
        self.images.pulled(&outcome.records).await;
        Ok(Response::new(PullImageResponse { image_ref: outcome.image_id.to_string() }))
    }

    async fn image_status(
        &self,
        request: Request<ImageStatusRequest>,
    ) -> Result<Response<ImageStatusResponse>, Status> {
        let ImageStatusRequest { image: spec, verbose } = request.into_inner();
        let place = convert::place(spec.as_ref().unwrap_or(&ImageSpec::default()));
        let name = convert::image_name(spec).map_err(|e| status::of_convert(&e))?;
        let found = self.images.status(&name, &place).await.map_err(|error| status::of_images(&error))?;
        let info = match &found {
            Some(image) if verbose => self.info(image).await?,
            _ => HashMap::new(),
        };
        Ok(Response::new(ImageStatusResponse { image: found.as_deref().map(wire_image), info }))
    }

    async fn list_images(
        &self,
        request: Request<ListImagesRequest>,
    ) -> Result<Response<ListImagesResponse>, Status> {
        let images = self.filtered(request.into_inner().filter).await?;
        Ok(Response::new(ListImagesResponse {
            images: images.iter().map(|image| wire_image(image)).collect(),
        }))
    }

    type StreamImagesStream = Pin<Box<dyn Stream<Item = Result<StreamImagesResponse, Status>> + Send>>;

    async fn stream_images(
        &self,
        request: Request<StreamImagesRequest>,
    ) -> Result<Response<Self::StreamImagesStream>, Status> {
        let images = self.filtered(request.into_inner().filter).await?;
        let images: Vec<_> = images.iter().map(|image| wire_image(image)).collect();
        let responses = batches(images);
        Ok(Response::new(Box::pin(tokio_stream::iter(responses.into_iter().map(Ok)))))
    }

    async fn remove_image(
        &self,
        request: Request<RemoveImageRequest>,
    ) -> Result<Response<RemoveImageResponse>, Status> {
        let name = convert::image_name(request.into_inner().image).map_err(|e| status::of_convert(&e))?;
        self.images.remove(&name).await.map_err(|error| status::of_images(&error))?;
        Ok(Response::new(RemoveImageResponse {}))
    }

    async fn image_fs_info(
        &self,
        _: Request<ImageFsInfoRequest>,
    ) -> Result<Response<ImageFsInfoResponse>, Status> {
        let sample = self.images.filesystems().await.map_err(|error| status::of_images(&error))?;
        let taken = sample.taken.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let timestamp = i64::try_from(taken).unwrap_or(i64::MAX);
        let usage = |of: images::FilesystemUse| FilesystemUsage {
            timestamp,
            fs_id: Some(FilesystemIdentifier { mountpoint: of.mountpoint }),
            used_bytes: Some(UInt64Value { value: of.usage.bytes }),
            inodes_used: Some(UInt64Value { value: of.usage.inodes }),
        };
        let image_filesystems: Vec<_> = sample.filesystems.into_iter().map(usage).collect();
        // Containers live on the snapshotter of their image, most of them on the default one.
        let container_filesystems = image_filesystems.first().cloned().into_iter().collect();
        Ok(Response::new(ImageFsInfoResponse { image_filesystems, container_filesystems }))
    }
}

impl ImageEndpoint {
    /// The images that a filter lets through: all without one, else the one that it names.
    async fn filtered(&self, filter: Option<ImageFilter>) -> Result<Vec<Arc<images::Image>>, Status> {
        let wanted = filter.and_then(|filter| filter.image).filter(|spec| !spec.image.is_empty());
        let found = match wanted {
            None => self.images.list().await,
            Some(spec) => {
                let name = convert::image_name(Some(spec)).map_err(|error| status::of_convert(&error))?;
                self.images.find(&name).await.map(|image| image.into_iter().collect())
            }
        };
        found.map_err(|error| status::of_images(&error))
    }

    /// What a verbose status tells of an image.
    async fn info(&self, image: &images::Image) -> Result<HashMap<String, String>, Status> {
        let details = self.images.details(image).await.map_err(|error| status::of_images(&error))?;
        let broken = |error| status::of_config(image.inspected.id.as_str(), &error);
        let info = Info {
            chain_id: image.inspected.chain.as_ref().map(ToString::to_string).unwrap_or_default(),
            image_spec: serde_json::from_slice(&details.config).map_err(broken)?,
            snapshotters: details.snapshotters.iter().map(Snapshotter::as_str).collect(),
        };
        Ok(HashMap::from([("info".to_owned(), serde_json::to_string(&info).map_err(broken)?)]))
    }
}

/// The messages of a stream: each image once, and none without an image.
fn batches(mut images: Vec<Image>) -> Vec<StreamImagesResponse> {
    let mut messages = Vec::with_capacity(images.len().div_ceil(BATCH));
    while !images.is_empty() {
        let rest = images.split_off(images.len().min(BATCH));
        messages.push(StreamImagesResponse { images: std::mem::replace(&mut images, rest) });
    }
    messages
}

fn wire_image(image: &images::Image) -> Image {
    let (uid, username) = user(&image.inspected.user);
    Image {
        id: image.inspected.id.to_string(),
        repo_tags: image.repo_tags.clone(),
        repo_digests: image.repo_digests.clone(),
        size: image.inspected.size,
        uid: uid.map(|value| Int64Value { value }),
        username,
        spec: None,
        pinned: image.pinned,
    }
}

/// The config's `User` without its group: a number is a uid, anything else a name, and never both (CRI `Image`).
fn user(of_config: &str) -> (Option<i64>, String) {
    let user = of_config.split(':').next().unwrap_or_default();
    match user.parse() {
        Ok(uid) => (Some(uid), String::new()),
        Err(_) => (None, user.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_has_every_image_once_in_messages_that_are_never_empty() {
        for (count, expected) in [(0, vec![]), (1, vec![1]), (1000, vec![1000]), (2001, vec![1000, 1000, 1])]
        {
            let image = |number: usize| Image { id: number.to_string(), ..Image::default() };
            let images: Vec<_> = (0..count).map(image).collect();
            let messages = batches(images.clone());
            let sizes: Vec<_> = messages.iter().map(|message| message.images.len()).collect();
            assert_eq!(sizes, expected, "{count} images");
            let streamed: Vec<_> = messages.into_iter().flat_map(|message| message.images).collect();
            assert_eq!(streamed, images, "{count} images");
        }
    }

    #[test]
    fn the_user_of_a_config_is_a_uid_or_a_name() {
        for (of_config, expected) in [
            ("", (None, "")),
            ("0", (Some(0), "")),
            ("1000:1000", (Some(1000), "")),
            ("nobody", (None, "nobody")),
            ("nobody:nogroup", (None, "nobody")),
            (":1000", (None, "")),
        ] {
            assert_eq!(user(of_config), (expected.0, expected.1.to_owned()), "{of_config}");
        }
    }
}
