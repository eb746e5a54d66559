use std::fmt;
use std::io::{BufReader, Cursor, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).expect("memory");
    encoder.include_checksum(true).expect("an option that the format has");
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

fn skippable(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("short");
    [&[0x5a, 0x2a, 0x4d, 0x18][..], &length.to_le_bytes(), bytes].concat()
}

/// Many bytes, of which a failed test shows how many.
#[derive(PartialEq)]
struct Bytes(Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// Reads it in whole and byte by byte, so that every boundary is one of a part, too.
fn read(blob: &[u8]) -> Result<(&'static str, Bytes), String> {
    let read = |capacity| -> io::Result<(&'static str, Bytes)> {
        let mut decompressed = Decompressed::new(BufReader::with_capacity(capacity, Cursor::new(blob)))?;
        let mut bytes = Vec::new();
        decompressed.read_to_end(&mut bytes)?;
        Ok((decompressed.format(), Bytes(bytes)))
    };
    let whole = read(1 << 20).map_err(|error| error.to_string());
    assert_eq!(whole, read(1).map_err(|error| error.to_string()));
    whole
}

/// Bytes that need more than one block.
fn content() -> Vec<u8> {
    (0..100_000_u32).flat_map(|number| (number.wrapping_mul(number)).to_le_bytes()).collect()
}

#[test]
fn members_and_frames_follow_one_another_and_may_be_empty() {
    let content = content();
    let (one, two) = content.split_at(1234);
    let members = [gzip(b""), gzip(one), gzip(b""), gzip(two), gzip(b"")].concat();
    assert_eq!(read(&members), Ok(("gzip", Bytes(content.clone()))));
    let frames = [zstd(b""), zstd(one), zstd(b""), zstd(two)].concat();
    assert_eq!(read(&frames), Ok(("zstd", Bytes(content.clone()))));
    assert_eq!(read(&content), Ok(("tar", Bytes(content.clone()))));
    assert_eq!(read(b""), Ok(("tar", Bytes(Vec::new()))));
}

/// Fault 114.
#[test]
fn zstd_frames_are_skipped_wherever_they_are_to_be() {
    let content = content();
    let (one, two) = content.split_at(4321);
    let skipped = skippable(b"not for us");
    for blob in [
        [skipped.clone(), zstd(&content)].concat(),
        [zstd(one), skipped.clone(), zstd(two)].concat(),
        [zstd(one), zstd(two), skipped.clone(), skippable(b"")].concat(),
    ] {
        assert_eq!(read(&blob), Ok(("zstd", Bytes(content.clone()))));
    }
    assert_eq!(read(&skipped), Ok(("zstd", Bytes(Vec::new()))));
}

/// Fault 114, windows.
#[test]
fn a_zstd_window_of_8_mebibytes_is_taken_and_a_larger_one_told_apart() {
    let framed = |window: u32| {
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).expect("memory");
        encoder.window_log(window).expect("a window that the format has");
        encoder.write_all(b"small").expect("memory");
        encoder.finish().expect("memory")
    };
    assert_eq!(read(&framed(23)), Ok(("zstd", Bytes(b"small".to_vec()))));
    let refusal = read(&framed(24)).expect_err("too much memory");
    assert_eq!(refusal, "the zstd data has a window of more than 8 MiB");
}

/// Fault 116.
#[test]
fn zeros_may_follow_the_data_and_nothing_else() {
    let content = content();
    for (blob, format) in [(gzip(&content), "gzip"), (zstd(&content), "zstd")] {
        for zeros in [1, 2, 3, 512, 100_000] {
            let padded = [blob.clone(), vec![0; zeros]].concat();
            assert_eq!(read(&padded), Ok((format, Bytes(content.clone()))), "{zeros}");
        }
        let refusal = Err(format!("bytes that are neither {format} nor zeros follow the {format} data"));
        for junk in [&b"junk"[..], b"\x1f", b"\x1f\x8b", b"\0\0\0\0\0\0x", b"\x28\xb5\x2f"] {
            assert_eq!(read(&[&blob, junk].concat()), refusal, "{}", junk.escape_ascii());
        }
        assert_eq!(read(&[&blob[..], &[0; 10], &blob[..]].concat()), refusal, "no member follows zeros");
    }
}

#[test]
fn cut_and_damaged_data_is_told_apart() {
    let content = content();
    for (blob, format) in [(gzip(&content), "gzip"), (zstd(&content), "zstd")] {
        for end in [5, 20, blob.len() / 2, blob.len() - 1] {
            assert_eq!(read(&blob[..end]), Err(format!("the {format} data is cut off")), "{end}");
        }
        let mut damaged = blob.clone();
        let at = blob.len() - if format == "gzip" { 6 } else { blob.len() / 2 };
        damaged[at] ^= 0x55;
        assert_eq!(read(&damaged), Err(format!("the {format} data is corrupt")));
    }
}
