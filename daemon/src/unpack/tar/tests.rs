use super::sample::{Sample, record, tar};
use super::*;

type Read = (Entry, Vec<u8>);

/// All entries with what the archive holds of their content.
fn read(bytes: &[u8]) -> Result<Vec<Read>, Error> {
    let mut archive = Archive::new(bytes);
    let mut entries = Vec::new();
    while let Some(entry) = archive.next_entry()? {
        let mut content = Vec::new();
        let mut part = [0; 100];
        loop {
            match archive.read(&mut part)? {
                0 => break,
                length => content.extend_from_slice(&part[..length]),
            }
        }
        entries.push((entry, content));
    }
    Ok(entries)
}

fn one(sample: &Sample) -> Read {
    let mut entries = read(&tar(std::slice::from_ref(sample))).expect("a tar");
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries.remove(0)
}

fn refusal(bytes: &[u8]) -> String {
    read(bytes).expect_err("it is refused").to_string()
}

fn path(entry: &Entry) -> &str {
    std::str::from_utf8(&entry.path).expect("UTF-8")
}

#[test]
fn every_field_of_a_header_is_read() {
    let sample = Sample::file("a/b", b"content").mode(0o4755).owner(1000, 50);
    let (entry, content) = one(&sample);
    assert_eq!((path(&entry), entry.kind, entry.mode), ("a/b", Kind::File, 0o4755));
    assert_eq!((entry.uid, entry.gid, entry.size), (1000, 50, 7));
    assert_eq!(entry.modified, Time { seconds: 1_600_000_000, nanoseconds: 0 });
    assert_eq!(content, b"content");
    let (entry, _) = one(&Sample::of(b'3', "null").device(1, 3));
    assert_eq!((entry.kind, entry.device), (Kind::CharacterDevice, (1, 3)));
    let (entry, _) = one(&Sample::symlink("s", "../t"));
    assert_eq!((entry.kind, entry.link.as_slice()), (Kind::Symlink, &b"../t"[..]));
}

#[test]
fn content_that_nobody_reads_is_passed_over() {
    let bytes = tar(&[Sample::file("a", &[7; 1000]), Sample::file("b", b"b"), Sample::directory("c/")]);
    let mut archive = Archive::new(bytes.as_slice());
    let mut paths = Vec::new();
    while let Some(entry) = archive.next_entry().expect("a tar") {
        paths.push(path(&entry).to_owned());
    }
    assert_eq!(paths, ["a", "b", "c/"]);
}

#[test]
fn the_oldest_format_tells_a_directory_by_its_name() {
    let old = |path| Sample::of(0, path).bytes(257, &[0; 8]);
    assert_eq!(one(&old("d/")).0.kind, Kind::Directory);
    assert_eq!(one(&old("f")).0.kind, Kind::File);
    assert_eq!(one(&Sample::file("f/", b"x")).0.kind, Kind::File);
}

/// Fault 107.
#[test]
fn a_prefix_in_a_gnu_header_is_part_of_the_path() {
    let ustar = Sample::file("name", b"").bytes(345, b"some/prefix");
    assert_eq!(path(&one(&ustar).0), "some/prefix/name");
    let gnu = Sample::file("name", b"").gnu().octal(108, 8, 1 << 21).bytes(345, b"some/prefix");
    let (entry, _) = one(&gnu);
    assert_eq!((path(&entry), entry.uid), ("some/prefix/name", 1 << 21));
    // Where GNU has its own fields there, they are times.
    let timed = Sample::file("name", b"").gnu().octal(345, 12, 1_500_000_000);
    let (entry, _) = one(&timed);
    assert_eq!(path(&entry), "name");
    assert_eq!(entry.accessed, Some(Time { seconds: 1_500_000_000, nanoseconds: 0 }));
}

#[test]
fn long_names_come_in_either_form() {
    let long = "long/".repeat(60);
    let gnu = [
        Sample::of(b'L', "././@LongLink").gnu().content(format!("{long}a\0").as_bytes()),
        Sample::of(b'K', "././@LongLink").gnu().content(format!("{long}b\0").as_bytes()),
        Sample::symlink("cut", "cut").gnu(),
    ];
    let pax = Sample::of(b'2', &format!("{long}a")).link(&format!("{long}b"));
    for bytes in [tar(&gnu), tar(&[pax])] {
        let (entry, _) = read(&bytes).expect("a tar").remove(0);
        assert_eq!(path(&entry), format!("{long}a"));
        assert_eq!(entry.link, format!("{long}b").as_bytes());
    }
}

