//! What the containerd of this node is configured for, read when it comes up and again whenever it comes back, so that
//! drayd may start before it and outlive its restarts.

pub mod cri_config;
pub mod snapshotter;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::cause::chain;
use crate::containerd::introspection::LoadedSnapshotter;
use crate::containerd::{Containerd, Error, Kind, Snapshotter};

use cri_config::CriConfig;
use snapshotter::{Table, UnknownHandler};

/// How long a pull waits for a containerd that is starting; kubelet retries after that.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same for those who ask again by themselves every few seconds: long enough for a connection that is being made.
const SHORT_PATIENCE: Duration = Duration::from_secs(1);
/// How long a containerd that was not there yet is waited for by those that would else give up drayd: less than the two
/// minutes that kubelet waits.
const FIRST_PATIENCE: Duration = Duration::from_secs(100);
/// Between two looks at a containerd that is away.
const RETRY: Duration = Duration::from_millis(250);
/// What containerd's CRI uses where nothing is configured.
const USUAL_SNAPSHOTTER: &str = "overlayfs";
/// In front of the plugin's name in the directory of a snapshotter that does not say where its root is.
const ROOT_PREFIX: &str = "io.containerd.snapshotter.v1.";

/// Settings of `[snapshotter]`.
#[derive(Clone, Debug)]
pub struct Config {
    /// The default snapshotter; `None` is containerd's.
    pub default: Option<Snapshotter>,
    /// What to do with handlers that nobody knows.
    pub unknown: UnknownHandler,
    /// Snapshotters by runtime handler.
    pub handlers: BTreeMap<String, Snapshotter>,
}

/// The current table, for everybody who needs it.
#[derive(Clone, Debug)]
pub struct Node {
    link: watch::Receiver<Link>,
    address: PathBuf,
}

/// Whether containerd is there.
#[derive(Clone, Debug)]
enum Link {
    /// Nobody knows yet: drayd has just started.
    Unasked,
    /// Not since drayd started.
    NotYet,
    /// It is, and this is what it says.
    Up(Arc<Table>),
    /// It was.
    Lost,
}

/// Keeps the table true; see [`Watcher::run`].
#[derive(Debug)]
pub struct Watcher {
    config: Config,
    containerd: Containerd,
    link: watch::Sender<Link>,
}

/// containerd cannot be asked.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "containerd does not answer on {address}; drayd waits for it: start it, or correct containerd.address",
    address = .address.display()
)]
pub struct NodeError {
    address: PathBuf,
}

impl Node {
    /// A node that knows nothing yet, and the watcher that has to run for it to learn.
    pub fn new(config: Config, containerd: Containerd) -> (Self, Watcher) {
        let (sender, link) = watch::channel(Link::Unasked);
        let address = containerd.address().to_owned();
        (Self { link, address }, Watcher { config, containerd, link: sender })
    }

    /// The table, as soon as containerd is there; an error if it does not come in a few seconds.
    pub async fn table(&self) -> Result<Arc<Table>, NodeError> {
        self.table_within(PATIENCE).await
    }

    /// The same for those whose next call comes soon: an error comes within a second if containerd is known to be away.
    pub async fn table_soon(&self) -> Result<Arc<Table>, NodeError> {
        let unasked = matches!(*self.link.borrow(), Link::Unasked);
        self.table_within(if unasked { PATIENCE } else { SHORT_PATIENCE }).await
    }

    /// The same for those who would rather wait: as long as containerd has not been there at all, an error comes much
    /// later.
    pub async fn first_table(&self) -> Result<Arc<Table>, NodeError> {
        let new = matches!(*self.link.borrow(), Link::Unasked | Link::NotYet);
        self.table_within(if new { FIRST_PATIENCE } else { PATIENCE }).await
    }

    async fn table_within(&self, patience: Duration) -> Result<Arc<Table>, NodeError> {
        let mut link = self.link.clone();
        let up = tokio::time::timeout(patience, link.wait_for(|link| matches!(link, Link::Up(_)))).await;
        match up.ok().and_then(Result::ok).as_deref() {
            Some(Link::Up(table)) => Ok(Arc::clone(table)),
            _ => Err(NodeError { address: self.address.clone() }),
        }
    }

