//! Builds everything once from the configuration and runs it until told to stop.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use wildmatch::WildMatch;

use crate::api::{self, Api, Diagnosis, LogLevel};
use crate::config::{self, Config};
use crate::containerd::{Containerd, Snapshotter, SnapshotterNameError};
use crate::cri::{self, Health, ImageEndpoint};
use crate::fetch::Fetcher;
use crate::images::{self, Images};
use crate::metrics::{self, Metrics};
use crate::node::snapshotter::UnknownHandler;
use crate::node::{self, Node};
use crate::priority::Level;
use crate::pull::{self, Puller};
use crate::registry::{self, Registry};
use crate::socket;
use crate::unpack::{Engine, Writing};

/// How long calls in progress may take to end after SIGTERM: below systemd's own 90 s, after which it kills.
const DRAIN: Duration = Duration::from_secs(60);
/// For the end of pulls that had to be ended to reach whoever looked on; a local client takes it in at once.
const FAREWELL: Duration = Duration::from_millis(200);
/// How long a blob's body may stand still before it is asked for elsewhere; and not longer than half of what ends the
/// pull. A live connection that brings nothing for so long is a dead one.
const STALL: Duration = Duration::from_secs(30);

/// Serves until SIGTERM or SIGINT, lets running pulls end, and removes what it made.
pub async fn run(config: Config, log_level: LogLevel) -> anyhow::Result<()> {
    let (signals, stops) = signals()?;
    anyhow::ensure!(
        config.cri.socket != config.api.socket,
        "cri.socket and api.socket are both {}: give each a path of its own",
        config.cri.socket.display()
    );
    anyhow::ensure!(
        config.cri.socket != config.containerd.address,
        "cri.socket and containerd.address are both {}: give drayd a socket of its own",
        config.cri.socket.display()
    );
    anyhow::ensure!(
        config.api.socket != config.containerd.address,
        "api.socket and containerd.address are both {}: give drayd a socket of its own",
        config.api.socket.display()
    );
    let containerd = Containerd::new(&config.containerd.address, config.containerd.namespace.as_str())?;
    let (node, watcher) = Node::new(node_config(&config.snapshotter)?, containerd.clone());
    let guest_pull: BTreeSet<_> =
        config.snapshotter.guest_pull.iter().map(snapshotter).collect::<Result<_, _>>()?;
    let metrics = Arc::new(Metrics::new(&metrics::Config {
        tag_keys: config.metrics.tag_keys.0.clone(),
        tag_values: config.metrics.tag_values,
    }));
    let puller = Arc::new(puller(&config, guest_pull.clone(), &containerd, &node, &metrics)?);
    let health = Health::new(node.clone()).await;
    let images = images::Config { verify_unpacked: config.cri.verify_unpacked, guest_pull };
    let (images, keeper) = Images::new(images, containerd.clone(), node.clone());
    let images = Arc::new(images);
    let endpoint = ImageEndpoint::new(Arc::clone(&puller), Arc::clone(&images), config.cri.kubelet_reasons);
    let diagnosis = diagnosis(&config);
    let api =
        Api::new(Arc::clone(&puller), Arc::clone(&images), node, containerd.clone(), diagnosis, log_level);

    let page = page(&config, &metrics, &puller, &images).await?;
    let (of_cri, of_api) = (&config.cri, &config.api);
    let (api_listener, _api_guard) =
        socket::bind(&of_api.socket, of_api.socket_mode, of_api.socket_group.as_ref()).await?;
    // Last: whoever waits for drayd waits for this one.
    let (listener, _guard) =
        socket::bind(&of_cri.socket, of_cri.socket_mode, of_cri.socket_group.as_ref()).await?;
    tracing::info!("drayd {} serves CRI on {}", env!("CARGO_PKG_VERSION"), of_cri.socket.display());
    tracing::info!("drayctl reaches it on {}", of_api.socket.display());
    sd_notify::notify(&[sd_notify::NotifyState::Ready]).context("cannot tell systemd of readiness")?;

    let stop = async {
        asked(&stops, 1).await;
        tracing::info!("stopping: calls in progress have up to {} s to end", DRAIN.as_secs());
        // Only tells; systemd sees the end by itself.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    };
    let patience = async || {
        tokio::select! {
            () = tokio::time::sleep(DRAIN) => {}
            () = asked(&stops, 2) => {}
        }
    };
    let served = async {
        tokio::join!(
            cri::serve(listener, endpoint, &health, containerd, stop, patience()),
            api::serve(api_listener, api, asked(&stops, 1), patience()),
        );
    };
    tokio::select! {
        () = served => {}
        () = health.run() => {}
        () = watcher.run() => {}
        () = keeper.run() => {}
        () = signals => {}
        () = page => {}
    }
    if puller.drain().await {
        // Those that looked on are still to be told.
        tokio::time::sleep(FAREWELL).await;
    }
    tracing::info!("stopped");
    Ok(())
}

/// Takes in signals as long as it runs, and counts those that ask for an end: the second one ends the wait for calls
/// in progress. SIGHUP ends nothing: by default it would, and leave the socket behind.
fn signals() -> anyhow::Result<(impl Future<Output = ()>, watch::Receiver<u32>)> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle SIGINT")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot handle SIGHUP")?;
    let (count, stops) = watch::channel(0);
    let taken = async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => count.send_modify(|count| *count += 1),
                _ = interrupt.recv() => count.send_modify(|count| *count += 1),
                _ = hangup.recv() => tracing::info!("SIGHUP: the configuration is read at start only, restart to apply it"),
            }
        }
    };
    Ok((taken, stops))
}