/// Fault 106.
#[test]
fn an_extended_header_before_a_long_name_belongs_to_the_entry() {
    let hidden = tar(&[Sample::file("hidden", b"")]);
    let bytes = tar(&[
        Sample::of(b'x', "x").content(&record("size", hidden.len().to_string().as_bytes())),
        Sample::of(b'L', "././@LongLink").gnu().content(b"long\0"),
        Sample::of(b'g', "global").content(&record("path", b"renamed")),
        Sample::file("file", &hidden).octal(124, 12, 0),
    ]);
    let (entry, _) = read(&bytes).expect("a tar").remove(0);
    assert_eq!(entry.kind, Kind::Global, "a global header ends what the ones before it said");
    assert_eq!(path(&entry), "renamed");
    let bytes = tar(&[
        Sample::of(b'x', "x").content(&record("size", hidden.len().to_string().as_bytes())),
        Sample::of(b'L', "././@LongLink").gnu().content(b"long\0"),
        Sample::file("file", &hidden).octal(124, 12, 512),
    ]);
    let entries = read(&bytes).expect("a tar");
    let [(entry, content)] = entries.as_slice() else { panic!("{entries:?}") };
    assert_eq!((path(entry), content.as_slice()), ("long", hidden.as_slice()));
}

#[test]
fn records_override_the_header_and_the_last_of_a_key_counts() {
    let sample = Sample::file("short", b"12345")
        .record("path", b"first")
        .record("path", b"second")
        .record("uid", b"4294967296")
        .record("gid", b"7")
        .record("uname", b"")
        .record("mtime", b"1234567890.1234567899")
        .record("SCHILY.xattr.user.a", b"old")
        .record("SCHILY.xattr.user.a", &[0, 10, 61, 255])
        .record("SCHILY.xattr.user.empty", b"");
    let (entry, _) = one(&sample);
    assert_eq!((path(&entry), entry.uid, entry.gid), ("second", 1 << 32, 7));
    assert_eq!(entry.modified, Time { seconds: 1_234_567_890, nanoseconds: 123_456_789 });
    let expected = [(b"user.a".to_vec(), vec![0, 10, 61, 255]), (b"user.empty".to_vec(), Vec::new())];
    assert_eq!(entry.attributes, expected);
}

#[test]
fn times_before_the_epoch_count_backwards() {
    for (text, seconds, nanoseconds) in [
        ("-1.5", -2, 500_000_000),
        ("-1", -1, 0),
        ("-0.25", -1, 750_000_000),
        ("13569465600", 13_569_465_600, 0),
        ("9223372036854775807.999999999", i64::MAX, 999_999_999),
    ] {
        let (entry, _) = one(&Sample::file("f", b"").record("mtime", text.as_bytes()));
        assert_eq!(entry.modified, Time { seconds, nanoseconds }, "{text}");
    }
    let negative = Sample::file("f", b"").bytes(136, &[255; 12]);
    assert_eq!(one(&negative).0.modified.seconds, -1);
}

#[test]
fn sparse_files_come_with_their_map_in_every_form() {
    let expected = [Segment { offset: 0, length: 3 }, Segment { offset: 1000, length: 2 }];
    let pax = |sample: Sample| sample.record("GNU.sparse.name", b"sparse").record("GNU.sparse.major", b"0");
    let zero_zero = pax(Sample::file("GNUSparseFile.0/sparse", b"abcde"))
        .record("GNU.sparse.minor", b"0")
        .record("GNU.sparse.size", b"2000")
        .record("GNU.sparse.numblocks", b"2")
        .record("GNU.sparse.offset", b"0")
        .record("GNU.sparse.numbytes", b"3")
        .record("GNU.sparse.offset", b"1000")
        .record("GNU.sparse.numbytes", b"2");
    let zero_one = pax(Sample::file("GNUSparseFile.0/sparse", b"abcde"))
        .record("GNU.sparse.minor", b"1")
        .record("GNU.sparse.size", b"2000")
        .record("GNU.sparse.numblocks", b"2")
        .record("GNU.sparse.map", b"0,3,1000,2");
    let mut content = b"2\n0\n3\n1000\n2\n".to_vec();
    content.resize(512, 0);
    content.extend(b"abcde");
    let one_zero = Sample::file("GNUSparseFile.0/sparse", &content)
        .record("GNU.sparse.major", b"1")
        .record("GNU.sparse.minor", b"0")
        .record("GNU.sparse.name", b"sparse")
        .record("GNU.sparse.realsize", b"2000");
    let old = Sample::of(b'S', "sparse")
        .gnu()
        .content(b"abcde")
        .octal(386, 12, 0)
        .octal(398, 12, 3)
        .octal(410, 12, 1000)
        .octal(422, 12, 2)
        .octal(483, 12, 2000);
    for sample in [zero_zero, zero_one, one_zero, old] {
        let (entry, content) = one(&sample);
        assert_eq!((path(&entry), entry.kind, entry.size), ("sparse", Kind::File, 2000));
        assert_eq!(entry.segments, expected);
        assert_eq!(content, b"abcde");
    }
}

