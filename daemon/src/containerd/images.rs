//! Image records: names that point to content, with their labels.

use std::collections::HashMap;

use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::{
    CreateImageRequest, DeleteImageRequest, GetImageRequest, Image as WireImage, ListImagesRequest,
    UpdateImageRequest,
};
use prost_types::FieldMask;
use tonic::transport::Channel;

use super::leases::{COLLECT_DEADLINE, Collect};
use super::{Containerd, Error, Kind, MAX_MESSAGE, content};
use crate::oci::Descriptor;

/// A name in containerd's image store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRecord {
    /// The name: a normalised reference, `repository@digest`, or an image ID.
    pub name: String,
    /// What the name points to: an index or a manifest.
    pub target: Descriptor,
    /// The record's labels.
    pub labels: HashMap<String, String>,
}

/// What is under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A record.
    Record(ImageRecord),
    /// A record whose target is not a descriptor that can be read.
    Odd,
    /// No record.
    Nothing,
}

/// Rounds of create and update against somebody who removes the same image; containerd's CRI does two.
const PUT_ATTEMPTS: u32 = 4;

impl Containerd {
    /// All image records of the namespace. Records whose target is not a descriptor that can be read are left out
    /// and their names returned apart.
    pub async fn list_images(&self) -> Result<(Vec<ImageRecord>, Vec<String>), Error> {
        let request = self.request(ListImagesRequest { filters: Vec::new() });
        let response = self
            .images_client()
            .list(request)
            .await
            .map_err(|status| Error::new("list images", "", &status))?;
        let mut odd = Vec::new();
        let mut records = Vec::new();
        for image in response.into_inner().images {
            match image.target.as_ref().and_then(content::own_descriptor) {
                Some(target) => {
                    records.push(ImageRecord { name: image.name, target, labels: image.labels });
                }
                None => odd.push(image.name),
            }
        }
        Ok((records, odd))
    }

    /// Creates the record, or points an existing one to the target and adds the labels. Labels that others set on
    /// it stay, and a record that is right already is not written (as containerd's CRI does, so that no event
    /// is sent for nothing). Returns what was under the name before.
    pub async fn put_image(&self, record: &ImageRecord) -> Result<Found, Error> {
        // A record that somebody deletes in between is created by the next round.
        for _ in 0..PUT_ATTEMPTS - 1 {
            match self.create_image(record).await {
                Err(error) if error.kind() == Kind::AlreadyExists => {}
                other => return other.map(|()| Found::Nothing),
            }
            match self.update_image(record).await {
                Err(error) if error.kind() == Kind::NotFound => {}
                other => return other,
            }
        }
        self.create_image(record).await.map(|()| Found::Nothing)
    }

    async fn create_image(&self, record: &ImageRecord) -> Result<(), Error> {
        let message = CreateImageRequest { image: Some(wire_image(record)), source_date_epoch: None };
        let created = self.images_client().create(self.request(message)).await;
        created.map(drop).map_err(|status| Error::new("create image record", &record.name, &status))
    }

    async fn update_image(&self, record: &ImageRecord) -> Result<Found, Error> {
        let found = self.find_image(&record.name).await?;
        if let Found::Record(present) = &found {
            let labelled = record.labels.iter().all(|(k, v)| present.labels.get(k) == Some(v));
            if labelled && present.target.digest == record.target.digest {
                return Ok(found);
            }
        }
        self.write_image(record).await.map(|()| found)
    }

    /// Points an existing record to the target and sets the labels, of which an empty one goes; others stay. Nothing to
    /// do if there is none.
    pub async fn change_image(&self, record: &ImageRecord) -> Result<(), Error> {
        match self.write_image(record).await {
            Err(error) if error.kind() != Kind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    async fn write_image(&self, record: &ImageRecord) -> Result<(), Error> {
        let mut paths = vec!["target".to_owned()];
        paths.extend(record.labels.keys().map(|key| format!("labels.{key}")));
        let message = UpdateImageRequest {
            image: Some(wire_image(record)),
            update_mask: Some(FieldMask { paths }),
            source_date_epoch: None,
        };
        let updated = self.images_client().update(self.request(message)).await;
        updated.map(drop).map_err(|status| Error::new("update image record", &record.name, &status))
    }

    /// What is under exactly that name.
    pub async fn find_image(&self, name: &str) -> Result<Found, Error> {
        let answer = self.images_client().get(self.request(GetImageRequest { name: name.into() })).await;
        match answer.map_err(|status| Error::new("read image record", name, &status)) {
            Ok(response) => {
                let image = response.into_inner().image.unwrap_or_default();
                let target = image.target.as_ref().and_then(content::own_descriptor);
                Ok(target.map_or(Found::Odd, |target| {
                    Found::Record(ImageRecord { name: image.name, target, labels: image.labels })
                }))
            }
            Err(error) if error.kind() == Kind::NotFound => Ok(Found::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Deletes the record; one that is gone already counts as deleted.
    pub async fn delete_image(&self, name: &str, collect: Collect) -> Result<(), Error> {
        let message = DeleteImageRequest { name: name.into(), sync: collect == Collect::Now, target: None };
        let request = match collect {
            Collect::Later => self.request(message),
            Collect::Now => self.request_within(COLLECT_DEADLINE, message),
        };
        let answer = self.images_client().delete(request).await;
        match answer.map_err(|status| Error::new("delete image record", name, &status)) {
            Err(error) if error.kind() != Kind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn images_client(&self) -> ImagesClient<Channel> {
        ImagesClient::new(self.channel()).max_decoding_message_size(MAX_MESSAGE)
    }
}

fn wire_image(record: &ImageRecord) -> WireImage {
    WireImage {
        name: record.name.clone(),
        labels: record.labels.clone(),
        target: Some(content::wire_descriptor(&record.target)),
        created_at: None,
        updated_at: None,
    }
}
