//! A look over everything that a pull depends on, each thing with what is to be done about it.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use drayd_proto::dray::{Check, Verdict};
use futures_util::future::join_all;
use tokio::time::timeout;

use super::service::Api;
use crate::cause::chain;
use crate::containerd::Snapshotter;
use crate::node::snapshotter::Table;
use crate::oci::{ChainId, Digest, Reference};
use crate::registry::{self, Credentials, Environment, Kind, Repository};

/// How long each peer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Registries that are asked at most.
const REGISTRIES: usize = 8;
/// Bytes of a kubelet's configuration that are read at most.
const CONFIGURATION: u64 = 1 << 20;
/// A disk with less than this part of it free is warned of: kubelet begins to remove images at 15 % free.
const LEAST_FREE_PERCENT: u64 = 10;

/// What is looked at besides the peers that the interface has anyway.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// drayd's CRI socket, which clients are pointed at.
    pub socket: PathBuf,
    /// Directories of hosts files.
    pub config_path: Vec<PathBuf>,
    /// Of them, those that may be missing.
    pub optional: Vec<PathBuf>,
    /// The node's credentials.
    pub credentials_file: Option<PathBuf>,
    /// Where processes are: `/proc`.
    pub processes: PathBuf,
}

impl Diagnosis {
    pub(super) async fn checks(&self, api: &Api) -> Vec<Check> {
        let mut checks = vec![self.socket()];
        match api.node.table_soon().await {
            Ok(table) => {
                checks.push(containerd(api).await);
                checks.extend(snapshotters(api, &table).await);
                checks.extend(disks(&table).await);
            }
            Err(error) => checks.push(failure(
                "containerd",
                chain(&error),
                "start containerd, or correct containerd.address in drayd's configuration",
            )),
        }
        checks.extend(self.hosts().await);
        checks.extend(registries(api).await);
        checks.extend(self.kubelets().await);
        checks
    }

    fn socket(&self) -> Check {
        let subject = format!("CRI socket {}", self.socket.display());
        match fs::symlink_metadata(&self.socket) {
            Ok(_) => fine(subject, "it is there and drayd serves it"),
            Err(error) => failure(
                subject,
                format!("it is gone: {error}"),
                "something has removed it: restart drayd, and see what cleans that directory",
            ),
        }
    }

    async fn hosts(&self) -> Vec<Check> {
        let Self { config_path, optional, credentials_file, .. } = self.clone();
        let read = move || {
            let environment = Environment::of_process();
            registry::check(&config_path, &optional, credentials_file.as_deref(), &environment)
        };
        let subject = "registry configuration";
        let Ok(Ok(report)) = timeout(PATIENCE, tokio::task::spawn_blocking(read)).await else {
            let advice = "see what hangs below the directories of registry.config_path";
            return vec![failure(subject, "its files cannot be read in time", advice)];
        };
        let advice = "correct the file; `drayd config check` reads all of them, and no restart is needed";
        let mistakes = report.mistakes.into_iter().map(|mistake| failure(subject, mistake, advice));
        let warned = report.warnings.into_iter().map(|warning| warning_of(subject, warning, advice));
        let mut checks: Vec<_> = mistakes.chain(warned).collect();
        if checks.is_empty() {
            checks.push(fine(subject, "every hosts.toml and the credentials can be read"));
        }
        checks
    }

    async fn kubelets(&self) -> Vec<Check> {
        let (processes, socket) = (self.processes.clone(), self.socket.clone());
        let read = tokio::task::spawn_blocking(move || kubelets(&processes, &socket));
        timeout(PATIENCE, read).await.ok().and_then(Result::ok).unwrap_or_default()
    }
}

async fn containerd(api: &Api) -> Check {
    match timeout(PATIENCE, api.containerd.version()).await {
        Ok(Ok(version)) => {
            let number = version.trim_start_matches('v');
            let known = ["1.6.", "1.7.", "2."].iter().any(|line| number.starts_with(line));
            if known {
                fine("containerd", format!("version {version} answers"))
            } else {
                warning_of(
                    "containerd",
                    format!("version {version} is none that drayd is tested with"),
                    "use containerd 1.6, 1.7 or 2.x",
                )
            }
        }
        Ok(Err(error)) => failure("containerd", chain(&error), "see containerd's log"),
        Err(_) => failure(
            "containerd",
            format!("it does not answer within {} s", PATIENCE.as_secs()),
            "see containerd's log, and restart it if it hangs",
        ),
    }
}

