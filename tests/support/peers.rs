//! Where the programs of the other servers are. They come from `tests/testbed/peers.sh` and `install.sh`; nothing is
//! fetched here.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Result, bail, ensure};

/// A containerd release line that drayd supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// Debian bookworm's: per-runtime snapshotters are unknown to it.
    V1_6,
    /// Debian trixie's: chooses the snapshotter from the sandbox config.
    V1_7,
    /// Debian forky's: config version 3, pulls through the transfer service.
    V2_1,
}

impl Release {
    /// Every release, oldest first.
    pub const ALL: [Self; 3] = [Self::V1_6, Self::V1_7, Self::V2_1];

    /// Whether its own CRI pull follows `runtimes.<handler>.snapshotter` (or its 2.x twin).
    pub fn maps_handlers(self) -> bool {
        self != Self::V1_6
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1_6 => "1.6",
            Self::V1_7 => "1.7",
            Self::V2_1 => "2.1",
        })
    }
}

impl FromStr for Release {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|release| release.to_string() == text) {
            Some(release) => Ok(release),
            None => bail!("containerd release {text} is not in the test bed; take 1.6, 1.7 or 2.1"),
        }
    }
}

/// The cache of everything that can be brought or built again: peers and images.
pub fn cache() -> PathBuf {
    env::var_os("DRAYD_TEST_CACHE").map_or_else(|| PathBuf::from("/var/cache/drayd-test"), PathBuf::from)
}

/// Prometheus, which reads drayd's metrics.
pub fn prometheus() -> Result<PathBuf> {
    program("prometheus-2.42/usr/bin/prometheus")
}

/// The directory with containerd and its shim, for the `PATH` of a containerd.
pub fn containerd_directory(release: Release) -> Result<PathBuf> {
    program(&format!("containerd-{release}/usr/bin/containerd"))
        .map(|path| path.parent().map(Path::to_path_buf).unwrap_or_default())
}

/// containerd's own client for the command line.
pub fn ctr(release: Release) -> Result<PathBuf> {
    program(&format!("containerd-{release}/usr/bin/ctr"))
}

/// The nydus-snapshotter program.
pub fn nydus_snapshotter() -> Result<PathBuf> {
    program("nydus-snapshotter-0.13/usr/bin/containerd-nydus-grpc")
}

/// crane, whose `registry serve` is a registry of another kind.
pub fn crane() -> Result<PathBuf> {
    program("crane-0.20/usr/bin/crane")
}

/// The directory with unpigz, for the `PATH` of a containerd that inflates by it.
pub fn unpigz_directory() -> Result<PathBuf> {
    program("pigz-2.8/usr/bin/unpigz").map(|path| path.parent().map(Path::to_path_buf).unwrap_or_default())
}

/// The directory with igzip, for the same.
pub fn igzip_directory() -> Result<PathBuf> {
    program("isal-2.31/usr/bin/igzip").map(|path| path.parent().map(Path::to_path_buf).unwrap_or_default())
}

fn program(below_line: &str) -> Result<PathBuf> {
    let path = cache().join("peers/line").join(below_line);
    ensure!(path.is_file(), "{} is missing; run `make peers`", path.display());
    Ok(path)
}
