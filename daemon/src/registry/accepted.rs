//! Who was shown what: which credentials the registry has let see a manifest since this process began, so that a pull
//! of what is on the node already need not ask again. Held in memory alone, and without the credentials themselves.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, PoisonError};

use super::Repository;
use super::credentials::Credentials;
use super::credentials_file::CredentialsFile;
use crate::oci::Digest;

/// Bound on what is remembered. Forgetting costs the next pull of each one request.
const ACCEPTED: usize = 4096;

/// What the hosts of each repository let pass.
#[derive(Default)]
pub(super) struct Accepted {
    /// Keys the hashes: drawn at random by this process, so that nobody can find credentials with the hash of others,
    /// nor try passwords against one.
    salt: RandomState,
    /// Guards the set; never held across an await.
    seen: Mutex<HashSet<Sight>>,
}

/// One manifest, and who saw it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sight {
    repository: Repository,
    manifest: Digest,
    /// The salted hash of who asked.
    who: u64,
}

impl Accepted {
    /// Remembers that the manifest was found in the name of these credentials. Those of the node belong to them: it
    /// may have been they that opened the way, and whoever takes them off the node wants it closed.
    pub(super) fn remember(
        &self,
        repository: &Repository,
        manifest: &Digest,
        credentials: &Credentials,
        node: &CredentialsFile,
    ) {
        let sight = self.sight(repository, manifest, credentials, node);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= ACCEPTED {
            seen.clear();
        }
        seen.insert(sight);
    }

    /// Forgets all that these credentials have seen of the repository: they were refused.
    pub(super) fn forget(&self, repository: &Repository, credentials: &Credentials, node: &CredentialsFile) {
        let who = self.salt.hash_one((credentials, node));
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|sight| sight.who != who || sight.repository != *repository);
    }

    /// Whether it was.
    pub(super) fn knows(
        &self,
        repository: &Repository,
        manifest: &Digest,
        credentials: &Credentials,
        node: &CredentialsFile,
    ) -> bool {
        let sight = self.sight(repository, manifest, credentials, node);
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).contains(&sight)
    }

    fn sight(
        &self,
        repository: &Repository,
        manifest: &Digest,
        credentials: &Credentials,
        node: &CredentialsFile,
    ) -> Sight {
        let who = self.salt.hash_one((credentials, node));
        Sight { repository: repository.clone(), manifest: manifest.clone(), who }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::credentials::Given;
    use super::*;

    fn repository(path: &str) -> Repository {
        Repository { domain: "reg.test".into(), path: path.into() }
    }

    fn password(password: &str) -> Credentials {
        Credentials::new(Given { username: "u", password, ..Given::default() }).unwrap()
    }

    fn node(text: &str) -> CredentialsFile {
        CredentialsFile::parse(Path::new("c"), text).unwrap()
    }

    #[test]
    fn only_the_same_credentials_have_seen_the_same_manifest_of_the_same_repository() {
        let (accepted, manifest) = (Accepted::default(), Digest::of(b"manifest"));
        let (nobody, somebody) = (node("{}"), node(r#"{"auths":{"reg.test":{"username":"node"}}}"#));
        accepted.remember(&repository("a"), &manifest, &password("right"), &nobody);
        for (path, digest, credentials, node, expected) in [
            ("a", b"manifest".as_slice(), password("right"), &nobody, true),
            ("b", b"manifest", password("right"), &nobody, false),
            ("a", b"another", password("right"), &nobody, false),
            ("a", b"manifest", password("other"), &nobody, false),
            ("a", b"manifest", Credentials::anonymous(), &nobody, false),
            ("a", b"manifest", password("right"), &somebody, false),
        ] {
            let knows = accepted.knows(&repository(path), &Digest::of(digest), &credentials, node);
            assert_eq!(knows, expected, "{path} {digest:?} {credentials:?} {node:?}");
        }
        let knows = || accepted.knows(&repository("a"), &manifest, &password("right"), &nobody);
        accepted.forget(&repository("a"), &password("other"), &nobody);
        assert!(knows(), "forgotten because others were refused");
        accepted.forget(&repository("a"), &password("right"), &nobody);
        assert!(!knows(), "remembered although they were refused");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (accepted, nobody) = (Accepted::default(), CredentialsFile::default());
        for n in 0..=ACCEPTED {
            let manifest = Digest::of(&n.to_le_bytes());
            accepted.remember(&repository("a"), &manifest, &Credentials::anonymous(), &nobody);
        }
        assert!(accepted.seen.lock().unwrap().len() <= ACCEPTED);
    }
}
