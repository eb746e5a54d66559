//! Entry points for random input to what this house reads of strangers: nothing may panic, and what must hold for any
//! input is asserted.

use super::tar::{Archive, Error, Kind};

const BLOCK: usize = 512;

/// A tar: whatever its headers say, a file's map lies within the file, and its content is as long as the map says. Read
/// as it is and with check sums put right, without which hardly any change of a header would get past the first look.
pub fn archive(input: &[u8]) {
    // An error shows in a pod's event.
    for bytes in [input.to_vec(), summed(input)] {
        if let Err(error) = read(&bytes) {
            assert!(error.to_string().len() < 4096, "{error}");
        }
    }
}

/// How many entries it has.
fn read(bytes: &[u8]) -> Result<usize, Error> {
    let mut archive = Archive::new(bytes);
    let mut count = 0;
    while let Some(entry) = archive.next_entry()? {
        count += 1;
        let (mut end, mut mapped) = (0, 0);
        for segment in &entry.segments {
            assert!(segment.offset >= end, "segments ascend");
            end = segment.offset + segment.length;
            mapped += segment.length;
        }
        assert!(end <= entry.size, "the map lies within the file");
        let holds_content = matches!(entry.kind, Kind::File | Kind::Unknown(_));
        assert!(holds_content || mapped == 0, "only files hold content");
        let mut content = 0;
        let mut part = [0; 100];
        loop {
            match archive.read(&mut part)? {
                0 => break,
                length => content += length as u64,
            }
        }
        assert_eq!(content, mapped, "the content is as long as the map");
    }
    Ok(count)
}

fn summed(input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for block in bytes.chunks_exact_mut(BLOCK).filter(|block| block[257..].starts_with(b"ustar")) {
        block[148..156].fill(b' ');
        let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_put_right_is_what_lets_a_changed_header_in() {
        let mut seed = include_bytes!("../../../tests/fuzz/seeds/archive/pax").to_vec();
        let entries = read(&seed).expect("a tar");
        seed[100] ^= 1;
        assert!(read(&seed).is_err());
        assert_eq!(read(&summed(&seed)).expect("a tar"), entries);
    }
}
