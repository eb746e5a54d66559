//! The node's own credentials, in the form of Docker's `config.json`: reading it, and which of its entries is for a
//! host. A file that cannot be understood is an error with its line; no error shows any of its contents.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::credentials::{Login, decode, server_of};
use super::file_text::text_of;
use super::secret::Secret;

/// The name that Docker files credentials of its Hub under, and asks helpers for them.
const HUB_SERVER: &str = "https://index.docker.io/v1/";

/// Why the node's credentials cannot be used. Shows the place, never what stands there.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsFileError {
    /// The file cannot be read.
    #[error("{path} cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is not what Docker writes.
    #[error("{path}:{line}: {reason}")]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
}

/// The credentials of one file.
#[derive(Debug, Default, Hash)]
pub(super) struct CredentialsFile {
    /// In the order of the file.
    entries: Vec<Entry>,
    /// `credsStore`: the helper for hosts without one of their own.
    helper: Option<String>,
    /// `credHelpers`: helpers by normalised server.
    helpers: BTreeMap<String, String>,
}

#[derive(Debug, Hash)]
struct Entry {
    /// As it is written.
    key: String,
    server: String,
    /// The repositories it is for, as the beginning of their path; empty is all.
    path: String,
    /// `None` when the entry only says that a helper has the rest.
    login: Option<Login>,
}

/// Where the credentials for a host are.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// In the file itself.
    pub(super) login: Option<Login>,
    /// With a helper, which is asked first.
    pub(super) helper: Option<HelperQuery>,
}

/// What to ask which credential helper.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HelperQuery {
    /// Its name, without the `docker-credential-` of its program.
    pub(super) name: String,
    /// The server, as Docker files it.
    pub(super) server: String,
}

impl CredentialsFile {
    /// Reads a file.
    pub(super) fn read(path: &Path) -> Result<Self, CredentialsFileError> {
        let bytes =
            fs::read(path).map_err(|source| CredentialsFileError::Read { path: path.into(), source })?;
        let text = text_of(bytes).map_err(|line| CredentialsFileError::Content {
            path: path.into(),
            line,
            reason: "not UTF-8".into(),
        })?;
        Self::parse(path, &text)
    }

    /// Reads a file's text.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, CredentialsFileError> {
        let written: Written = serde_json::from_str(text).map_err(|error| CredentialsFileError::Content {
            path: path.into(),
            line: error.line().max(1),
            reason: reason(&error),
        })?;
        let helpers = written.cred_helpers.unwrap_or_default().0;
        Ok(Self {
            entries: written.auths.unwrap_or_default().0.into_iter().map(Entry::new).collect(),
            helper: written.creds_store.unwrap_or_default().0,
            helpers: helpers
                .into_iter()
                .filter_map(|(server, Helper(name))| Some((server_of(&server), name?)))
                .collect(),
        })
    }

    /// Where the credentials for the repository `path` on a host are. `server` is normalised. As Docker does it, a
    /// helper for the host comes before one for all; of the entries, the one for the longest part of the path counts.
    pub(super) fn find(&self, server: &str, path: &str) -> Found {
        let helper = self
            .helpers
            .get(server)
            .or(self.helper.as_ref())
            .map(|name| HelperQuery { name: name.clone(), server: self.filed_as(server) });
        let entries = self.entries.iter().filter(|entry| entry.login.is_some() && entry.covers(server, path));
        // The last of equals is what `max_by_key` gives, so the order is turned round: the first one counts.
        let best = entries.rev().max_by_key(|entry| (entry.path.len(), !entry.key.contains("://")));
        Found { login: best.and_then(|entry| entry.login.clone()), helper }
    }

    /// The servers that the file names, with where their credentials are, for people.
    pub(super) fn summary(&self) -> Vec<String> {
        let entries = self.entries.iter().filter(|entry| entry.login.is_some());
        let mut lines: Vec<_> = entries.map(|entry| format!("{}: in the file", entry.key)).collect();
        lines.extend(self.helpers.iter().map(|(server, name)| format!("{server}: helper {name}")));
        lines.extend(self.helper.iter().map(|name| format!("every other host: helper {name}")));
        lines
    }

    /// The names of all helpers, each once.
    pub(super) fn helpers(&self) -> BTreeSet<&str> {
        self.helpers.values().chain(&self.helper).map(String::as_str).collect()
    }

    /// How a server is spelt to a helper: as the file spells it, since that is how the helper was told of it.
    fn filed_as(&self, server: &str) -> String {
        let entry = self.entries.iter().find(|entry| entry.server == server && entry.path.is_empty());
        match entry {
            Some(entry) => entry.key.clone(),
            None if server == server_of(HUB_SERVER) => HUB_SERVER.into(),
            None => server.into(),
        }
    }
}

