//! The place of what is measured in the documentation.

use std::fs;
use std::thread::available_parallelism;

use anyhow::{Context, Result};

/// The machine, without a word of which one it is.
pub(crate) fn machine() -> Result<String> {
    let memory = fs::read_to_string("/proc/meminfo").context("cannot read the size of memory")?;
    let kilobytes = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
    let gigabytes = kilobytes.and_then(|number| number.parse::<u64>().ok()).unwrap_or_default() >> 20;
    let kernel =
        fs::read_to_string("/proc/sys/kernel/osrelease").context("cannot read the kernel's release")?;
    let kernel: Vec<&str> = kernel.split('.').take(2).collect();
    Ok(format!(
        "Machine: {} processors, {gigabytes} GiB of memory, Linux {}; the registry runs on it, too.",
        available_parallelism()?,
        kernel.join(".")
    ))
}

/// Puts a section into the file, between the markers that have its name.
pub(crate) fn write(file: &str, name: &str, section: &str) -> Result<()> {
    let (begin, end) = (format!("<!-- measured: {name} -->"), format!("<!-- end of measured: {name} -->"));
    let present = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let parts =
        present.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    let (before, after) = parts.with_context(|| format!("{file} has no place for it: {begin} and {end}"))?;
    fs::write(file, format!("{before}{begin}\n\n{section}\n{end}{after}"))
        .with_context(|| format!("cannot write {file}"))
}