/// Waits until an end was asked for `times` times.
async fn asked(stops: &watch::Receiver<u32>, times: u32) {
    // It fails only when the signals are not taken in any more, and then nothing runs that could wait.
    let _ = stops.clone().wait_for(|count| *count >= times).await;
}

/// Serves the metrics for as long as it is polled, if they are wanted.
async fn page(
    config: &Config,
    metrics: &Arc<Metrics>,
    puller: &Arc<Puller>,
    images: &Arc<Images>,
) -> anyhow::Result<impl Future<Output = ()> + use<>> {
    let (metrics, puller, images) = (Arc::clone(metrics), Arc::clone(puller), Arc::clone(images));
    let listener = match config.metrics.address {
        Some(address) => {
            let bound = metrics::bind(address).await;
            let listener = bound.with_context(|| format!("cannot listen on {address} (metrics.address)"))?;
            tracing::info!("metrics are served on http://{}/metrics", listener.local_addr()?);
            Some(listener)
        }
        None => None,
    };
    let counted = Arc::clone(&metrics);
    let look = move || {
        let (counted, puller, images) = (Arc::clone(&counted), Arc::clone(&puller), Arc::clone(&images));
        async move { counted.now(puller.queue().waiting(), images.count().await) }
    };
    Ok(async move {
        match listener {
            Some(listener) => metrics::serve(listener, metrics, look).await,
            None => std::future::pending().await,
        }
    })
}

fn diagnosis(config: &Config) -> Diagnosis {
    Diagnosis {
        socket: config.cri.socket.clone(),
        config_path: config.registry.config_path.clone(),
        // Few nodes have both.
        optional: config::Registry::default().config_path,
        credentials_file: config.registry.credentials_file.clone(),
        processes: "/proc".into(),
    }
}

fn puller(
    config: &Config,
    guest_pull: BTreeSet<Snapshotter>,
    containerd: &Containerd,
    node: &Node,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<Puller> {
    let registry = Registry::new(registry::Config {
        config_path: config.registry.config_path.clone(),
        credentials_file: config.registry.credentials_file.clone(),
        trusted_mirrors: config.registry.trusted_mirrors.iter().map(ToString::to_string).collect(),
        anonymous_fallback: config.registry.anonymous_fallback,
        user_agent: format!("drayd/{}", env!("CARGO_PKG_VERSION")),
        response_timeout: config.registry.response_timeout,
        stall_timeout: config.pull.progress_timeout.map_or(STALL, |limit| STALL.min(limit / 2)),
        parallel_ranges: config.registry.parallel_ranges.get(),
        range_size: config.registry.range_size.0,
        download_rate: config.registry.download_rate.map(|size| size.0),
        environment: registry::Environment::of_process(),
        metrics: Arc::clone(metrics),
    })?;
    let fetcher = Fetcher::new(registry, config.pull.max_concurrent_downloads);
    let settings = pull::Config {
        progress_timeout: config.pull.progress_timeout,
        keep_layers: config.unpack.keep_layers,
        always_verify_credentials: config.pull.always_verify_credentials,
        lease_lifetime: config.pull.lease_lifetime.0,
        guest_pull,
        writing: Writing {
            engine: match config.unpack.engine {
                config::Engine::Differ => Engine::Differ,
                config::Engine::Auto | config::Engine::Direct => Engine::Direct,
            },
            sync: config.unpack.sync,
        },
        limits: pull::Limits {
            node: config.pull.max_concurrent_pulls,
            image: config.pull.max_pulls_per_image,
        },
        check_disk: config.pull.check_disk,
        rules: config.pull.rules.iter().map(rule).collect::<Result<_, _>>()?,
    };
    Ok(Puller::new(settings, containerd.clone(), node.clone(), fetcher, Arc::clone(metrics)))
}

fn node_config(config: &config::Snapshotter) -> anyhow::Result<node::Config> {
    let handlers = config.handlers.iter().map(|(handler, name)| Ok((handler.clone(), snapshotter(name)?)));
    Ok(node::Config {
        default: config.default.as_ref().map(snapshotter).transpose()?,
        unknown: match config.unknown_handler {
            config::UnknownHandler::Error => UnknownHandler::Error,
            config::UnknownHandler::Default => UnknownHandler::Default,
        },
        handlers: handlers.collect::<anyhow::Result<_>>()?,
    })
}

fn rule(rule: &config::Rule) -> Result<pull::Rule, SnapshotterNameError> {
    let patterns = |all: &BTreeMap<String, String>| {
        all.iter().map(|(key, pattern)| (key.clone(), WildMatch::new(pattern))).collect()
    };
    let pattern = |pattern: &Option<String>| pattern.as_deref().map(WildMatch::new);
    Ok(pull::Rule {
        annotations: patterns(&rule.annotations),
        labels: patterns(&rule.labels),
        namespace: pattern(&rule.namespace),
        runtime_handler: pattern(&rule.runtime_handler),
        image: pattern(&rule.image),
        priority: rule.priority.map(|priority| match priority {
            config::Priority::Low => Level::Low,
            config::Priority::Normal => Level::Normal,
            config::Priority::High => Level::High,
        }),
        snapshotter: rule.snapshotter.as_ref().map(snapshotter).transpose()?,
    })
}

fn snapshotter(name: &config::Identifier) -> Result<Snapshotter, SnapshotterNameError> {
    name.as_str().parse()
}
