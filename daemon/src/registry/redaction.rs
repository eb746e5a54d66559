//! What was given to a host in confidence, and how it is kept out of what the host says of it. The host chooses the
//! text and, with its redirects, most of what is hidden in it, so what is kept is bounded, and so is what comes out.

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::HeaderMap;
use percent_encoding::percent_decode_str;
use reqwest::Url;

use super::credentials::{Login, decode, pair};
use super::secret::Secret;
use super::token::encoded;

/// What stands for a secret that was taken out of a text.
pub(super) const REDACTED: &str = "[redacted]";

/// Bytes of the shortest part of a URL or value of a header that may be a secret: shorter ones are flags, and would
/// take words out of the text.
const SHORTEST: usize = 6;
/// Secrets that are looked for at most, and their bytes: ten redirects with the dozen signed values that storage puts
/// into a URL, and the largest token that fits into a header. Each costs a reading of the text.
const MOST: usize = 256;
const MOST_BYTES: usize = 256 << 10;
/// Bytes of the longest text that is read, which is the largest refusal that is.
const LONGEST_TEXT: usize = 64 << 10;

/// What is to be kept out of a text.
#[derive(Clone, Default)]
pub(super) struct Secrets {
    kept: HashSet<Secret>,
    /// Of all that is kept.
    bytes: usize,
    /// There are more than are kept.
    too_many: bool,
}

impl Secrets {
    /// Adds what a URL hides: the values of its query, since a signed one is as good as a password while it lasts, and
    /// its user.
    pub(super) fn add_url(&mut self, url: &Url) {
        let query = url.query().unwrap_or_default();
        let sent = query.split('&').filter_map(|pair| pair.split_once('=')).map(|(_, value)| value);
        for value in sent.chain([query]) {
            self.add_long(value);
        }
        for (_, value) in url.query_pairs() {
            self.add_long(value.as_bytes());
        }
        // As they stand there, and as they are sent.
        let (user, password) = (url.username(), url.password().unwrap_or_default());
        let sent = (unescaped(user), unescaped(password));
        for (user, password) in [(user.as_bytes(), password.as_bytes()), (&sent.0, &sent.1)] {
            self.add_long(user);
            self.add_long(password);
            self.add_long(pair(user, password));
        }
    }

    /// Adds the values of headers that are to be shown to nobody.
    pub(super) fn add_headers(&mut self, headers: &HeaderMap) {
        let sensitive = headers.values().filter(|value| value.is_sensitive());
        for text in sensitive.filter_map(|value| value.to_str().ok()) {
            self.add_long(text);
            let Some((scheme, proof)) = text.split_once(' ') else { continue };
            self.add_long(proof);
            if scheme.eq_ignore_ascii_case("basic")
                && let Ok(login) = decode(proof)
            {
                self.add_login(&login);
            }
        }
    }

    /// Adds a login, however short. The user's name is not a secret to the registry, but it is to readers of the log.
    pub(super) fn add_login(&mut self, login: &Login) {
        match login {
            Login::Anonymous => {}
            Login::Password { username, password } => {
                self.add(pair(username, password.expose()));
                self.add(username.as_slice());
                self.add(password.expose());
            }
            Login::IdentityToken(token) | Login::RegistryToken(token) => {
                self.add(pair(b"", token.expose()));
                self.add(token.expose());
            }
        }
    }

    /// Adds all that others hide.
    pub(super) fn add_all(&mut self, others: Self) {
        self.too_many |= others.too_many;
        for secret in others.kept {
            self.add(secret.expose());
        }
    }

    fn add_long(&mut self, secret: impl Into<Vec<u8>> + AsRef<[u8]>) {
        if secret.as_ref().len() >= SHORTEST {
            self.add(secret);
        }
    }

    fn add(&mut self, secret: impl Into<Vec<u8>>) {
        let secret = Secret::new(secret);
        let length = secret.expose().len();
        // An empty one is everywhere.
        if length == 0 || self.kept.contains(&secret) {
            return;
        }
        if self.kept.len() == MOST || self.bytes + length > MOST_BYTES {
            self.too_many = true;
            return;
        }
        self.bytes += length;
        self.kept.insert(secret);
    }

