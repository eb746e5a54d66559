//! Who is asking: the credentials of one pull, as the caller of the CRI gave them, and which registry they are for.

use std::fmt;

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};

use super::secret::Secret;

/// Docker Hub's names. Its credentials are filed under the index name, its API answers at the third, and references
/// say the first.
const HUB_NAMES: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// The fields of a CRI `AuthConfig`, unread; an empty field is an absent one.
#[derive(Clone, Copy, Default)]
pub struct Given<'a> {
    /// User name; goes with `password`.
    pub username: &'a str,
    /// Password of `username`.
    pub password: &'a str,
    /// Base64 of `user:password`.
    pub auth: &'a str,
    /// The registry these fields are for; empty means the registry of the reference.
    pub server_address: &'a str,
    /// `OAuth2` refresh token, to be exchanged for an access token.
    pub identity_token: &'a str,
    /// A bearer token that is sent to the registry as it is.
    pub registry_token: &'a str,
}

/// Why the given fields are no credentials. Never carries any part of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// `auth` is not base64.
    #[error("the auth field of the credentials is not base64 of `user:password`")]
    Encoding,
    /// `auth` has no colon.
    #[error("the auth field of the credentials holds no colon: expected base64 of `user:password`")]
    Colon,
}

/// Credentials of one pull. Equal ones share tokens, different ones never do. There is no `Display`, and `Debug`
/// shows the form only.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Credentials {
    /// The registry they are for, normalised; `None` is the registry of the reference.
    server: Option<String>,
    login: Login,
}

/// What is proved to a registry, and how.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Login {
    Anonymous,
    Password { username: Vec<u8>, password: Secret },
    IdentityToken(Secret),
    RegistryToken(Secret),
}

impl Credentials {
    /// No credentials at all.
    pub fn anonymous() -> Self {
        Self { server: None, login: Login::Anonymous }
    }

    /// Reads the given fields. The most specific wins: user and password, then identity token, then `auth`, then
    /// registry token; all empty is anonymous.
    pub fn new(given: Given<'_>) -> Result<Self, CredentialsError> {
        let login = if !given.username.is_empty() {
            Login::Password { username: given.username.into(), password: Secret::new(given.password) }
        } else if !given.identity_token.is_empty() {
            Login::IdentityToken(Secret::new(given.identity_token))
        } else if !given.auth.is_empty() {
            decode(given.auth)?
        } else if !given.registry_token.is_empty() {
            Login::RegistryToken(Secret::new(given.registry_token))
        } else {
            Login::Anonymous
        };
        let server = (!given.server_address.is_empty()).then(|| server_of(given.server_address));
        Ok(Self { server, login })
    }

