use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::config::Config;

/// Around the generated part of the documentation.
const BEGIN: &str = "<!-- generated: keys -->\n";
const END: &str = "<!-- end of generated -->\n";

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Holds a committed file equal to what it is generated from, or writes it.
fn hold(path: &Path, generated: &str) {
    if std::env::var_os("REGENERATE").is_some() {
        fs::write(path, generated).unwrap();
    }
    let committed = fs::read_to_string(path).unwrap();
    assert!(
        committed == generated,
        "{} is not what the settings say: run `REGENERATE=1 cargo test -p drayd config::reference`",
        path.display()
    );
}

#[test]
fn the_packaged_file_is_the_generated_one() {
    hold(&repository("packaging/config.toml"), &commented_file());
}

#[test]
fn the_documented_tables_are_the_generated_ones() {
    let path = repository("docs/configuration.md");
    let document = fs::read_to_string(&path).unwrap();
    let (before, rest) = document.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    hold(&path, &format!("{before}{BEGIN}\n{}{END}{after}", tables()));
}

#[test]
fn the_default_and_the_commented_file_both_read_as_the_defaults() {
    for text in [default_file(), commented_file()] {
        assert_eq!(Config::parse(Path::new("test"), &text).unwrap(), Config::default(), "{text}");
    }
}

#[test]
fn uncommenting_every_key_of_the_packaged_file_gives_the_default_file() {
    let uncommented: Vec<_> = commented_file()
        .lines()
        .map(|line| if line.starts_with("# ") { line } else { line.trim_start_matches('#') }.to_owned())
        .filter(|line| line != "kata = \"nydus\"")
        .collect();
    let default: Vec<_> =
        default_file().lines().filter(|line| *line != "#kata = \"nydus\"").map(str::to_owned).collect();
    assert_eq!(uncommented, default);
}
