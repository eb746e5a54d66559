//! What a caller asks for, with every text already parsed.

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
}

/// The pod that a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its Kubernetes namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}
