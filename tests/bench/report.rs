//! Samples of fetching as a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use drayd_tests::peers::Release;

use crate::document;
use crate::spread::Spread;

/// The circumstances of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Case {
    pub(crate) secure: bool,
    pub(crate) delayed: bool,
    pub(crate) layers: usize,
}

/// Who fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Puller {
    Drayd,
    /// `ctr`, containerd's own client.
    Client,
    /// containerd's CRI, in the process of the content store.
    Service,
}

/// What one pull took, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// From the first blob request to the end of the last blob, by the registry.
    pub(crate) fetch: f64,
    /// The whole pull, unpacking included.
    pub(crate) wall: f64,
    /// Processor time of drayd, `ctr` and containerd.
    pub(crate) processor: f64,
}

/// The section of the documentation.
pub(crate) fn text(
    samples: &[(Case, Release, Puller, Sample)],
    size: usize,
    delay: Duration,
) -> Result<String> {
    let mut by: BTreeMap<(Release, Case), BTreeMap<Puller, Vec<Sample>>> = BTreeMap::new();
    for (case, release, puller, sample) in samples {
        by.entry((*release, *case)).or_default().entry(*puller).or_default().push(*sample);
    }
    #[expect(clippy::cast_precision_loss, reason = "a size far below 2^52")]
    let bytes = size as f64;
    let rounds = by.values().flat_map(BTreeMap::values).map(Vec::len).max().unwrap_or_default();
    let mut text = format!(
        "An image of {} MiB of noise in uncompressed layers from a registry on the same machine, pulled in turns by\n\
         drayd, by containerd's own client (`ctr`, which like drayd writes to the content store through the API) and by\n\
         containerd's CRI (which is in the process of the store), {rounds} times each; medians, and for drayd least and\n\
         most. Four layers come at once, and containerd unpacks for all three. *Fetch* is from the first blob request to\n\
         the end of the last blob; *pull* is all of it, unpacking included; *CPU* is that of drayd or `ctr` with\n\
         containerd's over the whole pull, in seconds per GB. Ratios are drayd's number over the other's. *Delay* is {} ms\n\
         in each direction with at most 3 MiB under way per connection. {}\n",
        size >> 20,
        delay.as_millis(),
        document::machine()?,
    );
    let mut last = None;
    for ((release, case), pullers) in &by {
        if last.replace(release) != Some(release) {
            let _ = write!(
                text,
                "\n### In front of containerd {release}\n\n\
                 | wire | layers | delay | fetch MB/s: drayd | ctr | ratio | CRI | ratio | pull s: drayd | ctr | CRI \
                 | CPU: drayd | ctr | ratio | CRI | ratio |\n{}|\n",
                "|---".repeat(16)
            );
        }
        let of = |puller| pullers.get(&puller).map(Vec::as_slice).unwrap_or_default();
        let spreads = |number: &dyn Fn(&Sample) -> f64| {
            [Puller::Drayd, Puller::Client, Puller::Service]
                .map(|puller| Spread::of(of(puller).iter().map(number)))
        };
        let compared = |spreads: &[Spread; 3], digits| {
            let [drayd, client, service] = spreads;
            let beside =
                |other: &Spread| format!("{:.digits$} | {:.2}", other.median, drayd.median / other.median);
            format!("{} | {} | {}", drayd.shown(digits), beside(client), beside(service))
        };
        let wall = spreads(&|sample| sample.wall).map(|spread| format!("{:.1}", spread.median)).join(" | ");
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {wall} | {} |",
            if case.secure { "TLS" } else { "plain" },
            case.layers,
            if case.delayed { "yes" } else { "no" },
            compared(&spreads(&|sample| bytes / sample.fetch / 1e6), 0),
            compared(&spreads(&|sample| sample.processor / bytes * 1e9), 2),
        );
    }
    Ok(text)
}
