//! CRI messages become requests here.

use drayd_proto::cri;

use crate::images::{ImageName, Place};
use crate::node::snapshotter::WantedHandler;
use crate::oci::Reference;
use crate::oci::excerpt::excerpt;
use crate::oci::reference::ReferenceError;
use crate::pull::Request;
use crate::pull::request::{self, Metadata, Pod};
use crate::registry::{Credentials, CredentialsError, Given};
use crate::trace::Caller;

/// Why a message is not a request.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// No image is named.
    #[error("the request names no image")]
    NoImage,
    /// The name is not a reference.
    #[error("cannot read the image reference")]
    Reference(#[source] ReferenceError),
    /// The credentials cannot be read.
    #[error("cannot read the credentials")]
    Credentials(#[source] CredentialsError),
}

/// Reads a PullImage request.
pub fn pull_request(message: cri::PullImageRequest) -> Result<Request, ConvertError> {
    let spec = message.image.unwrap_or_default();
    if spec.image.is_empty() {
        return Err(ConvertError::NoImage);
    }
    let reference = Reference::parse(&spec.image).map_err(ConvertError::Reference)?;
    let credentials = credentials(message.auth.as_ref())?;
    let sandbox = message.sandbox_config.unwrap_or_default();
    let metadata = Metadata {
        annotations: sandbox.annotations.into_iter().collect(),
        labels: sandbox.labels.into_iter().collect(),
    };
    let (handler, overridden) = metadata.handler(&spec.runtime_handler);
    let pod =
        sandbox.metadata.map(|pod| Pod { namespace: excerpt(&pod.namespace), name: excerpt(&pod.name) });
    let caller = Caller::default();
    Ok(Request { reference, handler, overridden, credentials, pod, caller, metadata })
}

/// Reads what an ImageStatus or RemoveImage request calls its image.
pub fn image_name(spec: Option<cri::ImageSpec>) -> Result<ImageName, ConvertError> {
    match spec.unwrap_or_default().image.as_str() {
        "" => Err(ConvertError::NoImage),
        name => ImageName::parse(name).map_err(ConvertError::Reference),
    }
}

/// Reads where the image of an ImageStatus request is to be used. kubelet sends all annotations of the pod, and every pod
/// of kubelet's has some, so a request without any is about no pod.
pub fn place(spec: &cri::ImageSpec) -> Place {
    match request::handler(&spec.runtime_handler, |key| spec.annotations.get(key).map(String::as_str)) {
        (WantedHandler::None, _) if spec.annotations.is_empty() => Place::Anywhere,
        (wanted, _) => Place::Pod(wanted),
    }
}

fn credentials(auth: Option<&cri::AuthConfig>) -> Result<Credentials, ConvertError> {
    let Some(auth) = auth else { return Ok(Credentials::anonymous()) };
    let given = Given {
        username: &auth.username,
        password: &auth.password,
        auth: &auth.auth,
        server_address: &auth.server_address,
        identity_token: &auth.identity_token,
        registry_token: &auth.registry_token,
    };
    Credentials::new(given).map_err(ConvertError::Credentials)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const RUNTIME_HANDLER: &str = "io.containerd.cri.runtime-handler";

    fn handler(of_spec: &str, annotations: &HashMap<String, String>) -> (WantedHandler, Option<String>) {
        request::handler(of_spec, |key| annotations.get(key).map(String::as_str))
    }

    fn message(image: &str) -> cri::PullImageRequest {
        let image = Some(cri::ImageSpec { image: image.into(), ..cri::ImageSpec::default() });
        cri::PullImageRequest { image, ..cri::PullImageRequest::default() }
    }

    fn annotated(handler: &str) -> HashMap<String, String> {
        HashMap::from([(RUNTIME_HANDLER.into(), handler.into())])
    }

    /// Fault 165.
    #[test]
    fn a_bare_request_is_anonymous_and_names_no_handler() {
        let request = pull_request(message("busybox")).expect("a request");
        assert_eq!(request.reference.to_string(), "docker.io/library/busybox:latest");
        assert_eq!(request.handler, WantedHandler::None);
        assert_eq!(request.credentials, Credentials::anonymous());
        assert_eq!(request.pod, None);
    }

    /// Fault 163.
    #[test]
    fn the_handler_comes_from_the_spec_and_else_from_the_annotation() {
        for (of_spec, annotations, expected) in [
            ("", HashMap::new(), WantedHandler::None),
            ("", annotated(""), WantedHandler::Annotation(String::new())),
            ("", annotated("kata"), WantedHandler::Annotation("kata".into())),
            ("kata", HashMap::new(), WantedHandler::Spec("kata".into())),
            ("kata", annotated("kata"), WantedHandler::Spec("kata".into())),
        ] {
            assert_eq!(handler(of_spec, &annotations), (expected, None), "{of_spec} {annotations:?}");
        }
        let both = handler("kata", &annotated("other"));
        assert_eq!(both, (WantedHandler::Spec("kata".into()), Some("other".into())));
    }

    #[test]
    fn an_image_is_asked_for_in_a_pod_or_anywhere() {
        let config_source = HashMap::from([("kubernetes.io/config.source".into(), "api".into())]);
        for (of_spec, annotations, expected) in [
            ("", HashMap::new(), Place::Anywhere),
            ("", config_source, Place::Pod(WantedHandler::None)),
            ("", annotated("kata"), Place::Pod(WantedHandler::Annotation("kata".into()))),
            ("runc", HashMap::new(), Place::Pod(WantedHandler::Spec("runc".into()))),
            ("runc", annotated("kata"), Place::Pod(WantedHandler::Spec("runc".into()))),
        ] {
            let runtime_handler = of_spec.to_owned();
            let spec = cri::ImageSpec { runtime_handler, annotations, ..cri::ImageSpec::default() };
            assert_eq!(place(&spec), expected, "{spec:?}");
        }
    }

    #[test]
    fn a_handler_of_any_length_is_told_in_few_words() {
        let (wanted, _) = handler("", &annotated(&"a\n".repeat(100_000)));
        let WantedHandler::Annotation(name) = wanted else { panic!("{wanted:?}") };
        assert!(name.len() < 400 && !name.contains('\n'), "{name}");
    }

    #[test]
    fn annotations_of_the_image_do_not_name_a_handler_for_a_pull() {
        let mut message = message("busybox");
        if let Some(image) = &mut message.image {
            image.annotations = annotated("kata");
        }
        assert_eq!(pull_request(message).expect("a request").handler, WantedHandler::None);
    }

    #[test]
    fn bad_messages_are_errors() {
        assert!(matches!(pull_request(cri::PullImageRequest::default()), Err(ConvertError::NoImage)));
        assert!(matches!(pull_request(message("a b")), Err(ConvertError::Reference(_))));
        let mut message = message("busybox");
        message.auth = Some(cri::AuthConfig { auth: "%%%".into(), ..cri::AuthConfig::default() });
        assert!(matches!(pull_request(message), Err(ConvertError::Credentials(_))));
    }
}
