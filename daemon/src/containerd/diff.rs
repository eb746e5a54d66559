//! containerd's diff service: applies a layer blob from the content store onto mounts.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use containerd_client::services::v1::ApplyRequest;
use containerd_client::services::v1::diff_client::DiffClient;
use containerd_client::types::Mount;
use prost_types::Any;
use serde::Serialize;

use super::{Containerd, Error, content};
use crate::oci::{Descriptor, DiffId, Digest, media_type};

/// A bound on one layer, far above any real one (100 GB at 30 MB/s), so that a hung differ ends some day.
pub(super) const APPLY_DEADLINE: Duration = Duration::from_secs(3600);
/// The stream processors that decrypt layers, by the names they have in containerd's configuration. containerd hands a
/// payload to the one of that name only (its `docs/cri/decryption.md`).
const DECODERS: [&str; 2] =
    ["io.containerd.ocicrypt.decoder.v1.tar", "io.containerd.ocicrypt.decoder.v1.tar.gzip"];
/// What the payload is to them (imgcrypt's `PayloadURI`).
const PAYLOAD: &str = "io.containerd.ocicrypt.v1.Payload";

impl Containerd {
    /// Applies `layer` onto `mounts` and returns the digest of the uncompressed tar that was applied. With `sync` its
    /// files are on the disk by then, if this containerd can do that (1.7.14 and later).
    pub async fn apply(&self, layer: &Descriptor, mounts: Vec<Mount>, sync: bool) -> Result<DiffId, Error> {
        const OPERATION: &str = "apply layer";
        let message = ApplyRequest {
            diff: Some(content::wire_descriptor(layer)),
            mounts,
            payloads: payloads(layer),
            sync_fs: sync,
        };
        let subject = layer.digest.as_str();
        let mut client = DiffClient::new(self.channel());
        let response = client
            .apply(self.request_within(APPLY_DEADLINE, message))
            .await
            .map_err(|status| Error::new(OPERATION, subject, &status))?;
        let applied = response
            .into_inner()
            .applied
            .ok_or_else(|| Error::unexpected(OPERATION, subject, "the answer names no applied layer"))?;
        let digest: Digest = applied
            .digest
            .parse()
            .map_err(|error| Error::unexpected(OPERATION, subject, format!("bad diff ID: {error}")))?;
        Ok(DiffId(digest))
    }
}

/// What decrypts an encrypted layer must know of it, for each processor that may do so; of other layers nothing. In the
/// names and the case of imgcrypt's `Payload`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Payload<'a> {
    decrypt_config: DecryptConfig,
    descriptor: PayloadDescriptor<'a>,
}

/// Keys by kind: none, since the node has its own, which the processor is told of in containerd's configuration.
#[derive(Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct DecryptConfig {
    parameters: Option<BTreeMap<String, Vec<String>>>,
}

/// As in a manifest. The wrapped keys of the layer are in its annotations.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PayloadDescriptor<'a> {
    media_type: &'a str,
    digest: &'a str,
    size: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: &'a BTreeMap<String, String>,
}

fn payloads(layer: &Descriptor) -> HashMap<String, Any> {
    if !media_type::is_encrypted(&layer.media_type) {
        return HashMap::new();
    }
    let payload = Payload {
        decrypt_config: DecryptConfig::default(),
        descriptor: PayloadDescriptor {
            media_type: &layer.media_type,
            digest: layer.digest.as_str(),
            size: layer.size,
            annotations: &layer.annotations,
        },
    };
    let value = serde_json::to_vec(&payload).expect("texts and numbers are always JSON");
    let any = Any { type_url: PAYLOAD.into(), value };
    DECODERS.into_iter().map(|name| (name.to_owned(), any.clone())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn layer(media_type: &str) -> Descriptor {
        Descriptor {
            media_type: media_type.into(),
            digest: Digest::of(b"layer"),
            size: 5,
            annotations: [("org.opencontainers.image.enc.keys.jwe".to_owned(), "wrapped".to_owned())].into(),
            urls: Vec::new(),
        }
    }

    #[test]
    fn an_encrypted_layer_travels_with_what_its_decoder_must_know() {
        for media_type in [
            "application/vnd.oci.image.layer.v1.tar+encrypted",
            "application/vnd.oci.image.layer.v1.tar+gzip+encrypted",
            "application/vnd.oci.image.layer.v1.tar+zstd+encrypted",
        ] {
            let payloads = payloads(&layer(media_type));
            assert_eq!(payloads.len(), 2);
            for name in
                ["io.containerd.ocicrypt.decoder.v1.tar", "io.containerd.ocicrypt.decoder.v1.tar.gzip"]
            {
                let payload = &payloads[name];
                assert_eq!(payload.type_url, "io.containerd.ocicrypt.v1.Payload");
                let value: Value = serde_json::from_slice(&payload.value).expect("JSON");
                let expected = json!({
                    "DecryptConfig": { "Parameters": null },
                    "Descriptor": {
                        "mediaType": media_type,
                        "digest": Digest::of(b"layer").as_str(),
                        "size": 5,
                        "annotations": { "org.opencontainers.image.enc.keys.jwe": "wrapped" },
                    },
                });
                assert_eq!(value, expected);
            }
        }
    }

    #[test]
    fn a_plain_layer_travels_alone() {
        assert!(payloads(&layer("application/vnd.oci.image.layer.v1.tar+gzip")).is_empty());
    }
}
