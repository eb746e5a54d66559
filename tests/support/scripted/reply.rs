//! One answer, and the faults it may have.

use std::sync::Arc;
use std::time::Duration;

use super::Request;

/// What happens after the last byte that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The connection is closed.
    Close,
    /// The connection stays open and silent until the other side leaves.
    Stall,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Arc<[u8]>,
    /// Whether a `Content-Length` is announced; without, the body ends with the connection.
    pub(super) announced: bool,
    /// Bytes of the body that are really sent.
    pub(super) cut: Option<usize>,
    pub(super) end: End,
    /// Piece by piece, with a pause before each.
    pub(super) pace: Option<(usize, Duration)>,
    /// Whether not even a status is sent.
    pub(super) silent: bool,
}

impl Reply {
    /// 200 with this body.
    pub fn ok(media_type: &str, body: &[u8]) -> Self {
        Self { body: body.into(), ..Self::status(200) }.header("Content-Type", media_type)
    }

    /// A status without a body.
    pub fn status(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Arc::default(),
            announced: true,
            cut: None,
            end: End::Close,
            pace: None,
            silent: false,
        }
    }

    /// Takes the request and says nothing.
    pub fn silence() -> Self {
        Self { silent: true, end: End::Stall, ..Self::status(200) }
    }

    /// The blob, or the part of it that the request's `Range` wants.
    pub fn ranged(request: &Request, blob: &[u8]) -> Self {
        match request.range_start().filter(|start| *start < blob.len()) {
            None => Self::ok("application/octet-stream", blob),
            Some(start) => {
                let range = format!("bytes {start}-{}/{}", blob.len() - 1, blob.len());
                Self { status: 206, ..Self::ok("application/octet-stream", &blob[start..]) }
                    .header("Content-Range", &range)
            }
        }
    }

    /// With one more header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With another status.
    #[must_use]
    pub fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// Announces the whole body, sends its first `bytes`, and ends in `end`.
    #[must_use]
    pub fn cut_after(self, bytes: usize, end: End) -> Self {
        Self { cut: Some(bytes), end, ..self }
    }

    /// Announces no length.
    #[must_use]
    pub fn unannounced(self) -> Self {
        Self { announced: false, ..self }
    }

    /// Sends pieces of this size with a pause before each.
    #[must_use]
    pub fn paced(self, piece: usize, pause: Duration) -> Self {
        Self { pace: Some((piece, pause)), ..self }
    }
}
