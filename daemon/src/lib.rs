//! drayd: the image service of a Kubernetes node.
//!
//! # Layout
//!
//! `oci` holds the pure words; `registry` and `containerd` are the two worlds outside; `fetch` moves blobs from one
//! to the other, `node` knows what this node's containerd is configured for and chooses the snapshotter, `unpack`
//! turns blobs into snapshots, `pull` and `images` decide, `cri` converts, `fuzz` is the way in for random input,
//! `config` reads the settings, `daemon` builds everything once. A house imports only houses before it in that list; a
//! test holds that, and `docs/architecture.md` tells it at length.

pub mod api;
pub mod cause;
pub mod cli;
pub mod config;
pub mod containerd;
pub mod cri;
pub mod ctl;
pub mod daemon;
pub mod fetch;
#[doc(hidden)]
pub mod fuzz;
pub mod images;
pub mod metrics;
pub mod node;
pub mod oci;
pub mod priority;
pub mod progress;
pub mod pull;
pub mod registry;
pub mod socket;
pub mod telemetry;
pub mod trace;
pub mod unpack;
