use serde_json::json;

use super::super::tests::{digest, refusal};
use super::*;

fn config(value: &Value) -> Result<Config, DocumentError> {
    Config::parse(value.to_string().as_bytes())
}

#[test]
fn a_config_is_read_whole() {
    let value = json!({
        "created": null,
        "architecture": "arm64",
        "variant": "v8",
        "os": "linux",
        "os.version": "5.10",
        "os.features": ["kvm"],
        "config": { "User": "1000:1000", "Cmd": null, "Volumes": null, "Labels": { "a": "b" } },
        "rootfs": { "type": "layers", "diff_ids": [digest("low").as_str(), digest("high").as_str()] },
        "history": [{ "empty_layer": true }]
    });
    assert_eq!(
        config(&value),
        Ok(Config {
            platform: Platform {
                os: "linux".to_owned(),
                architecture: "arm64".to_owned(),
                variant: Some("v8".to_owned()),
                os_version: Some("5.10".to_owned()),
                os_features: vec!["kvm".to_owned()],
            },
            user: "1000:1000".to_owned(),
            diff_ids: vec![DiffId(digest("low")), DiffId(digest("high"))],
            rootfs_type: Some("layers".to_owned()),
        })
    );
}

#[test]
fn a_config_that_containerd_cannot_read_is_none() {
    let whole = json!({
        "created": "2024-01-01T00:00:00.5Z",
        "author": "me",
        "config": {
            "ExposedPorts": { "80/tcp": {}, "81/tcp": null, "82/tcp": { "a": 1 } },
            "Env": ["A=b", null],
            "Entrypoint": ["/a"],
            "Cmd": [],
            "Volumes": { "/data": {} },
            "WorkingDir": "/",
            "Labels": { "a": "b", "c": null },
            "StopSignal": "SIGTERM",
            "ArgsEscaped": true,
            "Healthcheck": "anything"
        },
        "rootfs": {},
        "history": [
            null,
            { "created": "2024-01-01T00:00:00Z", "created_by": "a", "author": "b", "comment": "c", "empty_layer": true }
        ]
    });
    assert!(config(&whole).is_ok(), "{:?}", config(&whole));
    for (at, wrong) in [
        ("/created", json!("garbage")),
        ("/created", json!(0)),
        ("/author", json!([])),
        ("/config/ExposedPorts", json!(["80/tcp"])),
        ("/config/ExposedPorts/80~1tcp", json!("")),
        ("/config/Env", json!({ "A": "b" })),
        ("/config/Env/0", json!(1)),
        ("/config/Entrypoint", json!("/a")),
        ("/config/Cmd", json!("/a")),
        ("/config/Volumes/~1data", json!([])),
        ("/config/WorkingDir", json!(1)),
        ("/config/Labels/a", json!(1)),
        ("/config/StopSignal", json!(15)),
        ("/config/ArgsEscaped", json!("true")),
        ("/history", json!("zz")),
        ("/history/0", json!("zz")),
        ("/history/1/created", json!("")),
        ("/history/1/empty_layer", json!(1)),
    ] {
        let mut value = whole.clone();
        *value.pointer_mut(at).unwrap() = wrong;
        let text = refusal(config(&value));
        assert!(text.starts_with("document is not valid: wrong value, expected "), "{at}: {text}");
    }
}

/// Fault 80.
#[test]
fn a_config_with_null_or_missing_fields_is_read_as_empty() {
    let empty = Config {
        platform: Platform {
            os: String::new(),
            architecture: String::new(),
            variant: None,
            os_version: None,
            os_features: Vec::new(),
        },
        user: String::new(),
        diff_ids: Vec::new(),
        rootfs_type: None,
    };
    for value in [
        json!({ "rootfs": {} }),
        json!({ "rootfs": { "type": null, "diff_ids": null } }),
        json!({ "rootfs": { "type": "", "diff_ids": [] }, "variant": "" }),
        json!({ "rootfs": {}, "os": null, "architecture": null, "variant": null, "config": null, "history": null }),
        json!({ "rootfs": {}, "config": { "User": null } }),
        json!({ "rootfs": {}, "config": {} }),
    ] {
        assert_eq!(config(&value), Ok(empty.clone()), "{value}");
    }
    let scratch = Config { rootfs_type: Some("layers".to_owned()), ..empty };
    assert_eq!(config(&json!({ "rootfs": { "type": "layers" } })), Ok(scratch));
}

#[test]
fn a_config_of_something_else_says_what_it_has() {
    let wide: Value = (0..9).map(|number| (format!("f{number}"), Value::Null)).collect();
    for (value, reason) in [
        (json!({}), "config is not an image config: it has no `rootfs`, it is empty"),
        (json!({ "os": "linux", "rootfs": null }), "it has no `rootfs`, its fields are `os`, `rootfs`"),
        (json!({ "apiVersion": "v2", "name": "chart" }), "its fields are `apiVersion`, `name`"),
        (json!({ "a\nb": 1 }), "its fields are `a\\nb`"),
        (wide, "`f6`, `f7` and more"),
        (json!([]), "expected an object"),
        (json!("config"), "expected an object"),
        (json!({ "rootfs": [] }), "expected an object"),
        (json!({ "rootfs": { "diff_ids": [null] } }), "expected a string"),
    ] {
        let text = refusal(config(&value));
        assert!(text.contains(reason), "{value}: {text}");
    }
}

#[test]
fn a_bad_diff_id_is_named_by_its_layer() {
    let value = json!({ "rootfs": { "diff_ids": [digest("low").as_str(), "md5:00"] } });
    assert_eq!(
        refusal(config(&value)),
        "config has no usable diff ID for layer 1: digest algorithm `md5` is not supported: \
         use sha256, sha384 or sha512"
    );
}
