//! Pulls as tables, and beside them what they are to come to.

use std::fmt::Write as _;

use anyhow::Result;

use crate::content::Content;
use crate::contestant;
use crate::document;
use crate::sample::{Sample, real};
use crate::spread::Spread;
use crate::wire::RATE;
use crate::{Findings, LINKED_IMAGE};

type Number = fn(&Sample) -> f64;

/// One contestant's number over another's, of several the least, and the most that it is to be.
struct Target {
    what: &'static str,
    number: Number,
    ours: &'static str,
    theirs: &'static [&'static str],
    images: &'static [(&'static str, f64)],
}

const TARGETS: [Target; 4] = [
    Target {
        what: "wall",
        number: |sample| sample.wall,
        ours: "1.7-kept",
        theirs: &["1.7"],
        images: &[("typical", 0.30), ("fat", 0.35), ("many", 0.45)],
    },
    Target {
        what: "wall",
        number: |sample| sample.wall,
        ours: "2.1-kept",
        // Which of the two is ahead depends on the image: several connections help little on loopback.
        theirs: &["2.1-igzip", "2.1-best"],
        images: &[("typical", 0.65), ("fat", 0.55), ("many", 0.60)],
    },
    Target {
        what: "CPU",
        number: |sample| sample.processor,
        ours: "2.1-kept",
        theirs: &["2.1-igzip"],
        images: &[("typical", 1.0), ("fat", 1.0), ("many", 1.0)],
    },
    Target {
        what: "CPU",
        number: |sample| sample.processor,
        ours: "2.1-discarded",
        theirs: &["2.1-igzip"],
        images: &[("typical", 0.75), ("fat", 0.75), ("many", 0.75)],
    },
];
/// Of the time over the link, to the time that its rate alone takes.
const LINK_TARGET: f64 = 1.1;

/// The section of the documentation.
pub(crate) fn text(findings: &Findings) -> Result<String> {
    let mut text = introduction(findings)?;
    for content in &findings.contents {
        if findings.pulls.iter().any(|pull| pull.image == content.name && !pull.linked) {
            let _ = write!(text, "\n### {}\n\n{}", title(content), table(findings, &content.name));
        }
    }
    let targets = targets(findings);
    if !targets.is_empty() {
        let _ = write!(
            text,
            "\n### Targets\n\nMedian over median.\n\n| what | of | over that of | image | target | measured |\n{}|\n{targets}",
            "|---".repeat(6)
        );
    }
    if let Some(content) = findings.contents.iter().find(|content| content.name == LINKED_IMAGE)
        && !findings.downloads.is_empty()
    {
        text += &link(findings, content);
    }
    Ok(text)
}

fn introduction(findings: &Findings) -> Result<String> {
    let rounds = match findings.rounds {
        1 => "once".to_owned(),
        rounds => format!("{rounds} times"),
    };
    let cold = if findings.cold {
        "and the page cache dropped, the registry's part of it too"
    } else {
        "but the page cache could not be dropped here"
    };
    Ok(format!(
        "Images made of the machine's own files, pulled through CRI from one docker-registry in turns: {rounds} each, in another\n\
         order in each round; medians, and for the time of the call (*wall*) least and most. Every contestant has a\n\
         containerd of its own, with a store of its own on the same disk, and no program on its PATH but what is named.\n\
         Before each pull the node was emptied, everything written back, {cold}.\n\
         *CPU* is user and system time of drayd and containerd with their children, and *children* is the part of those:\n\
         unpigz and igzip, and 0 where containerd inflates by itself. *Peak* is the most resident memory during the pull,\n\
         with what earlier pulls have left in the process and without children; *written* is what drayd and containerd gave\n\
         to the disk. The registry's CPU is in none of these. {}\n",
        document::machine()?
    ))
}

fn title(content: &Content) -> String {
    let size = |bytes: u64| {
        let megabytes = real(bytes) / 1e6;
        if megabytes < 10.0 { format!("{megabytes:.1} MB") } else { format!("{megabytes:.0} MB") }
    };
    let layers = match content.layers.len() {
        1 => "1 layer".to_owned(),
        number => format!("{number} layers"),
    };
    let packing = if content.name.ends_with("-zstd") { "zstd" } else { "gzip" };
    let unpacked = match content.entries {
        0 => String::new(),
        entries => format!(", {} of {entries} entries unpacked", size(content.unpacked)),
    };
    format!("{}: {layers}, {} by {packing}{unpacked}", content.name, size(content.compressed()))
}

