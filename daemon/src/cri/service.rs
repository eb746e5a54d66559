//! `ImageService` itself: each method converts, asks the house that decides, and converts back.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use drayd_proto::cri::image_service_server::ImageService;
use drayd_proto::cri::{
    FilesystemIdentifier, FilesystemUsage, Image, ImageFsInfoRequest, ImageFsInfoResponse,
    ImageStatusRequest, ImageStatusResponse, Int64Value, ListImagesRequest, ListImagesResponse,
    PullImageRequest, PullImageResponse, RemoveImageRequest, RemoveImageResponse, UInt64Value,
};
use tonic::{Request, Response, Status};

use super::{convert, status};
use crate::images::{self, Images};
use crate::pull::Puller;

/// Answers for one containerd.
#[derive(Clone)]
pub struct ImageEndpoint {
    puller: Arc<Puller>,
    images: Arc<Images>,
}

impl ImageEndpoint {
    /// An endpoint that pulls with `puller` and looks with `images`.
    pub fn new(puller: Arc<Puller>, images: Arc<Images>) -> Self {
        Self { puller, images }
    }
}

#[tonic::async_trait]
impl ImageService for ImageEndpoint {
    async fn pull_image(
        &self,
        request: Request<PullImageRequest>,
    ) -> Result<Response<PullImageResponse>, Status> {
        let request = convert::pull_request(request.into_inner()).map_err(|error| {
            let refused = status::of_convert(&error);
            tracing::error!("PullImage refused: {}", refused.message());
            refused
        })?;
        let reference = request.reference.to_string();
        let pulled = self.puller.pull(request).await;
        let outcome = pulled.map_err(|error| status::of_pull(&reference, &error))?;
        Ok(Response::new(PullImageResponse { image_ref: outcome.image_id.to_string() }))
    }

    async fn image_status(
        &self,
        request: Request<ImageStatusRequest>,
    ) -> Result<Response<ImageStatusResponse>, Status> {
        let name = convert::image_name(request.into_inner().image).map_err(|e| status::of_convert(&e))?;
        let found = self.images.find(&name).await.map_err(|error| status::of_images(&error))?;
        Ok(Response::new(ImageStatusResponse {
            image: found.map(wire_image),
            ..ImageStatusResponse::default()
        }))
    }

    async fn list_images(
        &self,
        request: Request<ListImagesRequest>,
    ) -> Result<Response<ListImagesResponse>, Status> {
        let wanted = request.into_inner().filter.and_then(|filter| filter.image);
        let wanted = wanted.filter(|spec| !spec.image.is_empty());
        let found = match wanted {
            None => self.images.list().await,
            Some(spec) => {
                let name = convert::image_name(Some(spec)).map_err(|error| status::of_convert(&error))?;
                self.images.find(&name).await.map(|image| image.into_iter().collect())
            }
        };
        let images = found.map_err(|error| status::of_images(&error))?;
        Ok(Response::new(ListImagesResponse { images: images.into_iter().map(wire_image).collect() }))
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
        let found = self.images.filesystem().await.map_err(|error| status::of_images(&error))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let usage = FilesystemUsage {
            timestamp: i64::try_from(now).unwrap_or(i64::MAX),
            fs_id: Some(FilesystemIdentifier { mountpoint: found.mountpoint }),
            used_bytes: Some(UInt64Value { value: found.usage.bytes }),
            inodes_used: Some(UInt64Value { value: found.usage.inodes }),
        };
        // Containers live on the snapshotter of their image.
        let (image_filesystems, container_filesystems) = (vec![usage.clone()], vec![usage]);
        Ok(Response::new(ImageFsInfoResponse { image_filesystems, container_filesystems }))
    }
}

fn wire_image(image: images::Image) -> Image {
    let (uid, username) = user(&image.inspected.user);
    Image {
        id: image.inspected.id.to_string(),
        repo_tags: image.repo_tags,
        repo_digests: image.repo_digests,
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
