//! Whom a pull would ask, and as whom. For those who want to know before, or why.

use super::credentials::Credentials;
use super::error::Error;
use super::hosts::{Host, Scheme};
use super::{Registry, Repository};
use crate::cause::chain;

/// One host that a pull would ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// With its scheme; without what may be secret in it.
    pub url: String,
    /// Whether it is the registry itself rather than a mirror.
    pub own: bool,
    /// Whether it is asked what a tag points to, too.
    pub resolves: bool,
    /// Where the credentials come from that it gets.
    pub credentials: Origin,
}

/// Where the login of a host comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Whoever asked for the pull.
    Request,
    /// The node's file of credentials, or a helper that it names.
    Node,
    /// There is none.
    Nobody,
    /// It cannot be had, for this cause.
    Unknown(String),
}

impl Registry {
    /// The hosts of a repository in the order in which they are asked, with nothing known of how they have done of late.
    pub async fn asked(
        &self,
        repository: &Repository,
        credentials: &Credentials,
    ) -> Result<Vec<Asked>, Error> {
        let node = self.logins.of_node().await.map_err(Error::Credentials)?;
        let hosts = self.hosts(repository).await?;
        let mut asked = Vec::new();
        for host in hosts.iter().filter(|host| host.capabilities.pull) {
            let chosen = self.logins.choose(host, repository, credentials, &node).await;
            let credentials =
                chosen.map_or_else(|failure| Origin::Unknown(chain(&failure)), |chosen| chosen.origin);
            let (own, resolves) = (host.own, host.capabilities.resolve);
            asked.push(Asked { url: url(host), own, resolves, credentials });
        }
        Ok(asked)
    }
}

fn url(host: &Host) -> String {
    let scheme = match host.scheme {
        Scheme::Http => "http",
        Scheme::Https => "https",
        Scheme::Either => "https or http",
    };
    format!("{scheme}://{}{}", host.authority, host.root)
}
