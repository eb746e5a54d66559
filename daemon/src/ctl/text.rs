//! Answers as text for people.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use drayd_proto::dray::{
    Check, Ended, ExplainResponse, HistoryResponse, Image, LayerProgress, LayerState, PullProgress, Stage,
    StatusResponse, Verdict, Word as _,
};
use indicatif::{HumanBytes, HumanDuration};

use super::display;

/// Digits of a digest that are shown.
const DIGITS: usize = 12;

/// Columns as wide as their widest cell.
fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut all = vec![head.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>()];
    all.extend(rows);
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for row in &all {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// `sha256:` and all but the first digits are left out.
pub(super) fn short(digest: &str) -> String {
    let digits = digest.split_once(':').map_or(digest, |(_, digits)| digits);
    digits.chars().take(DIGITS).collect()
}

/// The pulls under way.
pub(super) fn pulls(pulls: &[PullProgress]) -> String {
    let row = |pull: &PullProgress| {
        vec![
            pull.id.to_string(),
            pull.reference.clone(),
            pull.snapshotter.clone(),
            pull.priority().word(),
            stage_words(pull),
            if display::has_size(pull) { display::done(pull) } else { "?".into() },
            since(pull.started_at),
            waiting(pull),
        ]
    };
    let head = ["ID", "IMAGE", "SNAPSHOTTER", "PRIORITY", "STAGE", "DONE", "SINCE", "FOR"];
    table(&head, pulls.iter().map(row).collect())
}

fn waiting(pull: &PullProgress) -> String {
    let pod = |waiting: &drayd_proto::dray::Waiting| match waiting.pod_name.as_str() {
        "" => "a call without a pod".to_owned(),
        name => format!("{}/{name}", waiting.pod_namespace),
    };
    pull.waiting.iter().map(pod).collect::<Vec<_>>().join(", ")
}

/// The first line of a pull.
pub(super) fn begin(pull: &PullProgress) -> String {
    if pull.id == 0 {
        return String::new();
    }
    format!(
        "{}: pull {} with snapshotter {} ({})\n",
        pull.reference, pull.id, pull.snapshotter, pull.snapshotter_reason
    )
}

/// Where a pull is.
pub(super) fn stage(pull: &PullProgress) -> String {
    if pull.id == 0 {
        return String::new();
    }
    let size = if display::has_size(pull) { format!(", {}", display::done(pull)) } else { String::new() };
    format!("{}: {}{size}\n", pull.reference, stage_words(pull))
}

/// The stage alone.
pub(super) fn stage_words(pull: &PullProgress) -> String {
    match (&pull.ended, pull.stage()) {
        (Some(ended), _) => ended.result.clone(),
        (None, Stage::Queued) if pull.queue_place > 0 => format!("queued, place {}", pull.queue_place),
        (None, stage) => stage.word(),
    }
}

/// A layer's change.
pub(super) fn layer(layer: &LayerProgress) -> String {
    let mut text = format!("  {} {}", short(&layer.digest), layer.state().word());
    if layer.state() == LayerState::Fetching {
        let _ = write!(text, " {} from {}", HumanBytes(layer.size), layer.host);
    }
    let engine = layer.engine().word();
    if !engine.is_empty() {
        let _ = write!(text, " ({engine}");
        if !layer.engine_reason.is_empty() {
            let _ = write!(text, ": {}", layer.engine_reason);
        }
        text.push(')');
    }
    text.push('\n');
    text
}

/// The last line of a pull.
pub(super) fn end(pull: &PullProgress, ended: &Ended) -> String {
    if !ended.success {
        return format!("{}: {}: {}\n", pull.reference, ended.result, ended.message);
    }
    format!(
        "{}: {}, {} fetched, {} present, {} left to the snapshotter\n{}\n",
        pull.reference,
        ended.result,
        HumanBytes(ended.bytes_fetched),
        HumanBytes(ended.bytes_present),
        HumanBytes(ended.bytes_left),
        ended.image_id
    )
}

/// What a pull would do.
pub(super) fn explanation(it: &ExplainResponse) -> String {
    let mut text = String::new();
    let handler = if it.runtime_handler.is_empty() { "none" } else { &it.runtime_handler };
    let remote = if it.snapshotter_is_remote { ", may take layers over" } else { "" };
    let _ = writeln!(text, "reference    {}", it.reference);
    let _ = writeln!(text, "handler      {handler}");
    let _ = writeln!(text, "snapshotter  {}{remote}", it.snapshotter);
    let _ = writeln!(text, "             {}", it.snapshotter_reason);
    let _ = writeln!(text, "priority     {} ({})", it.priority().word(), it.priority_reason);
    let _ = writeln!(text, "target       {}", it.target);
    let _ = writeln!(text, "manifest     {}", it.manifest);
    let _ = writeln!(text, "image id     {}", it.image_id);
    let _ = writeln!(text, "hosts");
    for (number, host) in it.hosts.iter().enumerate() {
        let what = if host.mirror { "mirror" } else { "registry" };
        let _ = writeln!(
            text,
            "  {}. {} ({what}; {}; credentials: {})",
            number + 1,
            host.url,
            host.capabilities.join(", "),
            host.credentials
        );
    }
    let _ = writeln!(text, "layers       {} to fetch", HumanBytes(it.bytes_to_fetch));
    for layer in &it.layers {
        let state = match (layer.unpacked, layer.stored) {
            (true, _) => "unpacked",
            (false, true) => "here, to be unpacked",
            (false, false) => "to be fetched",
        };
        let _ =
            writeln!(text, "  {} {:>10} {state}", short(&layer.digest), HumanBytes(layer.size).to_string());
    }
    if !it.room.is_empty() {
        let _ = writeln!(text, "disks");
    }
    for room in &it.room {
        let verdict = if room.enough { "enough" } else { "too little" };
        let _ = writeln!(
            text,
            "  {} ({}): about {} needed, {} free: {verdict}",
            room.path,
            room.used_by,
            HumanBytes(room.bytes_needed),
            HumanBytes(room.bytes_free)
        );
        if room.inodes_free > 0 {
            let _ =
                writeln!(text, "    about {} inodes needed, {} free", room.inodes_needed, room.inodes_free);
        }
    }
    text
}

/// What became of the calls.
pub(super) fn history(history: &HistoryResponse) -> String {
    let row = |entry: &drayd_proto::dray::HistoryEntry| {
        let results: Vec<_> =
            entry.results.iter().map(|(result, count)| format!("{result} {count}")).collect();
        vec![
            entry.reference.clone(),
            entry.snapshotter.clone(),
            entry.calls.to_string(),
            entry.transfers.to_string(),
            HumanBytes(entry.bytes).to_string(),
            results.join(", "),
            since(entry.last_at),
        ]
    };
    let head = ["IMAGE", "SNAPSHOTTER", "CALLS", "TRANSFERS", "BYTES", "RESULTS", "LAST"];
    let mut text = table(&head, history.entries.iter().map(row).collect());
    for entry in history.entries.iter().filter(|entry| !entry.last_failure.is_empty()) {
        let _ = writeln!(text, "{}: the last failure: {}", entry.reference, entry.last_failure);
    }
    let _ = write!(text, "since drayd was started, {}", since(history.since));
    if history.forgotten > 0 {
        let _ = write!(text, "; {} images were forgotten for want of room", history.forgotten);
    }
    text.push('\n');
    text
}

/// How many calls and transfers there were.
pub(super) fn count(history: &HistoryResponse) -> String {
    let calls: u64 = history.entries.iter().map(|entry| entry.calls).sum();
    let transfers: u64 = history.entries.iter().map(|entry| entry.transfers).sum();
    format!("calls={calls} transfers={transfers}\n")
}

/// The images of the node.
pub(super) fn images(images: &[Image]) -> String {
    let row = |image: &Image| {
        let names = if image.tags.is_empty() { &image.digests } else { &image.tags };
        vec![
            names.join(", "),
            short(&image.id),
            HumanBytes(image.size).to_string(),
            image.snapshotters.join(", "),
            if image.pinned { "pinned".into() } else { String::new() },
        ]
    };
    table(&["IMAGE", "ID", "SIZE", "UNPACKED IN", ""], images.iter().map(row).collect())
}

/// What was looked over.
pub(super) fn checks(checks: &[Check], colour: bool) -> String {
    let mut text = String::new();
    for check in checks {
        let (word, code) = match check.verdict() {
            Verdict::Ok => ("ok", 32),
            Verdict::Warning => ("warning", 33),
            _ => ("FAILURE", 31),
        };
        let word = format!("{word:7}");
        let word = if colour { format!("\x1b[{code}m{word}\x1b[0m") } else { word };
        let _ = writeln!(text, "{word}  {}: {}", check.subject, check.found);
        if !check.advice.is_empty() {
            let _ = writeln!(text, "         → {}", check.advice);
        }
    }
    text
}

/// What drayd is.
pub(super) fn status(status: &StatusResponse) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "drayd        {}, started {}", status.version, since(status.started_at));
    let _ = if status.containerd_connected {
        writeln!(text, "containerd   {} on {}", status.containerd_version, status.containerd_address)
    } else {
        writeln!(text, "containerd   does not answer on {}", status.containerd_address)
    };
    for snapshotter in &status.snapshotters {
        let default = if snapshotter.name == status.default_snapshotter { ", the default" } else { "" };
        let remote = if snapshotter.remote { ", may take layers over" } else { "" };
        let _ = writeln!(text, "snapshotter  {}{default}{remote}", snapshotter.name);
    }
    for (handler, snapshotter) in &status.handlers {
        let _ = writeln!(text, "handler      {handler} → {snapshotter}");
    }
    let limit = match status.max_concurrent_pulls {
        0 => "without limit".to_owned(),
        limit => format!("{limit} at once"),
    };
    let _ = writeln!(
        text,
        "pulls        {} running, {} waiting ({limit})",
        status.pulls_running, status.pulls_queued
    );
    let _ = writeln!(text, "log level    {}", status.log_level);
    text
}

