//! Text to [`Config`], with every mistake of the file told at once. Each key is read on its own, which works because
//! every key has a default; the whole is read only when all of them are good.

use std::ops::Range;
use std::path::Path;

use serde::Deserialize as _;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue, Deserializer};

use super::Config;
use super::problem::{ConfigError, Fault, Hint, Problem};
use super::schema::{self, Section};

type Name<'i> = Spanned<DeString<'i>>;
type Value<'i> = Spanned<DeValue<'i>>;

pub(super) fn parse(file: &Path, text: &str) -> Result<Config, ConfigError> {
    let fail = |mut faults: Vec<(usize, Fault)>| {
        faults.sort_by_key(|(offset, _)| *offset);
        ConfigError::Invalid(
            faults.into_iter().map(|(offset, fault)| problem(file, text, offset, fault)).collect(),
        )
    };
    let syntax = |error: toml::de::Error| {
        let offset = error.span().map_or(0, |span| span.start);
        fail(vec![(offset, Fault::Syntax(error.message().into()))])
    };
    let root = DeTable::parse(text).map_err(syntax)?;
    let faults = faults(&root);
    if !faults.is_empty() {
        return Err(fail(faults));
    }
    Config::deserialize(Deserializer::from(root)).map_err(syntax)
}

/// Everything that is wrong, with the byte it is wrong at.
fn faults(root: &Spanned<DeTable<'_>>) -> Vec<(usize, Fault)> {
    let sections = schema::sections();
    let mut faults = Vec::new();
    for (name, value) in root.get_ref() {
        let known = sections.iter().find(|section| section.name == **name.get_ref());
        match (known, value.get_ref()) {
            (Some(section), DeValue::Table(keys)) => {
                let found =
                    keys.iter().filter_map(|(key, value)| key_fault(&sections, section, name, key, value));
                faults.extend(found);
            }
            (Some(section), _) => faults.push((name.span().start, Fault::NotASection(section.name.clone()))),
            (None, value) => faults.push((name.span().start, unknown_name(&sections, name.get_ref(), value))),
        }
    }
    faults
}

fn key_fault(
    sections: &[Section],
    section: &Section,
    name: &Name<'_>,
    key: &Name<'_>,
    value: &Value<'_>,
) -> Option<(usize, Fault)> {
    if !section.keys.iter().any(|known| known.name == **key.get_ref()) {
        return Some((key.span().start, unknown_key(sections, section, key.get_ref())));
    }
    let error = Config::deserialize(Deserializer::from(alone(name, key, value))).err()?;
    let fault = Fault::Value {
        key: key.get_ref().to_string(),
        section: section.name.clone(),
        reason: error.message().into(),
    };
    Some((error.span().unwrap_or_else(|| key.span()).start, fault))
}

/// A file in which only this key is written.
fn alone<'i>(name: &Name<'i>, key: &Name<'i>, value: &Value<'i>) -> Spanned<DeTable<'i>> {
    let mut section = DeTable::new();
    section.insert(key.clone(), value.clone());
    let mut root = DeTable::new();
    root.insert(name.clone(), Spanned::new(name.span(), DeValue::Table(section)));
    Spanned::new(Range::default(), root)
}

fn unknown_key(sections: &[Section], section: &Section, key: &str) -> Fault {
    let known: Vec<&str> = section.keys.iter().map(|known| known.name.as_str()).collect();
    let elsewhere = sections_with(sections, key);
    let hint = if !elsewhere.is_empty() {
        Hint::Elsewhere(elsewhere)
    } else if let Some(near) = nearest(key, &known) {
        Hint::Key(near.into())
    } else {
        Hint::Known(known.into_iter().map(|key| format!("`{key}`")).collect())
    };
    Fault::UnknownKey { key: key.into(), section: section.name.clone(), hint }
}

/// A name at the top of the file that is not a section's.
fn unknown_name(sections: &[Section], name: &str, value: &DeValue<'_>) -> Fault {
    let known: Vec<&str> = sections.iter().map(|section| section.name.as_str()).collect();
    let all = || Hint::Known(known.iter().map(|section| format!("[{section}]")).collect());
    if matches!(value, DeValue::Table(_)) {
        let hint = nearest(name, &known).map_or_else(all, |near| Hint::Section(near.into()));
        return Fault::UnknownSection { name: name.into(), hint };
    }
    let elsewhere = sections_with(sections, name);
    let hint = if elsewhere.is_empty() { all() } else { Hint::Elsewhere(elsewhere) };
    Fault::OutsideSection { key: name.into(), hint }
}

fn sections_with(sections: &[Section], key: &str) -> Vec<String> {
    sections
        .iter()
        .filter(|section| section.keys.iter().any(|known| known.name == key))
        .map(|section| section.name.clone())
        .collect()
}

/// The name that differs least, if no more than one letter in three does.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let allowed = (name.chars().count() / 3).max(1);
    known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(name, known), *known))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, known)| known)
}

fn problem(file: &Path, text: &str, offset: usize, fault: Fault) -> Problem {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    Problem {
        file: file.into(),
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        fault,
    }
}
