//! What a caller asks for, with every text already parsed.

use std::collections::BTreeMap;

use crate::node::snapshotter::WantedHandler;
use crate::oci::Reference;
use crate::registry::Credentials;

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

/// The pod that a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its Kubernetes namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}
