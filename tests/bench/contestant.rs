//! Who pulls: a containerd with a store of its own, alone or with drayd in front of it.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drayd_tests::containerd::{Containerd, Setup};
use drayd_tests::cri::Cri;
use drayd_tests::launch::{Launch, Launched};
use drayd_tests::peers::{self, Release};
use drayd_tests::place::Place;
use tokio::time::{Instant, sleep};

/// What the last pull left must be gone by then.
const COLLECTION: Duration = Duration::from_secs(60);
/// containerd wants to know of a sandbox image, which no pull here needs.
const PAUSE: &str = "localhost/pause:1";
/// What the transfer service of 2.1 is told for the best that it can do: more layers at a time than 3, and each over
/// several connections. Larger pieces than of 8 MiB only take more memory. In the CRI plugin the same keys would switch
/// it over to the older engine, which is no faster.
const BEST: &str = "max_concurrent_downloads = 6\nconcurrent_layer_fetch_buffer = 8388608\n";

/// One of those that are compared.
#[derive(Debug)]
pub(crate) struct Contestant {
    /// As it is asked for.
    pub(crate) short: &'static str,
    pub(crate) title: &'static str,
    release: Release,
    inflates: Inflates,
    tuned: bool,
    /// drayd's `[unpack]`; without it there is no drayd.
    unpack: Option<&'static str>,
}

/// By what containerd undoes gzip: a program that it finds on its PATH, which holds no other.
#[derive(Clone, Copy, Debug)]
enum Inflates {
    Itself,
    Unpigz,
    Igzip,
}

/// All of them, in the order in which they are shown.
pub(crate) static ALL: [Contestant; 10] = [
    containerd("1.7", "containerd 1.7 as shipped", Release::V1_7, Inflates::Itself, false),
    containerd("1.7-unpigz", "containerd 1.7, unpigz", Release::V1_7, Inflates::Unpigz, false),
    drayd("1.7-kept", "drayd on 1.7", Release::V1_7, "engine = \"direct\"\nkeep_layers = true\n"),
    drayd(
        "1.7-discarded",
        "drayd on 1.7, layers discarded",
        Release::V1_7,
        "engine = \"direct\"\nkeep_layers = false\n",
    ),
    drayd("1.7-differ", "drayd on 1.7, by the differ", Release::V1_7, "engine = \"differ\"\n"),
    containerd("2.1", "containerd 2.1 as shipped", Release::V2_1, Inflates::Itself, false),
    containerd("2.1-igzip", "containerd 2.1, igzip", Release::V2_1, Inflates::Igzip, false),
    containerd("2.1-best", "containerd 2.1, igzip, tuned", Release::V2_1, Inflates::Igzip, true),
    drayd("2.1-kept", "drayd on 2.1", Release::V2_1, "engine = \"direct\"\nkeep_layers = true\n"),
    drayd(
        "2.1-discarded",
        "drayd on 2.1, layers discarded",
        Release::V2_1,
        "engine = \"direct\"\nkeep_layers = false\n",
    ),
];

const fn containerd(
    short: &'static str,
    title: &'static str,
    release: Release,
    inflates: Inflates,
    tuned: bool,
) -> Contestant {
    Contestant { short, title, release, inflates, tuned, unpack: None }
}

const fn drayd(
    short: &'static str,
    title: &'static str,
    release: Release,
    unpack: &'static str,
) -> Contestant {
    Contestant { short, title, release, inflates: Inflates::Itself, tuned: false, unpack: Some(unpack) }
}

impl Contestant {
    pub(crate) fn has_drayd(&self) -> bool {
        self.unpack.is_some()
    }

    /// Whether it pulls over the slow link, too: the best of both.
    pub(crate) fn is_linked(&self) -> bool {
        matches!(self.short, "2.1-best" | "2.1-kept")
    }
}

/// A contestant that runs.
pub(crate) struct Node {
    pub(crate) contestant: &'static Contestant,
    pub(crate) drayd: Option<Launched>,
    pub(crate) containerd: Containerd,
    // Last, so that clearing finds the servers above already ended in order.
    _clearing: Clearing,
}

/// Clears a place when it goes.
pub(crate) struct Clearing(pub(crate) Place);

impl Drop for Clearing {
    fn drop(&mut self) {
        if let Err(error) = self.0.clear() {
            eprintln!("{}: {error:#}", self.0.id());
        }
    }
}

impl Node {
    /// Starts it; the registries are reached without TLS.
    pub(crate) async fn start(contestant: &'static Contestant, registries: &[&str]) -> Result<Self> {
        let place = Place::make(&format!("bench-pull-{}", contestant.short))?;
        let clearing = Clearing(place.clone());
        let setup = Setup {
            path: Some(contestant.inflates.path()?),
            level: "info",
            transfer: if contestant.tuned { BEST } else { "" },
        };
        let containerd = Containerd::start_with(contestant.release, &place, registries, PAUSE, setup).await?;
        for registry in registries {
            // Off loopback, containerd 1.7 takes a plain `server` for one with TLS if no host says otherwise.
            let hosts = containerd.registry_configuration().join(registry).join("hosts.toml");
            fs::write(&hosts, format!("server = \"http://{registry}\"\n\n[host.\"http://{registry}\"]\n"))
                .with_context(|| format!("cannot write {}", hosts.display()))?;
        }
        if contestant.tuned {
            let configuration = containerd.effective_configuration()?;
            for line in BEST.lines() {
                ensure!(configuration.contains(line), "containerd does not take {line}");
            }
        }
        let drayd = match contestant.unpack {
            None => None,
            Some(unpack) => {
                let mut launch = Launch::new(&containerd.socket(), "drayd")?;
                launch.sections = format!(
                    "[registry]\nconfig_path = [\"{}\"]\n\n[unpack]\n{unpack}",
                    containerd.registry_configuration().display()
                );
                Some(launch.start()?)
            }
        };
        Ok(Self { contestant, drayd, containerd, _clearing: clearing })
    }

    /// Whom kubelet would ask.
    pub(crate) fn cri(&self) -> Cri {
        self.drayd.as_ref().map_or_else(|| self.containerd.cri(), Launched::cri)
    }

    /// The processes that have a part in its pulls.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.drayd.iter().map(Launched::pid).chain([self.containerd.pid()]).collect()
    }

    /// Removes every image with all that it held, and makes sure that it is gone.
    pub(crate) async fn empty(&self) -> Result<()> {
        let deadline = Instant::now() + COLLECTION;
        loop {
            self.containerd.empty("").await?;
            let state = self.containerd.probe().state().await?;
            let snapshots: usize = state.snapshots.values().map(std::collections::BTreeMap::len).sum();
            if state.images.is_empty() && state.content.is_empty() && snapshots == 0 {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{} records, {} blobs and {snapshots} snapshots of the last pull stay",
                state.images.len(),
                state.content.len()
            );
            sleep(Duration::from_millis(200)).await;
        }
    }
}

impl Inflates {
    fn path(self) -> Result<Vec<PathBuf>> {
        Ok(match self {
            Self::Itself => Vec::new(),
            Self::Unpigz => vec![peers::unpigz_directory()?],
            Self::Igzip => vec![peers::igzip_directory()?],
        })
    }
}
