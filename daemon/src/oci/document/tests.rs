use std::collections::BTreeMap;
use std::error::Error as _;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::media_type::{DOCKER_CONFIG, DOCKER_LIST, DOCKER_MANIFEST, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST};
use super::*;

const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const DOCKER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";

pub(super) fn digest(name: &str) -> Digest {
    Digest::of(name.as_bytes())
}

fn blob(media_type: &str, name: &str) -> Value {
    json!({ "mediaType": media_type, "digest": digest(name).as_str(), "size": name.len() })
}

fn pointer(media_type: &str, name: &str) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest: digest(name),
        size: name.len() as u64,
        annotations: BTreeMap::new(),
        urls: Vec::new(),
    }
}

fn manifest_json() -> Value {
    json!({ "schemaVersion": 2, "config": blob(OCI_CONFIG, "config"), "layers": [blob(GZIP, "layer")] })
}

fn index_json() -> Value {
    json!({ "schemaVersion": 2, "manifests": [blob(OCI_MANIFEST, "amd64")] })
}

/// `value` with the field at a JSON pointer replaced or, where it is new, added.
fn with(mut value: Value, at: &str, field: Value) -> Value {
    let (parent, name) = at.rsplit_once('/').unwrap();
    let parent = value.pointer_mut(parent).unwrap();
    match parent {
        Value::Array(elements) => elements[name.parse::<usize>().unwrap()] = field,
        _ => parent[name] = field,
    }
    value
}

fn without(mut value: Value, at: &str) -> Value {
    let (parent, name) = at.rsplit_once('/').unwrap();
    value.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(name).unwrap();
    value
}

fn parse(media_type: Option<&str>, value: &Value) -> Result<Document, DocumentError> {
    Document::parse(media_type, value.to_string().as_bytes())
}

fn manifest(value: &Value) -> Manifest {
    match parse(None, value) {
        Ok(Document::Manifest(manifest)) => manifest,
        other => panic!("{value}: {other:?}"),
    }
}

fn index(value: &Value) -> Index {
    match parse(None, value) {
        Ok(Document::Index(index)) => index,
        other => panic!("{value}: {other:?}"),
    }
}

