//! Holds the table of who may know whom in drayd's sources (`docs/architecture.md`): imports only go down, and each
//! foreign world has one house that speaks its language.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The houses, lowest first, each with those that it may import.
const HOUSES: &[(&str, &[&str])] = &[
    ("cause", &[]),
    ("trace", &[]),
    ("socket", &[]),
    ("priority", &[]),
    ("oci", &[]),
    ("metrics", &[]),
    ("registry", &["cause", "oci", "metrics", "priority"]),
    ("progress", &["oci", "registry"]),
    ("containerd", &["oci", "trace"]),
    ("fetch", &["oci", "priority", "registry", "progress", "containerd"]),
    ("node", &["cause", "oci", "containerd"]),
    ("unpack", &["cause", "trace", "oci", "metrics", "priority", "progress", "containerd", "fetch"]),
    (
        "pull",
        &[
            "cause",
            "trace",
            "oci",
            "metrics",
            "priority",
            "registry",
            "progress",
            "containerd",
            "fetch",
            "node",
            "unpack",
        ],
    ),
    ("images", &["cause", "oci", "containerd", "node"]),
    (
        "cri",
        &["cause", "trace", "oci", "registry", "containerd", "fetch", "node", "unpack", "pull", "images"],
    ),
    (
        "api",
        &[
            "cause",
            "trace",
            "oci",
            "priority",
            "registry",
            "progress",
            "containerd",
            "node",
            "pull",
            "images",
        ],
    ),
    ("ctl", &[]),
    ("fuzz", &["oci", "registry", "unpack", "cri"]),
    ("config", &["socket", "metrics", "pull"]),
    ("telemetry", &["trace", "config"]),
    (
        "daemon",
        &[
            "socket",
            "oci",
            "priority",
            "metrics",
            "registry",
            "containerd",
            "fetch",
            "node",
            "unpack",
            "pull",
            "images",
            "cri",
            "api",
            "config",
        ],
    ),
    ("cli", &["registry", "api", "config", "telemetry", "daemon"]),
];

/// Crates that only some houses may use.
const FOREIGN: &[(&str, &[&str])] = &[
    ("containerd_client", &["containerd"]),
    ("tonic", &["containerd", "cri", "api", "ctl"]),
    ("tonic_health", &["cri"]),
    ("drayd_proto", &["containerd", "cri", "api", "ctl"]),
    ("reqwest", &["registry"]),
    ("flate2", &["unpack"]),
    ("zstd", &["unpack"]),
    ("rustix", &["unpack"]),
    ("rustls", &["registry"]),
    ("hyper", &["metrics", "cri"]),
    ("prometheus_client", &["metrics"]),
    ("hyper_util", &["containerd", "metrics", "cri", "ctl"]),
    ("schemars", &["config"]),
    ("tracing_subscriber", &["telemetry", "trace"]),
    ("opentelemetry", &["trace"]),
    ("opentelemetry_otlp", &["trace"]),
    ("opentelemetry_sdk", &["trace"]),
    ("tracing_opentelemetry", &["trace"]),
    ("clap", &["cli", "ctl"]),
    ("indicatif", &["ctl"]),
    ("wildmatch", &["pull", "daemon"]),
    ("sd_notify", &["daemon"]),
    ("anyhow", &["daemon", "cli"]),
];

/// Files that may make a gRPC status, and the one that may read containerd's.
const STATUS: &[&str] = &["containerd/error.rs", "cri/status.rs", "api/status.rs", "ctl.rs"];

struct Source {
    /// Path below `daemon/src`.
    path: PathBuf,
    /// The text without comments and without the tests at its end.
    text: String,
}

impl Source {
    fn house(&self) -> String {
        let first = self.path.iter().next().unwrap_or_default().to_string_lossy();
        first.trim_end_matches(".rs").to_owned()
    }

    /// Names that follow `prefix` in the text, as `oci` in `crate::oci::Digest` or in `crate::{oci, fetch}`.
    fn names_after(&self, prefix: &str) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for (at, _) in self.text.match_indices(prefix) {
            let rest = &self.text[at + prefix.len()..];
            match rest.strip_prefix('{') {
                Some(list) => names.extend(top_level(list).iter().map(|item| word(item))),
                None => {
                    names.insert(word(rest));
                }
            }
        }
        names
    }

    fn uses(&self, name: &str) -> bool {
        self.text.match_indices(name).any(|(at, _)| {
            let before = self.text[..at].chars().next_back();
            let starts = before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':');
            starts && self.text[at + name.len()..].starts_with("::")
        })
    }
}

fn word(text: &str) -> String {
    text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The items of a brace list whose opening brace is already taken off, split at its own commas.
fn top_level(list: &str) -> Vec<String> {
    let (mut items, mut depth) = (vec![String::new()], 0);
    for c in list.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => items.push(String::new()),
            _ => {}
        }
        if c != ',' || depth > 0 {
            items.last_mut().expect("it starts with one").push(c);
        }
    }
    items
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../daemon/src");
    let mut sources = Vec::new();
    let mut open = vec![root.clone()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).expect("the sources are there") {
            let path = entry.expect("a directory entry").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("tests.rs") {
                let text = fs::read_to_string(&path).expect("a source file");
                let own = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
                let lines = own.lines().map(|line| line.split("//").next().unwrap_or_default());
                let text = lines.collect::<Vec<_>>().join("\n");
                let path = path.strip_prefix(&root).expect("it is below the root").to_owned();
                sources.push(Source { path, text });
            }
        }
    }
    // A test that reads nothing proves nothing.
    assert!(sources.len() > 50, "only {} sources found", sources.len());
    sources
}

