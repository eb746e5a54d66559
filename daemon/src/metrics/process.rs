//! What the kernel counts of this process, under the names that all clients of Prometheus use.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Bytes of a page, and ticks of a second, on every architecture that drayd is built for (`getconf PAGESIZE`, `CLK_TCK`).
const PAGE: u64 = 4096;
const TICKS: f64 = 100.0;

#[derive(Debug)]
pub(super) struct Process {
    started: f64,
}

impl Process {
    pub(super) fn new() -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: started.as_secs_f64() }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut gauge = |name: &str, help: &str, value: f64| {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)
        };
        gauge("process_start_time_seconds", "Start of the process since the epoch", self.started)?;
        #[expect(clippy::cast_precision_loss, reason = "the numbers of a process are small")]
        if let Some(pages) = number("/proc/self/statm", 1) {
            gauge("process_resident_memory_bytes", "Resident memory", (pages * PAGE) as f64)?;
        }
        #[expect(clippy::cast_precision_loss, reason = "the numbers of a process are small")]
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            gauge("process_open_fds", "Open file descriptors", open.count() as f64)?;
        }
        #[expect(clippy::cast_precision_loss, reason = "the numbers of a process are small")]
        if let (Some(user), Some(system)) = (number("/proc/self/stat", 13), number("/proc/self/stat", 14)) {
            let help = "User and system time";
            let metric = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
            ConstCounter::new((user + system) as f64 / TICKS).encode(metric)?;
        }
        Ok(())
    }
}

/// A number of a file of the kernel, counted from 0 (proc(5)). The name of the program is drayd's own, without blanks.
fn number(file: &str, index: usize) -> Option<u64> {
    fs::read_to_string(file).ok()?.split_ascii_whitespace().nth(index)?.parse().ok()
}
