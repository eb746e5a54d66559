//! What changed between two listings, in the form of a diff.

use std::collections::BTreeMap;

/// Lines with `-` for what only `before` has and `+` for what only `after` has; a changed entry gives both.
pub(crate) fn difference(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
    keys.sort();
    keys.dedup();
    for key in keys {
        let (old, new) = (before.get(key), after.get(key));
        if old != new {
            lines.extend(old.map(|value| format!("- {key} {value}")));
            lines.extend(new.map(|value| format!("+ {key} {value}")));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::difference;

    #[test]
    fn a_changed_entry_is_shown_before_and_after() {
        let listing = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let lines = difference(
            &listing(&[("a", "1"), ("b", "1"), ("c", "1")]),
            &listing(&[("b", "2"), ("c", "1"), ("d", "1")]),
        );
        assert_eq!(lines, ["- a 1", "- b 1", "+ b 2", "+ d 1"]);
    }
}
