//! Paths in the file are absolute: a daemon's working directory is nobody's business.

use std::path::{Path, PathBuf};

use super::written::Written;

impl Written for PathBuf {
    const FORM: &'static str = "an absolute path";

    fn read(text: &str) -> Option<Self> {
        // A NUL cannot be part of a path; TOML can write one.
        (Path::new(text).is_absolute() && !text.contains('\0')).then(|| text.into())
    }

    /// Lossless, because it came from text.
    fn write(&self) -> String {
        self.to_string_lossy().into_owned()
    }
}

/// The empty text is none.
impl Written for Option<PathBuf> {
    const FORM: &'static str = "an absolute path, or nothing";

    fn read(text: &str) -> Option<Self> {
        if text.is_empty() { Some(None) } else { PathBuf::read(text).map(Some) }
    }

    fn write(&self) -> String {
        self.as_ref().map(Written::write).unwrap_or_default()
    }
}
