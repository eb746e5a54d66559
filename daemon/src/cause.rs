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
