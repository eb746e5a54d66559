//! The exchange of credentials for a bearer token at the realm a challenge names, and the answer's lifetime.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use reqwest::Url;
use serde_json::Value;
use tokio::time::Instant;

use super::credentials::{Login, pair};
use super::failure::{Failure, Refusal, redacted};
use super::kept::Timed;
use super::message::message_of;
use super::secret::Secret;
use super::wire::{Answer, Request, Transport, Wire};

/// Lifetime of a token whose answer tells none, or nonsense: the token specification's own default.
const DEFAULT_LIFETIME: u64 = 60;
/// Longest lifetime believed; real ones are minutes to hours, so more is a mistake.
const LONGEST_LIFETIME: u64 = 30 * 24 * 3600;
/// Largest token answer read. Tokens travel in headers, so they are a few KiB.
const TOKEN_LIMIT: usize = 1 << 20;

/// A token and when to stop using it.
pub(super) type Token = Timed<Secret>;

/// What one token is for. Equal orders get the same token; the login is part of it, so that no caller rides on
/// another's credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Order {
    pub(super) realm: Url,
    pub(super) service: Option<String>,
    /// Sorted, without duplicates.
    pub(super) scopes: Vec<String>,
    pub(super) login: Login,
}

impl Order {
    /// Obtains the token. With a secret the `OAuth2` form is sent first; token servers that do not know it, or send it
    /// elsewhere, are asked the older way, with GET. `own_headers` are those configured for the realm's origin.
    pub(super) async fn fetch(
        self,
        wire: Arc<Wire>,
        transport: Transport,
        own_headers: HeaderMap,
    ) -> Result<Token, Failure> {
        let mut headers = own_headers.clone();
        if let Some(form) = self.form() {
            let mut form_headers = own_headers;
            form_headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
            let url = self.realm.clone();
            wire.metrics.token_requested();
            match wire.send(request(Method::POST, url, form_headers, Some(form), &transport)).await {
                Ok(answer) if !refuses_form(answer.response.status()) => return self.read(answer).await,
                // Refused, or redirected without end or to nowhere.
                Ok(_) | Err(Failure::Unusable { .. }) => {}
                Err(failure) => return Err(failure),
            }
            if let Some(value) = basic(&self.login) {
                headers.insert(AUTHORIZATION, value);
            }
        }
        wire.metrics.token_requested();
        let answer = wire.send(request(Method::GET, self.query(), headers, None, &transport)).await?;
        self.read(answer).await
    }

    /// The form of the POST; `None` when there is nothing to prove, as with a user who has no password: containerd
    /// asks for an anonymous token then.
    fn form(&self) -> Option<String> {
        let mut fields: Vec<(&str, &[u8])> = vec![("client_id", b"drayd")];
        match &self.login {
            Login::Password { password, .. } if password.expose().is_empty() => return None,
            Login::Password { username, password } => {
                fields.extend([
                    ("grant_type", b"password".as_slice()),
                    ("username", username),
                    ("password", password.expose()),
                ]);
            }
            Login::IdentityToken(token) => {
                fields
                    .extend([("grant_type", b"refresh_token".as_slice()), ("refresh_token", token.expose())]);
            }
            Login::Anonymous | Login::RegistryToken(_) => return None,
        }
        let scopes = self.scopes.join(" ");
        fields.extend(self.service.as_deref().map(|service| ("service", service.as_bytes())));
        fields.push(("scope", scopes.as_bytes()));
        Some(form(&fields))
    }

    /// The URL of the GET: the realm with its own query, and ours after it.
    fn query(&self) -> Url {
        let mut url = self.realm.clone();
        {
            let mut pairs = url.query_pairs_mut();
            pairs.extend_pairs(self.service.iter().map(|service| ("service", service)));
            pairs.extend_pairs(self.scopes.iter().map(|scope| ("scope", scope)));
        }
        url
    }

    async fn read(&self, mut answer: Answer) -> Result<Token, Failure> {
        let status = answer.response.status();
        let body = answer.document(TOKEN_LIMIT).await?;
        if !status.is_success() {
            // What the realm's own query says is the registry's secret, or the token server's.
            answer.secrets.add_url(&self.realm);
            let message = message_of(&body, |message| answer.scrub(&self.login, message));
            return Err(self.refused(&answer, status, message));
        }
        let json: Value = serde_json::from_slice(&body).unwrap_or_default();
        let value = ["access_token", "token"]
            .iter()
            .find_map(|name| json.get(name)?.as_str().filter(|token| !token.is_empty()))
            .ok_or_else(|| Failure::Unauthorized {
                url: redacted(&answer.url),
                refusal: Refusal::NoToken,
                message: None,
            })?;
        let lifetime = lifetime(json.get("expires_in"));
        Ok(Timed { value: Secret::new(value), good_until: Instant::now() + lifetime })
    }

