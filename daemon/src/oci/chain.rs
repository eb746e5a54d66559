//! Diff IDs and the chain IDs made from them (OCI image specification, "Layer `ChainID`").

use std::fmt;

use super::digest::Digest;

/// Digest of one layer's uncompressed tar, as the image config lists it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DiffId(pub Digest);

/// Identifies the filesystem that a layer makes together with all layers below it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChainId(pub Digest);

impl ChainId {
    /// The chain IDs of a stack of layers, lowest first; as many as there are diff IDs.
    pub fn of_stack(diff_ids: &[DiffId]) -> Vec<Self> {
        let mut chain: Vec<Self> = Vec::with_capacity(diff_ids.len());
        for DiffId(diff_id) in diff_ids {
            let next = match chain.last() {
                None => diff_id.clone(),
                Some(Self(parent)) => Digest::of(format!("{parent} {diff_id}").as_bytes()),
            };
            chain.push(Self(next));
        }
        chain
    }
}

impl fmt::Display for DiffId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_chain_id_is_its_diff_id_and_the_next_hashes_both() {
        let a = DiffId(Digest::of(b"a"));
        let b = DiffId(Digest::of(b"b"));
        let chain = ChainId::of_stack(&[a.clone(), b.clone()]);
        assert_eq!(chain[0].0, a.0);
        assert_eq!(chain[1].0, Digest::of(format!("{a} {b}").as_bytes()));
        assert!(ChainId::of_stack(&[]).is_empty());
    }
}