/// How long ago a time was, from nanoseconds since the epoch.
fn since(nanoseconds: i64) -> String {
    let then = UNIX_EPOCH + Duration::from_nanos(nanoseconds.try_into().unwrap_or_default());
    let ago = SystemTime::now().duration_since(then).unwrap_or_default();
    format!("{} ago", HumanDuration(Duration::from_secs(ago.as_secs())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = vec![
            vec!["1".into(), "ä long cell".into(), "x".into()],
            vec!["22".into(), String::new(), "y".into()],
        ];
        let expected = "ID  NAME         Z\n1   ä long cell  x\n22               y\n";
        assert_eq!(table(&["ID", "NAME", "Z"], rows), expected);
    }

    #[test]
    fn a_line_tells_of_a_layer_what_is_known() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let mut of =
            LayerProgress { digest, size: 2048, state: LayerState::Waiting.into(), ..Default::default() };
        assert_eq!(layer(&of), "  abababababab waiting\n");
        of.state = LayerState::Fetching.into();
        of.host = "a.test".into();
        assert_eq!(layer(&of), "  abababababab fetching 2.00 KiB from a.test\n");
        of.state = LayerState::Unpacking.into();
        of.engine = drayd_proto::dray::Engine::Differ.into();
        of.engine_reason = "its snapshot is mounted as erofs".into();
        assert_eq!(layer(&of), "  abababababab unpacking (differ: its snapshot is mounted as erofs)\n");
    }

    #[test]
    fn the_end_of_a_pull_names_the_image_or_the_reason() {
        let pull = PullProgress { reference: "a/b:1".into(), ..Default::default() };
        let failed =
            Ended { result: "not_found".into(), message: "no such tag".into(), ..Default::default() };
        assert_eq!(end(&pull, &failed), "a/b:1: not_found: no such tag\n");
        let ended = Ended {
            result: "fetched".into(),
            success: true,
            image_id: "sha256:1".into(),
            ..Default::default()
        };
        assert!(end(&pull, &ended).ends_with("\nsha256:1\n"));
    }
}
