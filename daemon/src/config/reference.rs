//! The reference of all settings, rendered from the schema: as a file with the defaults, and as tables for
//! `docs/configuration.md`. The committed copies are held equal to it by a test; after a change of a key, run
//! `REGENERATE=1 cargo test -p drayd config::reference` to write them anew.

use std::fmt::Write as _;

use serde_json::Value;

use super::schema::{self, Key, Section};

/// The width of comment lines.
const WIDTH: usize = 100;

/// A file that sets every key to its default, with the reference text above each.
pub fn default_file() -> String {
    file("")
}

/// The same with the keys commented out: what a package installs, so that a later default reaches everyone who did
/// not choose another value.
pub fn commented_file() -> String {
    file("#")
}

/// The tables of `docs/configuration.md`, one section each.
pub fn tables() -> String {
    let mut text = String::new();
    for section in schema::sections() {
        let rows: String = section.keys.iter().map(row).collect();
        let _ = write!(
            text,
            "### `[{}]`\n\n{}\n\n| key | default | meaning |\n|---|---|---|\n{rows}\n",
            section.name, section.text
        );
    }
    text
}

fn file(mark: &str) -> String {
    let sections = schema::sections();
    sections.iter().map(|section| section_text(section, mark)).collect::<Vec<_>>().join("\n")
}

fn section_text(section: &Section, mark: &str) -> String {
    let mut text = comment(&section.text);
    let _ = writeln!(text, "[{}]", section.name);
    // A table must come last: what follows its line belongs to it.
    let (tables, plain): (Vec<_>, Vec<_>) = section.keys.iter().partition(|key| key.default.is_object());
    for key in plain {
        let _ = write!(text, "\n{}{mark}{} = {}\n", key_comment(key), key.name, toml(&key.default));
    }
    for key in tables {
        let _ = write!(text, "\n{}{mark}[{}.{}]\n", key_comment(key), section.name, key.name);
        if let Some((name, value)) = &key.entry {
            let _ = writeln!(text, "#{name} = {}", toml(value));
        }
    }
    text
}

fn key_comment(key: &Key) -> String {
    let choices = key.choices.iter().map(|(value, text)| wrapped(&format!("- \"{value}\": {text}"), "#  "));
    comment(&key.text) + &choices.collect::<String>()
}

fn comment(text: &str) -> String {
    wrapped(text, "#")
}

/// `text` as comment lines, broken between words; `margin` begins every line but the first.
fn wrapped(text: &str, margin: &str) -> String {
    let mut lines = String::new();
    let mut line = String::from("#");
    for word in text.split(' ') {
        if line.len() + 1 + word.len() > WIDTH {
            lines.push_str(&line);
            lines.push('\n');
            line = margin.into();
        }
        line.push(' ');
        line.push_str(word);
    }
    lines + &line + "\n"
}

fn row(key: &Key) -> String {
    let default = if key.default.is_object() { "none".into() } else { format!("`{}`", toml(&key.default)) };
    let mut row = format!("| `{}` | {default} | {}", key.name, key.text);
    for (value, text) in &key.choices {
        let _ = write!(row, "<br>`\"{value}\"`: {text}");
    }
    row + " |\n"
}

fn toml(value: &Value) -> String {
    let value = toml::Value::try_from(value).expect("defaults were made by serde, which TOML took them from");
    value.to_string()
}

#[cfg(test)]
mod tests;
