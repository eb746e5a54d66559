//! What was sent to a host in confidence, so that it can be kept out of what the host says of it.

use http::header::HeaderMap;
use reqwest::Url;

use super::credentials::{Login, decode, without};
use super::secret::Secret;

/// What a URL hides: the values of its query, since a signed one is as good as a password while it lasts, and its user.
pub(super) fn secrets_of(url: &Url) -> Vec<Secret> {
    let query = url.query().unwrap_or_default();
    let sent = query.split('&').filter_map(|pair| Some(pair.split_once('=')?.1.to_owned()));
    let read = url.query_pairs().map(|(_, value)| value.into_owned());
    let values = sent.chain(read).chain([query.to_owned()]).filter(|value| value.len() >= SHORTEST_SECRET);
    let mut secrets: Vec<Secret> = values.map(Secret::new).collect();
    let (user, password) = (url.username(), url.password().unwrap_or_default());
    if !user.is_empty() || !password.is_empty() {
        // As they stand there, and as they are sent.
        let (user, password) = ([user.to_owned(), decoded(user)], [password.to_owned(), decoded(password)]);
        let pairs = user.iter().zip(&password).map(|(user, password)| format!("{user}:{password}"));
        secrets.extend(pairs.chain(user.clone()).chain(password.clone()).map(Secret::new));
    }
    secrets
}

/// The values of headers that are to be shown to nobody.
pub(super) fn secrets_in(headers: &HeaderMap) -> Vec<Secret> {
    let sensitive = headers.values().filter(|value| value.is_sensitive());
    let mut secrets = Vec::new();
    for text in sensitive.filter_map(|value| value.to_str().ok()).filter(|it| it.len() >= SHORTEST_SECRET) {
        secrets.push(Secret::new(text));
        let Some((scheme, proof)) = text.split_once(' ') else { continue };
        secrets.push(Secret::new(proof));
        if scheme.eq_ignore_ascii_case("basic")
            && let Ok(Login::Password { username, password }) = decode(proof)
        {
            secrets.extend([Secret::new(username), password]);
        }
    }
    secrets
}

/// A part of a URL without its escapes.
pub(super) fn decoded(part: &str) -> String {
    // The URL library is the one at hand that reads them; in a query alone, where a plus would be a space.
    let url = Url::parse(&format!("http://decoded/?{}", part.replace('+', "%2B"))).ok();
    let first = url.as_ref().and_then(|url| url.query_pairs().next());
    first.map(|(text, _)| text.into_owned()).unwrap_or_default()
}

/// Bytes of the shortest value of a query or a header that may be a secret: shorter ones are flags, and would take words
/// out of the message.
const SHORTEST_SECRET: usize = 6;

/// `text` without these, the longest first: it may hold another.
pub(super) fn hidden(secrets: &[Secret], text: &str) -> String {
    let mut secrets: Vec<&[u8]> = secrets.iter().map(Secret::expose).collect();
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    without(secrets, text)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_peer_that_quotes_what_a_url_or_a_header_hides_is_not_quoted_with_it() {
        let url = "http://b%40b:s3%2Bcr+t@h/p?sig=canary%2Fsig&x=1".parse().unwrap();
        for quoted in ["canary%2Fsig", "canary/sig", "b@b", "s3+cr+t", "s3%2Bcr+t", "YkBiOnMzK2NyK3Q="] {
            assert_eq!(
                hidden(&secrets_of(&url), &format!("no <{quoted}> 1")),
                "no <[redacted]> 1",
                "{quoted}"
            );
        }
        let value = |text: &'static str, sensitive| {
            let mut value = HeaderValue::from_static(text);
            value.set_sensitive(sensitive);
            value
        };
        let mut headers = HeaderMap::new();
        headers.insert("x-key", value("canary-key", true));
        headers.insert("x-flag", value("true", true));
        headers.insert("accept", value("anything", false));
        headers.insert("authorization", value("Basic Ym9iOmNhbmFyeQ==", true));
        for quoted in ["canary-key", "Ym9iOmNhbmFyeQ==", "bob", "canary"] {
            let text = hidden(&secrets_in(&headers), &format!("<{quoted}> true anything"));
            assert_eq!(text, "<[redacted]> true anything", "{quoted}");
        }
    }
}