    /// `text` with the marker in place of each stretch that these secrets cover, in any spelling that they may have
    /// been quoted in. All are looked for in the text as it came, so that none is found in a marker, and two that
    /// overlap leave nothing of either. Where that would take too long, nothing of the text is shown.
    pub(super) fn hide(&self, text: &str) -> String {
        if self.too_many || text.len() > LONGEST_TEXT {
            return REDACTED.to_owned();
        }
        let mut covered = vec![false; text.len()];
        for spelling in self.spellings() {
            for (at, found) in text.match_indices(&spelling) {
                covered[at..at + found.len()].fill(true);
            }
        }
        let mut shown = String::with_capacity(text.len());
        let mut within = false;
        for (at, character) in text.char_indices() {
            match covered[at] {
                false => shown.push(character),
                true if within => {}
                true => shown.push_str(REDACTED),
            }
            within = covered[at];
        }
        shown
    }

    /// How the secrets come to stand in a header, a form, a URL or a text.
    fn spellings(&self) -> HashSet<String> {
        let secrets = self.kept.iter().map(Secret::expose);
        let spellings = secrets.flat_map(|secret| {
            let form = encoded(secret);
            let text = String::from_utf8_lossy(secret).into_owned();
            [STANDARD.encode(secret), form.replace('+', "%20"), form, text]
        });
        spellings.collect()
    }
}

