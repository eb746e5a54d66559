//! The log lines of one PullImage call, the numbers in them, and what a pull ends in. Operators count with these
//! lines: per call exactly one that names the snapshotter, and one that tells the end.

use std::sync::Arc;
use std::time::Instant;

use tracing::Span;

use super::ending::Ending;
use super::error::Error;
use super::history::{self, History};
use super::inflight::Share;
use super::plan::Plan;
use super::request::Request;
use super::resolve::Resolved;
use super::tags;
use crate::cause::chain;
use crate::fetch::Fetched;
use crate::metrics::{self, Metrics};
use crate::node::snapshotter::{Choice, Reason};
use crate::oci::Digest;
use crate::unpack::LayerOutcome;

/// What a pull ends in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The image ID: digest of the image config.
    pub image_id: Digest,
    /// Names of the image records that it has written, or found right.
    pub records: Vec<String>,
    /// Where its bytes came from.
    pub tally: Tally,
    /// Who wrote its files, in a word.
    pub engine: &'static str,
}

/// Bytes of one image, as its manifests count them, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Came over the wire.
    pub fetched: u64,
    /// Were on this node already, as blobs or as snapshots.
    pub present: u64,
    /// Were left to a remote snapshotter, which has them or loads them when they are read.
    pub left: u64,
}

impl Tally {
    /// `fetched` is what the meter counted: bytes of a layer that was then not needed came, too, and so did those of a
    /// transfer that had to begin again.
    pub(super) fn new(
        fetched: u64,
        resolved: &Resolved,
        plan: &Plan,
        layers: &[LayerOutcome],
        remote: bool,
    ) -> Self {
        let mut tally = Self { fetched, ..Self::default() };
        for (descriptor, fetched) in &resolved.documents {
            tally.add(descriptor.size, *fetched);
        }
        for (layer, outcome) in plan.layers.iter().zip(layers) {
            match outcome {
                LayerOutcome::Applied(fetched) => tally.add(layer.blob.size, *fetched),
                LayerOutcome::Exists if remote => tally.left += layer.blob.size,
                LayerOutcome::Exists => tally.present += layer.blob.size,
            }
        }
        tally
    }

    fn add(&mut self, size: u64, fetched: Fetched) {
        match fetched {
            Fetched::Present => self.present += size,
            Fetched::Transferred { continued } => self.present += continued,
        }
    }
}

/// One call, from its first line to its last. Dropped without an end, its caller left.
pub(super) struct Call {
    history: Arc<History>,
    metrics: Arc<Metrics>,
    reference: String,
    pod: String,
    /// What it wants to be counted by.
    tags: Vec<(String, String)>,
    /// Its span, for whoever collects them.
    span: Span,
    started: Instant,
    snapshotter: String,
    /// A runtime handler that the request names and that does not count.
    overridden: Option<String>,
    ended: bool,
}

impl Call {
    /// Begins the call, whose work is to be done in `span`.
    pub(super) fn begin(
        request: &Request,
        history: &Arc<History>,
        metrics: &Arc<Metrics>,
        span: &Span,
    ) -> Self {
        metrics.call_began();
        let pod =
            request.pod.as_ref().map(|pod| format!("{}/{}", pod.namespace, pod.name)).unwrap_or_default();
        Self {
            history: Arc::clone(history),
            metrics: Arc::clone(metrics),
            reference: request.reference.to_string(),
            pod,
            tags: request
                .metadata
                .annotations
                .get(tags::ANNOTATION)
                .map(|it| tags::read(it))
                .unwrap_or_default(),
            span: span.clone(),
            started: Instant::now(),
            snapshotter: String::new(),
            overridden: request.overridden.clone(),
            ended: false,
        }
    }

