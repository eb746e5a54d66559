//! The tags that a request wants to be counted by: pairs in an annotation of its sandbox. Pure.

use crate::oci::excerpt::excerpt;

/// Holds `key=value` pairs with commas between them (OpenKruise issue 1155).
pub(super) const ANNOTATION: &str = "io.kubernetes.image.metrics.tags";

/// Pairs that are read at most.
const MOST: usize = 16;
/// Bytes of the annotation that are read at most.
const READ: usize = 4096;

/// The pairs of the annotation, in their order, with whatever would break a line or a label cut and escaped. What is no
/// pair is passed over.
pub(super) fn read(annotation: &str) -> Vec<(String, String)> {
    let mut end = annotation.len().min(READ);
    while !annotation.is_char_boundary(end) {
        end -= 1;
    }
    let pairs = annotation[..end].split(',').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(key, value)| (excerpt(key.trim()), excerpt(value.trim())))
        .filter(|(key, _)| !key.is_empty())
        .take(MOST)
        .collect()
}

/// The pairs on a line of the log.
pub(super) fn written(tags: &[(String, String)]) -> String {
    tags.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(annotation: &str) -> String {
        written(&read(annotation))
    }

    #[test]
    fn pairs_are_read_and_nothing_else() {
        for (annotation, expected) in [
            ("app=foo,team=x", "app=foo,team=x"),
            (" app = foo , team=a=b,", "app=foo,team=a=b"),
            ("", ""),
            ("app,=x,team=", "team="),
            ("a=1,a=2", "a=1,a=2"),
        ] {
            assert_eq!(shown(annotation), expected, "{annotation:?}");
        }
    }

    #[test]
    fn hostile_tags_do_no_harm() {
        let long = format!("app={}", "x".repeat(200 << 10));
        assert!(shown(&long).len() < 1024);
        let many = (0..10_000).map(|number| format!("k{number}=v")).collect::<Vec<_>>().join(",");
        assert_eq!(read(&many).len(), MOST);
        let control = shown("app=a\nERROR forged\u{1b}[31m\u{2028}b");
        assert!(!control.contains(['\n', '\u{1b}', '\u{2028}']), "{control:?}");
        // The cut is not within a character.
        shown(&"ä".repeat(READ));
    }
}