#[test]
fn imports_only_go_down() {
    let mut wrong = Vec::new();
    for source in sources() {
        let house = source.house();
        if matches!(house.as_str(), "lib" | "main" | "bin") {
            continue;
        }
        let Some((_, allowed)) = HOUSES.iter().find(|(name, _)| *name == house) else {
            wrong.push(format!("{} is in no house: add it to the table and to docs", source.path.display()));
            continue;
        };
        for name in source.names_after("crate::") {
            if name != house && name != "self" && !allowed.contains(&name.as_str()) {
                wrong.push(format!("{}: {house} may not know {name}", source.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_table_itself_only_goes_down() {
    for (at, (house, allowed)) in HOUSES.iter().enumerate() {
        for name in *allowed {
            let below = HOUSES[..at].iter().any(|(lower, _)| lower == name);
            assert!(below, "{house} imports {name}, which is not below it");
        }
    }
}

#[test]
fn each_foreign_world_is_spoken_to_from_its_own_house() {
    let mut wrong = Vec::new();
    for source in sources() {
        // Fakes in tests stand for the other side, and speak as it does.
        if source.path.iter().any(|part| part == "tests") {
            continue;
        }
        let house = source.house();
        for (name, allowed) in FOREIGN {
            if source.uses(name) && !allowed.contains(&house.as_str()) {
                wrong.push(format!("{}: {house} may not use {name}", source.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_grpc_status_is_read_and_made_in_one_file_each() {
    let makes = [
        "Status::new(",
        "Status::invalid_argument(",
        "Status::not_found(",
        "Status::unavailable(",
        "Status::internal(",
        "Status::unknown(",
        "Status::data_loss(",
        "Status::deadline_exceeded(",
        "Status::cancelled(",
        ".code()",
        "Code::",
    ];
    let mut wrong = Vec::new();
    for source in sources() {
        let path = source.path.to_string_lossy();
        if STATUS.contains(&path.as_ref())
            || !["containerd", "cri", "api", "ctl"].contains(&source.house().as_str())
        {
            continue;
        }
        wrong.extend(
            makes.iter().filter(|make| source.text.contains(**make)).map(|make| format!("{path}: {make}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_says_what_it_owns() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../daemon/src");
    for source in sources() {
        let text = fs::read_to_string(root.join(&source.path)).expect("a source file");
        assert!(text.starts_with("//!"), "{} does not open with //!", source.path.display());
    }
}

/// A fault's number and the file it stands in.
type Fault = (u32, String);

/// What the doc comments of all tests say, in every crate.
fn faults_of_the_sources(root: &Path) -> BTreeSet<Fault> {
    let mut faults = BTreeSet::new();
    let mut open = vec![root.join("daemon/src"), root.join("tests")];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).expect("the sources are there") {
            let path = entry.expect("a directory entry").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).expect("a source file");
                let name = path.strip_prefix(root).expect("it is below the root").display().to_string();
                let numbers = text.lines().flat_map(faults_of_line);
                faults.extend(numbers.map(|number| (number, name.clone())));
            }
        }
    }
    faults
}

/// `/// Fault 63, on blobs.` and `/// Faults 70 and 88.`: the numbers before anything else is said.
fn faults_of_line(line: &str) -> Vec<u32> {
    let Some(rest) = line.trim().strip_prefix("/// Fault") else { return Vec::new() };
    let words = rest.trim_start_matches('s').split([' ', ',']).filter(|word| !matches!(*word, "" | "and"));
    words.map_while(|word| word.trim_end_matches(['.', ':']).parse().ok()).collect()
}

#[test]
fn the_table_of_faults_and_the_tests_name_the_same() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let table = fs::read_to_string(root.join("docs/faults.md")).expect("the table of faults");
    let mut listed = BTreeSet::new();
    let mut wrong = Vec::new();
    for line in table.lines() {
        let cells: Vec<&str> = line.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let ["", number, _, name, file, ""] = cells.as_slice() else { continue };
        let Ok(number) = number.parse() else { continue };
        let function = format!("fn {}(", name.rsplit("::").next().unwrap_or_default());
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        if !text.contains(&function) {
            wrong.push(format!("fault {number}: there is no {name} in {file}"));
        }
        listed.insert((number, (*file).to_owned()));
    }
    let found = faults_of_the_sources(&root);
    // A test that reads nothing proves nothing.
    assert!(found.len() > 20, "only {} faults found", found.len());
    let missing = |(number, file): &Fault| format!("fault {number} of {file} is not in docs/faults.md");
    wrong.extend(found.difference(&listed).map(missing));
    let stale = |(number, file): &Fault| format!("docs/faults.md has fault {number}, and {file} has not");
    wrong.extend(listed.difference(&found).map(stale));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
