//! What a caller asks for, with every text already parsed.

use std::collections::BTreeMap;

use crate::node::snapshotter::WantedHandler;
use crate::oci::Reference;
use crate::oci::excerpt::excerpt;
use crate::registry::Credentials;
use crate::trace::Caller;

/// Names the runtime handler of the pod that an image is for; set by kata and others, read by containerd from 1.7 on.
const RUNTIME_HANDLER: &str = "io.containerd.cri.runtime-handler";

/// A pull that somebody wants. Made in one place only, from a CRI message.
#[derive(Clone, Debug)]
pub struct Request {
    /// The normalised reference.
    pub reference: Reference,
    /// Which runtime handler's snapshotter the image is for.
    pub handler: WantedHandler,
    /// A runtime handler of the annotation that `handler` overrides.
    pub overridden: Option<String>,
    /// What to prove to the registry.
    pub credentials: Credentials,
    /// The pod that waits, for the log.
    pub pod: Option<Pod>,
    /// The span that it was made in.
    pub caller: Caller,
    /// What the pod says of itself. Only rules read it, before the pull begins.
    pub metadata: Metadata,
}

/// Annotations and labels of a pod's sandbox, as they came: of any length, and with anything in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

impl Metadata {
    /// The runtime handler of a request that names `of_spec`, and what its annotation says otherwise.
    pub fn handler(&self, of_spec: &str) -> (WantedHandler, Option<String>) {
        handler(of_spec, |key| self.annotations.get(key).map(String::as_str))
    }
}

/// `ImageSpec.runtime_handler` wins over the annotation, as in containerd from 2.2.2 on. Returned beside it: an
/// annotation that says something else.
///
/// Names come from pods: they are cut and escaped here, which no configured handler's name needs.
pub fn handler<'a>(
    of_spec: &str,
    annotation: impl Fn(&str) -> Option<&'a str>,
) -> (WantedHandler, Option<String>) {
    let annotation = annotation(RUNTIME_HANDLER).map(excerpt);
    match annotation {
        None if of_spec.is_empty() => (WantedHandler::None, None),
        Some(annotation) if of_spec.is_empty() => (WantedHandler::Annotation(annotation), None),
        annotation => {
            let of_spec = excerpt(of_spec);
            let overridden = annotation.filter(|annotation| *annotation != of_spec);
            (WantedHandler::Spec(of_spec), overridden)
        }
    }
}

/// The pod that a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its Kubernetes namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}
