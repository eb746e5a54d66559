//! containerd's image records as images: those of one image ID are one image, and those whose documents cannot be read
//! are kept apart, by what they point to.

use std::collections::BTreeMap;

use super::Error;
use super::inspect::Inspected;
use super::name::{Called, ImageName};
use crate::containerd::images::ImageRecord;
use crate::containerd::labels;
use crate::oci::{Digest, Reference};

/// An image with all its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// What its documents say.
    pub inspected: Inspected,
    /// Names with a tag.
    pub repo_tags: Vec<String>,
    /// Names with a digest.
    pub repo_digests: Vec<String>,
    /// Whether kubelet must not collect it.
    pub pinned: bool,
    /// Names of all its records, the image ID among them.
    records: Vec<String>,
}

/// Every image record of the namespace.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    /// By image ID.
    images: BTreeMap<String, Image>,
    /// Names of records that no image can be made of, by what they point to.
    unreadable: BTreeMap<String, Vec<String>>,
}

impl Catalogue {
    /// Adds a record to its image.
    pub(super) fn add(&mut self, inspected: Inspected, record: ImageRecord) {
        let image = self.images.entry(inspected.id.to_string()).or_insert_with(|| Image {
            inspected,
            repo_tags: Vec::new(),
            repo_digests: Vec::new(),
            pinned: false,
            records: Vec::new(),
        });
        let (key, value) = labels::CRI_PINNED;
        image.pinned |= record.labels.get(key).is_some_and(|label| label == value);
        // A record is a name only in the form that the reference grammar gives it: others made by hand are not shown.
        match Reference::parse(&record.name) {
            Ok(reference) if reference.to_string() != record.name => {}
            Ok(reference) if reference.digest().is_some() => image.repo_digests.push(record.name.clone()),
            Ok(_) => image.repo_tags.push(record.name.clone()),
            Err(_) => {}
        }
        image.records.push(record.name);
    }

    /// Adds a record that no image can be made of; `target` is what it points to, as far as that can be told.
    pub(super) fn add_unreadable(&mut self, name: String, target: Option<&Digest>) {
        // One without a target is a thing of its own; no digest reads like this.
        let target = target.map_or_else(|| format!("the record {name}"), Digest::to_string);
        self.unreadable.entry(target).or_default().push(name);
    }

    /// All images.
    pub(super) fn into_images(self) -> Vec<Image> {
        self.images.into_values().collect()
    }

    /// The image that is meant.
    pub(super) fn find(&self, name: &ImageName) -> Result<Option<&Image>, Error> {
        let places = name.choose(&self.called())?;
        Ok(places.first().and_then(|place| self.images.values().nth(*place)))
    }

    /// Names of all records of what is meant: those of an image, and those that cannot be read and so are in none.
    pub(super) fn records(&self, name: &ImageName) -> Result<Vec<String>, Error> {
        let places = name.choose(&self.called())?;
        let of_images = self.images.values().map(|image| &image.records);
        let records: Vec<_> = of_images.chain(self.unreadable.values()).collect();
        Ok(places.into_iter().flat_map(|place| records[place].clone()).collect())
    }

    /// What images answer to, and then what the rest does, in the order of both maps.
    fn called(&self) -> Vec<Called<'_>> {
        let of_images = self.images.values().map(Image::called);
        of_images.chain(self.unreadable.values().map(|records| called_by(records))).collect()
    }
}

impl Image {
    fn called(&self) -> Called<'_> {
        let names = self.repo_tags.iter().chain(&self.repo_digests).map(String::as_str).collect();
        Called { names, ids: vec![self.inspected.id.as_str()] }
    }
}

