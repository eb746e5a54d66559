use std::collections::HashMap;

use super::*;
use crate::oci::{Descriptor, Digest};

fn record(name: &str, labels: &[(&str, &str)]) -> ImageRecord {
    let target = Descriptor {
        media_type: crate::oci::media_type::OCI_MANIFEST.into(),
        digest: Digest::of(b"manifest"),
        size: 8,
        annotations: BTreeMap::new(),
    };
    let labels: HashMap<_, _> = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    ImageRecord { name: name.into(), target, labels }
}

fn image() -> Image {
    let inspected = Inspected { id: Digest::of(b"config"), size: 1, user: String::new() };
    let digest = format!("docker.io/library/app@{}", Digest::of(b"manifest"));
    let mut images = BTreeMap::new();
    for (name, labels) in [
        (inspected.id.to_string(), &[][..]),
        (digest, &[]),
        ("docker.io/library/app:1".into(), &[("io.cri-containerd.pinned", "pinned")]),
        ("app:fixed".into(), &[]),
    ] {
        add(&mut images, inspected.clone(), record(&name, labels));
    }
    assert_eq!(images.len(), 1);
    images.into_values().next().expect("one image")
}

#[test]
fn records_of_one_config_are_one_image_and_odd_names_are_not_shown() {
    let image = image();
    assert_eq!(image.repo_tags, ["docker.io/library/app:1"]);
    assert_eq!(image.repo_digests, [format!("docker.io/library/app@{}", Digest::of(b"manifest"))]);
    assert!(image.pinned);
    assert_eq!(image.records.len(), 4, "all of them go when the image is removed");
}

#[test]
fn an_image_is_found_by_every_name_it_has() {
    let id = Digest::of(b"config").to_string();
    let digest = format!("app@{}", Digest::of(b"manifest"));
    let tag_and_digest = format!("app:1@{}", Digest::of(b"manifest"));
    for (name, found) in [
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
        let name = ImageName::parse(name).expect("a name");
        assert_eq!(image().is(&name), found, "{name:?}");
    }
}

#[test]
fn a_malformed_name_is_an_error() {
    for name in ["", "UPPER/Case", "a b", "sha256:"] {
        assert!(ImageName::parse(name).is_err(), "{name}");
    }
}
