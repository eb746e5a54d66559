//! Media types of images, in Docker's and OCI's spelling, and what each one is to a puller.

/// OCI image index.
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// OCI image manifest.
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// OCI image config.
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Docker manifest list, the equal of an index.
pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// Docker manifest, schema 2.
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// Docker manifest of the format before schema 2.
pub const DOCKER_SCHEMA_1: &str = "application/vnd.docker.distribution.manifest.v1+json";
/// Docker image config.
pub const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";

/// What a media type stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A list of manifests per platform.
    Index,
    /// A config and its layers.
    Manifest,
    /// An image config.
    Config,
    /// A filesystem change set, in any compression.
    Layer,
    /// Anything else; fetched like a blob, never interpreted.
    Unknown,
}

/// Classifies a media type; parameters after `;` do not count. Layers are recognised by rule, not by list, as
/// containerd does, so that nydus, zstd and encrypted layers are layers.
pub fn kind(media_type: &str) -> Kind {
    let name = media_type.split(';').next().unwrap_or_default().trim();
    match name {
        OCI_INDEX | DOCKER_LIST => Kind::Index,
        OCI_MANIFEST | DOCKER_MANIFEST => Kind::Manifest,
        OCI_CONFIG | DOCKER_CONFIG => Kind::Config,
        _ if name.starts_with("application/vnd.oci.image.layer.")
            || name.starts_with("application/vnd.docker.image.rootfs.")
            || name.starts_with("application/vnd.erofs.layer.v1") =>
        {
            Kind::Layer
        }
        _ => Kind::Unknown,
    }
}

/// Whether a layer is encrypted, by any scheme and over any compression: the suffix is that of ocicrypt, which adds it to
/// the type of the layer as it was before.
pub fn is_encrypted(media_type: &str) -> bool {
    let name = media_type.split(';').next().unwrap_or_default().trim();
    kind(name) == Kind::Layer && name.ends_with("+encrypted")
}

/// Whether it is a manifest of the format that Docker left in 2016, signed or not.
pub fn is_schema_1(media_type: &str) -> bool {
    media_type.starts_with("application/vnd.docker.distribution.manifest.v1+")
}

/// Whether a layer of that media type is a tar without compression.
pub fn is_plain(media_type: &str) -> bool {
    media_type.split(['.', '+']).next_back() == Some("tar")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_of_both_families_are_told_apart() {
        for (media_type, expected) in [
            (OCI_INDEX, Kind::Index),
            (DOCKER_LIST, Kind::Index),
            ("application/vnd.oci.image.manifest.v1+json; charset=utf-8", Kind::Manifest),
            (DOCKER_CONFIG, Kind::Config),
            ("application/vnd.oci.image.layer.v1.tar+zstd", Kind::Layer),
            ("application/vnd.oci.image.layer.nydus.blob.v1", Kind::Layer),
            ("application/vnd.docker.image.rootfs.diff.tar.gzip", Kind::Layer),
            ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", Kind::Layer),
            ("application/vnd.in-toto+json", Kind::Unknown),
            ("", Kind::Unknown),
        ] {
            assert_eq!(kind(media_type), expected, "{media_type}");
        }
    }

    #[test]
    fn encrypted_layers_are_told_by_their_suffix() {
        for (media_type, expected) in [
            ("application/vnd.oci.image.layer.v1.tar+encrypted", true),
            ("application/vnd.oci.image.layer.v1.tar+gzip+encrypted", true),
            ("application/vnd.oci.image.layer.v1.tar+zstd+encrypted", true),
            ("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip+encrypted", true),
            ("application/vnd.oci.image.layer.v1.tar+gzip", false),
            ("application/vnd.example+encrypted", false),
        ] {
            assert_eq!(is_encrypted(media_type), expected, "{media_type}");
        }
    }
}