/// Each snapshotter that pods run on, or that is loaded, by a question about a snapshot that there cannot be.
async fn snapshotters(api: &Api, table: &Table) -> Vec<Check> {
    let nothing = ChainId::of_stack(&[crate::oci::DiffId(Digest::of(b"drayd"))]).remove(0);
    let mut wanted: BTreeSet<Snapshotter> = table.loaded.iter().map(|loaded| loaded.name.clone()).collect();
    wanted.insert(table.default.clone());
    wanted.extend(table.handlers().into_values());
    let ask = async |name: Snapshotter| {
        let subject = format!("snapshotter {name}");
        if !table.loaded.iter().any(|loaded| loaded.name == name) {
            return failure(
                subject,
                "pods are to run on it, and containerd has not loaded it",
                "check its proxy_plugins section in containerd's configuration, and restart containerd",
            );
        }
        match timeout(PATIENCE, api.containerd.snapshots(&name).exists(&nothing)).await {
            Ok(Ok(_)) => fine(subject, "it answers"),
            Ok(Err(error)) => failure(
                subject,
                chain(&error),
                "check that its process runs, and that its socket is the one in containerd's configuration",
            ),
            Err(_) => failure(
                subject,
                format!("it does not answer within {} s", PATIENCE.as_secs()),
                "see the log of its process, and restart that",
            ),
        }
    };
    join_all(wanted.into_iter().map(ask)).await
}

async fn disks(table: &Table) -> Vec<Check> {
    let roots =
        table.loaded.iter().filter_map(|loaded| loaded.root.clone()).chain(table.content_root.clone());
    let roots: Vec<PathBuf> = roots.collect();
    let looked = tokio::task::spawn_blocking(move || {
        let mut seen = BTreeSet::new();
        roots.iter().filter_map(|root| disk(root, &mut seen)).collect()
    });
    match timeout(PATIENCE, looked).await {
        Ok(Ok(checks)) => checks,
        _ => vec![failure("disks", "a filesystem does not say what is free on it", "see the kernel's log")],
    }
}

/// One filesystem; `None` if it was seen or cannot be seen from here.
fn disk(root: &Path, seen: &mut BTreeSet<u64>) -> Option<Check> {
    use std::os::unix::fs::MetadataExt as _;
    if !seen.insert(fs::metadata(root).ok()?.dev()) {
        return None;
    }
    let found = nix::sys::statvfs::statvfs(root).ok()?;
    let subject = format!("disk of {}", root.display());
    let percent = |free: u64, all: u64| (free.saturating_mul(100)).checked_div(all).unwrap_or(100);
    let bytes = percent(found.blocks_available(), found.blocks());
    let inodes = if found.files() == 0 { 100 } else { percent(found.files_available(), found.files()) };
    let text = format!("{bytes} % of its bytes and {inodes} % of its inodes are free");
    Some(if bytes.min(inodes) < LEAST_FREE_PERCENT {
        warning_of(
            subject,
            text,
            "remove images or files: pulls fail on a full disk, and kubelet evicts pods",
        )
    } else {
        fine(subject, text)
    })
}

/// The registries that the node's images are from.
async fn registries(api: &Api) -> Vec<Check> {
    let Ok(images) = api.images.list().await else { return Vec::new() };
    let names = images.iter().flat_map(|image| image.repo_tags.iter().chain(&image.repo_digests));
    let domains: BTreeSet<String> =
        names.filter_map(|name| Some(Reference::parse(name).ok()?.domain().to_owned())).collect();
    let ask = async |domain: String| {
        let subject = format!("registry {domain}");
        // Not an image that there is: what counts is that it answers.
        let repository = Repository { domain: domain.clone(), path: "drayd/doctor".into() };
        let registry = api.puller.registry();
        match timeout(PATIENCE, registry.resolve(&repository, "none", &Credentials::anonymous())).await {
            Ok(Err(error))
                if matches!(error.kind(), Kind::Unavailable | Kind::Configuration | Kind::Answer) =>
            {
                failure(
                    subject,
                    chain(&error),
                    "check the network, the proxy and its hosts.toml; `drayctl explain IMAGE` shows whom drayd asks",
                )
            }
            Ok(Err(error)) if error.kind() == Kind::RateLimited => warning_of(
                subject,
                "it answers that it is asked too often",
                "give the node credentials, or a mirror in hosts.toml",
            ),
            Ok(_) => fine(subject, "it answers"),
            Err(_) => failure(
                subject,
                format!("it does not answer within {} s", PATIENCE.as_secs()),
                "check the network, the proxy and its hosts.toml",
            ),
        }
    };
    if domains.is_empty() {
        let found = "no image of this node names one";
        return vec![fine("registries", found)];
    }
    join_all(domains.into_iter().take(REGISTRIES).map(ask)).await
}

