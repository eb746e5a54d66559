//! The settings: what can be written in the configuration file, what it means and what it is when not written.
//! Every key has its reference text in its doc comment and its default in `Default`; the commented file in
//! `packaging/` and `docs/configuration.md` are generated from both. The file is read once, at the start.

mod authority;
mod duration;
mod endpoint;
mod identifier;
mod lifetime;
mod limit;
mod parse;
mod path;
mod problem;
mod ranges;
pub mod reference;
mod schema;
mod size;
mod socket;
mod tag_keys;
mod written;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use authority::Authority;
pub use endpoint::Endpoint;
pub use identifier::Identifier;
pub use lifetime::Lifetime;
pub use problem::{ConfigError, Fault, Hint, Problem};
pub use ranges::RangeSize;
pub use size::Size;
pub use tag_keys::TagKeys;

use crate::pull::SHORT_LEASE;
use crate::socket::{Group, Mode};
use written::Written as _;

/// Where the configuration file is when the command line does not name one.
pub const DEFAULT_PATH: &str = "/etc/drayd/config.toml";

/// All settings, one field for each section of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The containerd that pulls go into.
    pub containerd: Containerd,
    /// The CRI front door, which kubelet and crictl call.
    pub cri: Cri,
    /// drayd's own API, which drayctl calls.
    pub api: Api,
    /// Which snapshotter an image is unpacked into.
    pub snapshotter: Snapshotter,
    /// How registries are reached.
    pub registry: Registry,
    /// The pull of one image.
    pub pull: Pull,
    /// How layers become snapshots.
    pub unpack: Unpack,
    /// Metrics for Prometheus.
    pub metrics: Metrics,
    /// Traces for a collector.
    pub traces: Traces,
    /// The log of the daemon.
    pub log: Log,
}

/// `[containerd]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Containerd {
    /// The unix socket of containerd: an absolute path.
    #[serde(with = "written")]
    #[schemars(with = "String")]
    pub address: PathBuf,
    /// The containerd namespace that images, content and snapshots belong to. The CRI plugin of containerd uses
    /// `k8s.io`; with another one, pods do not find what drayd pulls.
    pub namespace: Identifier,
}

impl Default for Containerd {
    fn default() -> Self {
        Self { address: "/run/containerd/containerd.sock".into(), namespace: Identifier::constant("k8s.io") }
    }
}

/// `[cri]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cri {
    /// The unix socket that drayd listens on: an absolute path of at most 107 bytes. Its directory is made if it is
    /// missing. Give this path to kubelet as `--image-service-endpoint unix://PATH`.
    #[serde(with = "socket::listening")]
    #[schemars(with = "String")]
    pub socket: PathBuf,
    /// The permission bits of the socket, in octal. Whoever may write to the socket may pull images and delete them.
    #[serde(with = "written")]
    #[schemars(with = "String")]
    pub socket_mode: Mode,
    /// The group that the socket is given to: a name or a number. Empty leaves it with the group that drayd runs as.
    #[serde(with = "written")]
    #[schemars(with = "String")]
    pub socket_group: Option<Group>,
    /// Say of an image that it is there only if it is unpacked in the snapshotter of the runtime handler that the
    /// request names, so that kubelet has it pulled for that one, too. Without this, an image that is there for one
    /// runtime handler counts for all, as with containerd.
    pub verify_unpacked: bool,
    /// Fail pulls from a registry that cannot be reached with the gRPC code Unknown in the place of Unavailable: kubelet
    /// shows `RegistryUnavailable` as the reason of such a pull, and only if the code is that one. Other clients lose by
    /// it what the code tells them.
    pub kubelet_reasons: bool,
}

impl Default for Cri {
    fn default() -> Self {
        Self {
            socket: "/run/drayd/drayd.sock".into(),
            socket_mode: Mode::OWNER_AND_GROUP,
            socket_group: None,
            verify_unpacked: true,
            kubelet_reasons: false,
        }
    }
}

/// `[api]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Api {
    /// The unix socket that the API listens on: an absolute path of at most 107 bytes. Its directory is made if it is
    /// missing.
    #[serde(with = "socket::listening")]
    #[schemars(with = "String")]
    pub socket: PathBuf,
    /// The permission bits of the socket, in octal. Whoever may write to the socket may pull images with the node's
    /// credentials, end pulls and change the level of the log.
    #[serde(with = "written")]
    #[schemars(with = "String")]
    pub socket_mode: Mode,
    /// The group that the socket is given to: a name or a number. Empty leaves it with the group that drayd runs as.
    #[serde(with = "written")]
    #[schemars(with = "String")]
    pub socket_group: Option<Group>,
}

