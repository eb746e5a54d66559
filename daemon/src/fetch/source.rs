//! Where a blob comes from, and the labels that say so: containerd looks by them for a repository that has the blob.

use std::collections::HashMap;

use crate::containerd::{Containerd, labels};
use crate::oci::{Descriptor, Reference};
use crate::registry::{Credentials, Repository};

use super::Error;

/// Where a blob comes from: a repository, and who is asking.
#[derive(Clone, Debug)]
pub struct Source {
    /// The repository at its registry.
    pub repository: Repository,
    /// The credentials that the pull request brought.
    pub credentials: Credentials,
}

impl Source {
    /// Where a reference leads.
    pub fn of(reference: &Reference, credentials: Credentials) -> Self {
        let repository = Repository { domain: reference.domain().into(), path: reference.path().into() };
        Self { repository, credentials }
    }

    /// The label of a blob that is written now.
    pub(super) fn label(&self) -> (String, String) {
        self.label_beside(&HashMap::new())
    }

    /// Sets labels on a blob that is in the store, and that this repository has it, too. Writes only what is missing,
    /// so that a repeated pull changes nothing.
    pub(super) async fn note(
        &self,
        containerd: &Containerd,
        blob: &Descriptor,
        mut labels: HashMap<String, String>,
    ) -> Result<(), Error> {
        let Some(info) = containerd.blob_info(&blob.digest).await? else { return Ok(()) };
        labels.extend([self.label_beside(&info.labels)]);
        labels.retain(|key, value| info.labels.get(key).map_or("", String::as_str) != value);
        Ok(containerd.label_blob(&blob.digest, labels).await?)
    }

    /// `containerd.io/distribution.source.<host>` = the repositories known to hold the blob, sorted. A list that would
    /// break containerd's limit on labels stays as it was.
    fn label_beside(&self, present: &HashMap<String, String>) -> (String, String) {
        let key = format!("{}.{}", labels::DISTRIBUTION_SOURCE, host_name(&self.repository.domain));
        let known = present.get(&key).cloned().unwrap_or_default();
        let mut paths: Vec<&str> = known.split(',').filter(|path| !path.is_empty()).collect();
        let path = self.repository.path.as_str();
        if !paths.contains(&path) {
            paths.push(path);
        }
        paths.sort_unstable();
        let value = paths.join(",");
        if key.len() + value.len() > labels::MAX_LABEL { (key, known) } else { (key, value) }
    }
}

/// The host as it stands in that label: without port, and without the brackets of an IPv6 address.
fn host_name(domain: &str) -> &str {
    match domain.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => domain.split(':').next().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_joins_those_known_unless_the_list_grows_too_long() {
        let repository = Repository { domain: "[::1]:5000".into(), path: "b".into() };
        let source = Source { repository, credentials: Credentials::anonymous() };
        let key = "containerd.io/distribution.source.::1";
        let long = "c".repeat(labels::MAX_LABEL - key.len() - 1);
        for (known, expected) in [("", "b"), ("c,a", "a,b,c"), ("b", "b"), (&long, &long)] {
            let present = HashMap::from([(key.to_owned(), known.to_owned())]);
            assert_eq!(source.label_beside(&present), (key.to_owned(), expected.to_owned()));
        }
    }
}
