//! Messages to requests, and what is seen to messages.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use drayd_proto::dray;
use tonic::Status;

use super::status;
use crate::cause::chain;
use crate::containerd::Snapshotter;
use crate::containerd::introspection::LoadedSnapshotter;
use crate::images::Image;
use crate::oci::Reference;
use crate::oci::excerpt::excerpt;
use crate::priority::Level;
use crate::progress::{Engine, LayerView, Stage, State, View};
use crate::pull::history::Entry;
use crate::pull::inflight::Shared;
use crate::pull::ongoing::Waiting;
use crate::pull::request::{Metadata, Pod};
use crate::pull::room::Room;
use crate::pull::{Ending, Explanation, Look, Ongoing, Request};
use crate::registry::{Credentials, Origin};
use crate::trace::Caller;

/// Bytes are told so often if the caller does not say.
const INTERVAL: Duration = Duration::from_millis(200);
/// And so often at the most and at the least.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(60));

/// What is asked for, in the words of a sandbox.
pub(super) struct Wanted {
    pub(super) image: String,
    pub(super) runtime_handler: String,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) pod_namespace: String,
}

/// A request without credentials: what the node has is what whoever may use this socket has.
pub(super) fn request(wanted: Wanted) -> Result<Request, Status> {
    let Wanted { image, runtime_handler, annotations, labels, pod_namespace } = wanted;
    let metadata = Metadata { annotations, labels };
    let (handler, overridden) = metadata.handler(&runtime_handler);
    let namespace = excerpt(&pod_namespace);
    Ok(Request {
        reference: reference(&image)?,
        handler,
        overridden,
        credentials: Credentials::anonymous(),
        pod: (!namespace.is_empty()).then(|| Pod { namespace, name: String::new() }),
        caller: Caller::default(),
        metadata,
    })
}

/// The reference that is named.
pub(super) fn reference(image: &str) -> Result<Reference, Status> {
    if image.is_empty() {
        return Err(status::no_image());
    }
    Reference::parse(image).map_err(|error| status::of_reference(&error))
}

/// How often bytes are told.
pub(super) fn interval(milliseconds: u32) -> Duration {
    match milliseconds {
        0 => INTERVAL,
        asked => Duration::from_millis(asked.into()).clamp(INTERVALS.0, INTERVALS.1),
    }
}

/// A pull as it is seen. `place` is its place in the queue.
pub(super) fn progress(ongoing: &Ongoing, look: &Look, place: Option<usize>) -> dray::PullProgress {
    let (view, ended) = match look {
        Look::On(view) => (view, None),
        Look::Ended(view, result) => (view, Some(result)),
    };
    dray::PullProgress {
        id: ongoing.id,
        reference: ongoing.reference.clone(),
        snapshotter: ongoing.snapshotter.to_string(),
        runtime_handler: ongoing.handler.clone(),
        snapshotter_reason: ongoing.reason.to_string(),
        started_at: nanoseconds(ongoing.started),
        stage: stage(view).into(),
        bytes_total: view.total(),
        bytes_done: view.done(),
        bytes_wire: view.wire,
        layers: view.layers.iter().map(layer).collect(),
        waiting: ongoing.waiting().into_iter().map(waiting).collect(),
        ended: ended.map(self::ended),
        priority: priority(ongoing.priority.level()).into(),
        queue_place: place.and_then(|place| u32::try_from(place).ok()).unwrap_or_default(),
    }
}

/// The end of a pull.
pub(super) fn ended(result: &Shared) -> dray::Ended {
    match result {
        Ok(outcome) => dray::Ended {
            result: if outcome.tally.fetched > 0 { Ending::Fetched } else { Ending::Present }.name().into(),
            success: true,
            image_id: outcome.image_id.to_string(),
            message: String::new(),
            bytes_fetched: outcome.tally.fetched,
            bytes_present: outcome.tally.present,
            bytes_left: outcome.tally.left,
        },
        Err(error) => dray::Ended {
            result: Ending::of_error(error).name().into(),
            message: chain(error.as_ref()),
            ..dray::Ended::default()
        },
    }
}

fn stage(view: &View) -> dray::Stage {
    match view.stage {
        Stage::Resolving => dray::Stage::Resolving,
        Stage::Queued => dray::Stage::Queued,
        Stage::Unpacking => dray::Stage::Unpacking,
        Stage::Recording => dray::Stage::Recording,
    }
}

