//! Files of other owners and devices: these run as root, as drayd does.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};

use drayd_tests::tree::{Entry as Seen, Tree as Listing};
use tempfile::TempDir;

use super::*;
use crate::unpack::tar::sample::{Sample, tar};

const OVERLAY: Removals = Removals::Overlay { user_attributes: false };

/// A place to write into, with something beside it that must not be touched.
struct Ground {
    directory: TempDir,
}

impl Ground {
    fn new() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "run this as root: it writes files of other owners");
        let directory = TempDir::new().expect("a directory");
        for path in ["root", "lower", "outside"] {
            fs::create_dir(directory.path().join(path)).expect("a directory");
        }
        fs::write(directory.path().join("outside/kept"), "kept").expect("a file");
        Self { directory }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    fn root(&self, path: &str) -> PathBuf {
        self.path("root").join(path)
    }

    /// Writes the entries as a layer onto what is there; if that is nothing, ahead of the layers below, too.
    fn write(&self, removals: Removals, entries: &[Sample]) -> Result<(), Error> {
        let empty = fs::read_dir(self.path("root")).expect("it is there").next().is_none();
        let staged = (empty && removals == OVERLAY).then(|| self.write_ahead(entries));
        for whole_paths in [false, true] {
            // The walk without openat2 writes into a place of its own, and must come to the same.
            let root = self.path(if whole_paths { "root" } else { "stepwise" });
            if !whole_paths {
                let copied =
                    std::process::Command::new("cp").arg("-a").arg(self.path("root")).arg(&root).status();
                assert!(copied.expect("cp").success());
            }
            let mut tree = Tree::new(&root, removals, &[self.path("lower")])?;
            if !whole_paths {
                tree.root = tree.root.step_by_step();
            }
            let outcome = written(tree, entries).map(drop);
            if whole_paths {
                let kept: Vec<_> = fs::read_dir(self.path("outside")).expect("it is there").collect();
                assert_eq!(kept.len(), 1, "something was put outside");
                assert_eq!(fs::read(self.path("outside/kept")).expect("it is there"), b"kept");
                let stepwise = self.path("stepwise");
                let (ours, theirs) = (listing(&root), listing(&stepwise));
                fs::remove_dir_all(stepwise).expect("a directory of this test");
                let difference = ours.difference_from(&theirs);
                assert!(difference.is_empty(), "the two walks differ: {difference:#?}");
                match staged {
                    Some(Ok(())) => {
                        let settled = self.path("settled");
                        let difference = dated_listing(&settled).difference_from(&dated_listing(&root));
                        assert!(difference.is_empty(), "written ahead it differs: {difference:#?}");
                        fs::remove_dir_all(settled).expect("a directory of this test");
                        outcome.as_ref().expect("written ahead it was taken");
                    }
                    // It does not know yet what would come of it.
                    None | Some(Err(Error::Below { .. })) => {}
                    Some(Err(error)) => {
                        assert_eq!(outcome.as_ref().expect_err("refused").to_string(), error.to_string());
                    }
                }
                return outcome;
            }
        }
        unreachable!("the loop returns")
    }

    /// The same without the layers below, which come afterwards, into `settled`.
    fn write_ahead(&self, entries: &[Sample]) -> Result<(), Error> {
        let (staged, settled) = (self.path("staged"), self.path("settled"));
        let unfinished = written(Tree::staged(&staged, OVERLAY)?, entries);
        if unfinished.is_ok() {
            fs::create_dir(&settled).expect("a directory");
        }
        let outcome =
            unfinished.and_then(|unfinished| settle(&staged, &settled, &[self.path("lower")], &unfinished));
        fs::remove_dir_all(staged).expect("a directory of this test");
        outcome
    }

    fn tree(&self) -> Listing {
        Listing::read(&self.path("root")).expect("a tree")
    }

    fn names(&self) -> BTreeSet<String> {
        let names = self.tree().entries.into_keys().map(|path| path.display().to_string());
        names.filter(|name| name != ".").map(|name| name.trim_start_matches("./").to_owned()).collect()
    }

    fn entry(&self, path: &str) -> Seen {
        self.tree().get(path).unwrap_or_else(|| panic!("{path} is missing: {:?}", self.names())).clone()
    }

    fn is_removed(&self, path: &str) -> bool {
        fs::symlink_metadata(self.root(path))
            .is_ok_and(|metadata| metadata.file_type().is_char_device() && metadata.rdev() == 0)
    }
}

