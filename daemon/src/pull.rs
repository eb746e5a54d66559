//! One pull, from a request to an image that containerd's CRI knows. This file shows the whole walk; each stage has a
//! file of its own. A crash at any line leaves nothing visible or a complete image: the lease's expiry reclaims the
//! rest.

mod admit;
pub mod call;
pub mod ending;
pub mod error;
pub mod explain;
pub mod history;
pub mod inflight;
mod lease;
pub mod ongoing;
pub mod plan;
mod publish;
pub mod queue;
mod record;
pub mod request;
mod resolve;
pub mod room;
pub mod rules;
mod spread;
pub mod survey;
mod tags;

use std::collections::BTreeSet;
use std::future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;
use tracing::Instrument as _;

pub use call::Outcome;
pub use ending::Ending;
pub use error::Error;
pub use explain::Explanation;
pub use history::History;
pub use ongoing::{Look, Ongoing, Watched};
pub use queue::Limits;
pub use request::Request;
pub use room::Room;
pub use rules::Rule;

use crate::containerd::introspection::LoadedSnapshotter;
use crate::containerd::leases::Collect;
use crate::containerd::{Containerd, Snapshotter};
use crate::fetch::{Fetcher, Source, Turns};
use crate::metrics::{self, Metrics};
use crate::node::Node;
use crate::node::snapshotter::Choice;
use crate::oci::Platform;
use crate::progress::{Meter, Progress, Stage};
use crate::registry::Registry;
use crate::trace;
use crate::unpack::{Context, Unpacker, Writing};
use call::{Call, Tally};
use inflight::{Inflight, Share};
use lease::Leases;
use plan::Plan;
use queue::Queue;
use record::Recorded;
use request::Metadata;
use resolve::Named;

/// A [`Config::lease_lifetime`] below this may expire while containerd works on a single layer.
pub const SHORT_LEASE: Duration = lease::SHORT;

/// Settings of a pull.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long an open request may stay without a byte; `None` is for ever.
    pub progress_timeout: Option<Duration>,
    /// Whether layer blobs stay in the content store once they are unpacked.
    pub keep_layers: bool,
    /// Whether the registry is asked even for what is known to be the image, and known to be shown to the caller.
    pub always_verify_credentials: bool,
    /// How long what a pull has made outlives a crash. Pulls that last longer renew their lease.
    pub lease_lifetime: Duration,
    /// Snapshotters that leave all layers to the guest.
    pub guest_pull: BTreeSet<Snapshotter>,
    /// How the files of layers are written.
    pub writing: Writing,
    /// How many pulls fetch at the same time.
    pub limits: Limits,
    /// Whether the disks are looked at before anything is fetched.
    pub check_disk: bool,
    /// What metadata decides.
    pub rules: Vec<Rule>,
}

/// A pull that is going to be done.
struct Order {
    request: Request,
    /// Where it is unpacked, and why.
    choice: Choice,
    /// Whether it is the image of pod sandboxes, which kubelet's image collection must leave; `None` where only
    /// containerd's CRI knows.
    sandbox: Option<bool>,
    /// Where else pods run, and so need the image of their sandboxes.
    elsewhere: Vec<LoadedSnapshotter>,
}

/// Counts the time of a pull in each phase when it is dropped.
struct Phases<'a> {
    progress: &'a Progress,
    metrics: &'a Metrics,
}

impl Drop for Phases<'_> {
    fn drop(&mut self) {
        for (stage, spent) in self.progress.spent() {
            self.metrics.phase(stage.name(), spent);
        }
    }
}

/// Pulls images into one containerd.
pub struct Puller {
    config: Config,
    containerd: Containerd,
    /// What containerd is configured for, read anew whenever it comes back.
    node: Node,
    /// Resolves names and brings documents; the unpacker has it, too.
    fetcher: Arc<Fetcher>,
    unpacker: Unpacker,
    /// Pulls under way, so that equal ones are one.
    inflight: Inflight,
    /// Their turns.
    queue: Arc<Queue>,
    /// Calls that have ended.
    history: Arc<History>,
    /// Counts them.
    metrics: Arc<Metrics>,
    /// Image records by name: one pull at a time writes one, and knows what comes of it.
    names: Turns<String>,
    /// What keeps a pull's work from collection.
    leases: Leases,
    /// What images must be built for.
    platform: Platform,
}

