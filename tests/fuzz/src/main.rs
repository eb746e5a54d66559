//! One program for all targets of `drayd::fuzz`; `FUZZ_TARGET` names the one to run. The rest of the command line is
//! libFuzzer's. `run.sh` builds it and runs every target.

#![no_main]

use std::env;
use std::sync::OnceLock;

use drayd::fuzz;
use libfuzzer_sys::fuzz_target;

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 9] = [
    ("reference", fuzz::reference),
    ("challenge", fuzz::challenge),
    ("hosts_toml", fuzz::hosts_toml),
    ("manifest", fuzz::manifest),
    ("credentials", fuzz::credentials),
    ("content_range", fuzz::content_range),
    ("connection", fuzz::connection),
    ("retry_after", fuzz::retry_after),
    ("archive", fuzz::archive),
];

fuzz_target!(|input: &[u8]| {
    // libFuzzer owns main and calls this for each input: the choice is made once.
    static TARGET: OnceLock<Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let wanted = env::var("FUZZ_TARGET").unwrap_or_default();
        let found = TARGETS.iter().find(|(name, _)| *name == wanted);
        found.unwrap_or_else(|| panic!("FUZZ_TARGET={wanted} is none of {:?}", TARGETS.map(|(name, _)| name))).1
    })(input);
});
