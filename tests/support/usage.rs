//! What a process has used so far, by the kernel's count.

use std::fs;

use anyhow::{Context, Result};

/// Seconds of processor time so far.
#[derive(Clone, Copy, Debug)]
pub struct ProcessorTime {
    /// Of the process.
    pub own: f64,
    /// Of its children that have ended.
    pub children: f64,
}

/// The processor time of a process.
pub fn processor_time(pid: u32) -> Result<ProcessorTime> {
    /// Clock ticks per second: fixed in Linux's interface.
    const TICKS: f64 = 100.0;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("a process without a name")?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut next = || fields.next().and_then(|field| field.parse::<f64>().ok()).context("no processor time");
    let mut both = || Ok::<_, anyhow::Error>((next()? + next()?) / TICKS);
    Ok(ProcessorTime { own: both()?, children: both()? })
}

/// A line of `/proc/<pid>/status` in KiB, such as `VmRSS:`.
pub fn memory(pid: u32, line: &str) -> Result<u64> {
    number(&format!("/proc/{pid}/status"), line)
}

/// Lets the peak of a process's resident memory, its `VmHWM:`, begin anew.
pub fn reset_peak(pid: u32) -> Result<()> {
    let file = format!("/proc/{pid}/clear_refs");
    fs::write(&file, "5").with_context(|| format!("cannot write {file}"))
}

/// The bytes that a process has sent to disks, or will have when its pages are written back.
pub fn written(pid: u32) -> Result<u64> {
    number(&format!("/proc/{pid}/io"), "write_bytes:")
}

fn number(file: &str, line: &str) -> Result<u64> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let value = text.lines().find_map(|found| found.strip_prefix(line));
    let value = value.with_context(|| format!("{file} has no {line}"))?;
    value.trim().trim_end_matches(" kB").parse().with_context(|| format!("{line} of {file} is not a number"))
}
