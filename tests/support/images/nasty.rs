//! The image whose tree is hard to get right: each entry is something that unpackers have lost or mangled.

use std::iter;

use anyhow::Result;

use super::recipes::architecture;
use super::{Draft, Image};
use crate::layer::{Compression, LayerTar, Meta};

pub(super) fn image(name: &str) -> Result<Image> {
    let mut draft = Draft::oci(architecture());
    draft.add(everything()?, Compression::Gzip)?;
    draft.add(removals()?, Compression::Gzip)?;
    draft.add(changes_of_type()?, Compression::Gzip)?;
    draft.add(onto_lower_layers()?, Compression::Gzip)?;
    draft.finish(name, &["/none"])
}

/// An image of its own, because containerd's differ fails on it where the mount is an overlay: it links within the
/// upper directory, which lacks the target.
pub(super) fn link_into_a_lower_layer(name: &str) -> Result<Image> {
    let mut draft = Draft::oci(architecture());
    let file = Meta::mode(0o640).owner(3, 4).at(1_350_000_000, 9).xattr("user.kept", b"lower");
    let mut lower = LayerTar::default();
    lower.directory("hard", &Meta::mode(0o755))?;
    lower.file("hard/one", &file, b"two names, two layers\n")?;
    draft.add(lower.finish()?, Compression::Gzip)?;
    let mut upper = LayerTar::default();
    upper.directory("hard", &Meta::mode(0o755))?;
    upper.hard_link("hard/two", "hard/one", &file)?;
    draft.add(upper.finish()?, Compression::Gzip)?;
    draft.finish(name, &["/none"])
}

/// `cap_net_raw+ep` as the kernel stores it: revision 2 with the effective bit, permitted, inheritable.
fn net_raw_capability() -> Vec<u8> {
    [0x0200_0001_u32, 1 << 13, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Every kind of entry, and what the later layers work on.
fn everything() -> Result<Vec<u8>> {
    let mut layer = LayerTar::default();
    let (directory, file) = (Meta::mode(0o755), Meta::mode(0o644));
    for path in ["bin", "dev", "gone", "gone/deep", "hard", "links", "opaque", "opaque/old", "times"] {
        layer.directory(path, &directory)?;
    }
    layer.directory("sticky", &Meta::mode(0o1777))?;
    layer.directory("setgid", &Meta::mode(0o2775).owner(0, 50))?;
    layer.directory("owned", &Meta::mode(0o750).owner(1000, 1001))?;
    layer.file("owned/file", &file.clone().owner(70_000, 70_001), b"owned by nobody here\n")?;
    layer.file("bin/su", &Meta::mode(0o4755), b"setuid\n")?;
    layer.file("bin/both", &Meta::mode(0o6711).owner(12, 34), b"setuid and setgid\n")?;
    layer.file("bin/ping", &file.clone().xattr("security.capability", &net_raw_capability()), b"raw\n")?;
    let attributed = file.clone().xattr("user.drayd", b"text").xattr("user.binary", &[0, 255, 10, 61, 0]);
    layer.file("links/attributed", &attributed, b"with attributes\n")?;
    layer.directory("links/attributed-directory", &directory.clone().xattr("user.on-directory", b"yes"))?;
    layer.symlink("links/relative", "../bin/su")?;
    layer.symlink("links/absolute", "/bin/su")?;
    layer.symlink("links/dangling", "nowhere")?;
    layer.symlink("links/to-directory", "../opaque")?;
    layer.character_device("dev/zero-like", &Meta::mode(0o666), (1, 5))?;
    layer.block_device("dev/block-like", &Meta::mode(0o660).owner(0, 6), (7, 200))?;
    layer.fifo("dev/pipe", &Meta::mode(0o620).owner(5, 5))?;
    layer.file("hard/one", &file, b"three names\n")?;
    layer.hard_link("hard/two", "hard/one", &file)?;
    layer.file("times/nanoseconds", &file.clone().at(1_234_567_890, 123_456_789), b"precise\n")?;
    layer.file("times/epoch", &file.clone().at(0, 0), b"zero\n")?;
    layer.directory("times/directory", &directory.clone().at(1_111_111_111, 987_654_321))?;
    layer.file("times/directory/inside", &file, b"must not touch its directory's time\n")?;
    layer.file("empty", &file, b"")?;
    layer.file("ünïcode – name", &file, b"utf-8\n")?;
    let long: String = iter::repeat_n("a-rather-long-name-", 12).collect();
    layer.directory(&long, &directory)?;
    layer.file(&format!("{long}/{long}"), &file, b"beyond a ustar header\n")?;
    for path in ["gone/file", "gone/deep/file", "opaque/old/file", "opaque/file", "whiteout-me", "back-again"]
    {
        layer.file(path, &file, path.as_bytes())?;
    }
    let peculiar = Meta::mode(0o711).owner(33, 44).at(1_222_222_222, 5).xattr("user.kept", b"lower");
    layer.directory("implied", &peculiar)?;
    layer.directory("implied/deeper", &peculiar)?;
    layer.file("implied/below", &file, b"below\n")?;
    for path in ["was-file", "was-link-target", "mode-only"] {
        layer.file(path, &file, path.as_bytes())?;
    }
    layer.directory("was-directory", &directory)?;
    layer.file("was-directory/child", &file, b"child\n")?;
    layer.symlink("was-link", "was-link-target")?;
    layer.finish()
}

/// Whiteouts and an opaque directory.
fn removals() -> Result<Vec<u8>> {
    let mut layer = LayerTar::default();
    let (directory, file) = (Meta::mode(0o755), Meta::mode(0o644));
    layer.whiteout("whiteout-me")?;
    layer.whiteout("gone")?;
    layer.whiteout("never-was")?;
    layer.whiteout("back-again")?;
    layer.directory("opaque", &directory.clone().at(1_300_000_000, 1))?;
    layer.opaque("opaque")?;
    layer.file("opaque/new", &file, b"alone here\n")?;
    layer.directory("hard", &directory)?;
    layer.whiteout("hard/two")?;
    layer.finish()
}

/// Entries that replace one of another kind, and one that comes back after its whiteout.
fn changes_of_type() -> Result<Vec<u8>> {
    let mut layer = LayerTar::default();
    let (directory, file) = (Meta::mode(0o755), Meta::mode(0o644));
    layer.directory("was-file", &directory)?;
    layer.file("was-file/child", &file, b"a file became a directory\n")?;
    layer.file("was-directory", &file, b"a directory became a file\n")?;
    layer.file("was-link", &file, b"a link became a file; its target stays\n")?;
    layer.file("back-again", &Meta::mode(0o600), b"back again\n")?;
    layer.file("mode-only", &Meta::mode(0o400).owner(9, 9), b"mode-only")?;
    layer.directory("owned", &Meta::mode(0o700).owner(2000, 2001).at(1_400_000_000, 7))?;
    layer.finish()
}

/// What needs the layers below: directories that are only implied. The hard link's target comes with it.
fn onto_lower_layers() -> Result<Vec<u8>> {
    let mut layer = LayerTar::default();
    let file = Meta::mode(0o644);
    layer.directory("hard", &Meta::mode(0o755))?;
    layer.file("hard/one", &file, b"new content under the old name\n")?;
    layer.hard_link("hard/three", "hard/one", &file)?;
    layer.file("implied/deeper/file", &file, b"its directories are not in this tar\n")?;
    layer.finish()
}