impl Default for Api {
    fn default() -> Self {
        Self { socket: "/run/drayd/api.sock".into(), socket_mode: Mode::OWNER_AND_GROUP, socket_group: None }
    }
}

/// `[snapshotter]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Snapshotter {
    /// The snapshotter for pods without a runtime handler, and for handlers that have none of their own. Empty uses
    /// the one that containerd's CRI plugin is configured with.
    #[serde(with = "written")]
    #[schemars(with = "String")]
    pub default: Option<Identifier>,
    /// What to do with a pull for a runtime handler that neither drayd nor containerd has a configuration for.
    pub unknown_handler: UnknownHandler,
    /// Snapshotters that leave every layer to be pulled inside the guest of a confidential pod, such as the
    /// nydus-snapshotter with `fs_driver = "proxy"`. A pull for one of them unpacks nothing on the host: it fails if the
    /// snapshotter wants a layer there, and layers that were unpacked there by others are removed first.
    #[serde(with = "written::list")]
    #[schemars(with = "Vec<String>")]
    pub guest_pull: Vec<Identifier>,
    /// The snapshotter of each runtime handler, `HANDLER = "SNAPSHOTTER"`. What is written here comes before what
    /// containerd's CRI plugin is configured with; a handler that is not named here is looked up there.
    #[schemars(example = BTreeMap::from([("kata", "nydus")]))]
    pub handlers: BTreeMap<String, Identifier>,
}

/// Values of `snapshotter.unknown_handler`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UnknownHandler {
    /// The pull fails, as with containerd 1.7: the pod could not start either.
    #[default]
    Error,
    /// The image goes into the default snapshotter.
    Default,
}

/// `[registry]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Registry {
    /// Directories with a `hosts.toml` for each registry, in containerd's layout: absolute paths. The first directory
    /// that has an entry for the registry counts. An empty list uses every registry as it is.
    #[serde(with = "written::list")]
    #[schemars(with = "Vec<String>")]
    pub config_path: Vec<PathBuf>,
    /// The node's own registry credentials, for pulls that bring none: the absolute path of a file in the form of
    /// Docker's `config.json`, with `auths`, `credHelpers` and `credsStore`. It is read anew for each pull; one that
    /// cannot be read fails the pull. Empty is none. The variable `DOCKER_CONFIG` is not read.
    #[serde(with = "written")]
    #[schemars(with = "String")]
    pub credentials_file: Option<PathBuf>,
    /// Mirrors that are given the credentials of a pull as the registry itself is: `HOST` or `HOST:PORT`. All others
    /// get only what `credentials_file` has under their own name.
    #[serde(with = "written::list")]
    #[schemars(with = "Vec<String>")]
    pub trusted_mirrors: Vec<Authority>,
    /// When a registry refuses the credentials of a pull, ask once more without any. Every such refusal is logged as a
    /// warning.
    pub anonymous_fallback: bool,
    /// A host that has been connected to and answers nothing for this long is given up, and the next one is asked.
    /// How long a connection itself may take is `dial_timeout` of that host in its `hosts.toml`. A duration above
    /// zero, such as `10s`.
    #[serde(with = "written")]
    #[schemars(with = "String")]
    pub response_timeout: Duration,
    /// Over how many connections one large layer comes at most, where its host serves ranges; 1 is no more than one.
    /// Large is more than twice `range_size`. `max_concurrent_downloads` counts layers, however many connections each
    /// has. From 1 to 32.
    #[serde(with = "ranges")]
    #[schemars(with = "usize")]
    pub parallel_ranges: NonZeroUsize,
    /// How many bytes each of these connections is asked for at once. They wait in memory for their turn: at most
    /// `parallel_ranges` × `range_size` on this node, over all layers. A layer for which nothing of that is left comes
    /// over one connection meanwhile. A size in `KiB` or `MiB`, such as `8MiB`, and `256MiB` at most.
    #[serde(with = "written")]
    #[schemars(with = "String")]
    pub range_size: RangeSize,
    /// How many bytes per second all downloads of this node take together at most, those that are thrown away too; each
    /// connection has an equal share, and one of a less urgent pull an eighth of that while a more urgent one reads. A size such as `50MiB`; `0` is no limit.
    #[serde(with = "written")]
    #[schemars(with = "String")]
    pub download_rate: Option<Size>,
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            config_path: vec!["/etc/containerd/certs.d".into(), "/etc/docker/certs.d".into()],
            credentials_file: None,
            trusted_mirrors: Vec::new(),
            anonymous_fallback: false,
            response_timeout: Duration::from_secs(10),
            parallel_ranges: NonZeroUsize::MIN.saturating_add(3),
            range_size: RangeSize(8 << 20),
            download_rate: None,
        }
    }
}

