//! drayd's own interface, `dray.v1` on a socket of its own: what CRI has no word for. Converts, and decides nothing.

mod convert;
mod diagnose;
mod serve;
mod service;
mod status;
mod watch;

pub use diagnose::Diagnosis;
pub use serve::serve;
pub use service::{Api, LogLevel};
