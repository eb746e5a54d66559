//! An error with all its causes as one line. The chain is printed once, where an error leaves the program: in a log
//! line or in an answer to a caller.

use std::error::Error;

/// The error and its causes, each after a colon.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

/// Longest message sent: it travels in a header, and clients refuse large ones (grpc-go: 16 KiB for all headers).
pub const MAX_MESSAGE: usize = 4096;

/// A message that is cut, and says so, where it is longer than [`MAX_MESSAGE`] allows.
pub fn bounded(mut message: String) -> String {
    if message.len() > MAX_MESSAGE {
        let end = (0..=MAX_MESSAGE).rev().find(|end| message.is_char_boundary(*end));
        message.truncate(end.unwrap_or_default());
        message.push_str(" … (cut)");
    }
    message
}
