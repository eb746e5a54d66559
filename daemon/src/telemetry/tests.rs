use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing::{debug, error, info, info_span, warn};

use super::*;

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What `events` leaves in the log of `output`.
fn logged(level: Level, output: fn(Buffer) -> Output<Registry>, events: impl FnOnce()) -> String {
    let buffer = Buffer::default();
    let subscriber = Registry::default().with(output(buffer.clone())).with(levels(level));
    tracing::subscriber::with_default(subscriber, events);
    let bytes = buffer.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

fn plain(buffer: Buffer) -> Output<Registry> {
    text(move || buffer.clone(), false)
}

fn coloured(buffer: Buffer) -> Output<Registry> {
    text(move || buffer.clone(), true)
}

fn json_lines(buffer: Buffer) -> Output<Registry> {
    json(move || buffer.clone())
}

/// A text line without its time.
fn without_time(line: &str) -> &str {
    line.split_once(' ').unwrap().1
}

#[test]
fn quotes_in_a_message_stay_plain_in_text() {
    let reference = "docker.io/library/busybox:1";
    let log = logged(Level::Info, plain, || info!("PullImage \"{reference}\" with snapshotter nydus"));
    assert_eq!(
        without_time(&log),
        " INFO PullImage \"docker.io/library/busybox:1\" with snapshotter nydus\n"
    );
}

#[test]
fn fields_and_spans_follow_the_message() {
    let log = logged(Level::Info, plain, || {
        let _pull = info_span!("pull", reference = "a", snapshotter = "nydus").entered();
        let _fetch = info_span!("fetch").entered();
        warn!(attempt = 2, "retry");
    });
    assert_eq!(
        without_time(&log),
        " WARN retry attempt=2 pull{reference=\"a\" snapshotter=\"nydus\"} fetch\n"
    );
}

#[test]
fn nothing_in_an_event_forges_a_line_or_reaches_the_terminal() {
    let evil = "x\n2030-01-01 ERROR forged\r\x1b[2J\u{85}\u{2028}\u{9b}";
    for output in [plain, coloured] {
        let log = logged(Level::Info, output, || {
            let _span = info_span!("pull", display = %evil, text = evil).entered();
            info!(display = %evil, debug = ?evil, text = evil, "message {evil}");
            info!(message = evil);
        });
        assert_eq!(log.lines().count(), 2, "{log}");
        let left: Vec<char> = log.chars().filter(|c| c.is_control() || *c == '\u{2028}').collect();
        let colours = if log.contains("\x1b[32m") { vec!['\x1b', '\x1b', '\n'] } else { vec!['\n'] };
        assert_eq!(left, colours.repeat(2), "{log:?}");
    }
}

#[test]
fn json_is_one_object_per_line() {
    let log = logged(Level::Info, json_lines, || {
        info!(snapshotter = "nydus", "PullImage \"a\"\nb");
        info!("second");
    });
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["level"], "INFO");
    assert_eq!(lines[0]["fields"]["message"], "PullImage \"a\"\nb");
    assert_eq!(lines[0]["fields"]["snapshotter"], "nydus");
}

#[test]
fn the_level_is_the_least_that_is_logged_and_internals_stay_at_warn() {
    let events = || {
        error!("own error");
        debug!("own debug");
        debug!(target: "h2::codec", "h2 debug");
        warn!(target: "hyper_util", "hyper warn");
    };
    for (level, expected) in [
        (Level::Error, vec!["own error"]),
        (Level::Warn, vec!["own error", "hyper warn"]),
        (Level::Debug, vec!["own error", "own debug", "hyper warn"]),
        (Level::Trace, vec!["own error", "own debug", "h2 debug", "hyper warn"]),
    ] {
        let log = logged(level, plain, events);
        let messages: Vec<_> =
            log.lines().map(|line| without_time(line).trim_start().split_once(' ').unwrap().1).collect();
        assert_eq!(messages, expected, "{level:?}");
    }
}

#[test]
fn the_journal_is_known_by_device_and_inode() {
    assert!(is_stream("9:1234", 9, 1234));
    for other in ["", "9", "9:1235", "8:1234", "9:1234 ", "a:b"] {
        assert!(!is_stream(other, 9, 1234), "{other}");
    }
}
