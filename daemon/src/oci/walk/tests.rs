use std::collections::HashMap;

use serde_json::{Value, json};

use super::super::media_type::{OCI_CONFIG, OCI_INDEX, OCI_MANIFEST};
use super::*;

/// Bytes by their digest, as a registry or the content store has them.
#[derive(Default)]
struct Shelf(HashMap<Digest, Vec<u8>>);

impl Shelf {
    /// Puts the document there and returns its descriptor.
    fn put(&mut self, media_type: &str, value: &Value) -> Value {
        let bytes = value.to_string().into_bytes();
        let digest = Digest::of(&bytes);
        let descriptor = json!({ "mediaType": media_type, "digest": digest.as_str(), "size": bytes.len() });
        self.0.insert(digest, bytes);
        descriptor
    }

    /// An image whose config has these fields.
    fn image(&mut self, config: &Value) -> Value {
        let mut whole = json!({ "rootfs": { "type": "layers" } });
        whole.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
        let config = self.put(OCI_CONFIG, &whole);
        self.put(OCI_MANIFEST, &json!({ "config": config, "layers": [] }))
    }

    fn index(&mut self, entries: &[Value]) -> Value {
        self.put(OCI_INDEX, &json!({ "manifests": entries }))
    }

    fn walk(&self, target: &Value) -> Result<(Documents, Vec<&'static str>), WalkError> {
        let mut walk = Walk::new(descriptor(target), amd64());
        let mut path = Vec::new();
        loop {
            path.push(walk.what());
            let bytes = self.0[&walk.wanted().digest].clone();
            assert!(bytes.len() <= walk.limit());
            match walk.read(bytes)? {
                Step::Next(next) => walk = next,
                Step::End(documents) => return Ok((documents, path)),
            }
        }
    }

    /// The manifest that the target leads to, or the error with its text.
    fn found(&self, target: &Value) -> Result<Digest, String> {
        let walked = self.walk(target);
        walked.map(|(documents, _)| documents.manifest.descriptor.digest).map_err(|error| error.to_string())
    }
}

fn amd64() -> Platform {
    Platform {
        os: "linux".to_owned(),
        architecture: "amd64".to_owned(),
        variant: None,
        os_version: None,
        os_features: Vec::new(),
    }
}

fn descriptor(value: &Value) -> Descriptor {
    let index = json!({ "manifests": [value] }).to_string();
    match Document::parse(None, index.as_bytes()) {
        Ok(Document::Index(index)) => index.entries[0].descriptor.clone().unwrap(),
        other => panic!("{value}: {other:?}"),
    }
}

fn digest(descriptor: &Value) -> Digest {
    descriptor["digest"].as_str().unwrap().parse().unwrap()
}

/// The entry with this platform.
fn on(mut descriptor: Value, architecture: &str) -> Value {
    descriptor["platform"] = json!({ "os": "linux", "architecture": architecture });
    descriptor
}

#[test]
fn the_documents_are_read_from_the_target_down() {
    let mut shelf = Shelf::default();
    let image = shelf.image(&json!({ "os": "linux", "config": { "User": "me" } }));
    let inner = shelf.index(&[on(image.clone(), "amd64")]);
    let outer = shelf.index(&[on(image.clone(), "arm64"), on(inner.clone(), "amd64")]);
    let (documents, path) = shelf.walk(&outer).expect("an image");
    assert_eq!(path, ["index", "index", "manifest", "config"]);
    let indexes: Vec<_> = documents.indexes.iter().map(|index| &index.descriptor.digest).collect();
    assert_eq!(indexes, [&digest(&outer), &digest(&inner)]);
    assert_eq!(documents.manifest.descriptor.digest, digest(&image));
    assert_eq!(documents.config.descriptor, documents.manifest.document.config);
    assert_eq!(documents.config.document.user, "me");
    for (digest, bytes) in [
        (&documents.indexes[0].descriptor.digest, &documents.indexes[0].bytes),
        (&documents.manifest.descriptor.digest, &documents.manifest.bytes),
        (&documents.config.descriptor.digest, &documents.config.bytes),
    ] {
        assert!(digest.matches(bytes), "{digest}");
    }
}

#[test]
fn a_manifest_that_the_name_points_to_stands_alone() {
    let mut shelf = Shelf::default();
    let image = shelf.image(&json!({}));
    let (documents, path) = shelf.walk(&image).expect("an image");
    assert_eq!(path, ["manifest", "config"]);
    assert_eq!((documents.indexes.len(), documents.manifest.descriptor.digest), (0, digest(&image)));
}

