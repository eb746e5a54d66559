//! One cold pull, measured.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use drayd_tests::usage::{self, ProcessorTime, processor_time};
use tokio::time::timeout;

use crate::content::Content;
use crate::contestant::Node;

/// No pull takes as long; one that does stands still.
const LIMIT: Duration = Duration::from_secs(600);
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// What one pull took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Seconds of the call.
    pub(crate) wall: f64,
    /// Seconds of processor time of drayd and containerd, with their children.
    pub(crate) processor: f64,
    /// Of these, the part of the children.
    pub(crate) children: f64,
    /// The most resident memory of drayd, if there is one, in bytes.
    pub(crate) drayd_peak: Option<f64>,
    /// The same of containerd.
    pub(crate) containerd_peak: f64,
    /// Bytes that both gave to the disk.
    pub(crate) written: f64,
    /// Seconds of processor time of the registry.
    pub(crate) registry: f64,
}

/// Writes everything back and, if that is allowed, forgets what the kernel has read; says whether it was allowed.
pub(crate) fn settle() -> bool {
    rustix::fs::sync();
    fs::write(DROP_CACHES, "3\n").is_ok()
}

/// Pulls onto a node without the image, and takes it away again. `registry` is the pid of the one that is asked.
pub(crate) async fn pull(node: &Node, content: &Content, address: &str, registry: u32) -> Result<Sample> {
    let reference = content.reference(address);
    let processes = node.processes();
    node.empty().await?;
    settle();
    for process in &processes {
        usage::reset_peak(*process)?;
    }
    let before = (used(&processes)?, written(&processes)?, processor_time(registry)?.own);
    let started = Instant::now();
    let pulled = timeout(LIMIT, node.cri().pull(&reference, None, None)).await;
    let wall = started.elapsed().as_secs_f64();
    let after = (used(&processes)?, written(&processes)?, processor_time(registry)?.own);
    let id = pulled.with_context(|| format!("no end of it within {LIMIT:?}"))??;
    ensure!(id == content.id, "its id is {id}, not {}", content.id);
    let peak = |pid| usage::memory(pid, "VmHWM:").map(|kilobytes| real(kilobytes * 1024));
    let children = after.0.children - before.0.children;
    let sample = Sample {
        wall,
        processor: after.0.own - before.0.own + children,
        children,
        drayd_peak: node.drayd.as_ref().map(|drayd| peak(drayd.pid())).transpose()?,
        containerd_peak: peak(node.containerd.pid())?,
        written: real(after.1 - before.1),
        registry: after.2 - before.2,
    };
    node.empty().await?;
    Ok(sample)
}

/// A number of bytes for computing with.
#[expect(clippy::cast_precision_loss, reason = "sizes far below 2^52")]
pub(crate) fn real(bytes: u64) -> f64 {
    bytes as f64
}

fn used(processes: &[u32]) -> Result<ProcessorTime> {
    let mut sum = ProcessorTime { own: 0.0, children: 0.0 };
    for process in processes {
        let time = processor_time(*process)?;
        sum.own += time.own;
        sum.children += time.children;
    }
    Ok(sum)
}

fn written(processes: &[u32]) -> Result<u64> {
    processes.iter().map(|process| usage::written(*process)).sum()
}
