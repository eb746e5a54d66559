//! What operators count, in Prometheus' words: names with their unit, labels from closed or bounded sets. Counts and tells;
//! knows nothing of what is counted.

mod bounded;
mod process;
mod serve;

use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabel, EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

pub use prometheus_client::metrics::counter::Counter;
pub use serve::{bind, serve};

use bounded::Bounded;
use process::Process;

/// Hosts of registries with a series of their own; what comes from more is counted together.
const HOSTS: usize = 100;
/// What values beyond a bound are called.
const OTHER: &str = "other";

/// Settings of this house.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Keys of metadata tags that become labels of pulls.
    pub tag_keys: Vec<String>,
    /// Combinations of their values with series of their own; 0 is none.
    pub tag_values: usize,
}

/// All that is counted in one process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pulls: Family<PullLabels, Counter>,
    in_progress: Gauge,
    queued: Gauge,
    present: Counter,
    left: Counter,
    phases: Family<Labels<1>, Histogram, fn() -> Histogram>,
    received: Family<Labels<1>, Counter>,
    retries: Family<Labels<1>, Counter>,
    passed_over: Family<Labels<1>, Counter>,
    rate_limited: Family<Labels<1>, Counter>,
    tokens: Counter,
    prepares: Family<Labels<1>, Histogram, fn() -> Histogram>,
    images: Gauge,
    cri_pulls: Family<Labels<1>, Counter>,
    cri_in_progress: Gauge,
    cri_throughput: Histogram,
    hosts: Bounded,
    /// Keys, each with its label.
    tags: Vec<(String, String)>,
    combinations: Bounded,
}

/// A pull call that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// How, from a closed set.
    pub result: &'static str,
    /// Whether the image is there.
    pub success: bool,
    /// The snapshotter; empty if none was chosen.
    pub snapshotter: &'a str,
    /// Who wrote its files, from a closed set.
    pub engine: &'static str,
    /// Tags of the request.
    pub tags: &'a [(String, String)],
    /// Bytes over the wire that are counted for this call.
    pub fetched: u64,
    /// Bytes that were on the node, and that were left to a remote snapshotter.
    pub present: u64,
    /// The same.
    pub left: u64,
    /// How long it took.
    pub took: Duration,
}

/// Labels whose keys are fixed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Labels<const N: usize>([(&'static str, String); N]);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PullLabels {
    fixed: Labels<3>,
    tags: Vec<(String, String)>,
}

impl<const N: usize> EncodeLabelSet for Labels<N> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.0
            .iter()
            .try_for_each(|(key, value)| EncodeLabel::encode(&(*key, value.as_str()), encoder.encode_label()))
    }
}

impl EncodeLabelSet for PullLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.fixed.encode(encoder)?;
        self.tags.iter().try_for_each(|(key, value)| {
            EncodeLabel::encode(&(key.as_str(), value.as_str()), encoder.encode_label())
        })
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(&Config::default())
    }
}

