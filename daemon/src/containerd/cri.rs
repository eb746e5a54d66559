//! containerd's own CRI service, asked for two things only: which configuration containers will be created with, and
//! whether its image store has caught up.

use drayd_proto::cri::image_service_client::ImageServiceClient;
use drayd_proto::cri::runtime_service_client::RuntimeServiceClient;
use drayd_proto::cri::{ImageFsInfoRequest, ImageSpec, ImageStatusRequest, StatusRequest};

use super::{Containerd, Error, MAX_MESSAGE};

/// An image as containerd's CRI shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriImage {
    /// Its ID.
    pub id: String,
    /// Whether it is one of those that are never collected. From 2.x on CRI pins the sandbox image by itself.
    pub pinned: bool,
}

impl Containerd {
    /// The CRI plugin's configuration as the JSON text of `Status(verbose)`, `info["config"]`.
    pub async fn cri_config(&self) -> Result<String, Error> {
        const OPERATION: &str = "read the CRI status";
        let mut client = RuntimeServiceClient::new(self.channel()).max_decoding_message_size(MAX_MESSAGE);
        let mut response = client
            .status(self.request(StatusRequest { verbose: true }))
            .await
            .map_err(|status| Error::new(OPERATION, "", &status))?
            .into_inner();
        response.info.remove("config").ok_or_else(|| Error::unexpected(OPERATION, "", "it has no `config`"))
    }

    /// The image ID that containerd's CRI has for a reference or ID; `None` if it knows no such image.
    pub async fn cri_image_id(&self, image: &str) -> Result<Option<String>, Error> {
        Ok(self.cri_image(image).await?.map(|image| image.id))
    }

    /// What containerd's CRI has for a reference or ID; `None` if it knows no such image.
    pub async fn cri_image(&self, image: &str) -> Result<Option<CriImage>, Error> {
        let spec = ImageSpec { image: image.into(), ..ImageSpec::default() };
        let message = ImageStatusRequest { image: Some(spec), verbose: false };
        let mut client = ImageServiceClient::new(self.channel()).max_decoding_message_size(MAX_MESSAGE);
        let response = client
            .image_status(self.request(message))
            .await
            .map_err(|status| Error::new("ask the CRI for image", image, &status))?;
        Ok(response.into_inner().image.map(|image| CriImage { id: image.id, pinned: image.pinned }))
    }

    /// The mount point of the filesystem that containerd's CRI keeps images on: the root of its default
    /// snapshotter.
    pub async fn cri_image_root(&self) -> Result<Option<String>, Error> {
        let mut client = ImageServiceClient::new(self.channel()).max_decoding_message_size(MAX_MESSAGE);
        let response = client
            .image_fs_info(self.request(ImageFsInfoRequest {}))
            .await
            .map_err(|status| Error::new("ask the CRI for its image filesystem", "", &status))?;
        let filesystems = response.into_inner().image_filesystems;
        Ok(filesystems.into_iter().next().and_then(|usage| usage.fs_id).map(|id| id.mountpoint))
    }
}
