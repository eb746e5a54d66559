//! One answer, and the faults it may have.

use std::time::Duration;

use bytes::Bytes;

use super::Request;

/// What happens after the last byte that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The answer is whole, and the connection waits for the next request.
    Keep,
    /// The connection is closed in order (FIN), whole answer or not.
    Close,
    /// The connection stays open and silent until the other side leaves.
    Stall,
    /// HTTP/1.1: the connection is reset (RST). HTTP/2: the stream is (`RST_STREAM`, internal error).
    Reset,
    /// HTTP/2: GOAWAY, and the connection is closed with all its streams. HTTP/1.1: as `Close`.
    GoAway,
    /// HTTP/2: a GOAWAY whose last stream is one before this, so that the request counts as never processed, and the
    /// connection is closed. HTTP/1.1: as `Close`.
    Unprocessed,
}

/// What is said of the body's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// `Content-Length`, as it is.
    True,
    /// `Content-Length`, this number whatever the body.
    Stated(usize),
    /// Nothing: the body ends with the connection (HTTP/1.1) or the stream.
    Unsaid,
    /// Chunked (HTTP/1.1), or nothing.
    Chunked,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
    pub(super) length: Length,
    /// Bytes of the body that are really sent.
    pub(super) cut: Option<usize>,
    pub(super) end: End,
    /// Piece by piece, with a pause before each.
    pub(super) pace: Option<(usize, Duration)>,
    /// Before the first byte.
    pub(super) delay: Duration,
    /// Whether not even a status is sent.
    pub(super) silent: bool,
    /// Bytes that are sent in place of all this.
    pub(super) raw: Option<Bytes>,
}

impl Reply {
    /// 200 with this body.
    pub fn ok(media_type: &str, body: &[u8]) -> Self {
        Self::shared(media_type, Bytes::copy_from_slice(body))
    }

    /// 200 with this body, which is not copied.
    pub fn shared(media_type: &str, body: Bytes) -> Self {
        Self { body, ..Self::status(200) }.header("Content-Type", media_type)
    }

    /// A status without a body.
    pub fn status(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Bytes::new(),
            length: Length::True,
            cut: None,
            end: End::Keep,
            pace: None,
            delay: Duration::ZERO,
            silent: false,
            raw: None,
        }
    }

    /// An error as registries write it.
    pub fn error(status: u16, code: &str, message: &str) -> Self {
        let body = serde_json::json!({"errors": [{"code": code, "message": message}]}).to_string();
        Self::ok("application/json", body.as_bytes()).with_status(status)
    }

    /// 307 to another place.
    pub fn redirect(location: &str) -> Self {
        Self::status(307).header("Location", location)
    }

    /// Takes the request and says nothing.
    pub fn silence() -> Self {
        Self::nothing(End::Stall)
    }

    /// Takes the request, says nothing, and ends the connection or stream like this.
    pub fn nothing(end: End) -> Self {
        Self { silent: true, end, ..Self::status(200) }
    }

    /// Sends just these bytes and closes, for heads that no server would write. HTTP/1.1 only.
    pub fn raw(bytes: &[u8]) -> Self {
        Self { raw: Some(Bytes::copy_from_slice(bytes)), ..Self::nothing(End::Close) }
    }

    /// The blob, or the part of it that the request's `Range` wants.
    pub fn ranged(request: &Request, blob: &[u8]) -> Self {
        Self::ranged_of(request, &Bytes::copy_from_slice(blob))
    }

    /// As [`Reply::ranged`], without a copy of the blob.
    pub fn ranged_of(request: &Request, blob: &Bytes) -> Self {
        match request.range() {
            None => Self::shared("application/octet-stream", blob.clone()).header("Accept-Ranges", "bytes"),
            Some((start, _)) if start >= blob.len() => {
                Self::status(416).header("Content-Range", &format!("bytes */{}", blob.len()))
            }
            Some((start, end)) => {
                let end = end.unwrap_or(usize::MAX).min(blob.len() - 1).max(start);
                let range = format!("bytes {start}-{end}/{}", blob.len());
                Self::shared("application/octet-stream", blob.slice(start..=end))
                    .with_status(206)
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

    /// Without a header, by its name in any case.
    #[must_use]
    pub fn without_header(mut self, name: &str) -> Self {
        self.headers.retain(|(present, _)| !present.eq_ignore_ascii_case(name));
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

    /// Sends all, and ends in `end`.
    #[must_use]
    pub fn ending(self, end: End) -> Self {
        Self { end, ..self }
    }

    /// Announces no length.
    #[must_use]
    pub fn unannounced(self) -> Self {
        Self { length: Length::Unsaid, ..self }
    }

    /// Announces this length, whatever the body's is.
    #[must_use]
    pub fn announcing(self, bytes: usize) -> Self {
        Self { length: Length::Stated(bytes), ..self }
    }

    /// Sends the body in chunks.
    #[must_use]
    pub fn chunked(self) -> Self {
        Self { length: Length::Chunked, ..self }
    }

    /// Sends pieces of this size with a pause before each.
    #[must_use]
    pub fn paced(self, piece: usize, pause: Duration) -> Self {
        Self { pace: Some((piece, pause)), ..self }
    }

    /// Waits before the first byte.
    #[must_use]
    pub fn delayed(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// The status that it announces.
    pub fn status_code(&self) -> u16 {
        self.status
    }

    /// Bytes of its whole body.
    pub fn length(&self) -> usize {
        self.body.len()
    }

    /// The bytes of the body that are really sent.
    pub(super) fn sent(&self) -> Bytes {
        self.body.slice(..self.cut.unwrap_or(usize::MAX).min(self.body.len()))
    }

    /// What stands in `Content-Length`.
    pub(super) fn announced(&self) -> Option<usize> {
        match self.length {
            Length::True => Some(self.body.len()),
            Length::Stated(length) => Some(length),
            Length::Unsaid | Length::Chunked => None,
        }
    }

    /// Whether the other side can tell where this answer ends without the end of the connection.
    pub(super) fn delimited(&self) -> bool {
        let whole = self.cut.is_none_or(|cut| cut >= self.body.len());
        let told = matches!(self.length, Length::True | Length::Chunked)
            || self.length == Length::Stated(self.body.len());
        whole && told
    }
}
