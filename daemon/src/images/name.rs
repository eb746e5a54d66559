//! What a caller calls an image, and which of several things is meant by it.

use std::collections::BTreeSet;

use super::Error;
use crate::oci::Reference;
use crate::oci::reference::ReferenceError;

/// What a caller calls an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageName {
    /// An image ID, or the first digits of one.
    Id(String),
    /// A normalised reference.
    Reference(Reference),
    /// A reference that might also be the first digits of an ID; the reference is tried first.
    Either(Reference, String),
}

/// What a thing in the image store answers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Called<'a> {
    /// Its references.
    pub(super) names: Vec<&'a str>,
    /// Its image IDs, `sha256:…`.
    pub(super) ids: Vec<&'a str>,
}

/// What image IDs start with; callers may leave it out.
const ALGORITHM: &str = "sha256:";

impl ImageName {
    /// Reads what a caller calls an image: an ID as PullImage returns it, its hex digits or the first of them, or a
    /// reference. The error is the reference's.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        let hex = text.strip_prefix(ALGORITHM).unwrap_or(text);
        let digits = !hex.is_empty() && hex.len() <= 64 && hex.bytes().all(|b| b.is_ascii_hexdigit());
        if digits && (text.starts_with(ALGORITHM) || hex.len() == 64) {
            return Ok(Self::Id(text.into()));
        }
        let reference = Reference::parse(text)?;
        Ok(if digits { Self::Either(reference, text.into()) } else { Self::Reference(reference) })
    }

    /// The name of the record that is meant, if there is one of just that name.
    pub(super) fn exact(&self) -> Option<String> {
        match self {
            Self::Id(id) => (id.len() == ALGORITHM.len() + 64).then(|| id.clone()),
            Self::Reference(reference) | Self::Either(reference, _) => Some(reference.to_string()),
        }
    }

    /// Places of the things that are meant: those that have it as a reference, else those that have the one ID that
    /// starts with it. First digits that several IDs share are an error, since any choice would be a guess.
    pub(super) fn choose(&self, things: &[Called<'_>]) -> Result<Vec<usize>, Error> {
        let (reference, id) = match self {
            Self::Id(id) => (None, Some(id)),
            Self::Reference(reference) => (Some(reference), None),
            Self::Either(reference, id) => (Some(reference), Some(id)),
        };
        let named = reference.map(|reference| by_name(things, &reference.to_string())).unwrap_or_default();
        match id {
            Some(id) if named.is_empty() => by_id(things, id),
            _ => Ok(named),
        }
    }
}

fn by_name(things: &[Called<'_>], name: &str) -> Vec<usize> {
    let exact = places(things, |called| called.names.contains(&name));
    if !exact.is_empty() {
        return exact;
    }
    // A host is the same in any case; what follows it is not.
    let same = |other: &str| match (other.split_once('/'), name.split_once('/')) {
        (Some((other_host, other)), Some((host, rest))) => {
            other == rest && other_host.eq_ignore_ascii_case(host)
        }
        _ => false,
    };
    places(things, |called| called.names.iter().any(|other| same(other)))
}

fn by_id(things: &[Called<'_>], given: &str) -> Result<Vec<usize>, Error> {
    let digits = given.strip_prefix(ALGORITHM).unwrap_or(given);
    let fits = |id: &&str| id.strip_prefix(ALGORITHM).is_some_and(|hex| hex.starts_with(digits));
    let ids: BTreeSet<&str> =
        things.iter().flat_map(|called| &called.ids).copied().filter(|id| fits(id)).collect();
    match ids.first() {
        Some(id) if ids.len() == 1 => Ok(places(things, |called| called.ids.contains(id))),
        Some(_) => Err(Error::Ambiguous { given: given.to_owned(), count: ids.len() }),
        None => Ok(Vec::new()),
    }
}

fn places(things: &[Called<'_>], fits: impl Fn(&Called<'_>) -> bool) -> Vec<usize> {
    things.iter().enumerate().filter(|(_, called)| fits(called)).map(|(place, _)| place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "sha256:695a0000000000000000000000000000000000000000000000000000000000aa";
    const B: &str = "sha256:695a0000000000000000000000000000000000000000000000000000000000bb";
    const C: &str = "sha256:c0000000000000000000000000000000000000000000000000000000000000cc";

    fn called<'a>(names: &[&'a str], ids: &[&'a str]) -> Called<'a> {
        Called { names: names.to_vec(), ids: ids.to_vec() }
    }

    fn choose(name: &str, things: &[Called<'_>]) -> Result<Vec<usize>, String> {
        let name = ImageName::parse(name).expect("a name");
        name.choose(things).map_err(|error| error.to_string())
    }

    #[test]
    fn a_reference_goes_before_the_start_of_an_id() {
        let things =
            [called(&["docker.io/library/app:1"], &[A]), called(&["docker.io/library/695a:latest"], &[C])];
        for (name, expected) in [
            ("695a", vec![1]),
            ("695a:latest", vec![1]),
            ("695a0", vec![0]),
            ("sha256:695a", vec![0]),
            (A, vec![0]),
            ("c", vec![1]),
            ("beef", vec![]),
            ("app:1", vec![0]),
            ("app", vec![]),
        ] {
            assert_eq!(choose(name, &things), Ok(expected), "{name}");
        }
    }

    /// Fault 7.
    #[test]
    fn a_host_is_the_same_in_any_case_and_a_tag_is_not() {
        let things = [called(&["LOCALHOST:5000/app:V1"], &[A]), called(&["localhost:5000/other:1"], &[C])];
        for (name, expected) in [
            ("localhost:5000/app:V1", vec![0]),
            ("LocalHost:5000/app:V1", vec![0]),
            ("LOCALHOST:5000/other:1", vec![1]),
            ("localhost:5000/app:v1", vec![]),
            ("localhost:5001/app:V1", vec![]),
        ] {
            assert_eq!(choose(name, &things), Ok(expected), "{name}");
        }
        let both = [called(&["LOCALHOST/app:1"], &[A]), called(&["localhost/app:1"], &[C])];
        assert_eq!(choose("localhost/app:1", &both), Ok(vec![1]));
    }

    #[test]
    fn the_start_of_several_ids_is_ambiguous() {
        let things = [called(&[], &[A]), called(&[], &[B]), called(&[], &[C])];
        let message = |given| Err(format!("`{given}` is the start of 2 image IDs: give more of its digits"));
        assert_eq!(choose("695a", &things), message("695a"));
        assert_eq!(choose("sha256:6", &things), message("sha256:6"));
        for (name, expected) in [(A, 0), (B, 1), ("c0", 2)] {
            assert_eq!(choose(name, &things), Ok(vec![expected]), "{name}");
        }
    }

    #[test]
    fn all_that_have_the_one_id_are_meant() {
        let things = [called(&["docker.io/library/app:1"], &[A]), called(&[A], &[A]), called(&[], &[C])];
        assert_eq!(choose("695a", &things), Ok(vec![0, 1]));
        assert_eq!(choose(A, &things), Ok(vec![0, 1]));
    }

    #[test]
    fn a_malformed_name_is_an_error() {
        for name in ["", "UPPER/Case", "a b", "sha256:"] {
            assert!(ImageName::parse(name).is_err(), "{name}");
        }
    }
}
