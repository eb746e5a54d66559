//! The test bed: real servers on loopback and unix sockets, images for them, and probes that read what a pull left
//! behind. `bed` puts the parts together and `suite` runs checks on them; nothing of the machine's own containerd is
//! touched.
//!
//! | file | owns |
//! |---|---|
//! | `peers` | where the servers' programs are |
//! | `place` | the directories of one bed, and clearing them |
//! | `process` | a child process that ends with its guard |
//! | `registry`, `push` | docker-registry with its request log; putting images there |
//! | `crane` | a registry of another kind |
//! | `layer`, `images` | layers entry by entry; the test images |
//! | `containerd` | one containerd with its own nydus-snapshotter |
//! | `socket`, `cri`, `probe`, `tree`, `raw` | clients: CRI, containerd's native API, the unpacked filesystem, any method |
//! | `grpc_go`, `hpack` | a client that writes what grpc-go writes |
//! | `ctr` | containerd's own client for the command line |
//! | `drayd`, `launch`, `log` | drayd itself, in front of a containerd: the plain way, and any way; what it logs |
//! | `drayctl`, `metrics` | drayctl as people run it; the page of metrics as Prometheus reads it |
//! | `collector` | a collector of traces |
//! | `stage` | a bed without images, and drayd in front of it |
//! | `throttle`, `link`, `wait` | a slow wire; a long wire; waiting with a deadline |
//! | `scripted` | a registry that does what a script says, and images made for it |

pub mod bed;
pub mod collector;
pub mod containerd;
pub mod crane;
pub mod cri;
pub mod ctr;
mod difference;
pub mod drayctl;
pub mod drayd;
pub mod grpc_go;
pub mod hpack;
pub mod images;
pub mod launch;
pub mod layer;
pub mod link;
pub mod log;
pub mod metrics;
pub mod peers;
pub mod place;
pub mod probe;
pub mod process;
pub mod push;
pub mod raw;
pub mod registry;
pub mod scripted;
pub mod socket;
pub mod stage;
pub mod suite;
pub mod throttle;
pub mod tree;
pub mod usage;
pub mod wait;