/// The kubelets that run here, by their command lines and the files that these name. Anything may call itself kubelet:
/// only root's processes count that see the same files as this one.
fn kubelets(processes: &Path, socket: &Path) -> Vec<Check> {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(entries) = fs::read_dir(processes) else { return Vec::new() };
    let mounts = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let own = mounts(&processes.join("self"));
    let command_lines = entries.filter_map(|entry| {
        let process = entry.ok()?.path();
        if fs::metadata(&process).ok()?.uid() != 0 || mounts(&process) != own {
            return None;
        }
        let line = fs::read(process.join("cmdline")).ok()?;
        let words: Vec<String> =
            line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let program = Path::new(words.first()?).file_name()?.to_str()?;
        (program == "kubelet").then_some(words)
    });
    let checks: Vec<Check> = command_lines.map(|words| kubelet(&words, socket)).collect();
    if checks.is_empty() {
        return vec![fine("kubelet", "none runs here")];
    }
    checks
}

fn kubelet(words: &[String], socket: &Path) -> Check {
    let endpoint = flag(words, "--image-service-endpoint").or_else(|| {
        let file = start_of(Path::new(&flag(words, "--config")?))?;
        let line = file.lines().find_map(|line| line.trim().strip_prefix("imageServiceEndpoint:"))?;
        Some(line.trim().trim_matches(['"', '\'']).to_owned())
    });
    let advice = format!(
        "start it with --image-service-endpoint unix://{0}, or set imageServiceEndpoint: unix://{0} in its \
         configuration file",
        socket.display()
    );
    match endpoint {
        Some(endpoint) if Path::new(endpoint.trim_start_matches("unix://")) == socket => {
            fine("kubelet", "it pulls through drayd")
        }
        Some(endpoint) => warning_of("kubelet", format!("it pulls through {endpoint}"), advice),
        None => warning_of("kubelet", "it pulls through its container runtime, not through drayd", advice),
    }
}

/// As much of a plain file as a configuration may have.
fn start_of(path: &Path) -> Option<String> {
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    fs::File::open(path).ok()?.take(CONFIGURATION).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The value of a flag, written with `=` or as the next word.
fn flag(words: &[String], name: &str) -> Option<String> {
    let at = words.iter().position(|word| word.split('=').next() == Some(name))?;
    match words[at].split_once('=') {
        Some((_, value)) => Some(value.to_owned()),
        None => words.get(at + 1).cloned(),
    }
}

fn fine(subject: impl Into<String>, found: impl Into<String>) -> Check {
    check(subject.into(), Verdict::Ok, found.into(), String::new())
}

fn warning_of(subject: impl Into<String>, found: impl Into<String>, advice: impl Into<String>) -> Check {
    check(subject.into(), Verdict::Warning, found.into(), advice.into())
}

fn failure(subject: impl Into<String>, found: impl Into<String>, advice: impl Into<String>) -> Check {
    check(subject.into(), Verdict::Failure, found.into(), advice.into())
}

fn check(subject: String, verdict: Verdict, found: String, advice: String) -> Check {
    Check { subject, verdict: verdict.into(), found, advice }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_is_told_by_its_flag_or_its_file_and_else_to_be_pointed_here() {
        let directory = tempfile::tempdir().unwrap();
        let processes = directory.path();
        let socket = Path::new("/run/drayd/drayd.sock");
        assert_eq!(kubelets(processes, socket), [fine("kubelet", "none runs here")]);
        let config = processes.join("kubelet.yaml");
        let write = |number: &str, words: &[&str]| {
            let process = processes.join(number);
            fs::create_dir_all(&process).unwrap();
            fs::write(process.join("cmdline"), words.join("\0")).unwrap();
        };
        let file = config.display().to_string();
        write("7", &["/usr/bin/other", "--image-service-endpoint=unix:///elsewhere"]);
        for (words, text, expected) in [
            (vec!["--image-service-endpoint=unix:///run/drayd/drayd.sock"], "", Verdict::Ok),
            (vec!["--v", "2", "--image-service-endpoint", "/run/drayd/drayd.sock"], "", Verdict::Ok),
            (vec!["--image-service-endpoint=unix:///run/containerd/containerd.sock"], "", Verdict::Warning),
            (
                vec!["--config", &file],
                "a: 1\nimageServiceEndpoint: \"unix:///run/drayd/drayd.sock\"\n",
                Verdict::Ok,
            ),
            (vec!["--config", &file], "a: 1\n", Verdict::Warning),
            (vec![], "", Verdict::Warning),
        ] {
            fs::write(&config, text).unwrap();
            write("8", &[&["/usr/bin/kubelet"], words.as_slice()].concat());
            let checks = kubelets(processes, socket);
            assert_eq!(checks.len(), 1);
            assert_eq!(checks[0].verdict(), expected, "{words:?} {text} {checks:?}");
            assert_eq!(checks[0].advice.is_empty(), expected == Verdict::Ok);
        }
    }
}
