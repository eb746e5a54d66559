//! containerd's image records as images: those of one image ID are one image, and those whose documents cannot be read
//! are kept apart, by what they point to.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

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
    /// Names with a tag, in order.
    pub repo_tags: Vec<String>,
    /// Names with a digest, in order.
    pub repo_digests: Vec<String>,
    /// Whether kubelet must not collect it.
    pub pinned: bool,
    /// Names of all its records, the image ID among them, and whether each pins the image.
    records: BTreeMap<String, bool>,
}

/// Every image record of the namespace.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    /// By image ID.
    images: BTreeMap<Digest, Arc<Image>>,
    /// Names of records that no image can be made of, by what they point to.
    unreadable: BTreeMap<String, Vec<String>>,
    /// Where each record is, by its name.
    places: HashMap<String, Filed>,
}

#[derive(Debug)]
enum Filed {
    /// In the image with this ID, which its target led to.
    Image { id: Digest, target: Digest },
    /// With those that point to this.
    Unreadable(String),
}

impl Catalogue {
    /// Puts a record to its image, in the place of what was under its name.
    pub(super) fn put(&mut self, inspected: Inspected, record: ImageRecord) {
        self.remove(&record.name);
        let id = inspected.id.clone();
        let image = self.images.entry(id.clone()).or_insert_with(|| Arc::new(Image::of(inspected)));
        let (key, value) = labels::CRI_PINNED;
        let pins = record.labels.get(key).is_some_and(|label| label == value);
        Arc::make_mut(image).take(&record.name, pins);
        self.places.insert(record.name, Filed::Image { id, target: record.target.digest });
    }

    /// Puts a record that no image can be made of, in the place of what was under its name; `target` is what it points
    /// to, as far as that can be told.
    pub(super) fn put_unreadable(&mut self, name: String, target: Option<&Digest>) {
        self.remove(&name);
        // One without a target is a thing of its own; no digest reads like this.
        let target = target.map_or_else(|| format!("the record {name}"), Digest::to_string);
        self.places.insert(name.clone(), Filed::Unreadable(target.clone()));
        self.unreadable.entry(target).or_default().push(name);
    }

    /// Takes out the record of that name, and with the last one its image.
    pub(super) fn remove(&mut self, name: &str) {
        match self.places.remove(name) {
            Some(Filed::Image { id, .. }) => {
                let Some(image) = self.images.get_mut(&id) else { return };
                let image = Arc::make_mut(image);
                image.lose(name);
                if image.records.is_empty() {
                    self.images.remove(&id);
                }
            }
            Some(Filed::Unreadable(target)) => {
                let Some(names) = self.unreadable.get_mut(&target) else { return };
                names.retain(|other| other != name);
                if names.is_empty() {
                    self.unreadable.remove(&target);
                }
            }
            None => {}
        }
    }

    /// Whether there is a record of that name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// What the record of that name points to, if it is in an image.
    pub(super) fn target(&self, name: &str) -> Option<&Digest> {
        match self.places.get(name)? {
            Filed::Image { target, .. } => Some(target),
            Filed::Unreadable(_) => None,
        }
    }

    /// All images.
    pub(super) fn images(&self) -> Vec<Arc<Image>> {
        self.images.values().cloned().collect()
    }

    /// The image that has just that name, which is nobody else's whatever images there are.
    pub(super) fn find_exact(&self, name: &ImageName) -> Option<Arc<Image>> {
        let name = name.exact()?;
        let Filed::Image { id, .. } = self.places.get(&name)? else { return None };
        self.images.get(id).filter(|image| image.answers_to(&name)).cloned()
    }

    /// The image that is meant.
    pub(super) fn find(&self, name: &ImageName) -> Result<Option<Arc<Image>>, Error> {
        if let Some(image) = self.find_exact(name) {
            return Ok(Some(image));
        }
        let places = name.choose(&self.called())?;
        Ok(places.first().and_then(|place| self.images.values().nth(*place)).cloned())
    }

    /// Names of all records of what is meant: those of an image, and those that cannot be read and so are in none.
    pub(super) fn records(&self, name: &ImageName) -> Result<Vec<String>, Error> {
        let places = name.choose(&self.called())?;
        let of_images = self.images.values().map(|image| image.records.keys().cloned().collect());
        let records: Vec<Vec<_>> = of_images.chain(self.unreadable.values().cloned()).collect();
        Ok(places.into_iter().flat_map(|place| records[place].clone()).collect())
    }

    /// What images answer to, and then what the rest does, in the order of both maps.
    fn called(&self) -> Vec<Called<'_>> {
        let of_images = self.images.values().map(|image| image.called());
        of_images.chain(self.unreadable.values().map(|records| called_by(records))).collect()
    }
}

impl Image {
    fn of(inspected: Inspected) -> Self {
        let (repo_tags, repo_digests, records) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { inspected, repo_tags, repo_digests, pinned: false, records }
    }

    /// Takes in a record that it does not have.
    fn take(&mut self, record: &str, pins: bool) {
        self.records.insert(record.to_owned(), pins);
        self.pinned |= pins;
        if let Some(names) = self.names_like(record)
            && let Err(place) = names.binary_search_by(|other| other.as_str().cmp(record))
        {
            names.insert(place, record.to_owned());
        }
    }

    fn lose(&mut self, record: &str) {
        if self.records.remove(record) == Some(true) {
            self.pinned = self.records.values().any(|pins| *pins);
        }
        if let Some(names) = self.names_like(record)
            && let Ok(place) = names.binary_search_by(|other| other.as_str().cmp(record))
        {
            names.remove(place);
        }
    }

