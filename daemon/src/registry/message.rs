//! A registry's own words about a refusal: taken from JSON only, cleaned and bounded, so that no HTML page and no
//! control character of a peer reaches a log or a pod event.

use serde_json::Value;

/// Longest quotation; a pod event holds 1 KiB.
const LIMIT: usize = 1024;

/// The message of an error body: the `errors` list of the distribution API, `OAuth2`'s `error_description`, or the
/// plain `message`/`details`/`error` that token servers send. `scrub` takes the caller's secrets out of it, before it
/// is cut: half a secret would not be found.
pub(super) fn message_of(body: &[u8], scrub: impl Fn(&str) -> String) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let text = match body.get("errors").and_then(Value::as_array) {
        Some(errors) => errors.iter().filter_map(entry).collect::<Vec<_>>().join("; "),
        None => ["error_description", "message", "details", "error"]
            .iter()
            .find_map(|key| body.get(key)?.as_str())?
            .to_owned(),
    };
    let text = cleaned(&scrub(&text));
    (!text.is_empty()).then_some(text)
}

fn entry(error: &Value) -> Option<String> {
    let field = |name| error.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    match (field("code"), field("message")) {
        (Some(code), Some(message)) => Some(format!("{code}: {message}")),
        (code, message) => code.or(message).map(String::from),
    }
}

/// One line of at most [`LIMIT`] bytes without control characters.
fn cleaned(text: &str) -> String {
    let mut line = String::new();
    for character in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if line.len() + character.len_utf8() > LIMIT - '…'.len_utf8() {
            line.push('…');
            break;
        }
        line.push(character);
    }
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_messages_are_quoted_and_all_else_is_not() {
        for (body, expected) in [
            (
                r#"{"errors":[{"code":"DENIED","message":"no\u001b[1m\nway"},{"code":"X"}]}"#,
                Some("DENIED: no [1m way; X"),
            ),
            (r#"{"errors":[{"detail":{}}]}"#, None),
            (r#"{"details":"incorrect username or password"}"#, Some("incorrect username or password")),
            (r#"{"error":"invalid_grant","error_description":"expired"}"#, Some("expired")),
            ("<html>secret</html>", None),
            ("", None),
            ("[]", None),
        ] {
            assert_eq!(message_of(body.as_bytes(), str::to_owned).as_deref(), expected, "{body}");
        }
    }

    #[test]
    fn a_message_is_bounded() {
        let body = format!(r#"{{"message":"{}"}}"#, "ä".repeat(LIMIT));
        assert!(
            message_of(body.as_bytes(), str::to_owned)
                .is_some_and(|text| text.len() <= LIMIT && text.ends_with('…'))
        );
    }

    #[test]
    fn a_secret_is_taken_out_before_the_message_is_cut() {
        let body = format!(r#"{{"message":"{}canary"}}"#, "x".repeat(LIMIT - 6));
        let text = message_of(body.as_bytes(), |text| text.replace("canary", "-")).unwrap();
        assert!(!text.contains('c') && text.ends_with('-'), "{text}");
    }
}