impl Metrics {
    /// Counts from zero.
    pub fn new(config: &Config) -> Self {
        let seconds: fn() -> Histogram = || {
            // From a repeated pull to one of an image that takes an hour.
            Histogram::new([
                0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0,
            ])
        };
        let mut metrics = Self {
            registry: Registry::default(),
            pulls: Family::default(),
            in_progress: Gauge::default(),
            queued: Gauge::default(),
            present: Counter::default(),
            left: Counter::default(),
            phases: Family::new_with_constructor(seconds),
            received: Family::default(),
            retries: Family::default(),
            passed_over: Family::default(),
            rate_limited: Family::default(),
            tokens: Counter::default(),
            prepares: Family::new_with_constructor(seconds),
            images: Gauge::default(),
            cri_pulls: Family::default(),
            cri_in_progress: Gauge::default(),
            // Those of the Go client, as containerd has them.
            cri_throughput: Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]),
            hosts: Bounded::new(HOSTS),
            tags: config.tag_keys.iter().map(|key| (key.clone(), label_of(key))).collect(),
            combinations: Bounded::new(config.tag_values),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let mut registry = Registry::default();
        let own = registry.sub_registry_with_prefix("drayd");
        own.register("pulls", "PullImage calls that have ended", self.pulls.clone());
        own.register("pulls_in_progress", "PullImage calls that have not ended", self.in_progress.clone());
        own.register("pulls_queued", "Pulls that wait for their turn", self.queued.clone());
        own.register_with_unit(
            "pull_present",
            "Of the images that were pulled, what was on the node already",
            Unit::Bytes,
            self.present.clone(),
        );
        own.register_with_unit(
            "pull_left",
            "Of the images that were pulled, what was left to a remote snapshotter",
            Unit::Bytes,
            self.left.clone(),
        );
        own.register_with_unit(
            "pull_phase_duration",
            "Time that pulls spent in each phase",
            Unit::Seconds,
            self.phases.clone(),
        );
        own.register_with_unit(
            "registry_received",
            "Bodies of blobs and documents, what came twice included, by the host that was asked",
            Unit::Bytes,
            self.received.clone(),
        );
        own.register("registry_retries", "Requests to a host that had failed before", self.retries.clone());
        own.register(
            "registry_fallbacks",
            "Hosts that were passed over for one behind them",
            self.passed_over.clone(),
        );
        own.register(
            "registry_rate_limited",
            "Answers that a host is asked too often",
            self.rate_limited.clone(),
        );
        own.register("registry_token_requests", "Requests for tokens", self.tokens.clone());
        own.register_with_unit(
            "snapshot_prepare_duration",
            "Time that snapshotters took to prepare a layer",
            Unit::Seconds,
            self.prepares.clone(),
        );
        own.register("images", "Images of the node", self.images.clone());
        let cri = registry.sub_registry_with_prefix("containerd_cri");
        cri.register("image_pulls", "succeeded and failed counters", self.cri_pulls.clone());
        cri.register("in_progress_image_pulls_total", "in progress pulls", self.cri_in_progress.clone());
        cri.register(
            "image_pulling_throughput",
            "image pull throughput in MiB/s",
            self.cri_throughput.clone(),
        );
        registry.register_collector(Box::new(Process::new()));
        self.registry = registry;
    }

    /// A PullImage call begins.
    pub fn call_began(&self) {
        self.in_progress.inc();
        self.cri_in_progress.inc();
    }

    /// It has ended.
    pub fn call_ended(&self, ended: &Ended<'_>) {
        self.in_progress.dec();
        self.cri_in_progress.dec();
        let labels = PullLabels {
            fixed: Labels([
                ("result", ended.result.into()),
                ("snapshotter", ended.snapshotter.into()),
                ("engine", ended.engine.into()),
            ]),
            tags: self.labels_of(ended.tags),
        };
        self.pulls.get_or_create(&labels).inc();
        self.present.inc_by(ended.present);
        self.left.inc_by(ended.left);
        let status = if ended.success { "success" } else { "failure" };
        self.cri_pulls.get_or_create(&Labels([("status", status.into())])).inc();
        if ended.success && ended.fetched > 0 {
            #[expect(clippy::cast_precision_loss, reason = "a throughput needs no more digits")]
            let mebibytes = ended.fetched as f64 / f64::from(1 << 20);
            self.cri_throughput.observe(mebibytes / ended.took.as_secs_f64().max(1e-6));
        }
    }

    /// A pull has spent this time in a phase, from a closed set.
    pub fn phase(&self, phase: &'static str, took: Duration) {
        self.phases.get_or_create(&Labels([("phase", phase.into())])).observe(took.as_secs_f64());
    }

    /// What counts the bytes of bodies from a host.
    pub fn received_from(&self, host: &str) -> Counter {
        self.received.get_or_create(&self.host(host)).clone()
    }

    /// A host is asked again that had failed.
    pub fn retried(&self, host: &str) {
        self.retries.get_or_create(&self.host(host)).inc();
    }

    /// A host failed, and one behind it serves.
    pub fn passed_over(&self, host: &str) {
        self.passed_over.get_or_create(&self.host(host)).inc();
    }

    /// A host says that it is asked too often.
    pub fn rate_limited(&self, host: &str) {
        self.rate_limited.get_or_create(&self.host(host)).inc();
    }

    /// A token is asked for.
    pub fn token_requested(&self) {
        self.tokens.inc();
    }

    /// A snapshotter has prepared a layer.
    pub fn prepared(&self, snapshotter: &str, took: Duration) {
        let labels = Labels([("snapshotter", snapshotter.to_owned())]);
        self.prepares.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// How many pulls wait, and how many images there are, as far as that is known.
    pub fn now(&self, queued: usize, images: Option<usize>) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.queued.set(count(queued));
        if let Some(images) = images {
            self.images.set(count(images));
        }
    }

    /// All of it, as `OpenMetrics` text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Only a label that cannot be written fails, and all can.
        if let Err(error) = encode(&mut text, &self.registry) {
            tracing::error!(%error, "the metrics cannot be written");
        }
        text
    }

    /// The labels of a request's tags: all of them as they are, or all as others.
    fn labels_of(&self, tags: &[(String, String)]) -> Vec<(String, String)> {
        let value =
            |key: &str| tags.iter().find(|(tag, _)| tag == key).map_or("", |(_, value)| value.as_str());
        let values: Vec<&str> = self.tags.iter().map(|(key, _)| value(key)).collect();
        let combination =
            if values.iter().all(|value| value.is_empty()) { String::new() } else { values.join("\0") };
        let counts = self.combinations.admit(&combination) == combination;
        let labelled = self.tags.iter().zip(values);
        labelled
            .map(|((_, label), value)| (label.clone(), if counts { value } else { OTHER }.to_owned()))
            .collect()
    }

    fn host(&self, host: &str) -> Labels<1> {
        Labels([("host", self.hosts.admit(host))])
    }
}

