//! Which login goes to which host. The caller's credentials go to the registry that they are for, and to a mirror only
//! where the node's owner trusts it with them; what the node has under a host's own name goes to that host alone.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

use super::Repository;
use super::asked::Origin;
use super::credential_helper;
use super::credentials::{Credentials, Login, server_of};
use super::credentials_file::{CredentialsFile, CredentialsFileError, HelperQuery};
use super::failure::Failure;
use super::hosts::Host;
use super::kept::{Kept, Timed};

/// How long a helper's answer is kept: long enough that one pull asks once or twice, short enough that credentials
/// which were changed or logged out soon count.
const HELPER_LIFETIME: Duration = Duration::from_secs(60);

/// The logins of the node, and the rule of who gets which.
pub(super) struct Logins {
    /// Docker's `config.json`; read anew by each call, so that an edit needs no restart.
    file: Option<PathBuf>,
    /// Where helpers are, in the form of `PATH`.
    programs: OsString,
    /// Answers of helpers; they start a program each, so a pull's many requests share them.
    asked: Kept<HelperQuery, Option<Login>>,
    /// Mirrors that get the caller's credentials, normalised.
    trusted: Vec<String>,
    anonymous_fallback: bool,
}

/// What is proved to a host.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) login: Login,
    /// Whether the host is to be asked anonymously should it refuse the login.
    pub(super) fallback: bool,
    /// Where it comes from.
    pub(super) origin: Origin,
}

impl Logins {
    pub(super) fn new(
        file: Option<PathBuf>,
        programs: OsString,
        trusted: &[String],
        anonymous_fallback: bool,
    ) -> Self {
        let trusted = trusted.iter().map(|mirror| server_of(mirror)).collect();
        Self { file, programs, asked: Kept::default(), trusted, anonymous_fallback }
    }

    /// The node's credentials as they are now.
    pub(super) async fn of_node(&self) -> Result<CredentialsFile, CredentialsFileError> {
        let Some(path) = self.file.clone() else { return Ok(CredentialsFile::default()) };
        let read = move || CredentialsFile::read(&path);
        tokio::task::spawn_blocking(read).await.expect("reading the credentials does not panic")
    }

    /// The login for a host. The caller's comes first: what a caller may see is for its own credentials to say.
    pub(super) async fn choose(
        &self,
        host: &Host,
        repository: &Repository,
        credentials: &Credentials,
        node: &CredentialsFile,
    ) -> Result<Chosen, Failure> {
        if host.own || self.trusted.contains(&server_of(&host.authority)) {
            let login = credentials.login_for(&repository.domain);
            if *login != Login::Anonymous {
                let (login, fallback) = (login.clone(), self.anonymous_fallback);
                return Ok(Chosen { login, fallback, origin: Origin::Request });
            }
        }
        let login = self.nodes(&host.authority, &repository.path, node).await?;
        let login = login.unwrap_or(Login::Anonymous);
        let origin = if login == Login::Anonymous { Origin::Nobody } else { Origin::Node };
        Ok(Chosen { login, fallback: false, origin })
    }

    /// What the node has under a host's own name.
    pub(super) async fn nodes(
        &self,
        authority: &str,
        path: &str,
        node: &CredentialsFile,
    ) -> Result<Option<Login>, Failure> {
        let found = node.find(&server_of(authority), path);
        let Some(query) = found.helper else { return Ok(found.login) };
        let fetch = || {
            let (query, programs, host) = (query.clone(), self.programs.clone(), authority.to_owned());
            async move {
                let asked = credential_helper::ask(&programs, &query).await;
                let value = asked.map_err(|cause| Failure::Helper { host, cause })?;
                Ok(Timed { value, good_until: Instant::now() + HELPER_LIFETIME })
            }
        };
        Ok(self.asked.get(&query, fetch).await?.value.or(found.login))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::credentials::Given;
    use super::super::secret::Secret;
    use super::*;

    const NODE: &str = r#"{"auths":{
        "reg.test":{"username":"node"},
        "m.test:5000":{"username":"mirror"},
        "trusted.test":{"username":"mirror"}
    }}"#;

    async fn user(host: &Host, server_address: Option<&str>) -> Option<(String, bool)> {
        let logins = Logins::new(None, OsString::new(), &["Trusted.test:443".into()], true);
        let repository = Repository { domain: "reg.test".into(), path: "a/b".into() };
        let credentials = server_address.map_or_else(Credentials::anonymous, |server_address| {
            let given = Given { username: "caller", password: "p", server_address, ..Given::default() };
            Credentials::new(given).unwrap()
        });
        let node = CredentialsFile::parse(Path::new("c"), NODE).unwrap();
        let chosen = logins.choose(host, &repository, &credentials, &node).await.unwrap();
        match chosen.login {
            Login::Password { username, .. } => Some((String::from_utf8(username).unwrap(), chosen.fallback)),
            _ => None,
        }
    }

    /// Fault 25.
    #[tokio::test]
    async fn each_host_gets_what_is_for_it_and_nothing_else() {
        let mirror = |authority| Host::new("reg.test", super::super::hosts::Scheme::Https, authority, "/v2");
        for (host, server_address, expected) in [
            (Host::upstream("reg.test"), Some(""), Some(("caller", true))),
            (Host::upstream("reg.test"), Some("reg.test"), Some(("caller", true))),
            (Host::upstream("reg.test"), Some("other.test"), Some(("node", false))),
            (Host::upstream("reg.test"), None, Some(("node", false))),
            (mirror("m.test:5000"), Some(""), Some(("mirror", false))),
            (mirror("m.test:5000"), None, Some(("mirror", false))),
            (mirror("m.test"), Some(""), None),
            (mirror("trusted.test"), Some(""), Some(("caller", true))),
            (mirror("trusted.test"), Some("other.test"), Some(("mirror", false))),
            (mirror("trusted.test"), None, Some(("mirror", false))),
        ] {
            let chosen = user(&host, server_address).await;
            let chosen = chosen.as_ref().map(|(user, fallback)| (user.as_str(), *fallback));
            assert_eq!(chosen, expected, "{} {server_address:?}", host.authority);
        }
    }

    #[tokio::test]
    async fn a_helpers_answer_is_shared_and_what_it_does_not_know_is_looked_up_in_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let count = directory.path().join("count");
        let script = format!(
            "echo >> {}\nread -r server\nif [ \"$server\" = known.test ]; then\n\
             echo '{{\"Username\":\"u\",\"Secret\":\"helper\"}}'\nelse echo credentials not found; exit 1; fi",
            count.display()
        );
        credential_helper::tests::install(directory.path(), &script);
        let text = r#"{"auths":{"other.test":{"username":"u","password":"file"}},"credsStore":"test"}"#;
        let node = CredentialsFile::parse(Path::new("c"), text).unwrap();
        let logins = Logins::new(None, directory.path().into(), &[], false);
        for (host, password) in
            [("known.test", Some("helper")), ("other.test", Some("file")), ("none.test", None)]
        {
            let one = logins.nodes(host, "a", &node);
            let two = logins.nodes(host, "a/b", &node);
            let (one, two) = tokio::join!(one, two);
            let expected =
                password.map(|text| Login::Password { username: "u".into(), password: Secret::new(text) });
            assert_eq!(one.as_ref().unwrap(), &expected, "{host}");
            assert_eq!(one, two);
            assert_eq!(logins.nodes(host, "a", &node).await.unwrap(), expected, "{host}");
        }
        assert_eq!(fs::read(&count).unwrap().len(), 3);
    }
}