    /// Where a record is shown. It is a name only in the form that the reference grammar gives it: others made by hand
    /// are not shown.
    fn names_like(&mut self, record: &str) -> Option<&mut Vec<String>> {
        let reference = Reference::parse(record).ok().filter(|reference| reference.to_string() == record)?;
        Some(if reference.digest().is_some() { &mut self.repo_digests } else { &mut self.repo_tags })
    }

    fn answers_to(&self, name: &str) -> bool {
        let names = self.repo_tags.iter().chain(&self.repo_digests);
        self.inspected.id.as_str() == name || names.map(String::as_str).any(|other| other == name)
    }

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
    use super::*;
    use crate::oci::{Descriptor, media_type};

    fn record(name: &str, labels: &[(&str, &str)]) -> ImageRecord {
        let target = Descriptor {
            media_type: media_type::OCI_MANIFEST.into(),
            digest: Digest::of(b"manifest"),
            size: 8,
            annotations: BTreeMap::new(),
            urls: Vec::new(),
        };
        let labels: HashMap<_, _> = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        ImageRecord { name: name.into(), target, labels }
    }

    fn id(config: &str) -> String {
        Digest::of(config.as_bytes()).to_string()
    }

    /// An image of four records.
    fn catalogue() -> Catalogue {
        let inspected = Inspected { id: Digest::of(b"config"), size: 1, user: String::new(), chain: None };
        let digest = format!("docker.io/library/app@{}", Digest::of(b"manifest"));
        let mut catalogue = Catalogue::default();
        for (name, labels) in [
            (inspected.id.to_string(), &[][..]),
            (digest, &[]),
            ("docker.io/library/app:1".into(), &[("io.cri-containerd.pinned", "pinned")]),
            ("app:fixed".into(), &[]),
        ] {
            catalogue.put(inspected.clone(), record(&name, labels));
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
        let images = catalogue.images();
        let [image] = images.as_slice() else { panic!("{images:?}") };
        assert_eq!(image.repo_tags, ["docker.io/library/app:1"]);
        assert_eq!(image.repo_digests, [format!("docker.io/library/app@{}", Digest::of(b"manifest"))]);
        assert!(image.pinned);
    }

    #[test]
    fn names_and_pins_come_and_go_with_their_records() {
        let mut catalogue = catalogue();
        let inspected = Inspected { id: Digest::of(b"config"), size: 1, user: String::new(), chain: None };
        for tag in ["docker.io/library/app:2", "docker.io/library/app:0", "docker.io/library/app:2"] {
            catalogue.put(inspected.clone(), record(tag, &[]));
        }
        let shown = |catalogue: &Catalogue| {
            let image = catalogue.images().pop().expect("an image");
            (image.repo_tags.clone(), image.pinned)
        };
        let [zero, one, two] = ["0", "1", "2"].map(|tag| format!("docker.io/library/app:{tag}"));
        assert_eq!(shown(&catalogue), (vec![zero.clone(), one.clone(), two.clone()], true));
        catalogue.remove(&one);
        assert_eq!(shown(&catalogue), (vec![zero.clone(), two], false));
        for name in [id("config"), format!("docker.io/library/app@{}", Digest::of(b"manifest"))] {
            catalogue.remove(&name);
        }
        for name in ["docker.io/library/app:2", "app:fixed", "unknown"] {
            catalogue.remove(name);
        }
        assert_eq!(shown(&catalogue), (vec![zero.clone()], false));
        catalogue.remove(&zero);
        assert!(catalogue.images().is_empty());
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
            let image = catalogue().find(&name(text)).expect("it is not ambiguous");
            assert_eq!(image.is_some(), found, "{text:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_not_found_but_its_records_are() {
        let mut catalogue = catalogue();
        let (broken, id) = (Digest::of(b"broken"), id("lost"));
        for text in ["docker.io/library/lost:1", "docker.io/library/lost:2", id.as_str()] {
            catalogue.put_unreadable(text.into(), Some(&broken));
        }
        catalogue.put_unreadable("docker.io/library/nowhere:1".into(), None);
        catalogue.put_unreadable("docker.io/library/nowhere:2".into(), None);
        let lost = ["docker.io/library/lost:1", "docker.io/library/lost:2", &id];
        for text in ["lost:1", "docker.io/library/lost:2", &id, &id["sha256:".len()..][..12]] {
            assert_eq!(catalogue.find(&name(text)).expect("it is not ambiguous"), None, "{text}");
            assert_eq!(records(&catalogue, text), lost, "{text}");
        }
        assert_eq!(records(&catalogue, "nowhere:1"), ["docker.io/library/nowhere:1"]);
        assert_eq!(records(&catalogue, "lost:3"), [""; 0]);
        assert_eq!(catalogue.images().len(), 1);
    }

    #[test]
    fn an_unreadable_record_of_the_id_goes_with_the_image() {
        let mut catalogue = Catalogue::default();
        let inspected = Inspected { id: Digest::of(b"config"), size: 1, user: String::new(), chain: None };
        catalogue.put(inspected.clone(), record("docker.io/library/app:1", &[]));
        catalogue.put_unreadable(id("config"), Some(&Digest::of(b"broken")));
        let image = catalogue.find(&name(&id("config"))).expect("it is not ambiguous");
        assert_eq!(image.map(|image| image.inspected.clone()), Some(inspected));
        assert_eq!(records(&catalogue, &id("config")), ["docker.io/library/app:1", &id("config")]);
    }
}
