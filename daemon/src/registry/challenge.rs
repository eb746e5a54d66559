//! What a registry asks for: the `WWW-Authenticate` headers of a 401, read into the one challenge that is answered.

use http::HeaderMap;
use http::header::WWW_AUTHENTICATE;
use reqwest::Url;

/// A challenge that can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// A token of `realm` is wanted.
    Bearer {
        /// Where tokens are issued; its own query belongs to it and is kept.
        realm: Url,
        service: Option<String>,
        scopes: Vec<String>,
    },
    /// User and password are wanted with each request.
    Basic,
}

/// Name and unescaped value of one parameter.
type Parameter = (String, String);

/// Chooses the strongest challenge of an answer: bearer before basic. `None` when there is none that can be answered.
pub(super) fn choose(headers: &HeaderMap) -> Option<Challenge> {
    let mut basic = None;
    for value in headers.get_all(WWW_AUTHENTICATE) {
        for (scheme, parameters) in parse(&String::from_utf8_lossy(value.as_bytes())) {
            if scheme.eq_ignore_ascii_case("bearer") {
                if let Some(challenge) = bearer(&parameters) {
                    return Some(challenge);
                }
            } else if scheme.eq_ignore_ascii_case("basic") {
                basic = Some(Challenge::Basic);
            }
        }
    }
    basic
}

fn bearer(parameters: &[Parameter]) -> Option<Challenge> {
    let find = |name: &str| {
        parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    };
    let realm = Url::parse(find("realm")?).ok().filter(|realm| matches!(realm.scheme(), "http" | "https"))?;
    let scopes = find("scope").unwrap_or_default().split_ascii_whitespace().map(String::from).collect();
    Some(Challenge::Bearer { realm, service: find("service").map(String::from), scopes })
}

/// All challenges of one header. Registries in the field send headers that are outside the grammar, and Go's clients
/// take them, so those are read leniently.
fn parse(header: &str) -> Vec<(String, Vec<Parameter>)> {
    let Ok(challenges) = http_auth::parse_challenges(header) else {
        return parse_leniently(header);
    };
    let owned = |challenge: http_auth::ChallengeRef<'_>| {
        let parameters =
            challenge.params.iter().map(|(key, value)| ((*key).to_owned(), value.to_unescaped())).collect();
        (challenge.scheme.to_owned(), parameters)
    };
    challenges.into_iter().map(owned).collect()
}

/// Reads words: one followed by `=` is a parameter of the current challenge, any other opens a new one. So values may
/// be unquoted and commas may be missing.
fn parse_leniently(header: &str) -> Vec<(String, Vec<Parameter>)> {
    let mut challenges: Vec<(String, Vec<Parameter>)> = Vec::new();
    let mut rest = header;
    loop {
        rest = rest.trim_start_matches(|c: char| c == ',' || c == '=' || c.is_ascii_whitespace());
        if rest.is_empty() {
            return challenges;
        }
        let end =
            rest.find(|c: char| matches!(c, ',' | '=') || c.is_ascii_whitespace()).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let Some(value) = after.trim_start().strip_prefix('=') else {
            challenges.push((word.to_owned(), Vec::new()));
            rest = after;
            continue;
        };
        let (value, after) = lenient_value(value.trim_start());
        if let Some((_, parameters)) = challenges.last_mut() {
            parameters.push((word.to_owned(), value));
        }
        rest = after;
    }
}

/// A value and what follows it. A quote that is never closed ends with the header.
fn lenient_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(|c: char| c == ',' || c.is_ascii_whitespace()).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            _ => value.push(character),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(values: &[&str]) -> Option<Challenge> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(WWW_AUTHENTICATE, value.parse().unwrap());
        }
        choose(&headers)
    }

    fn wanted(realm: &str, service: Option<&str>, scopes: &[&str]) -> Challenge {
        Challenge::Bearer {
            realm: realm.parse().unwrap(),
            service: service.map(String::from),
            scopes: scopes.iter().map(|&scope| scope.to_owned()).collect(),
        }
    }

    /// Fault 13.
    #[test]
    fn a_comma_inside_a_quoted_scope_splits_nothing() {
        let expected = wanted("https://t.test/token", Some("s"), &["repository:a/b:pull,push"]);
        for header in [
            r#"Bearer realm="https://t.test/token",service="s",scope="repository:a/b:pull,push""#,
            r#"Bearer realm="https://t.test/token",scope="repository:a/b:pull,push",service="s""#,
            r#"Bearer realm="https://t.test/token" scope="repository:a/b:pull,push" service="s""#,
        ] {
            assert_eq!(chosen(&[header]), Some(expected.clone()), "{header}");
        }
    }

    #[test]
    fn headers_outside_the_grammar_are_read() {
        let expected = wanted("https://t.test/token?x=1", Some("s"), &[]);
        for header in [
            "Bearer realm=https://t.test/token?x=1,service=s",
            r#"bearer realm = "https://t.test/token?x=1" service="s"#,
            r#"Bearer realm="https://t.test/token?x=1",,service="s","#,
            r#"BEARER Realm="https:\//t.test/token?x=1", Service="s""#,
        ] {
            assert_eq!(chosen(&[header]), Some(expected.clone()), "{header}");
        }
    }

    #[test]
    fn bearer_wins_over_basic_in_one_header_or_several() {
        let expected = wanted("https://t.test/", None, &["a", "b"]);
        let bearer = r#"Bearer realm="https://t.test/",scope="a b""#;
        assert_eq!(chosen(&[r#"Basic realm="x""#, bearer]), Some(expected.clone()));
        assert_eq!(chosen(&[bearer, "Basic"]), Some(expected.clone()));
        assert_eq!(
            chosen(&[&format!(r#"Digest nonce="n", Basic realm="x", {bearer}"#)]),
            Some(expected.clone())
        );
    }

    #[test]
    fn what_cannot_be_answered_is_passed_over() {
        assert_eq!(chosen(&[]), None);
        assert_eq!(chosen(&[""]), None);
        assert_eq!(chosen(&["Bearer", "Negotiate abc=="]), None);
        assert_eq!(chosen(&[r#"Bearer realm="ftp://t.test""#, "Basic"]), Some(Challenge::Basic));
        assert_eq!(chosen(&[r#"Bearer service="s""#]), None);
    }
}