fn layer(view: &LayerView) -> dray::LayerProgress {
    let state = match view.state {
        State::Waiting => dray::LayerState::Waiting,
        State::Fetching => dray::LayerState::Fetching,
        State::Unpacking => dray::LayerState::Unpacking,
        State::Done => dray::LayerState::Done,
        State::Present => dray::LayerState::Present,
        State::Remote => dray::LayerState::Remote,
    };
    let engine = match view.engine {
        None => dray::Engine::Unspecified,
        Some(Engine::Direct) => dray::Engine::Direct,
        Some(Engine::Differ) => dray::Engine::Differ,
    };
    dray::LayerProgress {
        digest: view.digest.clone(),
        size: view.size,
        done: view.done,
        state: state.into(),
        host: view.host.clone(),
        engine: engine.into(),
        engine_reason: view.reason.clone(),
    }
}

fn waiting(waiting: Waiting) -> dray::Waiting {
    let (pod_namespace, pod_name) = waiting.pod.map(|pod| (pod.namespace, pod.name)).unwrap_or_default();
    dray::Waiting { pod_namespace, pod_name }
}

fn priority(level: Level) -> dray::Priority {
    match level {
        Level::Low => dray::Priority::Low,
        Level::Normal => dray::Priority::Normal,
        Level::High => dray::Priority::High,
    }
}

/// What a pull would do.
pub(super) fn explanation(explanation: Explanation) -> dray::ExplainResponse {
    let missing = explanation.layers.iter().filter(|layer| layer.have.is_missing());
    let bytes_to_fetch = missing
        .map(|layer| layer.blob.size.saturating_sub(layer.have.begun))
        .fold(0_u64, u64::saturating_add);
    let Explanation { reference, choice, decision, hosts, target, manifest, image_id, layers, rooms } =
        explanation;
    dray::ExplainResponse {
        reference,
        snapshotter: choice.snapshotter.name.to_string(),
        runtime_handler: choice.handler,
        snapshotter_reason: choice.reason.to_string(),
        snapshotter_is_remote: choice.snapshotter.remote_capable,
        hosts: hosts
            .into_iter()
            .map(|host| dray::Host {
                url: host.url,
                mirror: !host.own,
                capabilities: if host.resolves {
                    vec!["pull".into(), "resolve".into()]
                } else {
                    vec!["pull".into()]
                },
                credentials: origin(host.credentials),
            })
            .collect(),
        target: target.to_string(),
        manifest: manifest.to_string(),
        image_id: image_id.to_string(),
        layers: layers
            .into_iter()
            .map(|layer| dray::ExplainedLayer {
                digest: layer.blob.digest.to_string(),
                size: layer.blob.size,
                chain_id: layer.chain_id.to_string(),
                unpacked: layer.have.unpacked,
                stored: layer.have.stored,
            })
            .collect(),
        bytes_to_fetch,
        room: rooms.iter().map(room).collect(),
        priority: priority(decision.level).into(),
        priority_reason: decision.why.to_string(),
    }
}

fn origin(origin: Origin) -> String {
    match origin {
        Origin::Request => "the request's".into(),
        Origin::Node => "the node's (registry.credentials_file)".into(),
        Origin::Nobody => "none".into(),
        Origin::Unknown(cause) => format!("cannot be had: {cause}"),
    }
}

fn room(room: &Room) -> dray::Room {
    dray::Room {
        path: room.path.display().to_string(),
        used_by: room.used_by.clone(),
        bytes_needed: room.bytes.needed,
        bytes_free: room.bytes.free,
        inodes_needed: room.inodes.map_or(0, |inodes| inodes.needed),
        inodes_free: room.inodes.map_or(0, |inodes| inodes.free),
        enough: room.is_enough(),
    }
}

/// What became of the calls for one image.
pub(super) fn entry(entry: Entry) -> dray::HistoryEntry {
    let results = entry.endings.iter().map(|(ending, count)| (ending.name().to_owned(), *count));
    dray::HistoryEntry {
        results: results.collect(),
        reference: entry.reference,
        snapshotter: entry.snapshotter,
        calls: entry.calls,
        transfers: entry.transfers,
        bytes: entry.bytes,
        last_at: nanoseconds(entry.last),
        last_failure: entry.failure,
    }
}

/// A snapshotter of the node.
pub(super) fn snapshotter(loaded: &LoadedSnapshotter) -> dray::Snapshotter {
    dray::Snapshotter {
        name: loaded.name.to_string(),
        remote: loaded.remote_capable,
        root: loaded.root.as_ref().map(|root| root.display().to_string()).unwrap_or_default(),
    }
}

/// An image of the node, and where it is unpacked.
pub(super) fn image(image: &Image, snapshotters: &[Snapshotter]) -> dray::Image {
    dray::Image {
        id: image.inspected.id.to_string(),
        tags: image.repo_tags.clone(),
        digests: image.repo_digests.clone(),
        size: image.inspected.size,
        pinned: image.pinned,
        snapshotters: snapshotters.iter().map(ToString::to_string).collect(),
    }
}

/// Since the epoch.
pub(super) fn nanoseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