    /// What may be proved to the registry `domain`: nothing when the credentials name another one.
    pub(super) fn login_for(&self, domain: &str) -> &Login {
        match &self.server {
            Some(server) if *server != server_of(domain) => {
                tracing::debug!(
                    registry = domain,
                    "credentials not used: their server address is another registry"
                );
                &Login::Anonymous
            }
            _ => &self.login,
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = match self.login {
            Login::Anonymous => "Credentials(anonymous)",
            Login::Password { .. } => "Credentials(password)",
            Login::IdentityToken(_) => "Credentials(identity token)",
            Login::RegistryToken(_) => "Credentials(registry token)",
        };
        f.write_str(form)
    }
}

/// `user:password`, as it is proved directly. A token stands for a password without a user.
pub(super) fn pair(username: &[u8], password: &[u8]) -> Vec<u8> {
    [username, b":", password].concat()
}

/// Docker writes `auth` padded, others do not; both are read.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Reads base64 of `user:password`, with line breaks where a tool has wrapped it. What has no user is a refresh token,
/// as containerd has it.
pub(super) fn decode(auth: &str) -> Result<Login, CredentialsError> {
    let auth: String = auth.trim().chars().filter(|character| !matches!(character, '\r' | '\n')).collect();
    let bytes = BASE64.decode(auth).map_err(|_| CredentialsError::Encoding)?;
    let colon = bytes.iter().position(|&byte| byte == b':').ok_or(CredentialsError::Colon)?;
    let (username, mut password) = (&bytes[..colon], &bytes[colon + 1..]);
    // Docker's credential store pads the password with NULs.
    while let Some(shorter) = password.strip_suffix(b"\0") {
        password = shorter;
    }
    Ok(match (username, password) {
        (b"", b"") => Login::Anonymous,
        (b"", token) => Login::IdentityToken(Secret::new(token)),
        _ => Login::Password { username: username.into(), password: Secret::new(password) },
    })
}

/// The `host[:port]` of a server address in any of its spellings, with Docker Hub's names made one.
pub(super) fn server_of(address: &str) -> String {
    let address = address.trim().to_ascii_lowercase();
    let (scheme, rest) = address.split_once("://").unwrap_or(("https", &address));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = if scheme == "https" { host.strip_suffix(":443").unwrap_or(host) } else { host };
    if HUB_NAMES.contains(&host) { HUB_NAMES[0].into() } else { host.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn for_server(server_address: &str) -> Credentials {
        Credentials::new(Given { username: "u", password: "p", server_address, ..Given::default() }).unwrap()
    }

    /// Fault 30.
    #[test]
    fn a_server_address_applies_in_every_spelling_of_its_registry() {
        for (address, domain, applies) in [
            ("", "reg.test:5000", true),
            ("reg.test:5000", "reg.test:5000", true),
            ("https://reg.test:5000", "reg.test:5000", true),
            ("https://reg.test:5000/v1/", "reg.test:5000", true),
            ("http://reg.test:5000", "reg.test:5000", true),
            ("REG.test", "reg.test", true),
            ("https://reg.test:443/v2/", "reg.test", true),
            ("127.0.0.1:5000", "127.0.0.1:5000", true),
            ("https://index.docker.io/v1/", "docker.io", true),
            ("registry-1.docker.io", "docker.io", true),
            ("other.test", "reg.test:5000", false),
            ("reg.test", "reg.test:5000", false),
            ("reg.test:5000.evil.test", "reg.test:5000", false),
            ("https://reg.test@evil.test", "reg.test", false),
        ] {
            let credentials = for_server(address);
            assert_eq!(*credentials.login_for(domain) != Login::Anonymous, applies, "{address} {domain}");
        }
    }

    #[test]
    fn the_most_specific_field_wins() {
        let all = Given {
            username: "u",
            password: "p",
            auth: "YTpiAAA=",
            identity_token: "i",
            registry_token: "r",
            server_address: "",
        };
        let login = |given| Credentials::new(given).unwrap().login;
        let password = |username: &str, password| Login::Password {
            username: username.into(),
            password: Secret::new(password),
        };
        assert_eq!(login(all), password("u", "p"));
        assert_eq!(login(Given { username: "", ..all }), Login::IdentityToken(Secret::new("i")));
        let without_token = Given { username: "", identity_token: "", ..all };
        assert_eq!(login(without_token), password("a", "b"));
        assert_eq!(login(Given { auth: "YTpi", ..without_token }), password("a", "b"));
        assert_eq!(login(Given { auth: "", ..without_token }), Login::RegistryToken(Secret::new("r")));
        assert_eq!(login(Given::default()), Login::Anonymous);
    }

    #[test]
    fn auth_is_read_as_containerd_reads_it() {
        let password = |username: &[u8], password: &[u8]| Login::Password {
            username: username.into(),
            password: Secret::new(password),
        };
        for (auth, expected) in [
            ("dTpw", password(b"u", b"p")),
            ("\ndT\r\npw\n", password(b"u", b"p")),
            ("dTo", password(b"u", b"")),
            ("dTr/", password(b"u", b"\xff")),
            ("/zpw", password(b"\xff", b"p")),
            ("OlJFRlI=", Login::IdentityToken(Secret::new("REFR"))),
            ("Og==", Login::Anonymous),
        ] {
            let read = Credentials::new(Given { auth, ..Given::default() }).unwrap();
            assert_eq!(read.login, expected, "{auth:?}");
        }
    }

    #[test]
    fn broken_auth_is_refused_without_being_shown() {
        for (auth, error) in [("c2VjcmV0", CredentialsError::Colon), ("secret!", CredentialsError::Encoding)]
        {
            assert_eq!(Credentials::new(Given { auth, ..Given::default() }), Err(error));
            assert!(!error.to_string().contains(auth));
        }
    }

    #[test]
    fn debug_shows_no_secret_and_no_user() {
        let credentials =
            Credentials::new(Given { username: "canary-u", password: "canary-p", ..Given::default() });
        assert_eq!(format!("{:?}", credentials.as_ref().unwrap()), "Credentials(password)");
        assert!(!format!("{:?}", credentials.unwrap().login).contains("canary-p"));
    }
}