#[test]
fn indexes_nest_four_deep_and_no_deeper() {
    let mut shelf = Shelf::default();
    let mut target = shelf.image(&json!({}));
    for depth in 1..=5 {
        target = shelf.index(&[on(target, "amd64")]);
        let expected = match depth {
            5 => Some(WalkError::Nesting { limit: 4 }),
            _ => None,
        };
        assert_eq!(shelf.walk(&target).err(), expected, "{depth} deep");
    }
}

#[test]
fn an_entry_for_others_does_not_decide() {
    let mut shelf = Shelf::default();
    let image = shelf.image(&json!({}));
    let broken = |architecture| {
        let mut entry = on(image.clone(), architecture);
        entry["digest"] = json!("sha999:abc");
        entry.as_object_mut().unwrap().remove("size");
        entry
    };
    let target = shelf.index(&[broken("arm64"), on(image.clone(), "amd64")]);
    assert_eq!(shelf.found(&target), Ok(digest(&image)));
    let target = shelf.index(&[broken("amd64"), on(image.clone(), "amd64")]);
    match shelf.walk(&target) {
        Err(WalkError::Malformed { what: "index", digest: of, source }) => {
            assert_eq!(of, digest(&target));
            assert!(source.is_of_algorithm(), "{source}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_image_that_containerd_would_not_find_is_refused() {
    let mut shelf = Shelf::default();
    let image = shelf.image(&json!({ "os": "linux", "architecture": "amd64" }));
    let mut artifact = shelf.put("application/vnd.in-toto+json", &json!({}));
    let target = shelf.index(&[artifact.clone(), image.clone()]);
    let error = shelf.walk(&target).unwrap_err();
    let artifact_type = "application/vnd.in-toto+json".to_owned();
    let expected = WalkError::Shadowed { digest: digest(&target), image: digest(&image), artifact_type };
    assert_eq!(error, expected);
    artifact["platform"] = json!({ "os": "unknown", "architecture": "unknown" });
    for entries in [
        [artifact.clone(), image.clone()],
        [image.clone(), artifact.clone()],
        [artifact.clone(), on(image.clone(), "amd64")],
    ] {
        let target = shelf.index(&entries);
        assert_eq!(shelf.found(&target), Ok(digest(&image)));
    }
}

#[test]
fn a_broken_document_is_named() {
    let mut shelf = Shelf::default();
    let config = shelf.put(OCI_CONFIG, &json!({ "chart": 1 }));
    let manifest = shelf.put(OCI_MANIFEST, &json!({ "config": config, "layers": [] }));
    let no_manifest = shelf.put(OCI_MANIFEST, &json!({ "manifests": [] }));
    let no_index = shelf.put(OCI_INDEX, &json!({}));
    for (target, what, broken) in [
        (&manifest, "config", &config),
        (&no_manifest, "manifest", &no_manifest),
        (&no_index, "index", &no_index),
    ] {
        let expected = format!("the image's {what} {} cannot be used", digest(broken));
        assert_eq!(shelf.found(target), Err(expected));
    }
}

#[test]
fn an_artifact_says_what_it_is() {
    const HELM: &str = "application/vnd.cncf.helm.config.v1+json";
    const EMPTY: &str = "application/vnd.oci.empty.v1+json";
    const SBOM: &str = "application/vnd.example.sbom.v1";
    let mut shelf = Shelf::default();
    for (config_type, artifact_type, config, expected) in [
        (HELM, None, json!({ "name": "chart" }), Some(HELM)),
        // Not every artifact has JSON there.
        ("application/vnd.example.config", None, json!("text"), Some("application/vnd.example.config")),
        (EMPTY, Some(SBOM), json!({}), Some(SBOM)),
        (OCI_CONFIG, Some(SBOM), json!({}), Some(SBOM)),
        (EMPTY, None, json!({}), None),
        (OCI_CONFIG, None, json!({}), None),
        (OCI_CONFIG, Some(OCI_CONFIG), json!({}), None),
    ] {
        let config = shelf.put(config_type, &config);
        let manifest = json!({ "config": config, "layers": [], "artifactType": artifact_type });
        let manifest = shelf.put(OCI_MANIFEST, &manifest);
        let expected = match expected {
            Some(expected) => {
                format!("{} is not an image but an artifact of type `{expected}`", digest(&manifest))
            }
            None => format!("the image's config {} cannot be used", digest(&config)),
        };
        assert_eq!(shelf.found(&manifest), Err(expected), "{config_type} {artifact_type:?}");
    }
}

/// Fault 81.
#[test]
fn an_image_config_counts_under_any_media_type() {
    let mut shelf = Shelf::default();
    for media_type in ["application/octet-stream", "application/vnd.example", "", "text/plain"] {
        let config = shelf.put(media_type, &json!({ "rootfs": { "type": "layers" }, "of": media_type }));
        let manifest = shelf.put(OCI_MANIFEST, &json!({ "config": config, "layers": [] }));
        assert_eq!(shelf.found(&manifest), Ok(digest(&manifest)), "{media_type}");
    }
}

#[test]
fn a_config_may_be_larger_than_what_leads_to_it() {
    let mut shelf = Shelf::default();
    let image = shelf.image(&json!({ "author": "x".repeat(5 << 20) }));
    assert_eq!(shelf.found(&image), Ok(digest(&image)));
}

#[test]
fn an_entry_without_a_platform_is_taken_by_its_config() {
    for (config, fits) in [
        (json!({ "os": "linux", "architecture": "amd64" }), true),
        (json!({ "os": "Linux", "architecture": "x86_64" }), true),
        (json!({ "os": "linux", "architecture": "amd64", "variant": "v1" }), true),
        (json!({ "os": "linux", "architecture": "386" }), true),
        (json!({ "architecture": "amd64" }), true),
        // As containerd: a missing name fits for the operating system only.
        (json!({ "os": "linux" }), false),
        (json!({}), false),
        (json!({ "os": "linux", "architecture": "amd64", "variant": "v2" }), false),
        (json!({ "os": "linux", "architecture": "arm64" }), false),
        (json!({ "os": "windows", "architecture": "amd64" }), false),
        (json!({ "os": "linux", "architecture": "amd64", "os.features": ["unheard.of"] }), false),
    ] {
        let mut shelf = Shelf::default();
        let image = shelf.image(&config);
        let index = shelf.index(std::slice::from_ref(&image));
        assert_eq!(shelf.found(&index).is_ok(), fits, "{config}");
        // A platform that the entry names counts alone, and a name that points to the manifest means it.
        let named = shelf.index(&[on(image.clone(), "amd64")]);
        assert_eq!(shelf.found(&named), Ok(digest(&image)), "{config}");
        assert_eq!(shelf.found(&image), Ok(digest(&image)), "{config}");
    }
}

#[test]
fn only_the_first_entry_without_a_platform_is_tried() {
    let mut shelf = Shelf::default();
    let arm64 = shelf.image(&json!({ "os": "linux", "architecture": "arm64" }));
    let amd64 = shelf.image(&json!({ "os": "linux", "architecture": "amd64" }));
    let refused = |offered| Err(format!("no image for platform linux/amd64: the index offers {offered}"));
    let first = "linux/arm64 in the first entry that names no platform";
    for (entries, expected) in [
        (vec![arm64.clone()], refused(first.to_owned())),
        (vec![arm64.clone(), amd64.clone()], refused(first.to_owned())),
        (vec![on(amd64.clone(), "s390x"), arm64.clone()], refused(format!("{first}, linux/s390x"))),
        (vec![amd64.clone(), arm64.clone()], Ok(digest(&amd64))),
        (vec![arm64.clone(), on(amd64.clone(), "amd64")], Ok(digest(&amd64))),
    ] {
        let index = shelf.index(&entries);
        assert_eq!(shelf.found(&index), expected);
    }
}

#[test]
fn the_innermost_entry_decides_whether_the_config_is_asked() {
    let mut shelf = Shelf::default();
    let arm64 = shelf.image(&json!({ "os": "linux", "architecture": "arm64" }));
    let named = shelf.index(&[on(arm64.clone(), "amd64")]);
    let unnamed = shelf.index(std::slice::from_ref(&arm64));
    for (inner, fits) in [(named, true), (unnamed, false)] {
        for entry in [inner.clone(), on(inner.clone(), "amd64")] {
            let outer = shelf.index(&[entry]);
            assert_eq!(shelf.found(&outer).is_ok(), fits, "{inner}");
        }
    }
}
