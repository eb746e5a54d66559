//! Entry points for random input to what this house reads of strangers: nothing may panic, and what must hold for any
//! input is asserted.

use futures_util::FutureExt as _;
use tokio::io::AsyncReadExt as _;

use super::authority::Tolerant;

/// What a client sends on a connection.
pub fn connection(input: &[u8]) {
    let passed = read(input, input.len() + 1);
    assert_eq!(passed.len(), input.len(), "no byte is lost or made");
    let changed = input.iter().zip(&passed).filter(|(before, after)| before != after);
    for change in changed {
        assert!(matches!(change, (0x81, 0xb7) | (0x41, 0x77)), "only a name changes: {change:x?}");
    }
    // The small buffers make small reads, so each field is waited for.
    for piece in [1, 7] {
        assert!(read(input, piece) == passed, "reads of {piece} bytes make a difference");
    }
}

fn read(input: &[u8], piece: usize) -> Vec<u8> {
    let mut connection = Tolerant::new(input);
    let (mut passed, mut piece) = (Vec::new(), vec![0; piece]);
    // All is there, so it never waits, and it never fails.
    while let Some(Ok(length @ 1..)) = connection.read(&mut piece).now_or_never() {
        passed.extend_from_slice(&piece[..length]);
    }
    passed
}
