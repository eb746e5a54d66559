//! The words of the OCI and Docker image formats as plain values. Knows no network, no containerd, no clock: every
//! function here is pure.

pub mod chain;
pub mod descriptor;
pub mod digest;
pub mod document;
pub mod media_type;
pub mod platform;
pub mod reference;
pub mod walk;

pub mod excerpt;

pub use chain::{ChainId, DiffId};
pub use descriptor::Descriptor;
pub use digest::Digest;
pub use document::{Config, Document, DocumentError, Index, Manifest};
pub use platform::{IndexEntry, NoPlatform, Platform};
pub use reference::Reference;
pub use walk::{Walk, WalkError};