/// `[pull]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Pull {
    /// How many layers are downloaded at the same time on this node, over all pulls; 0 is no limit. Pulls take turns:
    /// a new one gets the next free download, and after ten seconds one that is under way makes room for it.
    #[serde(with = "limit")]
    #[schemars(with = "usize")]
    pub max_concurrent_downloads: Option<NonZeroUsize>,
    /// How many pulls fetch at the same time on this node; 0 is no limit. Others wait for their turn, the most urgent
    /// first: those of pods come before those that OpenKruise makes before the need, and `rules` may say otherwise. A
    /// level counts for ten minutes of waiting, so that none waits for ever. The last free turn is kept for pods. What
    /// is on the node already waits for nobody.
    #[serde(with = "limit")]
    #[schemars(with = "usize")]
    pub max_concurrent_pulls: Option<NonZeroUsize>,
    /// How many of these pulls may be of the same image, with different credentials or for different snapshotters; 0 is
    /// no limit.
    #[serde(with = "limit")]
    #[schemars(with = "usize")]
    pub max_pulls_per_image: Option<NonZeroUsize>,
    /// Fail a pull before it fetches anything if the disks of the content store or of the snapshotter have less room than
    /// it needs. The need is estimated, rather low than high: the layers as long as they are, their files twice that, and
    /// an inode for each 128 KiB of those.
    pub check_disk: bool,
    /// What metadata of a request decides about its pull: a list of tables. In each, `annotations` and `labels` (tables of
    /// patterns for values of the sandbox's), `namespace` (of the pod), `runtime_handler` and `image` (the whole
    /// reference, `docker.io/library/busybox:latest`) say to which requests it applies, all of them together; `priority`
    /// (`low`, `normal`, `high`) and `snapshotter` say what follows. In a pattern `*` stands for any text and `?` for one
    /// character. Of the rules that apply, the first that says something about a thing decides that. A pod finds an image
    /// only on the snapshotter of its runtime handler: name another one for pulls alone that no pod waits for. For
    /// example `[{ namespace = "batch-*", priority = "low" }]`.
    #[schemars(with = "Vec<String>")]
    pub rules: Vec<Rule>,
    /// A pull that receives nothing for this long fails. A duration in hours, minutes, seconds and milliseconds, such
    /// as `5m`, `1h30m` or `500ms`; `0` waits for ever.
    #[serde(with = "written")]
    #[schemars(with = "String")]
    pub progress_timeout: Option<Duration>,
    /// Ask the registry in every pull whether the credentials that came with it may see the image. Otherwise a pull by
    /// digest asks for nothing if the image is complete on this node and the registry has let the same credentials see
    /// it since drayd was started; credentials that are new to drayd are always proved, and a pull by tag always asks.
    /// kubelet pulls images again that are on the node, to prove a pod's secrets (its feature
    /// KubeletEnsureSecretPulledImages): set this if secrets that are withdrawn at the registry must stop working at
    /// once.
    pub always_verify_credentials: bool,
    /// How long containerd keeps what a pull has brought when drayd dies in the middle of it, for the next pull of the
    /// same image to continue from. It is the lifetime of the pull's lease in containerd, which a pull that lasts longer
    /// renews at half of its time. A duration of at least `5s`, such as `24h`; below `4h4m` it may expire while
    /// containerd works on a single layer, for which it has up to an hour.
    #[serde(with = "written")]
    #[schemars(with = "String")]
    pub lease_lifetime: Lifetime,
}

impl Default for Pull {
    fn default() -> Self {
        Self {
            max_concurrent_downloads: NonZeroUsize::new(3),
            max_concurrent_pulls: NonZeroUsize::new(8),
            max_pulls_per_image: None,
            check_disk: true,
            rules: Vec::new(),
            progress_timeout: Some(Duration::from_secs(5 * 60)),
            always_verify_credentials: false,
            // As long as containerd's own pulls hold theirs.
            lease_lifetime: Lifetime(Duration::from_secs(24 * 3600)),
        }
    }
}

/// A table of `pull.rules`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// Patterns for values of the sandbox's annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The same for its labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// A pattern for the pod's Kubernetes namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// A pattern for the runtime handler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_handler: Option<String>,
    /// A pattern for the normalised reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// How urgent such pulls are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Where such images are unpacked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshotter: Option<Identifier>,
}

/// Values of `priority` in a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Nobody waits for it.
    Low,
    /// A pod waits for it.
    Normal,
    /// It comes before all others.
    High,
}