/// The label of a tag key. Whatever is no letter, digit or underscore in its key becomes an underscore.
pub fn label_of(key: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!("tag_{}", key.chars().map(legal).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended<'a>(result: &'static str, tags: &'a [(String, String)]) -> Ended<'a> {
        Ended {
            result,
            success: result != "not_found",
            snapshotter: "overlayfs",
            engine: "direct",
            tags,
            fetched: 0,
            present: 7,
            left: 0,
            took: Duration::from_secs(2),
        }
    }

    fn lines(metrics: &Metrics, of: &str) -> Vec<String> {
        metrics.text().lines().filter(|line| line.starts_with(of)).map(str::to_owned).collect()
    }

    #[test]
    fn pulls_are_counted_by_their_end_and_cached_ones_have_no_throughput() {
        let metrics = Metrics::default();
        for _ in 0..3 {
            metrics.call_began();
        }
        metrics.call_ended(&Ended { fetched: 4 << 20, ..ended("fetched", &[]) });
        metrics.call_ended(&ended("not_found", &[]));
        assert_eq!(lines(&metrics, "drayd_pulls_in_progress "), ["drayd_pulls_in_progress 1"]);
        assert_eq!(
            lines(&metrics, "containerd_cri_in_progress_image_pulls_total "),
            ["containerd_cri_in_progress_image_pulls_total 1"]
        );
        metrics.call_ended(&ended("present", &[]));
        let mut pulls = lines(&metrics, "drayd_pulls_total");
        pulls.sort();
        let line = |result| {
            format!("drayd_pulls_total{{result=\"{result}\",snapshotter=\"overlayfs\",engine=\"direct\"}} 1")
        };
        assert_eq!(pulls, ["fetched", "not_found", "present"].map(line));
        let mut cri = lines(&metrics, "containerd_cri_image_pulls_total");
        cri.sort();
        assert_eq!(
            cri,
            [
                "containerd_cri_image_pulls_total{status=\"failure\"} 1",
                "containerd_cri_image_pulls_total{status=\"success\"} 2",
            ]
        );
        assert_eq!(
            lines(&metrics, "containerd_cri_image_pulling_throughput_sum"),
            ["containerd_cri_image_pulling_throughput_sum 2.0"]
        );
        assert_eq!(lines(&metrics, "drayd_pull_present_bytes_total"), ["drayd_pull_present_bytes_total 21"]);
    }

    #[test]
    fn tags_become_labels_for_known_keys_with_a_bound_on_their_values() {
        let config = Config { tag_keys: vec!["app".into(), "k8s.io/team".into()], tag_values: 2 };
        let metrics = Metrics::new(&config);
        for number in 0..1000 {
            let tags = [("app".to_owned(), format!("a\"{number}\n")), ("secret".to_owned(), "x".to_owned())];
            metrics.call_began();
            metrics.call_ended(&ended("present", &tags));
        }
        let pulls = lines(&metrics, "drayd_pulls_total");
        assert_eq!(pulls.len(), 3, "{pulls:?}");
        let other = "tag_app=\"other\",tag_k8s_io_team=\"other\"} 998";
        assert!(pulls.iter().any(|line| line.ends_with(other)), "{pulls:?}");
        assert!(pulls.iter().any(|line| line.contains("tag_app=\"a\\\"0\\n\"")), "{pulls:?}");
        assert!(!metrics.text().contains("secret"));
    }

    #[test]
    fn hosts_have_series_of_their_own_up_to_a_bound() {
        let metrics = Metrics::default();
        for number in 0..2 * HOSTS {
            metrics.received_from(&format!("host-{number}.test")).inc_by(10);
        }
        let received = lines(&metrics, "drayd_registry_received_bytes_total");
        assert_eq!(received.len(), HOSTS + 1);
        let other = format!("drayd_registry_received_bytes_total{{host=\"other\"}} {}", 10 * HOSTS);
        assert!(received.contains(&other), "{received:?}");
    }

    #[test]
    fn the_process_tells_of_itself() {
        let text = Metrics::default().text();
        for name in ["process_resident_memory_bytes ", "process_cpu_seconds_total ", "process_open_fds "] {
            assert!(text.lines().any(|line| line.starts_with(name)), "{name}: {text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