/// Of what cannot be read only the records tell the names, and by being one of them, the ID.
fn called_by(records: &[String]) -> Called<'_> {
    let names: Vec<&str> = records.iter().map(String::as_str).collect();
    let ids = names.iter().copied().filter(|name| name.parse::<Digest>().is_ok()).collect();
    Called { names, ids }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::oci::{Descriptor, media_type};

    fn record(name: &str, labels: &[(&str, &str)]) -> ImageRecord {
        let target = Descriptor {
            media_type: media_type::OCI_MANIFEST.into(),
            digest: Digest::of(b"manifest"),
            size: 8,
            annotations: BTreeMap::new(),
        };
        let labels: HashMap<_, _> = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        ImageRecord { name: name.into(), target, labels }
    }

    fn id(config: &str) -> String {
        Digest::of(config.as_bytes()).to_string()
    }

    /// An image of four records.
    fn catalogue() -> Catalogue {
        let inspected = Inspected { id: Digest::of(b"config"), size: 1, user: String::new() };
        let digest = format!("docker.io/library/app@{}", Digest::of(b"manifest"));
        let mut catalogue = Catalogue::default();
        for (name, labels) in [
            (inspected.id.to_string(), &[][..]),
            (digest, &[]),
            ("docker.io/library/app:1".into(), &[("io.cri-containerd.pinned", "pinned")]),
            ("app:fixed".into(), &[]),
        ] {
            catalogue.add(inspected.clone(), record(&name, labels));
        }
        catalogue
    }

    fn name(text: &str) -> ImageName {
        ImageName::parse(text).expect("a name")
    }

    fn records(catalogue: &Catalogue, text: &str) -> Vec<String> {
        catalogue.records(&name(text)).expect("it is not ambiguous")
    }

    #[test]
    fn records_of_one_config_are_one_image_and_odd_names_are_not_shown() {
        let catalogue = catalogue();
        assert_eq!(records(&catalogue, "app:1").len(), 4, "all of them go when the image is removed");
        let images = catalogue.into_images();
        let [image] = images.as_slice() else { panic!("{images:?}") };
        assert_eq!(image.repo_tags, ["docker.io/library/app:1"]);
        assert_eq!(image.repo_digests, [format!("docker.io/library/app@{}", Digest::of(b"manifest"))]);
        assert!(image.pinned);
    }

    #[test]
    fn an_image_is_found_by_every_name_it_has() {
        let id = id("config");
        let digest = format!("app@{}", Digest::of(b"manifest"));
        let tag_and_digest = format!("app:1@{}", Digest::of(b"manifest"));
        for (text, found) in [
            (id.as_str(), true),
            (&id["sha256:".len()..], true),
            (&id["sha256:".len()..][..12], true),
            (&id[..12], true),
            ("app:1", true),
            ("docker.io/library/app:1", true),
            (digest.as_str(), true),
            (tag_and_digest.as_str(), true),
            ("app", false),
            ("other/app:1", false),
            ("beef", false),
        ] {
            let image = catalogue().find(&name(text)).expect("it is not ambiguous").cloned();
            assert_eq!(image.is_some(), found, "{text:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_not_found_but_its_records_are() {
        let mut catalogue = catalogue();
        let (broken, id) = (Digest::of(b"broken"), id("lost"));
        for text in ["docker.io/library/lost:1", "docker.io/library/lost:2", id.as_str()] {
            catalogue.add_unreadable(text.into(), Some(&broken));
        }
        catalogue.add_unreadable("docker.io/library/nowhere:1".into(), None);
        catalogue.add_unreadable("docker.io/library/nowhere:2".into(), None);
        let lost = ["docker.io/library/lost:1", "docker.io/library/lost:2", &id];
        for text in ["lost:1", "docker.io/library/lost:2", &id, &id["sha256:".len()..][..12]] {
            assert_eq!(catalogue.find(&name(text)).expect("it is not ambiguous"), None, "{text}");
            assert_eq!(records(&catalogue, text), lost, "{text}");
        }
        assert_eq!(records(&catalogue, "nowhere:1"), ["docker.io/library/nowhere:1"]);
        assert_eq!(records(&catalogue, "lost:3"), [""; 0]);
        assert_eq!(catalogue.into_images().len(), 1);
    }

    #[test]
    fn an_unreadable_record_of_the_id_goes_with_the_image() {
        let mut catalogue = Catalogue::default();
        let inspected = Inspected { id: Digest::of(b"config"), size: 1, user: String::new() };
        catalogue.add(inspected.clone(), record("docker.io/library/app:1", &[]));
        catalogue.add_unreadable(id("config"), Some(&Digest::of(b"broken")));
        let image = catalogue.find(&name(&id("config"))).expect("it is not ambiguous");
        assert_eq!(image.map(|image| &image.inspected), Some(&inspected));
        assert_eq!(records(&catalogue, &id("config")), ["docker.io/library/app:1", &id("config")]);
    }
}
