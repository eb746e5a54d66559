//! The calls of `dray.v1`.

use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use drayd_proto::dray::dray_server::Dray;
use drayd_proto::dray::{
    CancelRequest, CancelResponse, DiagnoseRequest, DiagnoseResponse, ExplainRequest, ExplainResponse,
    HistoryRequest, HistoryResponse, ListImagesRequest, ListImagesResponse, ListPullsRequest,
    ListPullsResponse, PullProgress, PullRequest, SetLogLevelRequest, SetLogLevelResponse, StatusRequest,
    StatusResponse, WatchRequest,
};
use futures_util::stream::unfold;
use futures_util::{Stream, StreamExt as _};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use super::convert::{self, Wanted};
use super::diagnose::Diagnosis;
use super::{status, watch};
use crate::containerd::Containerd;
use crate::images::Images;
use crate::node::Node;
use crate::pull::history::Filter;
use crate::pull::{Puller, Watched};
use crate::trace::Caller;

/// The level of the log, which belongs to others.
#[derive(Clone)]
pub struct LogLevel {
    /// What it is.
    pub get: Arc<dyn Fn() -> String + Send + Sync>,
    /// Changes it to the one of that name, the configured one without a name; `false` if there is no such level.
    pub set: Arc<dyn Fn(&str) -> bool + Send + Sync>,
}

/// Answers for one daemon.
#[derive(Clone)]
pub struct Api {
    pub(super) puller: Arc<Puller>,
    pub(super) images: Arc<Images>,
    pub(super) node: Node,
    pub(super) containerd: Containerd,
    pub(super) diagnosis: Arc<Diagnosis>,
    log_level: LogLevel,
    started: SystemTime,
    /// Ends streams that would not end by themselves.
    pub(super) closing: CancellationToken,
    /// Pulls that callers of this interface wait for.
    pub(super) pulls: TaskTracker,
}

type Messages = Pin<Box<dyn Stream<Item = Result<PullProgress, Status>> + Send>>;

impl Api {
    /// An interface to these.
    pub fn new(
        puller: Arc<Puller>,
        images: Arc<Images>,
        node: Node,
        containerd: Containerd,
        diagnosis: Diagnosis,
        log_level: LogLevel,
    ) -> Self {
        Self {
            puller,
            images,
            node,
            containerd,
            diagnosis: Arc::new(diagnosis),
            log_level,
            started: SystemTime::now(),
            closing: CancellationToken::new(),
            pulls: TaskTracker::new(),
        }
    }

    fn find(&self, id: u64) -> Result<Watched, Status> {
        let mut ongoing = self.puller.ongoing().into_iter();
        ongoing.find(|watched| watched.ongoing.id == id).ok_or_else(|| status::no_pull(id))
    }

    /// Messages until the daemon closes.
    fn until_closing(&self, messages: impl Stream<Item = PullProgress> + Send + 'static) -> Messages {
        let (messages, closing) = (Some(Box::pin(messages)), self.closing.clone());
        Box::pin(unfold((messages, closing), |(messages, closing)| async move {
            let mut messages = messages?;
            tokio::select! {
                next = messages.next() => next.map(|message| (Ok(message), (Some(messages), closing))),
                () = closing.cancelled() => Some((Err(status::stopping()), (None, closing))),
            }
        }))
    }
}

#[tonic::async_trait]
impl Dray for Api {
    type PullStream = Messages;
    type WatchStream = Messages;

    async fn pull(&self, request: Request<PullRequest>) -> Result<Response<Messages>, Status> {
        let caller = Caller::read(|name| request.metadata().get(name)?.to_str().ok());
        let PullRequest { image, runtime_handler, annotations, labels, pod_namespace, interval_ms } =
            request.into_inner();
        let wanted = Wanted { image, runtime_handler, annotations, labels, pod_namespace };
        let mut request = convert::request(wanted).inspect_err(|refused| {
            self.puller.refused();
            tracing::error!("a pull by the API is refused: {}", refused.message());
        })?;
        request.caller = caller;
        let reference = request.reference.to_string();
        let (sender, shown) = oneshot::channel();
        let (puller, images) = (Arc::clone(&self.puller), Arc::clone(&self.images));
        let token = self.pulls.token();
        // It lives as long as the messages are read: whoever leaves them leaves the pull.
        let call = async move {
            let _token = token;
            let show = |watched: &Watched| drop(sender.send(watched.clone()));
            let result = puller.pull_shown(request, show).await;
            if let Ok(outcome) = &result {
                images.pulled(&outcome.records).await;
            }
            result
        };
        let interval = convert::interval(interval_ms);
        let messages = watch::call(Arc::clone(&self.puller), reference, call, shown, interval);
        Ok(Response::new(Box::pin(messages.map(Ok))))
    }

