use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;

use super::*;
use crate::unpack::tar::sample::{Sample, tar};
use crate::unpack::tree::Removals;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

/// Writes a blob that comes in parts of `length` bytes, into a directory of its own; ends it with `end`.
async fn write(blob: &[u8], length: usize, ends: bool) -> (Result<Digest, String>, TempDir) {
    let directory = TempDir::new().expect("a directory");
    let place = Place { root: directory.path().into(), removals: Removals::Delete, lowers: Vec::new() };
    let (tap, tapped) = tap(None);
    let writer = tokio::task::spawn_blocking(move || written(&place.root, place.tree(), tapped));
    for part in blob.chunks(length) {
        // The writer may have ended with an error.
        let _ = tap.send(part.to_vec().into()).await;
    }
    if ends {
        tap.end().await;
    } else {
        drop(tap);
    }
    let written = writer.await.expect("no panic").map(|written| written.diff_id.0);
    let shown = |error: Error| {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        text
    };
    (written.map_err(shown), directory)
}

fn layer() -> Vec<u8> {
    let content: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut bytes = tar(&[Sample::directory("d/"), Sample::file("d/f", &content)]);
    // Programs that write records of twenty blocks leave zeros, and others leave what they like: all of it counts.
    bytes.extend(b"behind the end");
    bytes
}

#[tokio::test]
async fn the_digest_is_that_of_all_uncompressed_bytes() {
    let layer = layer();
    for blob in [layer.clone(), gzip(&layer), zstd::stream::encode_all(layer.as_slice(), 1).expect("memory")]
    {
        let (digest, directory) = write(&blob, 10_000, true).await;
        assert_eq!(digest, Ok(Digest::of(&layer)));
        assert_eq!(std::fs::metadata(directory.path().join("d/f")).expect("a file").len(), 1_200_000);
    }
}

/// Fault 115, by content: a label is not looked at.
#[tokio::test]
async fn what_is_neither_a_tar_nor_compressed_is_refused() {
    let (refusal, _directory) = write(&[b'x'; 2000], 2000, true).await;
    assert_eq!(refusal, Err("the tar is malformed at byte 512: its check sum".to_owned()));
}

#[tokio::test]
async fn a_blob_that_stops_coming_is_no_whole_layer() {
    // Behind the last entry: only the sender knows that more was to come. It shows with the first bytes, or later.
    let layer = tar(&[Sample::file("f", b"x")]);
    let (refusal, _directory) = write(&layer[..1024], 512, false).await;
    let refusal = refusal.expect_err("a part is no layer");
    assert!(refusal.ends_with(": the pull was given up"), "{refusal}");
}

#[tokio::test]
async fn a_damaged_blob_says_what_is_wrong() {
    let whole = gzip(&layer());
    for (blob, reason) in [
        (whole[..whole.len() / 2].to_vec(), "the gzip data is cut off"),
        ([&whole[..], b"junk"].concat(), "bytes that are neither gzip nor zeros follow the gzip data"),
    ] {
        let (refusal, _directory) = write(&blob, 4096, true).await;
        let refusal = refusal.expect_err(reason);
        assert!(refusal.ends_with(reason), "{refusal}");
    }
}
