//! Paths as bytes: cleaning them as Go's `filepath.Clean` does, and what names with the prefix `.wh.` mean.

/// What a name says beside itself (image specification, "Whiteouts").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark<'a> {
    /// It is a file's name.
    None,
    /// Nothing of the layers below shows through the directory.
    Opaque,
    /// The file of this name is removed.
    Removes(&'a [u8]),
}

impl<'a> Mark<'a> {
    /// `None` for a removal of no name, of the directory itself or of the one above, which containerd refuses.
    pub(super) fn of(base: &'a [u8]) -> Option<Self> {
        match base.strip_prefix(b".wh.") {
            None => Some(Self::None),
            Some(b".wh..opq") => Some(Self::Opaque),
            Some(b"" | b"." | b"..") => None,
            Some(name) => Some(Self::Removes(name)),
        }
    }
}

/// The shortest path that means the same if nothing on it is a symlink. Leading `..` of a relative path stay.
pub(super) fn clean(path: &[u8]) -> Vec<u8> {
    let rooted = path.starts_with(b"/");
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in parts_of(path) {
        match (part, parts.last()) {
            (b"..", Some(last)) if *last != b".." => drop(parts.pop()),
            (b"..", _) if rooted => {}
            _ => parts.push(part),
        }
    }
    let joined = parts.join(&b"/"[..]);
    match (rooted, joined.is_empty()) {
        (true, _) => [b"/", joined.as_slice()].concat(),
        (false, true) => b".".to_vec(),
        (false, false) => joined,
    }
}

/// The names on a path.
pub(super) fn parts_of(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."))
}

/// What is before the last slash, and what behind it.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// `name` in the directory `path`.
pub(super) fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// A clean relative path and all directories on the way to it, the shortest first.
pub(super) fn prefixes(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let whole = (!path.is_empty()).then_some(path.len());
    ends.chain(whole).map(|end| &path[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_as_by_go() {
        for (path, expected) in [
            ("", "."),
            (".", "."),
            ("/", "/"),
            ("//a//b/", "/a/b"),
            ("a/./b/../c", "a/c"),
            ("../../x", "../../x"),
            ("a/../../x", "../x"),
            ("/../../x", "/x"),
            ("a/..", "."),
            ("./", "."),
        ] {
            assert_eq!(String::from_utf8_lossy(&clean(path.as_bytes())), expected, "{path}");
        }
    }

    /// Fault 96.
    #[test]
    fn a_whiteout_without_a_name_of_its_own_is_refused() {
        for name in [".wh.", ".wh..", ".wh..."] {
            assert_eq!(Mark::of(name.as_bytes()), None, "{name}");
        }
        assert_eq!(Mark::of(b".wh..wh..opq"), Some(Mark::Opaque));
        assert_eq!(Mark::of(b".wh..wh.plnk"), Some(Mark::Removes(b".wh.plnk")));
        assert_eq!(Mark::of(b".wh.x"), Some(Mark::Removes(b"x")));
        assert_eq!(Mark::of(b"x.wh.y"), Some(Mark::None));
    }

    #[test]
    fn prefixes_begin_at_the_top() {
        let prefixes: Vec<&[u8]> = prefixes(b"a/bc/d").collect();
        assert_eq!(prefixes, [&b"a"[..], b"a/bc", b"a/bc/d"]);
        assert_eq!(super::prefixes(b"").count(), 0);
    }
}
