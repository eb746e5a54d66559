//! The journal's own protocol, against a socket in its place on a machine that has no journal.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::launch::Launch;
use drayd_tests::peers::Release;
use drayd_tests::suite::Suite;
use tokio::net::UnixDatagram;
use tokio::time::timeout;

/// Where every program looks for it; it cannot be configured.
const SOCKET: &str = "/run/systemd/journal/socket";
const SOON: Duration = Duration::from_secs(10);

pub(crate) fn add(suite: &mut Suite, release: Release) {
    let sentence = "the_journal_gets_plain_messages_under_the_name_drayd";
    // Not to be taken from a machine that has it.
    if Path::new(SOCKET).exists() {
        suite.skip(release, sentence, "this machine has a journal, whose socket cannot be stood in for");
    } else {
        suite.check(release, sentence, journal);
    }
}

async fn journal(bed: Arc<Bed>) -> Result<()> {
    let journal = Journal::bind()?;
    let mut launch = Launch::new(&bed.containerd.socket(), "journal")?;
    launch.format = "auto";
    // systemd names the file that standard error is; the log file is made beforehand to know it.
    let stderr = launch.directory().join("logs/drayd.log");
    fs::create_dir_all(launch.directory().join("logs"))?;
    let file = File::create(&stderr)?.metadata()?;
    launch.environment = vec![("JOURNAL_STREAM", format!("{}:{}", file.dev(), file.ino()))];
    let drayd = launch.start()?;
    let reference = bed.images.busybox.reference(bed.registry.address());
    drayd.cri().pull(&reference, None, None).await?;
    let message = format!("PullImage \"{reference}\" with snapshotter overlayfs");
    let entry = journal.await_message(&message).await?;
    for (field, value) in [("SYSLOG_IDENTIFIER", "drayd"), ("PRIORITY", "6")] {
        ensure!(entry.get(field).is_some_and(|found| found == value), "{field} in {entry:?}");
    }
    ensure!(entry.contains_key("DRAYD_RUNTIME_HANDLER"), "{entry:?}");
    ensure!(drayd.output().is_empty(), "the log went to standard error as well:\n{}", drayd.output());

    // A child whose standard error is another file inherits the variable, and is not to follow it.
    let mut other = Launch::new(&bed.containerd.socket(), "journal-not")?;
    (other.format, other.environment) = ("auto", launch.environment.clone());
    let other = other.start()?;
    // Its socket takes callers a moment before the line that says so is written.
    other.await_lines(" INFO drayd ", 1, SOON).await?;
    bed.empty().await
}

/// The socket, gone when dropped with the directories that were made for it.
struct Journal {
    socket: UnixDatagram,
    made: Vec<PathBuf>,
}

impl Journal {
    fn bind() -> Result<Self> {
        let directory = Path::new(SOCKET).parent().unwrap_or(Path::new("/"));
        let missing = directory.ancestors().take_while(|directory| !directory.exists());
        let made = missing.map(Path::to_path_buf).collect();
        fs::create_dir_all(directory)?;
        let socket = UnixDatagram::bind(SOCKET).with_context(|| format!("cannot bind {SOCKET}"))?;
        Ok(Self { socket, made })
    }

    /// The entry with this message.
    async fn await_message(&self, message: &str) -> Result<HashMap<String, String>> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let received = timeout(SOON, self.socket.recv(&mut buffer)).await;
            let length = received.with_context(|| format!("no entry with {message}"))??;
            let entry = fields(&buffer[..length]);
            if entry.get("MESSAGE").is_some_and(|found| found == message) {
                return Ok(entry);
            }
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let _ = fs::remove_file(SOCKET);
        for directory in &self.made {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Reads the native protocol: `NAME=value\n`, or `NAME\n`, the length in 8 bytes, the value and `\n`.
fn fields(mut entry: &[u8]) -> HashMap<String, String> {
    let mut fields = HashMap::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    while let Some(end) = entry.iter().position(|byte| *byte == b'\n') {
        let (line, rest) = (&entry[..end], &entry[end + 1..]);
        if let Some(equals) = line.iter().position(|byte| *byte == b'=') {
            fields.insert(text(&line[..equals]), text(&line[equals + 1..]));
            entry = rest;
            continue;
        }
        let Some((length, rest)) = rest.split_first_chunk::<8>() else { break };
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX).min(rest.len());
        fields.insert(text(line), text(&rest[..length]));
        entry = rest.get(length + 1..).unwrap_or_default();
    }
    fields
}