    /// Waits until containerd is there, or until it is not.
    pub async fn until(&self, there: bool) {
        // It fails only when nobody watches any more: drayd is at its end, and nothing changes from here on.
        let mut link = self.link.clone();
        if link.wait_for(|link| matches!(link, Link::Up(_)) == there).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Watcher {
    /// Reads the table whenever containerd comes up; runs until dropped.
    pub async fn run(self) {
        let mut waiting = false;
        loop {
            // Subscribed before it is read: a restart in between is noticed, too.
            let mut lost = std::pin::pin!(self.containerd.disconnected());
            let read = tokio::select! {
                read = self.read() => read,
                error = &mut lost => Err(error),
            };
            match read {
                Ok((version, table)) => {
                    waiting = false;
                    announce(&self.containerd, &version, &table);
                    self.link.send_replace(Link::Up(Arc::new(table)));
                    let cause = lost.await;
                    self.link.send_replace(Link::Lost);
                    tracing::warn!(cause = chain(&cause), "lost the connection to containerd");
                }
                // Said once, however long it lasts.
                Err(error) if !waiting => {
                    waiting = true;
                    self.link.send_if_modified(|link| {
                        let unasked = matches!(link, Link::Unasked);
                        if unasked {
                            *link = Link::NotYet;
                        }
                        unasked
                    });
                    let address = self.containerd.address().display().to_string();
                    tracing::info!(cause = chain(&error), "waiting for containerd on {address}");
                }
                Err(_) => {}
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn read(&self) -> Result<(String, Table), Error> {
        let version = self.containerd.version().await?;
        let loaded = self.containerd.loaded_snapshotters().await?;
        let cri = match self.containerd.cri_config().await {
            Ok(json) => CriConfig::parse(&json).unwrap_or_else(|error| {
                tracing::warn!(
                    cause = chain(&error),
                    "runtime handlers are known from drayd's own configuration only"
                );
                CriConfig::default()
            }),
            // A containerd without a CRI plugin: only drayd's own configuration counts.
            Err(error) if error.kind() == Kind::Unimplemented => CriConfig::default(),
            Err(error) => return Err(error),
        };
        let default = match self.config.default.clone().or(cri.snapshotter) {
            Some(default) => default,
            None => self.default_by_root(&loaded).await?,
        };
        let table = Table {
            default,
            default_handler: cri.default_runtime,
            configured: self.config.handlers.clone(),
            runtimes: cri.runtimes,
            loaded,
            unknown: self.config.unknown,
            sandbox_image: cri.sandbox_image,
            content_root: self.containerd.content_root().await?,
        };
        Ok((version, table))
    }

    /// containerd 2.x shows its default snapshotter only by where its images are.
    async fn default_by_root(&self, loaded: &[LoadedSnapshotter]) -> Result<Snapshotter, Error> {
        let root = match self.containerd.cri_image_root().await {
            Err(error) if error.kind() != Kind::Unimplemented => return Err(error),
            answer => answer.ok().flatten().map(PathBuf::from),
        };
        let found = root.and_then(|root| {
            let by_export = loaded.iter().find(|loaded| loaded.root.as_ref() == Some(&root));
            let directory = root.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            by_export
                .map(|loaded| loaded.name.clone())
                .or_else(|| directory.strip_prefix(ROOT_PREFIX)?.parse().ok())
        });
        Ok(found.unwrap_or_else(|| USUAL_SNAPSHOTTER.parse().expect("it is a legal name")))
    }
}

fn announce(containerd: &Containerd, version: &str, table: &Table) {
    let loaded: Vec<&str> = table.loaded.iter().map(|loaded| loaded.name.as_str()).collect();
    let handlers: Vec<String> = table
        .runtimes
        .iter()
        .filter_map(|(handler, snapshotter)| Some(format!("{handler}={}", snapshotter.as_ref()?)))
        .chain(
            table
                .configured
                .iter()
                .map(|(handler, snapshotter)| format!("{handler}={snapshotter} (configured)")),
        )
        .collect();
    let address = containerd.address().display();
    tracing::info!(
        default_snapshotter = %table.default,
        snapshotters = loaded.join(","),
        handlers = handlers.join(","),
        "connected to containerd {version} on {address}"
    );
}
