//! The CRI front door: converts messages to requests, serves `ImageService`, and hands every other service through to
//! containerd. Decides nothing about images.

mod authority;
pub mod convert;
mod deadline;
#[doc(hidden)]
pub mod fuzz;
pub mod health;
mod passthrough;
pub mod serve;
pub mod service;
pub mod status;

pub use health::Health;
pub use serve::serve;
pub use service::ImageEndpoint;