    fn refused(&self, answer: &Answer, status: StatusCode, message: Option<String>) -> Failure {
        let url = redacted(&answer.url);
        let refusal = if self.login == Login::Anonymous { Refusal::Required } else { Refusal::Credentials };
        // A token server speaks of the credentials with any of these; all else is about the server.
        match status.as_u16() {
            400 | 401 | 403 => Failure::Unauthorized { url, refusal, message },
            _ => Failure::Status { method: answer.method.clone(), url, status, message, told: answer.told() },
        }
    }
}

/// The fields of a form, of which only the values need encoding.
fn form(fields: &[(&str, &[u8])]) -> String {
    let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    fields.join("&")
}

/// A value as it stands in a form (WHATWG URL, section 5.2), which is also how queries are written.
pub(super) fn encoded(value: &[u8]) -> String {
    const ENCODED: AsciiSet = NON_ALPHANUMERIC.remove(b'*').remove(b'-').remove(b'.').remove(b'_');
    percent_encode(value, &ENCODED).to_string().replace("%20", "+")
}

/// Whether a token server does not take the form: it refuses it, or wants it sent to where it is not for.
fn refuses_form(status: StatusCode) -> bool {
    status.is_redirection() || matches!(status.as_u16(), 400 | 401 | 404 | 405)
}

fn request(
    method: Method,
    url: Url,
    origin_headers: HeaderMap,
    body: Option<String>,
    transport: &Transport,
) -> Request {
    Request { method, url, headers: HeaderMap::new(), origin_headers, body, transport: transport.clone() }
}

/// The header that proves a login directly; `None` for one without a secret that fits.
pub(super) fn basic(login: &Login) -> Option<HeaderValue> {
    let pair = match login {
        Login::Password { username, password } => pair(username, password.expose()),
        // Token servers that only know GET take the token for a password without a user.
        Login::IdentityToken(token) => pair(b"", token.expose()),
        Login::Anonymous | Login::RegistryToken(_) => return None,
    };
    let encoded = base64::engine::general_purpose::STANDARD.encode(pair);
    authorization("Basic", encoded.as_bytes())
}

/// An `Authorization` header. `None` when the secret is no header text, such as a token with a line break.
pub(super) fn authorization(scheme: &str, secret: &[u8]) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_bytes(&[scheme.as_bytes(), b" ", secret].concat()).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// How long a token is used: as told when that makes sense, less a margin for the request it will be sent with.
fn lifetime(expires_in: Option<&Value>) -> Duration {
    let told = expires_in.and_then(Value::as_u64).filter(|told| (1..=LONGEST_LIFETIME).contains(told));
    let lifetime = Duration::from_secs(told.unwrap_or(DEFAULT_LIFETIME));
    lifetime.saturating_sub((lifetime / 10).min(Duration::from_secs(10)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Fault 17.
    #[test]
    fn a_senseless_lifetime_is_the_default_one() {
        let default = Duration::from_secs(54);
        for value in
            [json!(null), json!(0), json!(-1), json!("300"), json!(4_000_000_000_u64), json!([1]), json!(1.5)]
        {
            assert_eq!(lifetime(Some(&value)), default, "{value}");
        }
        assert_eq!(lifetime(None), default);
        assert_eq!(lifetime(Some(&json!(300))), Duration::from_secs(290));
        assert_eq!(lifetime(Some(&json!(5))), Duration::from_millis(4500));
    }

    /// Fault 29.
    #[test]
    fn the_realms_own_query_is_kept_and_values_are_encoded() {
        let order = Order {
            realm: "http://t.test/a?x=1".parse().unwrap(),
            service: Some("a b&c".into()),
            scopes: vec!["repository:a/b:pull,push".into(), "s".into()],
            login: Login::Password {
                username: "u&~*-._".into(),
                password: Secret::new(b"p =\xe9%20".as_slice()),
            },
        };
        assert_eq!(
            order.query().as_str(),
            "http://t.test/a?x=1&service=a+b%26c&scope=repository%3Aa%2Fb%3Apull%2Cpush&scope=s"
        );
        assert_eq!(
            order.form().unwrap(),
            "client_id=drayd&grant_type=password&username=u%26%7E*-._&password=p+%3D%E9%2520&service=a+b%26c\
             &scope=repository%3Aa%2Fb%3Apull%2Cpush+s"
        );
    }
}
