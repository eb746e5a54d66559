//! The bytes of a file of ours as text, or the place where they are none.

/// The text, or the line, counted from 1, in which the bytes stop being UTF-8.
pub(super) fn text_of(bytes: Vec<u8>) -> Result<String, usize> {
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        before.split(|&byte| byte == b'\n').count()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_the_one_where_text_ends() {
        assert_eq!(text_of("a\né\n".into()), Ok("a\né\n".to_owned()));
        for (bytes, line) in [(b"\xff\n".as_slice(), 1), (b"a\nb\xff\n", 2), (b"a\n\n\xc3", 3)] {
            assert_eq!(text_of(bytes.into()), Err(line), "{bytes:?}");
        }
    }
}