/// What is there, without times: those that no entry states are of the moment.
fn listing(root: &Path) -> Listing {
    let mut listing = Listing::read(root).expect("a tree");
    for entry in listing.entries.values_mut() {
        entry.mtime = (0, 0);
    }
    listing
}

/// What is there, with the times of the past: no entry of a test is dated to the moment.
fn dated_listing(root: &Path) -> Listing {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_secs();
    let mut listing = Listing::read(root).expect("a tree");
    for entry in listing.entries.values_mut() {
        if entry.mtime.0.abs_diff(i64::try_from(now).expect("this century")) < 600 {
            entry.mtime = (0, 0);
        }
    }
    listing
}

fn written(mut tree: Tree, entries: &[Sample]) -> Result<Unfinished, Error> {
    let bytes = tar(entries);
    let mut archive = Archive::new(bytes.as_slice());
    while let Some(entry) = archive.next_entry()? {
        tree.write(&entry, &mut archive)?;
    }
    tree.finish()
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

#[test]
fn every_kind_of_entry_is_made_with_its_owner_mode_and_time() {
    let ground = Ground::new();
    let precise = |sample: Sample| sample.owner(1000, 50).record("mtime", b"1234567890.123456789");
    let entries = [
        precise(Sample::directory("d/")),
        precise(Sample::file("d/file", b"content")),
        precise(Sample::symlink("d/link", "../nowhere")),
        precise(Sample::of(b'6', "d/fifo")),
        precise(Sample::of(b'3', "d/character").device(1, 259)),
        precise(Sample::of(b'4', "d/block").device(259, 1 << 19)),
        Sample::hard_link("second", "d/file").owner(1000, 50).record("mtime", b"1234567890.123456789"),
    ];
    ground.write(OVERLAY, &entries).expect("a layer");
    let tree = ground.tree();
    for (path, kind, mode, links) in [
        ("d", "directory", 0o755, 0),
        ("d/file", "file", 0o644, 2),
        ("d/link", "symlink", 0o777, 1),
        ("d/fifo", "fifo", 0o644, 1),
        ("d/character", "character", 0o644, 1),
        ("d/block", "block", 0o644, 1),
        ("second", "file", 0o644, 2),
    ] {
        let entry = tree.get(path).expect(path);
        assert_eq!(
            (entry.kind, entry.mode, entry.owner, entry.links),
            (kind, mode, (1000, 50), links),
            "{path}"
        );
        assert_eq!(entry.mtime, (1_234_567_890, 123_456_789), "{path}");
    }
    assert_eq!(fs::read(ground.root("second")).expect("a file"), b"content");
    assert_eq!(tree.get("d/link").expect("a link").content, "../nowhere");
}

/// Fault 92.
#[test]
fn a_whiteout_hides_its_target_whatever_form_it_has() {
    let forms = || {
        [
            Sample::marker("d/.wh.regular"),
            Sample::hard_link("d/.wh.hard", "d/.wh.regular"),
            Sample::file("d/.wh.empty-mode", b"").mode(0),
            Sample::directory("d/.wh.directory/"),
            Sample::marker(".wh.top"),
        ]
    };
    let paths = ["d/regular", "d/hard", "d/empty-mode", "d/directory", "top"];
    let ground = Ground::new();
    ground.write(OVERLAY, &forms()).expect("a layer");
    for path in paths {
        assert!(ground.is_removed(path), "{path}");
    }
    assert_eq!(ground.names().len(), 6, "{:?}", ground.names());

    let ground = Ground::new();
    let lower = [
        Sample::file("d/regular", b""),
        Sample::file("d/hard", b""),
        Sample::file("d/empty-mode", b""),
        Sample::file("d/directory/deep/file", b""),
        Sample::file("top", b""),
        Sample::file("d/stays", b""),
    ];
    ground.write(Removals::Delete, &lower).expect("a layer");
    ground.write(Removals::Delete, &forms()).expect("a layer");
    assert_eq!(ground.names(), names(["d", "d/stays"]));
}

/// Fault 94.
#[test]
fn a_whiteout_and_more_of_them_beneath_it_remove_the_same() {
    let (whole, within) = (Sample::marker(".wh.t"), Sample::marker("t/u/.wh.x"));
    for entries in [[whole.clone(), within.clone()], [within, whole]] {
        let ground = Ground::new();
        ground.write(OVERLAY, &entries).expect("a layer");
        assert!(ground.is_removed("t"));
        assert_eq!(ground.names(), names(["t"]));
        let ground = Ground::new();
        let lower = [Sample::file("t/u/x", b""), Sample::file("t/y", b""), Sample::file("z", b"")];
        ground.write(Removals::Delete, &lower).expect("a layer");
        ground.write(Removals::Delete, &entries).expect("a layer");
        assert_eq!(ground.names(), names(["z"]));
    }
}

/// Fault 96.
#[test]
fn whiteouts_without_a_name_are_refused_and_touch_nothing() {
    for removals in [OVERLAY, Removals::Delete] {
        for name in [".wh.", "d/.wh.", ".wh..", "d/.wh...", "d/../.wh.", "/.wh..."] {
            let ground = Ground::new();
            ground.write(removals, &[Sample::file("d/kept", b"kept")]).expect("a layer");
            let refusal = ground.write(removals, &[Sample::marker(name)]).expect_err(name);
            assert!(refusal.to_string().contains("its own directory"), "{name}: {refusal}");
            assert_eq!(ground.names(), names(["d", "d/kept"]));
        }
    }
}

#[test]
fn an_opaque_directory_hides_what_is_below_and_keeps_its_own() {
    let layer = || {
        [
            Sample::file("d/before", b""),
            Sample::file("d/sub/own", b""),
            Sample::marker("d/.wh..wh..opq"),
            Sample::file("d/after", b""),
        ]
    };
    let ground = Ground::new();
    ground.write(OVERLAY, &layer()).expect("a layer");
    let opaque: Vec<u8> = b"y".to_vec();
    assert_eq!(ground.entry("d").xattrs.get("trusted.overlay.opaque"), Some(&opaque));
    let user = Ground::new();
    user.write(Removals::Overlay { user_attributes: true }, &layer()).expect("a layer");
    assert_eq!(user.entry("d").xattrs.get("user.overlay.opaque"), Some(&opaque));

    let ground = Ground::new();
    let lower = [Sample::file("d/old", b""), Sample::file("d/sub/old/deep", b""), Sample::file("e", b"")];
    ground.write(Removals::Delete, &lower).expect("a layer");
    let mut upper = layer().to_vec();
    upper.insert(1, Sample::directory("d/sub/"));
    ground.write(Removals::Delete, &upper).expect("a layer");
    assert_eq!(ground.names(), names(["d", "d/after", "d/before", "d/sub", "d/sub/own", "e"]));
}

/// Fault 99.
#[test]
fn a_hard_link_replaces_whatever_has_its_name() {
    let ground = Ground::new();
    let lower = [
        Sample::file("file", b"old"),
        Sample::symlink("link", "file"),
        Sample::directory("empty/"),
        Sample::file("full/deep/file", b"old"),
        Sample::file("target", b"new"),
    ];
    ground.write(OVERLAY, &lower).expect("a layer");
    let replaced = ["file", "link", "empty", "full"];
    ground.write(OVERLAY, &replaced.map(|path| Sample::hard_link(path, "/target"))).expect("a layer");
    for path in replaced {
        let entry = ground.entry(path);
        assert_eq!((entry.kind, entry.links), ("file", 5), "{path}");
        assert_eq!(fs::read(ground.root(path)).expect("a file"), b"new");
    }
}

/// Fault 100.
#[test]
fn a_hard_link_leads_to_a_file_of_a_layer_below() {
    let lower = [
        Sample::directory("d/").owner(33, 44).mode(0o711),
        Sample::file("d/one", b"two names, two layers")
            .owner(3, 4)
            .record("SCHILY.xattr.user.kept", b"lower"),
        Sample::file("removed", b""),
        Sample::file("opaque/file", b""),
        Sample::symlink("link", "d"),
    ];
    let above = || {
        let ground = Ground::new();
        let below = Tree::new(&ground.path("lower"), Removals::Delete, &[]).expect("a place");
        written(below, &lower).expect("a layer");
        ground
    };
    let ground = above();
    let link = |target| Sample::hard_link("two", target).owner(3, 4);
    ground.write(OVERLAY, &[link("d/one")]).expect("a layer");
    for path in ["two", "d/one"] {
        let entry = ground.entry(path);
        assert_eq!((entry.links, entry.owner), (2, (3, 4)), "{path}");
        assert_eq!(entry.xattrs.get("user.kept").map(Vec::as_slice), Some(&b"lower"[..]), "{path}");
        assert_eq!(fs::read(ground.root(path)).expect("a file"), b"two names, two layers");
    }
    assert_eq!((ground.entry("d").owner, ground.entry("d").mode), ((33, 44), 0o711));
    let hidden = [
        vec![Sample::marker(".wh.removed"), link("removed")],
        vec![Sample::marker("opaque/.wh..wh..opq"), link("opaque/file")],
        vec![link("link/one")],
        vec![link("d")],
        vec![link("nowhere")],
        vec![link("../outside/kept")],
    ];
    for entries in hidden {
        assert!(above().write(OVERLAY, &entries).is_err());
    }
}

/// Fault 102.
#[test]
fn capabilities_are_there_after_everything_else_was_set() {
    let words = |words: &[u32]| words.iter().copied().flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
    let second = words(&[0x0200_0001, 1 << 13, 0, 0, 0]);
    // The third revision names the user who is root where the capability counts.
    let third = words(&[0x0300_0001, 1 << 10, 0, 0, 0, 1000]);
    let ground = Ground::new();
    let capable = |path, value: &[u8]| {
        let sample = Sample::file(path, b"x").owner(1000, 1000).mode(0o4755);
        sample.record("SCHILY.xattr.security.capability", value)
    };
    ground.write(OVERLAY, &[capable("second", &second), capable("third", &third)]).expect("a layer");
    for (path, value) in [("second", second), ("third", third)] {
        let entry = ground.entry(path);
        assert_eq!(entry.xattrs.get("security.capability"), Some(&value), "{path}");
        assert_eq!((entry.owner, entry.mode), ((1000, 1000), 0o4755));
    }
    let broken = Ground::new().write(OVERLAY, &[capable("broken", b"no capability")]);
    assert!(broken.expect_err("a capability that is none").to_string().contains("broken"));
}

/// Fault 103.
#[test]
fn attributes_without_a_place_are_left_out_and_the_layer_is_taken() {
    let ground = Ground::new();
    let attributed = |sample: Sample| {
        sample
            .record("SCHILY.xattr.user.kept", b"value")
            .record("SCHILY.xattr.unknown.space", b"value")
            .record("SCHILY.xattr.trusted.overlay.opaque", b"y")
            .record("SCHILY.xattr.trusted.other", b"value")
    };
    let entries = [
        attributed(Sample::directory("directory/")),
        attributed(Sample::file("file", b"")),
        attributed(Sample::symlink("link", "file")),
        attributed(Sample::of(b'3', "device").device(1, 3)),
        attributed(Sample::of(b'6', "fifo")),
    ];
    ground.write(OVERLAY, &entries).expect("a layer");
    for (path, count) in [("directory", 1), ("file", 1), ("link", 0), ("device", 0), ("fifo", 0)] {
        let mut xattrs = ground.entry(path).xattrs;
        xattrs.retain(|name, _| !name.starts_with("security."));
        assert_eq!(xattrs.len(), count, "{path}: {xattrs:?}");
    }
    // On such a mount these are commands to the overlay filesystem.
    let user = Ground::new();
    let entries = [Sample::directory("d/").record("SCHILY.xattr.user.overlay.opaque", b"y")];
    user.write(Removals::Overlay { user_attributes: true }, &entries).expect("a layer");
    assert!(!user.entry("d").xattrs.contains_key("user.overlay.opaque"));
}

/// Fault 108.
#[test]
fn special_mode_bits_outlive_the_change_of_owner() {
    let ground = Ground::new();
    let modes = [0o4755, 0o2755, 0o6755, 0o1777, 0o0000];
    let mut entries = Vec::new();
    for mode in modes {
        entries.push(Sample::file(&format!("file{mode:o}"), b"x").owner(1000, 1000).mode(mode));
        entries.push(Sample::directory(&format!("directory{mode:o}/")).owner(1000, 1000).mode(mode));
    }
    entries.push(Sample::hard_link("linked", "file4755").owner(1000, 1000).mode(0o4755));
    ground.write(OVERLAY, &entries).expect("a layer");
    for mode in modes {
        for kind in ["file", "directory"] {
            let entry = ground.entry(&format!("{kind}{mode:o}"));
            assert_eq!((u64::from(entry.mode), entry.owner), (mode, (1000, 1000)), "{kind}");
        }
    }
}

/// Fault 109.
#[test]
fn an_emptied_directory_keeps_its_owner_and_mode() {
    let (marker, own) = (Sample::marker("d/.wh..wh..opq"), Sample::directory("d/").owner(7, 8).mode(0o2750));
    for entries in [[marker.clone(), own.clone()], [own, marker]] {
        for removals in [OVERLAY, Removals::Delete] {
            let ground = Ground::new();
            ground.write(removals, &[Sample::directory("d/"), Sample::file("d/old", b"")]).expect("a layer");
            ground.write(removals, &entries).expect("a layer");
            let entry = ground.entry("d");
            assert_eq!((entry.owner, entry.mode), ((7, 8), 0o2750));
            assert_eq!(ground.root("d/old").exists(), removals == OVERLAY);
        }
    }
}

/// Fault 111.
#[test]
fn what_lies_below_a_symlinked_directory_arrives_where_it_leads() {
    let ground = Ground::new();
    let entries = [
        Sample::directory("b/"),
        Sample::symlink("a", "b"),
        Sample::file("a/f", b"f"),
        Sample::symlink("absolute", "/b"),
        Sample::file("absolute/g", b"g"),
        Sample::symlink("dangling", "made/new"),
        Sample::file("dangling/h", b"h"),
        Sample::symlink("chain", "a/../a"),
        Sample::file("chain/i", b"i"),
    ];
    ground.write(OVERLAY, &entries).expect("a layer");
    let expected =
        ["a", "absolute", "b", "b/f", "b/g", "b/i", "chain", "dangling", "made", "made/new", "made/new/h"];
    assert_eq!(ground.names(), names(expected));
    let endless = [Sample::symlink("x", "y"), Sample::symlink("y", "x"), Sample::file("x/f", b"")];
    assert!(Ground::new().write(OVERLAY, &endless).is_err());
}

#[test]
fn nothing_gets_out_of_the_directory() {
    let kept = |ground: &Ground| ground.path("outside/kept").display().to_string();
    for escape in [
        "../outside",
        "../../../../../../../../../../../../..",
        "/",
        "/..",
        "a/../../outside",
        "./../outside/.",
    ] {
        let ground = Ground::new();
        let (outside, up) = (ground.path("outside").display().to_string(), format!("{escape}/"));
        let entries = [
            Sample::symlink("out", &format!("{up}outside")),
            Sample::symlink("straight", &outside),
            Sample::file(&format!("{up}kept"), b"new"),
            Sample::file("out/kept", b"new"),
            Sample::file("straight/kept", b"new"),
            Sample::directory("out/").mode(0o777).owner(5, 5),
            Sample::marker("straight/.wh.kept"),
        ];
        for removals in [OVERLAY, Removals::Delete] {
            // Taken or refused: `write` looks at what is outside.
            let _ = ground.write(removals, &entries);
        }
        let links = [Sample::symlink("straight", &outside), Sample::hard_link("stolen", "straight/kept")];
        assert!(Ground::new().write(OVERLAY, &links).is_err(), "{escape}");
        assert!(Ground::new().write(OVERLAY, &[Sample::hard_link("stolen", &kept(&ground))]).is_err());
    }
}

#[test]
fn entries_that_lead_to_the_root_itself_are_passed_over() {
    let ground = Ground::new();
    let entries =
        ["./", "/", "..", "../..", "a/..", ""].map(|path| Sample::directory(path).mode(0).owner(9, 9));
    let before = ground.entry(".");
    ground.write(OVERLAY, &entries).expect("a layer");
    let after = ground.entry(".");
    assert_eq!((after.mode, after.owner), (before.mode, before.owner));
    assert_eq!(ground.names(), names([]));
}

#[test]
fn a_later_entry_replaces_an_earlier_one_of_its_name() {
    let ground = Ground::new();
    let entries = [
        Sample::file("x", b"first"),
        Sample::file("x", b"second"),
        Sample::file("file", b""),
        Sample::file("directory/deep/file", b""),
        Sample::file("directory", b"now a file"),
        Sample::directory("kept/"),
        Sample::file("kept/child", b""),
        Sample::directory("kept/").mode(0o700),
        Sample::symlink("link", "kept"),
        Sample::file("link", b"no link"),
    ];
    ground.write(OVERLAY, &entries).expect("a layer");
    assert_eq!(ground.names(), names(["directory", "file", "kept", "kept/child", "link", "x"]));
    assert_eq!(fs::read(ground.root("x")).expect("a file"), b"second");
    assert_eq!(ground.entry("kept").mode, 0o700);
    ground.write(OVERLAY, &[Sample::directory("file/"), Sample::file("file/child", b"")]).expect("a layer");
    assert_eq!(ground.entry("file/child").kind, "file");
    let through = Ground::new().write(OVERLAY, &[Sample::file("file", b""), Sample::file("file/child", b"")]);
    assert!(through.is_err(), "a file is no directory");
}

#[test]
fn implied_directories_are_like_those_that_they_hide() {
    let ground = Ground::new();
    let lower = ground.path("lower");
    let below = Tree::new(&lower, Removals::Delete, &[]).expect("a place");
    let peculiar =
        |path| Sample::directory(path).owner(33, 44).mode(0o2711).record("SCHILY.xattr.user.kept", b"lower");
    written(below, &[peculiar("a/"), peculiar("a/b/"), Sample::file("file", b"")]).expect("a layer");
    symlink("a", lower.join("link")).expect("a link");
    let entries = ["a/b/c/f", "link/f", "file/f"].map(|path| Sample::file(path, b""));
    ground.write(OVERLAY, &entries).expect("a layer");
    for path in ["a", "a/b", "link"] {
        let entry = ground.entry(path);
        assert_eq!((entry.kind, entry.owner, entry.mode), ("directory", (33, 44), 0o2711), "{path}");
        assert_eq!(entry.xattrs.get("user.kept").map(Vec::as_slice), Some(&b"lower"[..]), "{path}");
    }
    for path in ["a/b/c", "file"] {
        assert_eq!((ground.entry(path).mode & 0o777, ground.entry(path).owner.0), (0o755, 0), "{path}");
    }
}

#[test]
fn the_root_of_a_layer_may_be_opaque() {
    let ground = Ground::new();
    ground.write(OVERLAY, &[Sample::file(".wh..wh..opq", b""), Sample::file("f", b"")]).expect("a layer");
    assert!(ground.entry(".").xattrs.contains_key("trusted.overlay.opaque"), "{:?}", ground.entry("."));
    assert_eq!(ground.names(), names(["f"]));
}

#[test]
fn what_a_hidden_directory_would_hand_down_is_not_written_ahead() {
    let ground = Ground::new();
    // Version 2: read, write and search for the owner, read and search for the rest.
    let acl =
        b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x04\0\x05\0\xff\xff\xff\xff\x20\0\x05\0\xff\xff\xff\xff";
    let handing_down = Sample::directory("d/").record("SCHILY.xattr.system.posix_acl_default", acl);
    let below = Tree::new(&ground.path("lower"), Removals::Delete, &[]).expect("a place");
    written(below, &[handing_down]).expect("a layer");
    let refusal = ground.write_ahead(&[Sample::file("d/f", b"")]).expect_err("it is not known yet");
    assert!(matches!(refusal, Error::Below { .. }), "{refusal}");
    fs::remove_dir_all(ground.path("settled")).expect("a directory of this test");
    ground.write(OVERLAY, &[Sample::file("d/f", b"")]).expect("a layer");
    assert!(ground.entry("d").xattrs.contains_key("system.posix_acl_default"), "{:?}", ground.entry("d"));
}

/// Fault 119.
#[test]
fn devices_are_made_with_their_numbers() {
    let ground = Ground::new();
    let entries = [
        Sample::of(b'3', "c").device(4095, 1_048_575).owner(5, 6).mode(0o620),
        Sample::of(b'4', "b").device(0, 0).mode(0o660),
        Sample::of(b'6', "p").mode(0o600),
    ];
    ground.write(OVERLAY, &entries).expect("a layer");
    assert_eq!(ground.entry("c").device, makedev(4095, 1_048_575));
    assert_eq!((ground.entry("c").mode, ground.entry("c").owner), (0o620, (5, 6)));
    assert_eq!((ground.entry("b").kind, ground.entry("b").device), ("block", 0));
    assert_eq!(ground.entry("p").kind, "fifo");
    let refusal = Ground::new().write(OVERLAY, &[Sample::of(b's', "socket")]).expect_err("no such type");
    assert!(refusal.to_string().contains("`socket`"), "{refusal}");
}

/// Fault 120.
#[test]
fn holes_stay_holes() {
    let ground = Ground::new();
    let size = 8_u64 << 30;
    let map = format!("0,3,{},2", size - 2);
    let sparse = Sample::file("sparse", b"abcde")
        .record("GNU.sparse.major", b"0")
        .record("GNU.sparse.minor", b"1")
        .record("GNU.sparse.size", size.to_string().as_bytes())
        .record("GNU.sparse.numblocks", b"2")
        .record("GNU.sparse.map", map.as_bytes());
    let tail = Sample::of(b'S', "tail")
        .gnu()
        .content(b"xyz")
        .octal(386, 12, 4)
        .octal(398, 12, 3)
        .octal(483, 12, 5000);
    let mut tree = Tree::new(&ground.path("root"), OVERLAY, &[]).expect("a place");
    let bytes = tar(&[sparse, tail]);
    let mut archive = Archive::new(bytes.as_slice());
    while let Some(entry) = archive.next_entry().expect("a tar") {
        tree.write(&entry, &mut archive).expect("a layer");
    }
    tree.finish().expect("a layer");
    let metadata = fs::metadata(ground.root("sparse")).expect("a file");
    assert_eq!(metadata.len(), size);
    assert!(metadata.blocks() < 1000, "{} blocks", metadata.blocks());
    let tail = fs::read(ground.root("tail")).expect("a file");
    assert_eq!((tail.len(), &tail[..8]), (5000, &b"\0\0\0\0xyz\0"[..]));
}

/// Fault 121.
#[test]
fn times_that_containerd_cannot_count_become_the_epoch() {
    let ground = Ground::new();
    let times = [
        ("negative", "-1.5", (0, 0)),
        ("year2400", "13569465600", (0, 0)),
        ("largest", "9223372036854775807", (0, 0)),
        ("last", "9223372036.854775807", (9_223_372_036, 854_775_807)),
        ("nanoseconds", "1.000000001", (1, 1)),
    ];
    let dated =
        |(path, time, _): &(&str, &str, _)| Sample::file(path, b"intact").record("mtime", time.as_bytes());
    ground.write(OVERLAY, &times.iter().map(dated).collect::<Vec<_>>()).expect("a layer");
    for (path, _, expected) in times {
        // Filesystems with smaller inodes end in 2446; the last second that counts is before that.
        assert_eq!(ground.entry(path).mtime, expected, "{path}");
        assert_eq!(fs::read(ground.root(path)).expect("a file"), b"intact");
    }
}

/// Fault 122.
#[test]
fn an_owner_beyond_32_bits_is_refused_and_never_root() {
    for (uid, gid) in [(1 << 32, 0), (4_294_968_296, 0), (0, 1 << 32), (u64::from(u32::MAX), 0)] {
        let ground = Ground::new();
        let entries = [
            Sample::file("f", b"").owner(uid, gid),
            Sample::file("f", b"")
                .record("uid", uid.to_string().as_bytes())
                .record("gid", gid.to_string().as_bytes()),
            Sample::marker(".wh.f").owner(uid, gid),
        ];
        for entry in entries {
            let refusal = ground.write(OVERLAY, &[entry]).expect_err("no such owner");
            assert!(refusal.to_string().contains("owner or group"), "{refusal}");
            assert!(!ground.root("f").exists() || ground.is_removed("f"));
        }
    }
    let ground = Ground::new();
    let large = (1_u64 << 31) + 5;
    ground.write(OVERLAY, &[Sample::file("f", b"").owner(large, large)]).expect("a layer");
    assert_eq!(u64::from(ground.entry("f").owner.0), large);
}

#[test]
fn names_may_be_long_and_trees_deep_as_far_as_the_kernel_goes() {
    let ground = Ground::new();
    let longest = "n".repeat(255);
    let deep = format!("{}f", "d/".repeat(2000));
    let entries = [Sample::file(&longest, b"long"), Sample::file(&deep, b"deep")];
    let mut tree = Tree::new(&ground.path("root"), Removals::Delete, &[]).expect("a place");
    let mut write = |entries: &[Sample]| {
        let bytes = tar(entries);
        let mut archive = Archive::new(bytes.as_slice());
        while let Some(entry) = archive.next_entry()? {
            tree.write(&entry, &mut archive)?;
        }
        Ok::<_, Error>(())
    };
    write(&entries).expect("a layer");
    assert_eq!(fs::read(ground.root(&longest)).expect("a file"), b"long");
    assert!(write(&[Sample::file(&"n".repeat(256), b"")]).is_err());
    let refusal = write(&[Sample::file(&format!("{}f", "d/".repeat(2048)), b"")]).expect_err("too deep");
    assert!(refusal.to_string().contains("4095 bytes"), "{refusal}");
    // And all of it can be removed.
    write(&[Sample::marker(".wh.d")]).expect("a layer");
    assert_eq!(ground.names(), BTreeSet::from([longest]));
}

/// A filesystem of 64 KiB.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn new() -> Self {
        let point = TempDir::new().expect("a directory");
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(point.path());
        assert!(mount.status().expect("mount").success());
        Self(point)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_is_told_from_a_bad_layer() {
    let disk = SmallDisk::new();
    let tree = Tree::new(disk.0.path(), OVERLAY, &[]).expect("a place");
    let error = written(tree, &[Sample::file("large", &vec![1; 100_000])]).expect_err("there is no room");
    assert!(error.is_full_disk() && !error.is_want_of_rights(), "{error}");
    let bad = Ground::new().write(OVERLAY, &[Sample::hard_link("link", "nothing")]).expect_err("a bad layer");
    assert!(!bad.is_full_disk(), "{bad}");
}

#[test]
fn a_global_header_takes_the_place_of_a_file_as_with_containerd() {
    let ground = Ground::new();
    let entries = [
        Sample::file("pax_global_header", b""),
        Sample::of(b'g', "pax_global_header"),
        Sample::file("f", b""),
    ];
    ground.write(OVERLAY, &entries).expect("a layer");
    assert_eq!(ground.names(), names(["f"]));
}