/// The error and its source, as they are printed.
pub(super) fn refusal(result: Result<impl std::fmt::Debug, DocumentError>) -> String {
    let error = result.unwrap_err();
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[test]
fn a_manifest_is_read_whole() {
    let value = json!({
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": "application/vnd.example",
        "config": blob(OCI_CONFIG, "config"),
        "layers": [
            blob(GZIP, "low"),
            {
                "mediaType": "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
                "digest": digest("high").as_str(),
                "size": 9_000_000_000_u64,
                "annotations": { "containerd.io/snapshot/x": "y", "empty": null },
                "urls": ["https://example.com/high"],
                "data": "aGlnaA=="
            }
        ],
        "subject": blob(OCI_MANIFEST, "subject"),
        "annotations": { "a": "b" },
        "unheard": { "of": [1, null] }
    });
    let mut high = pointer("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", "high");
    high.size = 9_000_000_000;
    high.urls = vec!["https://example.com/high".to_owned()];
    high.annotations =
        [("containerd.io/snapshot/x".into(), "y".into()), ("empty".into(), String::new())].into();
    assert_eq!(
        parse(Some(OCI_MANIFEST), &value),
        Ok(Document::Manifest(Manifest {
            config: pointer(OCI_CONFIG, "config"),
            layers: vec![pointer(GZIP, "low"), high],
            artifact_type: Some("application/vnd.example".to_owned()),
        }))
    );
}

#[test]
fn an_index_is_read_whole() {
    let value = json!({
        "schemaVersion": 2,
        "mediaType": OCI_INDEX,
        "manifests": [
            with(blob(OCI_MANIFEST, "windows"), "/platform", json!({
                "os": "windows",
                "architecture": "amd64",
                "variant": "v1",
                "os.version": "10.0.17763.1",
                "os.features": ["win32k"],
                "features": ["sse4"]
            })),
            with(blob(OCI_MANIFEST, "signature"), "/artifactType", json!("application/vnd.example.signature")),
            blob(OCI_INDEX, "nested"),
        ]
    });
    let windows = Platform {
        os: "windows".to_owned(),
        architecture: "amd64".to_owned(),
        variant: Some("v1".to_owned()),
        os_version: Some("10.0.17763.1".to_owned()),
        os_features: vec!["win32k".to_owned()],
    };
    let entry = |media_type, name, platform| IndexEntry {
        descriptor: Ok(pointer(media_type, name)),
        platform,
        artifact_type: None,
    };
    let mut signature = entry(OCI_MANIFEST, "signature", None);
    signature.artifact_type = Some("application/vnd.example.signature".to_owned());
    assert_eq!(
        parse(Some(OCI_INDEX), &value),
        Ok(Document::Index(Index {
            entries: vec![
                entry(OCI_MANIFEST, "windows", Some(windows)),
                signature,
                entry(OCI_INDEX, "nested", None)
            ],
        }))
    );
}

/// Fault 72.
#[test]
fn the_two_families_of_types_may_be_mixed() {
    for (served, stated) in [(OCI_INDEX, DOCKER_LIST), (DOCKER_LIST, OCI_INDEX)] {
        for child in [OCI_MANIFEST, DOCKER_MANIFEST] {
            let value = json!({ "mediaType": stated, "manifests": [blob(child, "child")] });
            let Ok(Document::Index(index)) = parse(Some(served), &value) else { panic!("{served} {stated}") };
            assert_eq!(index.entries[0].descriptor, Ok(pointer(child, "child")));
        }
    }
    for (served, stated) in [(OCI_MANIFEST, DOCKER_MANIFEST), (DOCKER_MANIFEST, OCI_MANIFEST)] {
        for config in [OCI_CONFIG, DOCKER_CONFIG, "application/octet-stream"] {
            for layer in [GZIP, DOCKER_GZIP] {
                let value = json!({
                    "mediaType": stated, "config": blob(config, "config"), "layers": [blob(layer, "layer")]
                });
                let Ok(Document::Manifest(manifest)) = parse(Some(served), &value) else {
                    panic!("{served} {stated}")
                };
                assert_eq!(manifest.config, pointer(config, "config"));
                assert_eq!(manifest.layers, [pointer(layer, "layer")]);
            }
        }
    }
}

#[test]
fn a_type_that_names_no_kind_says_nothing() {
    let bare = manifest_json();
    let docker = with(bare.clone(), "/mediaType", json!(DOCKER_MANIFEST));
    for (served, value) in [
        (None, &docker),
        (Some(""), &docker),
        (Some("application/json"), &docker),
        (Some("application/octet-stream"), &bare),
        (Some("text/plain; charset=utf-8"), &bare),
        (Some("application/vnd.oci.image.manifest.v1+json; charset=utf-8"), &docker),
    ] {
        assert_eq!(parse(served, value), Ok(Document::Manifest(manifest(&bare))), "{served:?}");
    }
}

#[test]
fn null_and_missing_fields_are_read_as_empty() {
    let plain = manifest(&manifest_json());
    let mut value = manifest_json();
    for at in ["/mediaType", "/manifests", "/fsLayers", "/annotations", "/subject", "/schemaVersion"] {
        value = with(value, at, Value::Null);
    }
    for at in ["/layers/0/annotations", "/layers/0/platform", "/config/artifactType"] {
        value = with(value, at, Value::Null);
    }
    assert_eq!(manifest(&value), plain);

    let no_layers = Manifest { layers: Vec::new(), ..plain };
    assert_eq!(manifest(&with(manifest_json(), "/layers", json!([]))), no_layers);
    assert_eq!(manifest(&with(manifest_json(), "/layers", Value::Null)), no_layers);
    assert_eq!(manifest(&without(manifest_json(), "/layers")), no_layers);

    let plain = index(&index_json());
    assert_eq!(plain.entries[0].platform, None);
    let value = with(index_json(), "/manifests/0/platform", Value::Null);
    assert_eq!(index(&with(value, "/config", Value::Null)), plain);
    assert_eq!(index(&json!({ "manifests": [] })).entries, []);

    let value = with(index_json(), "/manifests/0/platform", json!({ "os": null, "os.features": null }));
    let nowhere = index(&value).entries.remove(0).platform.expect("there is one");
    assert_eq!((nowhere.os.as_str(), nowhere.architecture.as_str()), ("", ""));
    assert_eq!((nowhere.variant, nowhere.os_version, nowhere.os_features), (None, None, Vec::new()));

    let value = without(manifest_json(), "/layers/0/mediaType");
    assert_eq!(manifest(&value).layers[0].media_type, "");
}

#[test]
fn what_is_not_json_is_refused() {
    for (bytes, reason) in [
        (&b""[..], "document is not valid: EOF while parsing a value"),
        (b"{", "document is not valid: EOF"),
        (b"null", "expected an object"),
        (b"[]", "expected an object"),
        (b"[2, \"\", null, []]", "expected an object"),
        (b"\"manifest\"", "expected an object"),
        (b"{} {}", "trailing characters"),
        (b"{\"manifests\": \xff}", "document is not valid"),
        (b"{\"manifests\": {}}", "expected a sequence"),
        (b"{\"manifests\": [null]}", "expected an object"),
        (b"{\"manifests\": [[\"t\", \"d\", 5]]}", "expected an object"),
        (b"{\"config\": [\"t\", \"d\", 5]}", "expected an object"),
        (b"{\"config\": {}, \"config\": {}}", "duplicate field `config`"),
        (b"{\"config\": {\"digest\": \"a\", \"digest\": \"b\"}}", "duplicate field `digest`"),
        (b"{\"config\": {\"annotations\": {\"a\": 1}}}", "expected a string"),
        (b"Not found", "document is not valid"),
    ] {
        let text = refusal(Document::parse(None, bytes));
        assert!(text.contains(reason), "{}: {text}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn a_document_that_cannot_be_read_is_not_quoted() {
    for json in [
        r#"{"config": "canary, expected nothing"}"#,
        r#"{"layers": [{"digest": {"canary": 1}}]}"#,
        r#"{"manifests": "canary"}"#,
        r#"{"schemaVersion": "canary"}"#,
    ] {
        let text = refusal(Document::parse(None, json.as_bytes()));
        assert!(!text.contains("canary"), "{text}");
    }
}

#[test]
fn a_web_page_is_called_one() {
    let manifest = manifest_json().to_string();
    for (media_type, bytes) in [
        (Some("text/html"), manifest.as_bytes()),
        (Some("Text/HTML; charset=utf-8"), b"Sign in"),
        (Some("text/html"), b""),
        (Some(OCI_MANIFEST), b"<!DOCTYPE html><html></html>"),
        (None, b"\r\n\t <html>"),
        (None, b"\xef\xbb\xbf<html>"),
        (None, b"<?xml version=\"1.0\"?><Error/>"),
    ] {
        assert_eq!(Document::parse(media_type, bytes), Err(DocumentError::Html));
    }
    assert_eq!(Config::parse(b"<html>"), Err(DocumentError::Html));
}

/// Fault 89.
#[test]
fn schema_1_is_refused_by_name() {
    let signed = json!({
        "schemaVersion": 1, "name": "a/b", "tag": "v", "architecture": "amd64",
        "fsLayers": [{ "blobSum": digest("a").as_str() }],
        "history": [{ "v1Compatibility": "{}" }],
        "signatures": []
    });
    for (media_type, value) in [
        (None, &signed),
        (Some("application/vnd.docker.distribution.manifest.v1+prettyjws"), &signed),
        (Some(OCI_MANIFEST), &signed),
        (None, &without(signed.clone(), "/fsLayers")),
        (None, &without(signed.clone(), "/schemaVersion")),
        (Some("application/vnd.docker.distribution.manifest.v1+json"), &manifest_json()),
        (None, &with(manifest_json(), "/fsLayers", json!([]))),
        (None, &with(manifest_json(), "/schemaVersion", json!(1))),
    ] {
        let text = refusal(parse(media_type, value));
        assert!(text.starts_with("schema 1 not supported"), "{value}: {text}");
    }
}

#[test]
fn a_document_that_is_two_things_is_refused() {
    let both = with(manifest_json(), "/manifests", index_json()["manifests"].clone());
    for media_type in [None, Some(OCI_MANIFEST), Some(OCI_INDEX)] {
        for value in [
            &both,
            &without(both.clone(), "/layers"),
            &without(both.clone(), "/config"),
            &with(both.clone(), "/manifests", json!([])),
            &with(index_json(), "/layers", json!([])),
        ] {
            assert_eq!(parse(media_type, value), Err(DocumentError::Ambiguous), "{value}");
        }
    }
}

#[test]
fn a_document_that_is_not_what_its_media_type_says_is_refused() {
    let an_index = "document is an index but its media type is";
    let a_manifest = "document is a manifest but its media type is";
    for (served, stated, value, reason) in [
        (Some(OCI_MANIFEST), None, index_json(), an_index),
        (Some(DOCKER_MANIFEST), Some(OCI_INDEX), index_json(), an_index),
        (Some(OCI_INDEX), Some(OCI_MANIFEST), index_json(), an_index),
        (None, Some(DOCKER_MANIFEST), index_json(), an_index),
        (Some(OCI_INDEX), None, manifest_json(), a_manifest),
        (Some("application/vnd.oci.image.index.v1+json;x=y"), None, manifest_json(), a_manifest),
        (Some(OCI_MANIFEST), Some(DOCKER_LIST), manifest_json(), a_manifest),
        (Some("application/json"), Some(OCI_INDEX), manifest_json(), a_manifest),
        (Some(OCI_CONFIG), None, manifest_json(), a_manifest),
        (None, Some(GZIP), manifest_json(), a_manifest),
    ] {
        let value = with(value, "/mediaType", json!(stated));
        let text = refusal(parse(served, &value));
        assert!(text.starts_with(reason), "{served:?} {stated:?}: {text}");
    }
}

#[test]
fn what_is_no_document_of_an_image_is_refused() {
    for value in [
        json!({}),
        json!({ "schemaVersion": 2, "mediaType": OCI_MANIFEST }),
        json!({ "mediaType": OCI_INDEX, "manifests": null }),
        json!({ "errors": [{ "code": "DENIED" }] }),
        json!({ "mediaType": "application/vnd.oci.artifact.manifest.v1+json", "blobs": [] }),
    ] {
        assert_eq!(parse(None, &value), Err(DocumentError::Neither), "{value}");
    }
    assert_eq!(parse(None, &without(manifest_json(), "/config")), Err(DocumentError::NoConfig));
}

#[test]
fn what_containerd_cannot_read_is_refused() {
    for (at, wrong) in
        [("/annotations", json!({ "a": 1 })), ("/annotations", json!([])), ("/subject", json!("x"))]
    {
        for value in [manifest_json(), index_json()] {
            let text = refusal(parse(None, &with(value, at, wrong.clone())));
            assert!(text.starts_with("document is not valid: wrong value"), "{text}");
        }
    }
    let annotated = with(manifest_json(), "/annotations", json!({ "a": "b", "c": null }));
    assert_eq!(manifest(&annotated), manifest(&manifest_json()));
}

/// Fault 90.
#[test]
fn a_bad_descriptor_is_named() {
    let layer = digest("layer");
    let sized = |size: Value| with(manifest_json(), "/layers/0/size", size);
    let digested = |digest: &str| with(manifest_json(), "/layers/0/digest", json!(digest));
    for (value, reason) in [
        (without(manifest_json(), "/layers/0/digest"), "descriptor `layers[0]` has no digest".to_owned()),
        (without(manifest_json(), "/config/digest"), "descriptor `config` has no digest".to_owned()),
        (
            digested("sha256:abc"),
            "descriptor `layers[0]` has no usable digest: `sha256:abc` is not a sha256 digest".to_owned(),
        ),
        (digested("sha256:../../etc"), "`sha256:../../etc` is not a sha256 digest".to_owned()),
        (digested("sha999:00"), "digest algorithm `sha999` is not supported".to_owned()),
        (digested(&layer.as_str().to_uppercase()), "digest algorithm `SHA256` is not supported".to_owned()),
        (digested("\u{1b}[31m"), "`\\u{1b}[31m` is not a digest".to_owned()),
        (without(manifest_json(), "/layers/0/size"), format!("descriptor `layers[0]` ({layer}) has no size")),
        (sized(Value::Null), format!("descriptor `layers[0]` ({layer}) has no size")),
        (sized(json!(-1)), format!("descriptor `layers[0]` ({layer}) has the size `-1`")),
        (sized(json!(1.5)), "has the size `1.5`".to_owned()),
        (sized(json!("12")), "has the size `\"12\"`".to_owned()),
        (sized(json!(1_u64 << 63)), "has the size `9223372036854775808`".to_owned()),
        (sized(json!({})), "has the size `{}`".to_owned()),
        (with(manifest_json(), "/config/size", json!(-1)), "descriptor `config` (".to_owned()),
    ] {
        let text = refusal(parse(None, &value));
        assert!(text.contains(&reason), "{text}");
    }
    // In an index it matters only where it is chosen, unless containerd could not read the index.
    let entry = index(&with(index_json(), "/manifests/0/size", json!(-1))).entries.remove(0);
    assert!(refusal(entry.descriptor).contains("descriptor `manifests[0]` ("));
    let text = refusal(parse(None, &with(index_json(), "/manifests/0/size", json!("12"))));
    assert!(text.contains("has the size `\"12\"`"), "{text}");
    let entry = index(&without(index_json(), "/manifests/0/digest")).entries.remove(0);
    assert_eq!(refusal(entry.descriptor), "descriptor `manifests[0]` has no digest");
    assert_eq!(manifest(&sized(json!(0))).layers[0].size, 0);
    assert_eq!(manifest(&sized(json!(i64::MAX))).layers[0].size, i64::MAX.unsigned_abs());
}

#[test]
fn the_size_of_a_manifest_is_bounded() {
    let mut bytes = manifest_json().to_string().into_bytes();
    bytes.resize(MAX_MANIFEST, b' ');
    assert!(Document::parse(None, &bytes).is_ok());
    bytes.push(b' ');
    let too_large = DocumentError::TooLarge { size: 4_393_217, limit: 4_393_216 };
    assert_eq!(Document::parse(None, &bytes), Err(too_large));
}

#[test]
fn a_config_may_be_larger_than_a_manifest_and_is_bounded_too() {
    let mut bytes = json!({ "rootfs": { "type": "layers" } }).to_string().into_bytes();
    for allowed in [5 << 20, MAX_CONFIG] {
        bytes.resize(allowed, b' ');
        assert!(Config::parse(&bytes).is_ok(), "{allowed} bytes");
    }
    bytes.push(b' ');
    let too_large = DocumentError::TooLarge { size: 16_777_217, limit: 16_777_216 };
    assert_eq!(Config::parse(&bytes), Err(too_large));
}

#[test]
fn nesting_without_end_is_an_error() {
    let deep = format!("{{\"x\": {}", "[".repeat(1_000_000));
    assert!(refusal(Document::parse(None, deep.as_bytes())).contains("not valid"));
    assert!(refusal(Config::parse(deep.as_bytes())).contains("not valid"));
}

#[test]
fn errors_stay_short_however_long_the_text() {
    let long = "x".repeat(1 << 20);
    for value in [
        with(
            manifest_json(),
            "/mediaType",
            json!(format!("application/vnd.docker.distribution.manifest.v1+{long}")),
        ),
        with(manifest_json(), "/config/digest", json!(long)),
        with(manifest_json(), "/config/digest", json!(format!("sha256:{long}"))),
        with(manifest_json(), "/config/size", json!(long)),
        with(manifest_json(), "/layers", json!(long)),
    ] {
        let text = refusal(parse(None, &value));
        assert!(text.len() < 600, "{} bytes", text.len());
    }
    let claimed = refusal(parse(Some(&format!("application/vnd.oci.image.layer.{long}")), &manifest_json()));
    assert!(claimed.len() < 600, "{} bytes", claimed.len());
    let fields = refusal(Config::parse(json!({ long: 1 }).to_string().as_bytes()));
    assert!(fields.len() < 600, "{} bytes", fields.len());
}

/// The name of a field that the parsers look for, or of one they do not.
fn field_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "schemaVersion",
        "mediaType",
        "fsLayers",
        "manifests",
        "config",
        "layers",
        "digest",
        "size",
        "platform",
        "annotations",
        "urls",
        "artifactType",
        "os",
        "architecture",
        "variant",
        "os.version",
        "os.features",
        "rootfs",
        "type",
        "diff_ids",
        "User",
        "other",
    ])
}

