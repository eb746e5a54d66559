//! One arena of memory for all threads. glibc gives each thread an arena of its own and keeps in each what was freed
//! there: a daemon that has pulled for a while holds a third more at its peak, and most of that for good. It reads the
//! setting only when a program starts, so the program starts itself once more, as the same process.

use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// glibc's setting (mallopt(3)).
const SETTING: &str = "MALLOC_ARENA_MAX";

/// Starts this process anew with one arena, unless the environment has a number already. Returns where that cannot be
/// done: then there are as many as glibc likes, and nothing else is different.
pub(super) fn ensure() {
    if cfg!(not(target_env = "gnu")) || env::var_os(SETTING).is_some() {
        return;
    }
    let mut arguments = env::args_os();
    // By its path: `/proc/self/exe` would be what the process is called from then on.
    let (Some(name), Ok(program)) = (arguments.next(), env::current_exe()) else { return };
    let error = Command::new(program).arg0(name).args(arguments).env(SETTING, "1").exec();
    eprintln!("drayd takes more memory than it needs: it cannot start itself anew with {SETTING}=1: {error}");
}