impl Puller {
    /// A puller on `containerd`.
    pub fn new(
        config: Config,
        containerd: Containerd,
        node: Node,
        fetcher: Fetcher,
        metrics: Arc<Metrics>,
    ) -> Self {
        let fetcher = Arc::new(fetcher);
        let (guest_pull, writing) = (config.guest_pull.clone(), config.writing);
        Self {
            leases: Leases::new(containerd.clone(), config.lease_lifetime),
            unpacker: Unpacker::new(Arc::clone(&fetcher), guest_pull, writing, Arc::clone(&metrics)),
            containerd,
            node,
            fetcher,
            inflight: Inflight::default(),
            queue: Queue::new(config.limits),
            history: Arc::default(),
            metrics,
            names: Turns::default(),
            config,
            platform: Platform::host(),
        }
    }

    /// Pulls the image and returns when containers can be created from it. Equal requests at the same time share one
    /// transfer; a caller that drops this future leaves the others theirs, and the last one to leave ends it.
    pub async fn pull(self: &Arc<Self>, request: Request) -> Result<Arc<Outcome>, Arc<Error>> {
        self.pull_shown(request, |_| {}).await
    }

    /// The same, and `show` is called with the pull once it is under way.
    pub async fn pull_shown(
        self: &Arc<Self>,
        request: Request,
        show: impl FnOnce(&Watched),
    ) -> Result<Arc<Outcome>, Arc<Error>> {
        let span = trace::call(&request.caller, &request.reference.to_string());
        let mut call = Call::begin(&request, &self.history, &self.metrics, &span);
        let result = self.choose_and_join(request, &mut call, show).instrument(span).await;
        call.end(&result);
        result.map(|share| share.outcome)
    }

    /// Counts a call that was no request.
    pub fn refused(&self) {
        self.metrics.call_began();
        self.metrics.call_ended(&metrics::Ended {
            result: Ending::Failed(ending::Reason::Request).name(),
            success: false,
            snapshotter: "",
            engine: "none",
            tags: &[],
            fetched: 0,
            present: 0,
            left: 0,
            took: Duration::ZERO,
        });
    }

    /// All pulls under way, in the order in which they began.
    pub fn ongoing(&self) -> Vec<Watched> {
        self.inflight.list()
    }

    /// Tells of each pull that begins from now on.
    pub fn begun(&self) -> broadcast::Receiver<Watched> {
        self.inflight.begun()
    }

    /// The registry client that it pulls with.
    pub fn registry(&self) -> &Registry {
        self.fetcher.registry()
    }

    /// Who fetches, and who waits for its turn.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// What became of the calls that have ended.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Ends what is still under way, and waits until no pull is and their leases are gone. Whether anything was ended.
    pub async fn drain(&self) -> bool {
        // Connections of clients may outlive the listener, and hold their pulls.
        let left = self.ongoing();
        for watched in &left {
            watched.ongoing.leave();
        }
        self.inflight.drain().await;
        self.unpacker.drain().await;
        self.leases.drain().await;
        !left.is_empty()
    }

    async fn choose_and_join(
        self: &Arc<Self>,
        mut request: Request,
        call: &mut Call,
        show: impl FnOnce(&Watched),
    ) -> Result<Share, Arc<Error>> {
        let decision = rules::decide(&self.config.rules, &request);
        // It may be large, and nobody needs it any more.
        request.metadata = Metadata::default();
        let table = self.node.table().await.map_err(Error::from)?;
        let choice = table.choose_by(&request.handler, decision.snapshotter.as_ref()).map_err(Error::from)?;
        call.chosen(&choice);
        let sandbox = table.sandbox_image.as_ref().map(|image| *image == request.reference);
        let elsewhere = table.all_but(&choice.snapshotter);
        let reference = request.reference.to_string();
        let (credentials, pod) = (request.credentials.clone(), request.pod.clone());
        let (puller, order) =
            (Arc::clone(self), Order { request, choice: choice.clone(), sandbox, elsewhere });
        let work = |ongoing: Arc<Ongoing>| {
            let span = ongoing.span("pull");
            async move { puller.watched(order, &ongoing).await }.instrument(span)
        };
        let seat = self.inflight.sit(reference, &choice, credentials, decision.level, pod, work);
        if seat.has_joined() {
            // It may be more urgent now.
            self.queue.admit();
        }
        show(seat.watched());
        seat.end().await
    }