/// JSON of any shape, with those names and with values that the parsers look for.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (1..3_i64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        prop::sample::select(vec![OCI_INDEX, OCI_MANIFEST, OCI_CONFIG, GZIP]).prop_map(Value::from),
        any::<[u8; 2]>().prop_map(|bytes| Value::from(Digest::of(&bytes).as_str())),
    ];
    leaf.prop_recursive(4, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(field_name().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|fields| fields.into_iter().collect::<Value>()),
        ]
    })
}

proptest! {
    #[test]
    fn no_bytes_make_the_parsers_panic(bytes in any::<Vec<u8>>(), media_type in any::<Option<String>>()) {
        let _ = Document::parse(media_type.as_deref(), &bytes);
        let _ = Config::parse(&bytes);
    }

    #[test]
    fn no_json_makes_the_parsers_panic(value in any_json(), fields in any_json()) {
        let _ = parse(None, &value);
        let _ = Config::parse(value.to_string().as_bytes());
        // Deeper into the shapes: any value in the place of a descriptor, a platform, a root filesystem.
        let _ = parse(Some(OCI_INDEX), &json!({ "manifests": [value, fields] }));
        let _ = parse(None, &with(index_json(), "/manifests/0/platform", value.clone()));
        let _ = parse(None, &json!({ "config": value, "layers": [fields] }));
        let _ = Config::parse(json!({ "config": value, "rootfs": fields }).to_string().as_bytes());
    }

    #[test]
    fn what_is_taken_for_one_kind_is_not_taken_for_the_other(
        is_index in any::<bool>(),
        name in field_name(),
        field in any_json(),
    ) {
        let plain = if is_index { index_json() } else { manifest_json() };
        let value = with(plain, &format!("/{name}"), field);
        if let Ok(document) = parse(None, &value) {
            let other = match document {
                Document::Index(_) => OCI_MANIFEST,
                Document::Manifest(_) => OCI_INDEX,
            };
            prop_assert!(parse(Some(other), &value).is_err());
        }
    }
}
