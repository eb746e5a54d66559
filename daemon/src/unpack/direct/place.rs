//! Where a layer's files go, by the mounts of its active snapshot; or that they are nothing that can be written into
//! without mounting it. Pure.

use std::fmt;
use std::path::PathBuf;

use crate::containerd::Mount;
use crate::oci::{Descriptor, media_type};
use crate::unpack::tree::{self, Removals, Tree};

/// A directory to write into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::unpack) struct Place {
    pub(in crate::unpack) root: PathBuf,
    pub(in crate::unpack) removals: Removals,
    /// The directories of the layers below, the highest first, where `root` does not hold their files.
    pub(in crate::unpack) lowers: Vec<PathBuf>,
}

/// Why the direct engine leaves a layer to containerd's differ.
#[derive(Debug)]
pub(in crate::unpack) enum Unfit {
    /// It is not a tar in a compression that drayd reads.
    MediaType(String),
    /// The snapshotter answers with mounts of another kind.
    Mounts(String),
    /// It wants more memory for decompression than a layer gets.
    Window,
    /// The system does not let this process do it.
    Rights(tree::Error),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MediaType(media_type) => write!(f, "its media type is `{media_type}`"),
            Self::Mounts(mounts) => write!(f, "its snapshot is mounted as {mounts}"),
            Self::Window => write!(f, "its zstd data has a window of more than 8 MiB"),
            Self::Rights(tree::Error::Step { step, path, source }) => {
                write!(f, "drayd cannot {step} `{path}`: {source}")
            }
            Self::Rights(tree::Error::Open { path, source }) => {
                write!(f, "drayd cannot open {path}: {source}")
            }
            Self::Rights(error) => error.fmt(f),
        }
    }
}

impl Place {
    /// The writer into this place.
    pub(in crate::unpack) fn tree(&self) -> Result<Tree, tree::Error> {
        Tree::new(&self.root, self.removals, &self.lowers)
    }