#[test]
fn a_long_sparse_map_goes_on_in_blocks_of_its_own() {
    let mut bytes = Sample::of(b'S', "sparse").gnu().octal(124, 12, 5);
    for at in 0..4 {
        bytes = bytes.octal(386 + at * 24, 12, at as u64 * 100).octal(398 + at * 24, 12, 1);
    }
    let mut bytes = bytes.bytes(482, &[1]).octal(483, 12, 500).blocks();
    let mut extension = Sample::of(0, "").octal(0, 12, 400).octal(12, 12, 1).blocks();
    extension[24..].fill(0);
    bytes.extend(extension);
    bytes.extend(b"abcde");
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes.extend([0; 1024]);
    let (entry, content) = read(&bytes).expect("a tar").remove(0);
    let offsets: Vec<u64> = entry.segments.iter().map(|segment| segment.offset).collect();
    assert_eq!((offsets.as_slice(), content.as_slice()), (&[0, 100, 200, 300, 400][..], &b"abcde"[..]));
}

/// Fault 120, maps that contradict themselves.
#[test]
fn a_sparse_map_that_cannot_be_is_refused() {
    let sparse = |size: &[u8], count: &[u8], map: &[u8]| {
        let sample = Sample::file("s", b"abcde")
            .record("GNU.sparse.major", b"0")
            .record("GNU.sparse.minor", b"1")
            .record("GNU.sparse.size", size)
            .record("GNU.sparse.numblocks", count)
            .record("GNU.sparse.map", map);
        refusal(&tar(&[sample]))
    };
    for (size, count, map, reason) in [
        ("4", "1", "0,5", "beyond the file's size"),
        ("9", "2", "0,3,2,2", "overlapping"),
        ("9", "1", "0,4", "another size than"),
        ("9", "1", "0,6", "another size than"),
        ("9", "2", "0,5", "sparse map"),
        ("9", "1", "-1,5", "sparse map"),
        ("9", "1", "9223372036854775807,9223372036854775807", "beyond the file's size"),
        ("x", "1", "0,5", "real size"),
        ("-1", "1", "0,5", "real size"),
    ] {
        let refusal = sparse(size.as_bytes(), count.as_bytes(), map.as_bytes());
        assert!(refusal.contains(reason), "{size} {count} {map}: {refusal}");
    }
    let endless =
        Sample::file("s", &[b'1'; 2048]).record("GNU.sparse.major", b"1").record("GNU.sparse.minor", b"0");
    assert!(refusal(&tar(&[endless])).contains("sparse map"));
}

#[test]
fn what_go_refuses_is_refused() {
    let whole = tar(&[Sample::file("f", &[1; 700])]);
    let mut damaged = whole.clone();
    damaged[5] ^= 1;
    let mut late = Sample::file("f", b"").blocks();
    late.extend([0; 512]);
    late.extend(Sample::file("g", b"").blocks());
    for (bytes, reason) in [
        (damaged, "check sum"),
        (whole[..100].to_vec(), "the tar ends at byte 100, in the middle of a header"),
        (whole[..600].to_vec(), "the tar ends at byte 600, in the middle of a file"),
        (late, "block of zeros"),
        (tar(&[Sample::file("f", b"").bytes(100, b"00009999")]), "its mode"),
        (tar(&[Sample::file("f", b"").bytes(124, &[255; 12])]), "negative size"),
        (tar(&[Sample::of(b'x', "x").content(b"5 a\n")]), "record"),
        (tar(&[Sample::of(b'x', "x").content(b"99 path=a\n")]), "record"),
        (tar(&[Sample::of(b'x', "x").content(b"10 path=a!")]), "record"),
        (tar(&[Sample::file("f", b"").record("path", b"a\0b")]), "record"),
        (tar(&[Sample::file("f", b"").record("mtime", b"1.x")]), "time"),
        (tar(&[Sample::of(b'x', "x").octal(124, 12, 2 << 20)]), "1 MiB"),
    ] {
        let refusal = refusal(&bytes);
        assert!(refusal.contains(reason), "{reason}: {refusal}");
    }
}

#[test]
fn the_end_may_be_missing_and_the_last_padding_too() {
    let bytes = Sample::file("f", b"abc").blocks();
    for end in [bytes.len(), bytes.len() - 100, 515] {
        let entries = read(&bytes[..end]).expect("a tar");
        assert_eq!(entries[0].1, b"abc");
    }
    assert!(read(b"").expect("an empty tar").is_empty());
    assert!(read(&[0; 512]).expect("an empty tar").is_empty());
}

#[test]
fn numbers_are_octal_or_in_two_complement() {
    for (field, expected) in [
        (&b"0000644\0"[..], Some(0o644)),
        (b"   644 \0", Some(0o644)),
        (b"\0\0\0\0\0\0\0\0", Some(0)),
        (b"        ", Some(0)),
        (b"\x80\0\0\x01\0\0\0\0", Some(1 << 32)),
        (b"\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
        (b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", None),
        (b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", Some(i64::MAX)),
        (b"64x", None),
        (b"-1", None),
        (b"77777777777777777777777", None),
    ] {
        assert_eq!(header::number(field, "").ok(), expected, "{}", field.escape_ascii());
    }
}
