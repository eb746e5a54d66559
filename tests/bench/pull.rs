//! What a cold pull through CRI costs: containerd as it is shipped and at its best, and drayd in front of it, each with a
//! store of its own, in turns on one machine, from one registry. Prints tables and writes them into the file that is
//! named. Asserts no time.

mod choice;
mod content;
mod contestant;
mod digesting;
mod document;
mod sample;
mod spread;
mod table;
mod trees;
mod wire;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use drayd_tests::place::Place;
use drayd_tests::registry::Registry;
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};

use choice::Choice;
use content::Content;
use contestant::{Clearing, Contestant, Node};
use sample::Sample;
use wire::Wire;

/// No new round after this: a machine that is slower gets fewer samples.
const LIMIT: Duration = Duration::from_secs(25 * 60);
/// What is pulled over the link.
const LINKED_IMAGE: &str = "typical";

#[tokio::main]
async fn main() -> ExitCode {
    let measured = async {
        tokio::select! {
            done = measured() => done,
            // The servers are in process groups of their own, and end with what is dropped here.
            told = told_to_stop() => told.and_then(|()| bail!("interrupted")),
        }
    };
    match measured.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-pull: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Waits for a signal that would end this program at once.
async fn told_to_stop() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        interrupted = ctrl_c() => interrupted.context("cannot wait for SIGINT"),
    }
}

/// A pull of one image by one contestant.
pub(crate) struct Pull {
    pub(crate) image: &'static str,
    pub(crate) linked: bool,
    pub(crate) contestant: &'static Contestant,
    pub(crate) sample: Sample,
}

/// What all pulls are from, reached in one way.
struct Source {
    registry: Registry,
    linked: bool,
}

/// Everything that was found out.
pub(crate) struct Findings {
    pub(crate) contents: Vec<Content>,
    pub(crate) contestants: Vec<&'static Contestant>,
    pub(crate) pulls: Vec<Pull>,
    pub(crate) rounds: usize,
    /// Seconds of downloads over the link that are thrown away.
    pub(crate) downloads: Vec<f64>,
    /// Whether the kernel let go what it had read.
    pub(crate) cold: bool,
}

async fn measured() -> Result<()> {
    let file = std::env::args().nth(1);
    let choice = Choice::of_environment()?;
    let clearing = Clearing(Place::make("bench-pull")?);
    let (run, storage) = (clearing.0.run(), content::storage()?);
    let near = Registry::start("near", run, &storage, None)?;
    let mut contents = Vec::new();
    for name in content::NAMES {
        if choice.images.contains(&name) || choice.link && name == LINKED_IMAGE {
            let content = Content::ready(name, &near).await;
            contents.push(content.with_context(|| format!("the image {name}"))?);
        }
    }
    let warm = Content::ready("busybox", &near).await?;
    // Before the sources, so that it goes after the registry that is in it.
    let wire = if choice.link { Some(Wire::make()?) } else { None };
    let mut sources = vec![Source { registry: near, linked: false }];
    if let Some(wire) = &wire {
        let far = Registry::start_in(wire::NAMESPACE, wire.address(), "far", run, &storage)?;
        sources.push(Source { registry: far, linked: true });
    }
    let nodes = start(&choice, &sources, &warm).await?;
    let mut findings = Findings {
        contents,
        contestants: choice.contestants.clone(),
        pulls: Vec::new(),
        rounds: 0,
        downloads: Vec::new(),
        cold: sample::settle(),
    };
    rounds(&choice, &sources, nodes, &mut findings).await?;
    let text = table::text(&findings)?;
    println!("{text}");
    match file {
        Some(_) if choice.narrowed => {
            eprintln!("bench-pull: not all was measured, so it is not written down");
            Ok(())
        }
        Some(file) => document::write(&file, "pull", &text),
        None => Ok(()),
    }
}

/// Starts everyone, and has each do once what only a first pull takes.
async fn start(choice: &Choice, sources: &[Source], warm: &Content) -> Result<Vec<Node>> {
    let addresses: Vec<&str> = sources.iter().map(|source| source.registry.address()).collect();
    let mut nodes = Vec::new();
    for contestant in &choice.contestants {
        let node = Node::start(contestant, &addresses).await.with_context(|| contestant.title)?;
        for address in &addresses {
            let pulled = node.cri().pull(&warm.reference(address), None, None).await;
            pulled.with_context(|| format!("the first pull of {}", contestant.title))?;
            node.empty().await?;
        }
        nodes.push(node);
    }
    Ok(nodes)
}

async fn rounds(
    choice: &Choice,
    sources: &[Source],
    mut nodes: Vec<Node>,
    findings: &mut Findings,
) -> Result<()> {
    let begun = Instant::now();
    for round in 0..choice.rounds {
        if begun.elapsed() > LIMIT {
            eprintln!("bench-pull: {LIMIT:?} are over after {round} rounds");
            break;
        }
        for source in sources {
            for content in findings.contents.iter().filter(|content| source.has(content, choice)) {
                if source.linked {
                    findings.downloads.push(source.download(content)?);
                }
                for node in nodes.iter().filter(|node| !source.linked || node.contestant.is_linked()) {
                    findings.pulls.push(source.pull(content, node).await?);
                }
            }
        }
        findings.rounds += 1;
        // Whoever is first finds the machine as the last one left it: the order moves on in every round.
        let step = nodes.len().div_ceil(choice.rounds) % nodes.len();
        nodes.rotate_left(step);
    }
    ensure!(!findings.pulls.is_empty(), "nothing was pulled");
    Ok(())
}

impl Source {
    fn has(&self, content: &Content, choice: &Choice) -> bool {
        if self.linked {
            content.name == LINKED_IMAGE
        } else {
            choice.images.contains(&content.name.as_str())
        }
    }

    fn download(&self, content: &Content) -> Result<f64> {
        let paths: Vec<String> = content.layers.iter().map(|layer| content.path(layer)).collect();
        sample::settle();
        wire::download(self.registry.address(), &paths)
    }

    async fn pull(&self, content: &Content, node: &Node) -> Result<Pull> {
        let what = format!(
            "{}{} by {}",
            content.name,
            if self.linked { " over the link" } else { "" },
            node.contestant.title
        );
        let sample = sample::pull(node, content, self.registry.address(), self.registry.pid()).await;
        let sample = sample.with_context(|| what.clone())?;
        eprintln!("bench-pull: {what}: {:.1} s", sample.wall);
        let image = content::NAMES.into_iter().find(|name| *name == content.name);
        let image = image.context("an image without a name")?;
        Ok(Pull { image, linked: self.linked, contestant: node.contestant, sample })
    }
}