    async fn list_pulls(&self, _: Request<ListPullsRequest>) -> Result<Response<ListPullsResponse>, Status> {
        let pulls = self.puller.ongoing();
        let pulls = pulls.iter().map(|watched| watch::show(&self.puller, watched, &watched.look())).collect();
        Ok(Response::new(ListPullsResponse { pulls }))
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Messages>, Status> {
        let WatchRequest { id, interval_ms } = request.into_inner();
        let (puller, interval) = (Arc::clone(&self.puller), convert::interval(interval_ms));
        let messages = match id {
            0 => watch::all(puller, interval),
            id => watch::one(puller, self.find(id)?, interval),
        };
        Ok(Response::new(self.until_closing(messages)))
    }

    async fn cancel(&self, request: Request<CancelRequest>) -> Result<Response<CancelResponse>, Status> {
        let watched = self.find(request.into_inner().id)?;
        let reference = watched.ongoing.reference.clone();
        tracing::info!(reference, id = watched.ongoing.id, "a pull is cancelled by a request to the API");
        watched.ongoing.cancel();
        Ok(Response::new(CancelResponse { reference }))
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> Result<Response<ExplainResponse>, Status> {
        let ExplainRequest { image, runtime_handler, annotations, labels, pod_namespace } =
            request.into_inner();
        let request =
            convert::request(Wanted { image, runtime_handler, annotations, labels, pod_namespace })?;
        let explained = self.puller.explain(&request).await;
        let explained =
            explained.map_err(|error| status::of_explain(&request.reference.to_string(), &error))?;
        Ok(Response::new(convert::explanation(explained)))
    }

    async fn history(&self, request: Request<HistoryRequest>) -> Result<Response<HistoryResponse>, Status> {
        let HistoryRequest { image, snapshotter } = request.into_inner();
        let reference = match image.as_str() {
            "" => String::new(),
            image => convert::reference(image)?.to_string(),
        };
        let history = self.puller.history();
        let entries = history.entries(Filter { reference: &reference, snapshotter: &snapshotter });
        Ok(Response::new(HistoryResponse {
            since: convert::nanoseconds(history.since()),
            forgotten: history.forgotten(),
            entries: entries.into_iter().map(convert::entry).collect(),
        }))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let queue = self.puller.queue();
        let queued = queue.waiting();
        let running = self.puller.ongoing().len().saturating_sub(queued);
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let mut response = StatusResponse {
            version: env!("CARGO_PKG_VERSION").into(),
            started_at: convert::nanoseconds(self.started),
            containerd_address: self.containerd.address().display().to_string(),
            pulls_running: count(running),
            pulls_queued: count(queued),
            max_concurrent_pulls: queue.limit().map_or(0, |limit| count(limit.get())),
            log_level: (self.log_level.get)(),
            ..StatusResponse::default()
        };
        let Ok(table) = self.node.table_soon().await else { return Ok(Response::new(response)) };
        response.containerd_connected = true;
        response.containerd_version = self.containerd.version().await.unwrap_or_default();
        response.default_snapshotter = table.default.to_string();
        response.snapshotters = table.loaded.iter().map(convert::snapshotter).collect();
        let handlers = table.handlers().into_iter();
        response.handlers = handlers.map(|(handler, name)| (handler, name.to_string())).collect();
        Ok(Response::new(response))
    }

    async fn list_images(
        &self,
        _: Request<ListImagesRequest>,
    ) -> Result<Response<ListImagesResponse>, Status> {
        let all = self.images.list_with_snapshotters().await.map_err(|error| status::of_images(&error))?;
        Ok(Response::new(ListImagesResponse {
            images: all.iter().map(|(image, snapshotters)| convert::image(image, snapshotters)).collect(),
        }))
    }

    async fn diagnose(&self, _: Request<DiagnoseRequest>) -> Result<Response<DiagnoseResponse>, Status> {
        Ok(Response::new(DiagnoseResponse { checks: self.diagnosis.checks(self).await }))
    }

    async fn set_log_level(
        &self,
        request: Request<SetLogLevelRequest>,
    ) -> Result<Response<SetLogLevelResponse>, Status> {
        let level = request.into_inner().level;
        let previous = (self.log_level.get)();
        if !(self.log_level.set)(&level) {
            return Err(status::no_level(&level));
        }
        Ok(Response::new(SetLogLevelResponse { previous }))
    }
}