    async fn watched(&self, order: Order, ongoing: &Ongoing) -> Result<Outcome, Error> {
        // Dropped with this, so that the time of pulls that are given up counts, too.
        let _phases = Phases { progress: &ongoing.progress, metrics: &self.metrics };
        tokio::select! {
            result = self.transfer(&order, ongoing) => result,
            error = self.stall(ongoing.progress.meter()) => Err(error),
        }
    }

    /// Returns when what the meter counts has stood still for too long.
    async fn stall(&self, meter: &Meter) -> Error {
        let Some(limit) = self.config.progress_timeout else { return future::pending().await };
        meter.stalled(limit).await;
        Error::Stalled { limit }
    }

    /// The walk under its lease, which is made before the first write and deleted last. The name is resolved before:
    /// a reference that leads nowhere costs containerd nothing.
    async fn transfer(&self, order: &Order, ongoing: &Ongoing) -> Result<Outcome, Error> {
        let progress = &ongoing.progress;
        let reference = &order.request.reference;
        let source = Source::of(reference, order.request.credentials.clone());
        let known = if self.config.always_verify_credentials {
            None
        } else {
            resolve::known(&self.fetcher, &self.containerd, &source, reference).await?
        };
        let named = if let Some(named) = known {
            named
        } else {
            let name = resolve::name(&self.fetcher, &source, reference, progress.meter());
            name.instrument(ongoing.span("resolve")).await?
        };
        let held = self.leases.hold(&reference.to_string()).await;
        let mut held =
            held.map_err(|source| Error::Containerd { step: "make the lease of the pull", source })?;
        let containerd = self.containerd.under(held.current());
        let (progress, keep_layers) = (Arc::clone(progress), self.config.keep_layers);
        let priority = ongoing.priority.clone();
        let context = Context { containerd, source, progress, priority, keep_layers };
        // Boxed: it is large, and every future around it would hold it.
        let walk = Box::pin(self.walk(order, ongoing, &context, named));
        let result = held.during(walk).await;
        match &result {
            // The caller need not wait for a second silence: dropped, the lease is deleted behind its back.
            Err(error) if error.containerd_is_away() => drop(held),
            // A broken pull leaves nothing, unless a retry may continue from what is there.
            Err(error) if !error.is_transient() => held.end(Collect::Now).await,
            _ => held.end(Collect::Later).await,
        }
        result
    }

    /// The stages of a pull after its name is resolved, in their order.
    async fn walk(
        &self,
        order: &Order,
        ongoing: &Ongoing,
        context: &Context,
        named: Named,
    ) -> Result<Outcome, Error> {
        let (reference, snapshotter) = (&order.request.reference, &order.choice.snapshotter);
        let resolved = resolve::resolve(&self.fetcher, context, reference, named, &self.platform);
        let resolved = resolved.instrument(ongoing.span("documents")).await?;
        let plan = Plan::new(reference, &resolved)?;
        let progress = &context.progress;
        progress.plan(plan.layers.iter().map(|layer| &layer.blob));
        let admitted = self.admit(ongoing, &context.containerd, snapshotter, &plan);
        let admitted = admitted.instrument(ongoing.span("admit")).await?;
        progress.enter(Stage::Unpacking);
        let layers = self.unpacker.unpack(context, snapshotter, &plan.layers);
        let layers = layers.instrument(ongoing.span("unpack")).await.map_err(Error::Unpack)?;
        drop(admitted);
        progress.enter(Stage::Recording);
        let Recorded { names: records, shown } =
            record::record(&self.names, context, order, &resolved, &plan)
                .instrument(ongoing.span("record"))
                .await?;
        if order.sandbox.unwrap_or(shown.pinned) {
            self.spread(order, context, &plan).await;
        }

        let tally =
            Tally::new(progress.meter().bytes(), &resolved, &plan, &layers, snapshotter.remote_capable);
        let engine = progress.view().engines();
        Ok(Outcome { image_id: plan.image_id, records, tally, engine })
    }
}
