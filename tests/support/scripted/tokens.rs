//! A token server: issues bearer tokens to those whom it knows, remembers each order, and guards registries that want
//! its tokens.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{Reply, Request, Scripted, Signer, locked};

/// The service that it speaks for.
pub const SERVICE: &str = "scripted";

/// What a token server does; may be changed while it runs.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Who gets tokens; nobody else does then, by password. `None` serves everybody, whatever they send.
    pub account: Option<(String, String)>,
    /// The refresh or identity token that is taken in place of the password.
    pub refresh: Option<String>,
    /// Whether those without credentials get tokens, too.
    pub anonymous: bool,
    /// How long a token is good.
    pub lifetime: Duration,
    /// What stands in `expires_in`: the lifetime in seconds, unless a check wants it otherwise or (`Null`) absent.
    pub expires_in: Option<Value>,
    /// Fields that the token is sent in.
    pub fields: Vec<&'static str>,
    /// Whether `POST` is known; if not, it is answered with 404.
    pub post: bool,
    /// The beginning of each token.
    pub prefix: String,
    /// Signs the tokens instead, for registries that read them.
    pub signer: Option<Signer>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            account: None,
            refresh: None,
            anonymous: true,
            lifetime: Duration::from_secs(300),
            expires_in: None,
            fields: vec!["token"],
            post: true,
            prefix: "token".into(),
            signer: None,
        }
    }
}

/// An order of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// `GET` or `POST`.
    pub method: String,
    /// `service` as sent.
    pub service: String,
    /// Each scope as sent.
    pub scopes: Vec<String>,
    /// How the caller proved who it is: nothing, `basic`, `password` or `refresh`.
    pub proof: &'static str,
    /// Whether a token was issued.
    pub granted: bool,
}

/// A running token server. Lives as long as the registry that it was put on.
#[derive(Clone)]
pub struct Tokens {
    realm: String,
    ledger: Arc<Mutex<Ledger>>,
}

#[derive(Debug)]
struct Ledger {
    rules: Rules,
    orders: Vec<Order>,
    /// Scopes and end of each token.
    issued: HashMap<String, (Vec<String>, Instant)>,
}

impl Tokens {
    /// Puts a token server on a scripted registry, at `path`.
    pub fn at(registry: &Scripted, path: &str, rules: Rules) -> Self {
        let ledger = Ledger { rules, orders: Vec::new(), issued: HashMap::new() };
        let tokens =
            Self { realm: format!("{}{path}", registry.url()), ledger: Arc::new(Mutex::new(ledger)) };
        for method in ["GET", "POST"] {
            let ledger = Arc::clone(&tokens.ledger);
            registry.on(method, path, move |request, _| locked(&ledger).answer(request));
        }
        tokens
    }

    /// Lets `registry` serve `/v2/…` only to bearers of a token that is good for the repository's `pull`.
    pub fn guard(&self, registry: &Scripted) {
        let tokens = self.clone();
        registry.gate(move |request| {
            let repository = request.repository()?;
            let scope = format!("repository:{repository}:pull");
            (!tokens.accepts(request, &scope)).then(|| {
                Reply::error(401, "UNAUTHORIZED", "authentication required")
                    .header("WWW-Authenticate", &tokens.challenge(&scope))
            })
        });
    }

    /// The challenge that sends a caller here.
    pub fn challenge(&self, scope: &str) -> String {
        format!("Bearer realm=\"{}\",service=\"{SERVICE}\",scope=\"{scope}\"", self.realm)
    }

    /// The URL that it answers on.
    pub fn realm(&self) -> &str {
        &self.realm
    }

    /// Every order so far.
    pub fn orders(&self) -> Vec<Order> {
        locked(&self.ledger).orders.clone()
    }

    /// The number of tokens issued so far.
    pub fn issued(&self) -> usize {
        self.orders().iter().filter(|order| order.granted).count()
    }

    /// Makes every token issued so far void.
    pub fn revoke(&self) {
        locked(&self.ledger).issued.clear();
    }

    /// Changes the rules from here on.
    pub fn change(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut locked(&self.ledger).rules);
    }

    /// Whether the request carries a token that is good for this scope.
    pub fn accepts(&self, request: &Request, scope: &str) -> bool {
        let sent = request.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let ledger = locked(&self.ledger);
        sent.and_then(|token| ledger.issued.get(token))
            .is_some_and(|(scopes, until)| Instant::now() < *until && scopes.iter().any(|held| held == scope))
    }
}

impl Ledger {
    fn answer(&mut self, request: &Request) -> Reply {
        let post = request.method == "POST";
        if post && !self.rules.post {
            return Reply::status(404);
        }
        let fields = pairs(if post { &request.body } else { request.query() });
        let field = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let basic = request.header("authorization").and_then(|value| value.strip_prefix("Basic "));
        let basic = basic.and_then(|sent| String::from_utf8(STANDARD.decode(sent).ok()?).ok());
        let basic = basic.and_then(|text| text.split_once(':').map(|(u, p)| (u.to_owned(), p.to_owned())));
        let account = &self.rules.account;
        let (proof, known) = match (field("refresh_token"), field("username").zip(field("password")), basic) {
            (Some(sent), _, _) => ("refresh", self.rules.refresh.as_ref() == Some(&sent)),
            (_, Some(sent), _) => ("password", account.as_ref() == Some(&sent)),
            (_, _, Some(sent)) => ("basic", account.as_ref() == Some(&sent)),
            _ => ("nothing", self.rules.anonymous),
        };
        let granted = known || (self.rules.account.is_none() && self.rules.refresh.is_none());
        let scopes: Vec<String> = fields
            .iter()
            .filter(|(key, _)| key == "scope")
            .flat_map(|(_, value)| value.split(' '))
            .map(str::to_owned)
            .collect();
        self.orders.push(Order {
            method: request.method.clone(),
            service: field("service").unwrap_or_default(),
            scopes: scopes.clone(),
            proof,
            granted,
        });
        if granted { self.issue(scopes) } else { Reply::error(401, "UNAUTHORIZED", "who are you?") }
    }

    fn issue(&mut self, scopes: Vec<String>) -> Reply {
        let number = self.orders.len();
        let token = match &self.rules.signer {
            None => format!("{}-{number}", self.rules.prefix),
            Some(signer) => match signer.token(&scopes, number, self.rules.lifetime.as_secs()) {
                Ok(token) => token,
                Err(error) => return Reply::error(500, "UNKNOWN", &error.to_string()),
            },
        };
        let mut answer = Map::new();
        for field in &self.rules.fields {
            answer.insert((*field).to_owned(), json!(token));
        }
        match &self.rules.expires_in {
            None => drop(answer.insert("expires_in".into(), json!(self.rules.lifetime.as_secs()))),
            Some(Value::Null) => {}
            Some(stated) => drop(answer.insert("expires_in".into(), stated.clone())),
        }
        self.issued.insert(token, (scopes, Instant::now() + self.rules.lifetime));
        Reply::ok("application/json", Value::Object(answer).to_string().as_bytes())
    }
}

/// The pairs of a query or form, decoded.
fn pairs(text: &str) -> Vec<(String, String)> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(k, v)| (decoded(k), decoded(v)))
        .collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        match (byte, after.get(..2).and_then(code)) {
            (b'%', Some(code)) => {
                bytes.push(code);
                rest = &after[2..];
                continue;
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(byte),
        }
        rest = after;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
