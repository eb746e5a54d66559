//! The directories of one bed, and clearing them: processes by recorded pid, shims by the socket of this very bed,
//! containers, mounts, files. Clearing works without the program that made the bed, so a killed suite leaves nothing
//! for good.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::mount::{UnmountFlags, unmount};

use crate::process::Identity;

/// Sockets live here: short, because a unix socket's path ends at 107 bytes.
const RUN: &str = "/run/drayd-test";
/// Stores and snapshots live here: on a real disk, because overlay needs one.
const ROOT: &str = "/var/lib/drayd-test";
/// What a shim or a server gets to end by itself.
const GRACE: Duration = Duration::from_secs(3);

/// The two directories of a bed.
#[derive(Clone, Debug)]
pub struct Place {
    id: String,
    run: PathBuf,
    root: PathBuf,
}

impl Place {
    /// Makes fresh directories for the bed `id`, clearing whatever an earlier one of that name left.
    pub fn make(id: &str) -> Result<Self> {
        let place = Self::named(id);
        place.clear()?;
        for directory in [&place.run, &place.root] {
            fs::create_dir_all(directory)
                .with_context(|| format!("cannot create {}", directory.display()))?;
        }
        place.own(process::id())?;
        Ok(place)
    }

    /// The place of an existing bed.
    pub fn named(id: &str) -> Self {
        Self { id: id.to_owned(), run: Path::new(RUN).join(id), root: Path::new(ROOT).join(id) }
    }

    /// The beds that are there, running or left over.
    pub fn all() -> Vec<Self> {
        let mut ids: Vec<String> = [RUN, ROOT]
            .into_iter()
            .filter_map(|directory| fs::read_dir(directory).ok())
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        ids.sort();
        ids.dedup();
        ids.iter().map(|id| Self::named(id)).collect()
    }

    /// Clears the beds whose owner was killed before it could.
    pub fn clear_abandoned() -> Result<()> {
        Self::all().iter().filter(|place| !place.owned()).try_for_each(Self::clear)
    }

    /// The bed's name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Sockets, logs, pids, configuration.
    pub fn run(&self) -> &Path {
        &self.run
    }

    /// Stores and snapshots.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether the bed is in the hands of a running program, or of its own servers after `testbed up`.
    pub fn owned(&self) -> bool {
        let owner = Identity::read(&self.run.join("owner"));
        owner.is_some_and(|owner| owner.runs())
    }

    /// Says that the process `pid` owns the bed: when it is gone, the bed is abandoned.
    pub fn own(&self, pid: u32) -> Result<()> {
        let owner =
            Identity::of(pid).with_context(|| format!("process {pid} cannot own {}: gone", self.id))?;
        fs::write(self.run.join("owner"), owner.written())
            .with_context(|| format!("cannot write the owner of {}", self.run.display()))
    }

    /// Ends everything that runs in this bed and removes its directories. Finding nothing is fine.
    pub fn clear(&self) -> Result<()> {
        for identity in self.processes() {
            identity.end(GRACE);
        }
        self.delete_containers();
        for shim in self.shims() {
            shim.end(GRACE);
        }
        self.unmount_all()?;
        for directory in [&self.run, &self.root] {
            match fs::remove_dir_all(directory) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot remove {}", directory.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn processes(&self) -> Vec<Identity> {
        let records = fs::read_dir(self.run.join("pids")).into_iter().flatten();
        records.filter_map(|record| Identity::read(&record.ok()?.path())).collect()
    }

    /// Containers that are still there; deleting by runc also takes their cgroups.
    fn delete_containers(&self) {
        for namespace in fs::read_dir(self.run.join("runc")).into_iter().flatten().flatten() {
            for container in fs::read_dir(namespace.path()).into_iter().flatten().flatten() {
                let _ = Command::new("runc")
                    .arg("--root")
                    .arg(namespace.path())
                    .args(["delete", "--force"])
                    .arg(container.file_name())
                    .output();
            }
        }
    }

    /// Shims outlive containerd on purpose and are nobody's child; each carries its containerd's socket as argument.
    fn shims(&self) -> Vec<Identity> {
        let socket = self.run.join("containerd.sock");
        let of_this_bed = |pid: u32| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut arguments = arguments.split(|byte| *byte == 0);
            let program = arguments.next().unwrap_or_default();
            String::from_utf8_lossy(program).contains("containerd-shim")
                && arguments.any(|argument| argument == socket.as_os_str().as_encoded_bytes())
        };
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| of_this_bed(*pid))
            .filter_map(Identity::of)
            .collect()
    }

    fn unmount_all(&self) -> Result<()> {
        let table = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mount table")?;
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        let ours = points
            .filter(|point| [&self.run, &self.root].iter().any(|top| Path::new(point).starts_with(top)));
        // Later mounts may stand on earlier ones.
        for point in ours.collect::<Vec<_>>().into_iter().rev() {
            unmount(point, UnmountFlags::DETACH).with_context(|| format!("cannot unmount {point}"))?;
        }
        Ok(())
    }
}