fn table(findings: &Findings, image: &str) -> String {
    let mut text = format!(
        "| | wall s | CPU s | children | peak MB: drayd | containerd | written MB | registry CPU s |\n{}|\n",
        "|---".repeat(8)
    );
    for contestant in &findings.contestants {
        let samples = samples(findings, image, contestant.short);
        if samples.is_empty() {
            continue;
        }
        let median = |number: Number| Spread::of(samples.iter().copied().map(number)).median;
        let drayd = median(|sample| sample.drayd_peak.unwrap_or(f64::NAN));
        let _ = writeln!(
            text,
            "| {} | {} | {:.2} | {:.2} | {} | {:.0} | {:.0} | {:.2} |",
            contestant.title,
            Spread::of(samples.iter().map(|sample| sample.wall)).shown(2),
            median(|sample| sample.processor),
            median(|sample| sample.children),
            if drayd.is_nan() { "–".to_owned() } else { format!("{:.0}", drayd / 1e6) },
            median(|sample| sample.containerd_peak) / 1e6,
            median(|sample| sample.written) / 1e6,
            median(|sample| sample.registry),
        );
    }
    text
}

/// Rows of those targets for which everything was measured.
fn targets(findings: &Findings) -> String {
    let mut text = String::new();
    for Target { what, number, ours, theirs, images } in &TARGETS {
        for (image, target) in *images {
            let median = |short: &str| {
                let samples = samples(findings, image, short);
                let title = samples.first().map(|_| title_of(short))?;
                Some((title, Spread::of(samples.into_iter().map(number)).median))
            };
            let least = theirs.iter().filter_map(|short| median(short)).min_by(|a, b| a.1.total_cmp(&b.1));
            let (Some((ours, number)), Some((theirs, least))) = (median(ours), least) else { continue };
            let measured = number / least;
            let _ = writeln!(text, "| {what} | {ours} | {theirs} | {image} | {target:.2} | {measured:.2} |");
        }
    }
    text
}

fn title_of(short: &str) -> &'static str {
    contestant::ALL.iter().find(|one| one.short == short).map_or("", |one| one.title)
}

fn link(findings: &Findings, content: &Content) -> String {
    let seconds = real(content.compressed()) * 8.0 / RATE;
    let mut text = format!(
        "\n### Over a link of 1 Gbit/s\n\n\
         {}, from a registry in a network namespace,\n\
         whose end of the link sends by a token bucket (tbf) of that rate. The layers' bits at that rate are {seconds:.2} s,\n\
         without any header; 1448 bytes take 66 more for those.\n\n\
         | | wall s | over the bits alone | target |\n|---|---|---|---|\n",
        title(content)
    );
    let mut row = |who: &str, spread: Spread, target: &str| {
        let _ = writeln!(text, "| {who} | {} | {:.2} | {target} |", spread.shown(2), spread.median / seconds);
    };
    row("a client that throws the layers away", Spread::of(findings.downloads.iter().copied()), "–");
    for contestant in findings.contestants.iter().filter(|one| one.is_linked()) {
        let walls = of(findings, LINKED_IMAGE, contestant.short, true);
        let walls = walls.into_iter().map(|sample| sample.wall);
        let target = if contestant.has_drayd() { format!("{LINK_TARGET:.2}") } else { "–".to_owned() };
        row(contestant.title, Spread::of(walls), &target);
    }
    text
}

fn samples<'a>(findings: &'a Findings, image: &str, short: &str) -> Vec<&'a Sample> {
    of(findings, image, short, false)
}

fn of<'a>(findings: &'a Findings, image: &str, short: &str, linked: bool) -> Vec<&'a Sample> {
    let pulls = findings.pulls.iter();
    let pulls = pulls.filter(|pull| pull.image == image && pull.contestant.short == short);
    pulls.filter(|pull| pull.linked == linked).map(|pull| &pull.sample).collect()
}