/// A part of a URL without its escapes.
pub(super) fn unescaped(part: &str) -> Vec<u8> {
    percent_decode_str(part).collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::credentials::{Credentials, Given};
    use super::*;

    fn of_url(url: &str) -> Secrets {
        let mut secrets = Secrets::default();
        secrets.add_url(&url.parse().unwrap());
        secrets
    }

    fn of_login(given: Given<'_>) -> Secrets {
        let mut secrets = Secrets::default();
        secrets.add_login(Credentials::new(given).unwrap().login_for(""));
        secrets
    }

    #[test]
    fn a_peer_that_quotes_what_a_url_or_a_header_hides_is_not_quoted_with_it() {
        let url = of_url("http://bob%40b%FF:s3%2Bcr+t@h/p?sig=canary%2Fsig&x=1");
        for quoted in [
            "canary%2Fsig",
            "canary/sig",
            "sig=canary%2Fsig&x=1",
            "bob@b\u{fffd}",
            "bob%40b%FF",
            "s3+cr+t",
            "s3%2Bcr+t",
            "Ym9iQGL/OnMzK2NyK3Q=",
        ] {
            assert_eq!(url.hide(&format!("no <{quoted}> 1")), "no <[redacted]> 1", "{quoted}");
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
        let mut secrets = Secrets::default();
        secrets.add_headers(&headers);
        for quoted in ["canary-key", "Ym9iOmNhbmFyeQ==", "bob", "canary"] {
            let text = secrets.hide(&format!("<{quoted}> true anything"));
            assert_eq!(text, "<[redacted]> true anything", "{quoted}");
        }
    }

    #[test]
    fn a_peer_that_quotes_a_login_is_not_quoted_with_it() {
        let password = of_login(Given { username: "bob&co", password: "p w/1+", ..Given::default() });
        for quoted in
            ["p w/1+", "p+w%2F1%2B", "p%20w%2F1%2B", "cCB3LzEr", "Ym9iJmNvOnAgdy8xKw==", "bob&co", "bob%26co"]
        {
            assert_eq!(password.hide(&format!("no <{quoted}>")), "no <[redacted]>", "{quoted}");
        }
        let token = of_login(Given { identity_token: "t/k", ..Given::default() });
        for quoted in ["t/k", "t%2Fk", "dC9r", "OnQvaw=="] {
            assert_eq!(token.hide(&format!("no <{quoted}>")), "no <[redacted]>", "{quoted}");
        }
        let latin = of_login(Given { auth: "dTp48A==", ..Given::default() });
        for quoted in ["x%F0", "ePA=", "dTp48A==", "x\u{fffd}"] {
            assert_eq!(latin.hide(&format!("no <{quoted}>")), "no <[redacted]>", "{quoted}");
        }
        assert_eq!(of_login(Given::default()).hide("no"), "no");
        // An empty password is everywhere.
        assert_eq!(of_login(Given { username: "u", ..Given::default() }).hide("no"), "no");
    }

    #[test]
    fn secrets_that_overlap_leave_nothing_of_either() {
        let secrets = of_login(Given { username: "abcd", password: "cdef", ..Given::default() });
        assert_eq!(secrets.hide("-abcdef- cdefabcd"), "-[redacted]- [redacted]");
        // What the marker itself holds is not looked for in it.
        let secrets = of_login(Given { username: "redacted", password: "e", ..Given::default() });
        assert_eq!(secrets.hide("no redacted e"), "no [redacted] [redacted]");
    }

    #[test]
    fn a_host_cannot_make_a_text_grow_by_what_its_redirects_hide() {
        let text = "message: denied. ".repeat(LONGEST_TEXT / 17);
        let mut secrets = Secrets::default();
        for number in 0..10 {
            secrets.add_url(&format!("http://e:d@h/{number}?a={number}&e=d").parse().unwrap());
        }
        assert_eq!(secrets.hide(&text), text);
        // A caller's own may be as short as it is, and still is looked for once.
        secrets.add_login(&decode("ZTpk").unwrap());
        assert!(secrets.hide(&text).len() <= text.len() * REDACTED.len());
        assert_eq!(secrets.hide("mee d."), "m[redacted] [redacted].");
    }

    #[test]
    fn nothing_is_shown_of_a_text_that_would_take_too_long_to_clean() {
        let many = (0..=MOST).map(|number| format!("v={number:06}&")).collect::<Vec<_>>().concat();
        let long = format!("v={}", "x".repeat(MOST_BYTES));
        for query in [many, long] {
            let mut secrets = of_url(&format!("http://h/?{query}"));
            assert!(secrets.kept.len() <= MOST && secrets.bytes <= MOST_BYTES);
            assert_eq!(secrets.hide("denied"), REDACTED);
            let mut others = Secrets::default();
            others.add_all(std::mem::take(&mut secrets));
            assert_eq!(others.hide("denied"), REDACTED);
        }
        assert_eq!(Secrets::default().hide(&"x".repeat(LONGEST_TEXT + 1)), REDACTED);
    }

    proptest! {
        #[test]
        fn no_spelling_is_left_and_the_text_grows_by_the_markers_only(
            user in "[redact%+/:é]{0,8}",
            password in "[redact%+/:é ]{0,8}",
            signature in "[redact%+/]{0,12}",
            noise in vec("[redact%+/:é ]{0,4}", 1..8),
            picks in vec(any::<prop::sample::Index>(), 1..8),
        ) {
            let mut secrets = of_login(Given { username: &user, password: &password, ..Given::default() });
            let mut url: Url = "http://h/".parse().unwrap();
            url.set_username(&password).unwrap();
            url.set_password(Some(&user)).unwrap();
            url.set_query(Some(&format!("sig={signature}")));
            secrets.add_url(&url);
            let mut spellings: Vec<String> = secrets.spellings().into_iter().collect();
            spellings.sort_unstable();
            let quoted = picks.iter().filter(|_| !spellings.is_empty()).map(|pick| pick.get(&spellings).as_str());
            let text: String = noise.iter().map(String::as_str).chain(quoted).rev().collect();
            let shown = secrets.hide(&text);
            for piece in shown.split(REDACTED) {
                prop_assert!(!spellings.iter().any(|it| piece.contains(it.as_str())), "{text:?}: {shown:?}");
            }
            let shortest = spellings.iter().map(String::len).min().unwrap_or(REDACTED.len()).min(REDACTED.len());
            prop_assert!(shown.len() * shortest <= text.len() * REDACTED.len(), "{text:?}: {shown:?}");
        }
    }
}