/// `[unpack]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Unpack {
    /// Who writes the files of a layer into its snapshot.
    pub engine: Engine,
    /// Keep the compressed layers in containerd's content store after they are unpacked. Pushing or exporting an
    /// image from this node needs them; running it does not. Without them, a pod of a runtime handler with another
    /// snapshotter makes drayd fetch them again.
    pub keep_layers: bool,
    /// Have the files of each layer on the disk before the layer counts as unpacked. Otherwise a loss of power soon after
    /// a pull may leave an image with empty files, as with containerd itself (its `image_pull_with_sync_fs`). Costs as
    /// much time as the disk needs.
    pub sync: bool,
}

impl Default for Unpack {
    fn default() -> Self {
        Self { engine: Engine::default(), keep_layers: true, sync: false }
    }
}

/// Values of `unpack.engine`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// For each layer the fastest engine that writes it right. In this version that is `direct`.
    #[default]
    Auto,
    /// The diff service of containerd, which can write every layer.
    Differ,
    /// drayd itself, in one pass while the layer comes, for tar layers on `bind` and `overlay` mounts whose directories
    /// drayd can write into, as those of `overlayfs` and `native`. What it cannot write goes to the differ, and the log
    /// says why.
    Direct,
}

/// `[metrics]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// The address that metrics are served on under `/metrics`, for everybody who can reach it: `IP:PORT`, such as
    /// `127.0.0.1:9095`; empty is off.
    #[serde(with = "written")]
    #[schemars(with = "String")]
    pub address: Option<SocketAddr>,
    /// Tags that become labels of the pulls, as `tag_KEY`: keys of the pairs that a sandbox's annotation
    /// `io.kubernetes.image.metrics.tags` has (`app=foo,team=x`). Pairs of other keys are only logged.
    #[schemars(with = "Vec<String>")]
    pub tag_keys: TagKeys,
    /// How many combinations of their values are counted on their own; what comes later is counted as `other`.
    pub tag_values: usize,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { address: None, tag_keys: TagKeys::default(), tag_values: 50 }
    }
}

/// `[traces]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Traces {
    /// The collector that the spans of pulls are sent to, by OTLP over gRPC: `http://HOST:PORT`, such as
    /// `http://127.0.0.1:4317`; empty is off. A pull is part of its caller's trace if the request has a `traceparent`, and
    /// containerd's part of the pull is part of it, too.
    #[serde(with = "written")]
    #[schemars(with = "String")]
    pub endpoint: Option<Endpoint>,
}

/// `[log]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// The least important level that is logged. The environment does not change it.
    pub level: Level,
    /// Where the log goes and what a line looks like.
    pub format: Format,
}

/// Values of `log.level`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// What failed.
    Error,
    /// What may need attention.
    Warn,
    /// One line for each pull and each change of state.
    #[default]
    Info,
    /// The stages of each pull.
    Debug,
    /// Everything, with the internals of the HTTP and gRPC libraries.
    Trace,
}

/// Values of `log.format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The journal, with its own fields, if systemd connected standard error to it; otherwise `text`.
    #[default]
    Auto,
    /// One line of text for each event on standard error.
    Text,
    /// One JSON object for each event on standard error, each on its own line.
    Json,
}

impl Level {
    /// All there are, the most important first.
    pub const ALL: [Self; 5] = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl Config {
    /// Reads the file at `path`. Without a path, reads [`DEFAULT_PATH`], where a missing file means the defaults.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let file = path.unwrap_or(Path::new(DEFAULT_PATH));
        match fs::read_to_string(file) {
            Ok(text) => Self::parse(file, &text),
            Err(error) if path.is_none() && error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(ConfigError::Read { file: file.into(), source }),
        }
    }

    /// Reads `text`; `file` is only the name that problems are reported under.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        parse::parse(file, text)
    }
}

/// What is written in the configuration and has no effect in this version, or a bad one: one sentence each, to be shown by the
/// check of the file and at the start.
pub fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if config.cri.socket == config.containerd.address {
        warnings.push("`socket` in [cri] is containerd's own `address`: drayd would take its place".into());
    }
    if config.cri.socket == config.api.socket {
        warnings.push("`socket` in [cri] and in [api] are the same: drayd does not start with that".into());
    }
    for (index, rule) in config.pull.rules.iter().enumerate() {
        if rule.priority.is_none() && rule.snapshotter.is_none() {
            let number = index + 1;
            warnings.push(format!("rule {number} of `rules` in [pull] has neither `priority` nor `snapshotter`: it has no effect"));
        }
    }
    if config.snapshotter.handlers.contains_key("") {
        warnings
            .push("[snapshotter.handlers] maps a handler without a name, which no pod can ask for".into());
    }
    if config.pull.lease_lifetime.0 < SHORT_LEASE {
        warnings.push(format!(
            "`lease_lifetime` in [pull] is below {}: it may expire while containerd works on a single layer",
            SHORT_LEASE.write()
        ));
    }
    warnings
}

#[cfg(test)]
mod tests;
