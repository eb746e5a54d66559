//! Layers that nobody makes by accident, each an image of its own above one plain layer. Some are refused, some are
//! harmless: what matters is that two unpackers agree.

use anyhow::Result;

use super::recipes::architecture;
use super::{Draft, Image, cached};
use crate::layer::{Compression, LayerTar, Meta};

type Recipe = fn(&mut LayerTar) -> Result<()>;

const RECIPES: [(&str, Recipe); 16] = [
    ("paths-that-climb", |layer| {
        for path in
            ["../climbed", "../../twice", "/rooted", "a/../sideways", "./dotted", "d/./../d/.//inside"]
        {
            layer.file(path, &file(), path.as_bytes())?;
        }
        layer.directory("..", &Meta::mode(0o700).owner(7, 7))?;
        layer.directory("/", &Meta::mode(0o700).owner(7, 7))
    }),
    ("links-that-climb", |layer| {
        layer.symlink("up", "../../../../../..")?;
        layer.symlink("rooted", "/")?;
        layer.file("up/through-up", &file(), b"up")?;
        layer.file("rooted/through-root", &file(), b"root")?;
        layer.symlink("chain", "up/rooted/d")?;
        layer.file("chain/through-both", &file(), b"both")
    }),
    ("a-link-that-dangles", |layer| {
        layer.symlink("dangling", "not/there")?;
        layer.file("dangling/file", &file(), b"made on the way")
    }),
    ("links-without-end", |layer| {
        layer.symlink("x", "y")?;
        layer.symlink("y", "x")?;
        layer.file("x/file", &file(), b"")
    }),
    ("a-whiteout-of-nothing", |layer| layer.file(".wh.", &file(), b"")),
    ("a-whiteout-of-its-directory", |layer| layer.file("d/.wh..", &file(), b"")),
    ("a-whiteout-of-what-is-above", |layer| layer.file("d/.wh...", &file(), b"")),
    ("names-of-aufs", |layer| {
        layer.directory(".wh..wh.plnk", &Meta::mode(0o700))?;
        layer.file(".wh..wh.aufs", &file(), b"")
    }),
    ("hard-links-onto-everything", |layer| {
        layer.file("target", &file(), b"target")?;
        layer.file("onto-file", &file(), b"old")?;
        layer.symlink("onto-link", "target")?;
        layer.directory("onto-directory", &Meta::mode(0o755))?;
        layer.hard_link("onto-file", "target", &file())?;
        layer.hard_link("onto-link", "/target", &file())?;
        layer.symlink("symbolic", "nowhere")?;
        layer.hard_link("to-a-link", "symbolic", &Meta::mode(0o777))
    }),
    ("a-hard-link-to-nothing", |layer| layer.hard_link("link", "nothing", &file())),
    ("a-hard-link-to-a-directory", |layer| {
        layer.directory("new", &Meta::mode(0o755))?;
        layer.hard_link("link", "new", &file())
    }),
    ("a-file-below-a-file", |layer| {
        layer.file("file", &file(), b"")?;
        layer.file("file/below", &file(), b"")
    }),
    ("one-name-many-times", |layer| {
        layer.file("name", &file(), b"first")?;
        layer.symlink("name", "d")?;
        layer.file("name", &file(), b"third")?;
        layer.fifo("name", &Meta::mode(0o600))?;
        layer.file("name/", &file(), b"last")
    }),
    ("a-global-header", |layer| {
        layer.other(b'g', "d/pax_global_header", b"19 comment=nothing\n")?;
        layer.file("after", &file(), b"")
    }),
    ("an-unknown-type", |layer| layer.other(b'Z', "unknown", b"")),
    ("times-out-of-range", |layer| {
        layer.file("negative", &file().at(-5, 5), b"")?;
        layer.file("year-2400", &file().at(13_569_465_600, 1), b"")?;
        layer.file("year-2262", &file().at(9_223_372_036, 854_775_807), b"")
    }),
];

/// All of them, and the directories whose time no unpacking can know.
pub fn hostile() -> Result<(Vec<Image>, [&'static str; 4])> {
    let images = RECIPES.iter().map(|(name, recipe)| {
        cached(&format!("{name}:1"), |name| {
            let mut draft = Draft::oci(architecture());
            let mut below = LayerTar::default();
            below.directory("d", &Meta::mode(0o755))?;
            for path in ["d/kept", "kept", "onto-directory", "target"] {
                below.file(path, &file(), path.as_bytes())?;
            }
            draft.add(below.finish()?, Compression::Gzip)?;
            let mut layer = LayerTar::default();
            recipe(&mut layer)?;
            draft.add(layer.finish()?, Compression::Gzip)?;
            draft.finish(name, &["/none"])
        })
    });
    Ok((images.collect::<Result<_>>()?, [".", "d", "not", "not/there"]))
}

/// Its second layer holds a file whose owner's number is one more than 32 bits hold: cut to them it is root's.
pub fn wrapped_owner() -> Result<Image> {
    cached("wrapped-owner:1", |name| {
        let mut draft = Draft::oci(architecture());
        let mut below = LayerTar::default();
        below.file("kept", &file(), b"kept")?;
        draft.add(below.finish()?, Compression::Gzip)?;
        let mut layer = LayerTar::default();
        layer.file("d/roots", &Meta::mode(0o4755).owner(1 << 32, 0), b"")?;
        draft.add(layer.finish()?, Compression::Gzip)?;
        draft.finish(name, &["/none"])
    })
}

/// Its second layer has some kilobytes, and a file of 400 MiB in them.
pub fn bomb() -> Result<Image> {
    cached("bomb:1", |name| {
        let mut draft = Draft::oci(architecture());
        let mut below = LayerTar::default();
        below.file("below", &file(), b"below")?;
        draft.add(below.finish()?, Compression::Gzip)?;
        let mut layer = LayerTar::default();
        layer.file("first", &file(), b"first")?;
        layer.file("large", &file(), &vec![0; 400 << 20])?;
        draft.add(layer.finish()?, Compression::Zstd)?;
        draft.finish(name, &["/none"])
    })
}

/// Its second layer wants 128 MiB of memory for its decompression.
pub fn large_window() -> Result<Image> {
    cached("large-window:1", |name| {
        let mut draft = Draft::oci(architecture());
        for (file, compression) in [("below", Compression::Zstd), ("above", Compression::ZstdLong)] {
            let mut layer = LayerTar::default();
            layer.file(file, &self::file(), file.as_bytes())?;
            draft.add(layer.finish()?, compression)?;
        }
        draft.finish(name, &["/none"])
    })
}

/// An image for each compression, with a layer under the label of each.
pub fn mislabelled() -> Result<Vec<Image>> {
    let compressions = [Compression::Plain, Compression::Gzip, Compression::Zstd];
    let images = compressions.iter().enumerate().map(|(number, real)| {
        cached(&format!("mislabelled{number}:1"), |name| {
            let mut draft = Draft::oci(architecture());
            for (other, label) in compressions.iter().enumerate() {
                let mut layer = LayerTar::default();
                layer.file(&format!("file{other}"), &file(), name.as_bytes())?;
                draft.add_labelled(layer.finish()?, *real, *label)?;
            }
            draft.finish(name, &["/none"])
        })
    });
    images.collect()
}

fn file() -> Meta {
    Meta::mode(0o644)
}
