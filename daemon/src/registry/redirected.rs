//! A redirect to another registry that wants credentials: it gets those that the node has under its own name, and
//! never the ones that were for the registry which sent us.

use http::StatusCode;
use http::header::{AUTHORIZATION, HeaderMap};
use reqwest::Url;

use super::challenge;
use super::failure::Failure;
use super::hosts::is_loopback;
use super::session::{Ask, Session};
use super::wire::{Answer, Request, Role, Transport};

impl Session<'_> {
    /// Answers the 401 of a redirect's target, if the node has credentials for it; else gives back the 401.
    pub(super) async fn prove_elsewhere(&self, ask: Ask<'_>, answer: Answer) -> Result<Answer, Failure> {
        let (url, secrets) = (answer.url.clone(), answer.secrets.clone());
        let (Some(authority), Some(challenge)) =
            (authority(&url), challenge::choose(answer.response.headers()))
        else {
            return Ok(answer);
        };
        // The path says nothing of the repository there, so only what is for the whole host counts.
        let Some(login) = self.logins.nodes(&authority, "", self.node).await? else { return Ok(answer) };
        let transport =
            |role| Transport { tls: self.host.tls.elsewhere(), dial_timeout: self.host.dial_timeout, role };
        let reach = |_: &Url| (transport(Role::Document), HeaderMap::new());
        let Ok(proof) = self.access.prove(&challenge, self.path, &login, reach).await else {
            return Ok(answer);
        };
        let request = Request {
            method: ask.method.clone(),
            url,
            headers: Self::headers(ask),
            origin_headers: HeaderMap::from_iter([(AUTHORIZATION, proof.header.clone())]),
            body: None,
            transport: transport(ask.role),
        };
        let mut answer = self.wire.send(request).await?;
        if answer.response.status() == StatusCode::UNAUTHORIZED {
            self.access.retract(&proof);
        }
        answer.from_origin = false;
        answer.secrets.add_all(secrets);
        answer.secrets.add_login(&login);
        Ok(answer)
    }
}

/// The host that may be shown credentials. The registry that sent us chose the scheme, so over plain HTTP only this
/// node itself is one: it could else have them sent in the open.
fn authority(url: &Url) -> Option<String> {
    let name = url.host_str()?;
    let shown = url.scheme() == "https" || is_loopback(name);
    shown.then(|| url.port().map_or_else(|| name.to_owned(), |port| format!("{name}:{port}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_shown_in_the_open_to_this_node_only() {
        for (url, expected) in [
            ("https://b.test/v2/", Some("b.test")),
            ("https://b.test:5000/v2/", Some("b.test:5000")),
            ("http://b.test:5000/v2/", None),
            ("http://127.0.0.1:5000/v2/", Some("127.0.0.1:5000")),
        ] {
            assert_eq!(authority(&url.parse().unwrap()).as_deref(), expected, "{url}");
        }
    }
}