    /// Where the layer `blob` goes on these mounts.
    pub(in crate::unpack) fn of(blob: &Descriptor, mounts: &[Mount]) -> Result<Self, Unfit> {
        if !is_tar(&blob.media_type) {
            return Err(Unfit::MediaType(blob.media_type.clone()));
        }
        Self::of_mounts(mounts).ok_or_else(|| {
            let shown = |mount: &Mount| format!("{} ({})", mount.r#type, mount.options.join(","));
            Unfit::Mounts(mounts.iter().map(shown).collect::<Vec<_>>().join(", "))
        })
    }

    /// Where any layer goes on these mounts; `None` if they are others than can be written into.
    pub(in crate::unpack) fn of_mounts(mounts: &[Mount]) -> Option<Self> {
        match mounts {
            [mount] if mount.r#type == "bind" => of_bind(mount),
            [mount] if mount.r#type == "overlay" => of_overlay(mount),
            _ => None,
        }
    }
}

/// Whether it is a tar, bare or in gzip or Zstandard. Which of them, its first bytes say.
pub(in crate::unpack) fn is_tar(media_type: &str) -> bool {
    let name = media_type.split(';').next().unwrap_or_default().trim();
    media_type::kind(name) == media_type::Kind::Layer
        && [".tar", ".tar+gzip", ".tar+zstd", ".tar.gzip", ".tar.zstd"].iter().any(|end| name.ends_with(end))
}

/// A directory that holds all layers below (native, and the lowest layer of overlayfs).
fn of_bind(mount: &Mount) -> Option<Place> {
    let plain = mount.options.iter().all(|option| matches!(option.as_str(), "bind" | "rbind" | "rw"));
    let root = absolute(&mount.source)?;
    plain.then_some(Place { root, removals: Removals::Delete, lowers: Vec::new() })
}

/// The upper directory of an overlay. Options that change where or how files lie in it are not passed over: an unknown
/// one may be such.
fn of_overlay(mount: &Mount) -> Option<Place> {
    let (mut root, mut lowers, mut user_attributes) = (None, Vec::new(), false);
    for option in &mount.options {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        match key {
            "upperdir" => root = Some(absolute(value)?),
            // A colon within a directory's name is written `\:`; containerd itself does not read that either.
            "lowerdir" if value.contains('\\') => return None,
            "lowerdir" => lowers = value.split(':').map(absolute).collect::<Option<_>>()?,
            "userxattr" => user_attributes = true,
            "workdir" | "index" | "volatile" | "rw" | "xino" => {}
            _ => return None,
        }
    }
    Some(Place { root: root?, removals: Removals::Overlay { user_attributes }, lowers })
}

fn absolute(path: &str) -> Option<PathBuf> {
    path.starts_with('/').then(|| path.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::Digest;

    const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

    fn layer(media_type: &str) -> Descriptor {
        let annotations = std::collections::BTreeMap::new();
        let digest = Digest::of(b"layer");
        Descriptor { media_type: media_type.into(), digest, size: 5, annotations, urls: Vec::new() }
    }

    fn mount(kind: &str, source: &str, options: &[&str]) -> Mount {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        Mount { r#type: kind.into(), source: source.into(), target: String::new(), options }
    }

    #[test]
    fn a_bind_mount_is_its_source() {
        let place = Place::of(&layer(GZIP), &[mount("bind", "/snapshots/1/fs", &["rw", "rbind"])]);
        let expected =
            Place { root: "/snapshots/1/fs".into(), removals: Removals::Delete, lowers: Vec::new() };
        assert_eq!(place.expect("a place"), expected);
    }

    #[test]
    fn an_overlay_is_its_upper_directory_above_the_lower_ones() {
        let options =
            ["index=off", "userxattr", "workdir=/s/3/work", "upperdir=/s/3/fs", "lowerdir=/s/2/fs:/s/1/fs"];
        let place = Place::of(&layer(GZIP), &[mount("overlay", "overlay", &options)]).expect("a place");
        assert_eq!(place.root, PathBuf::from("/s/3/fs"));
        assert_eq!(place.removals, Removals::Overlay { user_attributes: true });
        assert_eq!(place.lowers, [PathBuf::from("/s/2/fs"), PathBuf::from("/s/1/fs")]);
    }

    #[test]
    fn other_mounts_are_left_to_the_differ() {
        let bind = mount("bind", "/s/1/fs", &["rbind", "rw"]);
        for mounts in [
            vec![],
            vec![bind.clone(), bind],
            vec![mount("bind", "/s/1/fs", &["rbind", "ro"])],
            vec![mount("bind", "s/1/fs", &["rbind", "rw"])],
            vec![mount("overlay", "overlay", &["lowerdir=/s/2/fs:/s/1/fs"])],
            vec![mount("overlay", "overlay", &["upperdir=/s/2/fs", "lowerdir=/s/a\\:b"])],
            vec![mount(
                "overlay",
                "overlay",
                &["upperdir=/s/2/fs", "lowerdir=/s/1/fs", "uidmap=0:100000:65536"],
            )],
            vec![mount("fuse.nydus-overlayfs", "overlay", &["upperdir=/s/2/fs", "lowerdir=/s/1/fs"])],
        ] {
            assert!(matches!(Place::of(&layer(GZIP), &mounts), Err(Unfit::Mounts(_))), "{mounts:?}");
        }
    }

    /// Fault 115, by label.
    #[test]
    fn layers_that_are_no_tar_are_left_to_the_differ() {
        let mounts = [mount("bind", "/s/1/fs", &["rbind", "rw"])];
        for (media_type, fits) in [
            (GZIP, true),
            ("application/vnd.oci.image.layer.v1.tar", true),
            ("application/vnd.oci.image.layer.v1.tar+zstd", true),
            ("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", true),
            ("application/vnd.docker.image.rootfs.diff.tar.gzip", true),
            ("application/vnd.docker.image.rootfs.diff.tar", true),
            ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", true),
            ("application/vnd.oci.image.layer.v1.tar+gzip+encrypted", false),
            ("application/vnd.oci.image.layer.v1.tar+xz", false),
            ("application/vnd.oci.image.layer.nydus.blob.v1", false),
            ("application/vnd.erofs.layer.v1", false),
            ("text/plain.tar", false),
        ] {
            let place = Place::of(&layer(media_type), &mounts);
            assert_eq!(place.is_ok(), fits, "{media_type}: {place:?}");
        }
    }
}