impl Entry {
    fn new((key, login): (String, Auth)) -> Self {
        let rest = key.split_once("://").map_or(key.as_str(), |(_, rest)| rest);
        let path = rest.split_once('/').map_or("", |(_, path)| path).trim_matches('/');
        // Roots of the API, which Docker writes behind the host; no repository has such a name alone.
        let path = if matches!(path, "v1" | "v2") { "" } else { path };
        Self { server: server_of(&key), path: path.into(), key, login: login.0 }
    }

    fn covers(&self, server: &str, path: &str) -> bool {
        let below = |rest: &str| rest.is_empty() || rest.starts_with('/');
        self.server == server && (self.path.is_empty() || path.strip_prefix(&self.path).is_some_and(below))
    }
}

/// The file, as far as it is read.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Written {
    auths: Option<Pairs<Auth>>,
    #[serde(rename = "credsStore")]
    creds_store: Option<Helper>,
    #[serde(rename = "credHelpers")]
    cred_helpers: Option<Pairs<Helper>>,
}

/// An object in the order of the file.
struct Pairs<V>(Vec<(String, V)>);

/// One entry of `auths`.
struct Auth(Option<Login>);

/// The name of a helper; an empty one is none.
#[derive(Default)]
struct Helper(Option<String>);

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct WrittenAuth {
    #[serde(default, deserialize_with = "encoded")]
    auth: Option<Login>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

impl<V> Default for Pairs<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de> Deserialize<'de> for Auth {
    /// An identity token comes before a password: Docker keeps both, the password only as what it was got with.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Some(written) = Option::<WrittenAuth>::deserialize(deserializer)? else { return Ok(Self(None)) };
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let password = written.password.unwrap_or_default();
        Ok(Self(if let Some(token) = given(written.identitytoken) {
            Some(Login::IdentityToken(Secret::new(token)))
        } else if let Some(username) = given(written.username) {
            Some(Login::Password { username: username.into(), password: Secret::new(password) })
        } else if written.auth.is_some() {
            written.auth
        } else {
            given(written.registrytoken).map(|token| Login::RegistryToken(Secret::new(token)))
        }))
    }
}

impl<'de> Deserialize<'de> for Helper {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
        // It becomes the name of a program in a directory of programs, and no other file.
        if name.contains(['/', '\0']) {
            return Err(D::Error::custom("a credential helper has a slash in its name"));
        }
        Ok(Self((!name.is_empty()).then_some(name)))
    }
}

fn encoded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Login>, D::Error> {
    match Option::<String>::deserialize(deserializer)?.as_deref() {
        None | Some("") => Ok(None),
        Some(text) => decode(text).map(Some).map_err(D::Error::custom),
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Pairs<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Reader<V> {
            type Value = Pairs<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Reader(PhantomData))
    }
}

/// What is wrong, without what was found: the library quotes values, and here those are secrets.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    match (error.is_data(), text.rsplit_once(", expected ")) {
        (true, Some((_, expected))) => format!("expected {expected}"),
        (true, None) => text.into(),
        (false, _) => format!("not JSON: {text}"),
    }
}

#[cfg(test)]
mod tests;
