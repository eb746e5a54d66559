//! drayd: the image service of a Kubernetes node.
//!
//! # Layout
//!
//! `oci` holds the pure words; `registry` and `containerd` are the two worlds outside; `fetch` moves blobs from one
//! to the other, `unpack` turns them into snapshots, `pull` and `images` decide, `cri` converts, `config` is the sum
//! of every part's settings and `daemon` builds everything once. Imports only go down that list.
//! `docs/architecture.md` tells it at length.

pub mod cli;
pub mod config;
pub mod containerd;
pub mod cri;
pub mod daemon;
pub mod fetch;
pub mod images;
pub mod oci;
pub mod pull;
pub mod registry;
pub mod telemetry;
pub mod unpack;
