//! How a text from outside may appear in an error: cut to a bounded length and free of control characters, so that
//! no caller and no registry can flood or forge a log line.

/// Longest excerpt in characters. A digest of any supported algorithm (135) fits, and so does nearly every reference.
const LIMIT: usize = 160;

/// The start of `text`, with control characters and other invisible ones escaped and a mark where it was cut.
pub fn excerpt(text: &str) -> String {
    let mut shown = String::new();
    for (count, char) in text.chars().enumerate() {
        if count == LIMIT {
            shown.push('…');
            break;
        }
        match char {
            '"' | '\'' => shown.push(char),
            _ => shown.extend(char.escape_debug()),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_shown_as_it_is() {
        assert_eq!(excerpt("host:5000/a@sha256:\"é\""), "host:5000/a@sha256:\"é\"");
    }

    #[test]
    fn control_and_direction_characters_are_escaped() {
        assert_eq!(excerpt("a\n\u{1b}[31m\u{202e}b\0"), "a\\n\\u{1b}[31m\\u{202e}b\\0");
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        let shown = excerpt(&"日".repeat(100_000));
        assert_eq!(shown, format!("{}…", "日".repeat(LIMIT)));
    }
}