    pub(super) fn chosen(&mut self, choice: &Choice) {
        self.snapshotter = choice.snapshotter.name.to_string();
        self.span.record("snapshotter", &self.snapshotter);
        let (reference, snapshotter) = (&self.reference, &self.snapshotter);
        if choice.reason == Reason::UnknownAllowed {
            tracing::warn!(
                reference,
                pod = self.pod,
                runtime_handler = choice.handler,
                "unknown runtime handler: the default snapshotter is used"
            );
        }
        if let Some(annotation) = &self.overridden {
            tracing::warn!(
                reference,
                pod = self.pod,
                runtime_handler = choice.handler,
                annotation,
                "the request names two runtime handlers; ImageSpec.runtime_handler wins over the annotation"
            );
        }
        tracing::info!(
            runtime_handler = choice.handler,
            pod = self.pod,
            tags = tags::written(&self.tags),
            reason = %choice.reason,
            "PullImage \"{reference}\" with snapshotter {snapshotter}"
        );
    }

    pub(super) fn end(mut self, result: &Result<Share, Arc<Error>>) {
        self.ended = true;
        let (reference, seconds) = (&self.reference, self.started.elapsed().as_secs_f64());
        match result {
            Ok(Share { outcome, joined, counts }) => {
                // The bytes belong to one call: counted over all lines they add up.
                let fetched = if *counts { outcome.tally.fetched } else { 0 };
                // Whoever counts the bytes counts the transfer, though another may have begun it and left.
                let ending = match (joined, fetched) {
                    (true, 0) => Ending::Joined,
                    (false, 0) => Ending::Present,
                    (_, _) => Ending::Fetched,
                };
                let what = match (joined, fetched) {
                    (true, _) => format!("joined a pull under way, {fetched} bytes fetched"),
                    (false, 0) => "already present, 0 bytes fetched".to_owned(),
                    (false, _) => format!("{fetched} bytes fetched"),
                };
                let of_another = ending == Ending::Joined;
                let Tally { present, left, .. } = if of_another { Tally::default() } else { outcome.tally };
                let engine = if of_another { "none" } else { outcome.engine };
                self.account(ending, engine, Tally { fetched, present, left }, None);
                tracing::info!(
                    image_id = %outcome.image_id,
                    snapshotter = self.snapshotter,
                    pod = self.pod,
                    tags = tags::written(&self.tags),
                    bytes_fetched = fetched,
                    bytes_present = outcome.tally.present,
                    bytes_left_to_snapshotter = outcome.tally.left,
                    joined,
                    seconds,
                    "Pulled image \"{reference}\": {what}, in {seconds:.3} s"
                );
            }
            Err(error) => {
                let cause = chain(error.as_ref());
                self.account(Ending::of_error(error), "none", Tally::default(), Some(&cause));
                tracing::error!(
                    snapshotter = self.snapshotter,
                    pod = self.pod,
                    tags = tags::written(&self.tags),
                    seconds,
                    "PullImage \"{reference}\" failed: {cause}"
                );
            }
        }
    }
}

impl Call {
    fn account(&self, ending: Ending, engine: &'static str, tally: Tally, failure: Option<&str>) {
        let (reference, snapshotter) = (self.reference.as_str(), self.snapshotter.as_str());
        let Tally { fetched, present, left } = tally;
        self.span.record("result", ending.name());
        self.span.record("tags", tags::written(&self.tags));
        self.span.record("otel.status_code", if ending.is_success() { "OK" } else { "ERROR" });
        self.history.add(history::Ended { reference, snapshotter, ending, bytes: fetched, failure });
        self.metrics.call_ended(&metrics::Ended {
            result: ending.name(),
            success: ending.is_success(),
            snapshotter,
            engine,
            tags: &self.tags,
            fetched,
            present,
            left,
            took: self.started.elapsed(),
        });
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.ended {
            self.account(Ending::GivenUp, "none", Tally::default(), None);
            let (reference, seconds) = (&self.reference, self.started.elapsed().as_secs_f64());
            tracing::info!(
                snapshotter = self.snapshotter,
                pod = self.pod,
                seconds,
                "PullImage \"{reference}\" given up: the caller left or its deadline passed"
            );
        }
    }
}
