//! Opening a blob or manifest at an offset on one host, and reading it: never more bytes than its descriptor says,
//! and an error when there are fewer. The bytes are not hashed here.

use std::ops::Range;

use bytes::Bytes;
use http::header::{ACCEPT_RANGES, CONTENT_RANGE};
use http::{Method, StatusCode};

use super::failure::{Failure, redacted};
use super::range::ContentRange;
use super::resolve::is_manifest;
use super::session::{Ask, Session};
use super::wire::{Answer, Role};
use crate::oci::Descriptor;

/// The bytes of a blob on their way from one host.
pub(super) struct Blob {
    /// Where the first byte lies: the offset asked for, or 0 when the host would not start there.
    pub(super) offset: u64,
    /// Behind the last byte of the body.
    pub(super) until: u64,
    /// Whether the host serves ranges, as far as it says.
    pub(super) ranges: bool,
    answer: Answer,
    /// Length of the whole by its descriptor.
    size: u64,
    /// Where the next byte lies.
    position: u64,
}

impl Blob {
    /// The next bytes; `None` after the last. After an error the blob is to be opened again.
    pub(super) async fn read(&mut self) -> Result<Option<Bytes>, Failure> {
        match self.answer.chunk().await? {
            Some(chunk) => {
                self.position += chunk.len() as u64;
                if self.position > self.until {
                    return Err(other_size(&self.answer, self.size, self.position));
                }
                Ok(Some(chunk))
            }
            None if self.position == self.until => Ok(None),
            None => Err(self.truncated()),
        }
    }

    /// The failure of a body that ended here.
    pub(super) fn truncated(&self) -> Failure {
        Failure::Truncated {
            url: redacted(&self.answer.url),
            missing: self.size.saturating_sub(self.position),
        }
    }

    /// The failure of a body that stands still.
    pub(super) fn stalled(&self) -> Failure {
        Failure::Stalled { url: redacted(&self.answer.url) }
    }
}

/// Asks one host for the bytes of `span`, and is given those or more. With `ranges_only`, `None` where it would be more.
pub(super) async fn open(
    session: &Session<'_>,
    descriptor: &Descriptor,
    span: Range<u64>,
    ranges_only: bool,
) -> Result<Option<Blob>, Failure> {
    let size = descriptor.size;
    let (answer, offset, until) = match ranged(session, descriptor, &span).await? {
        Some((answer, Some(range))) => (answer, range.start, range.end.min(size)),
        _ if ranges_only => return Ok(None),
        Some((answer, None)) => (answer, 0, size),
        None => (whole(session, descriptor).await?, 0, size),
    };
    let partial = answer.response.status() == StatusCode::PARTIAL_CONTENT;
    let accepts =
        answer.header(ACCEPT_RANGES).is_some_and(|units| units.trim().eq_ignore_ascii_case("bytes"));
    let ranges = partial || (accepts && session.standing.can_range(&session.host.authority));
    received(answer, descriptor, offset..until, ranges).map(Some)
}

/// What was answered for the bytes of `span`, unless its headers already show that it is not the blob. `ranges` is
/// whether the host serves any, as far as it says.
pub(super) fn received(
    answer: Answer,
    descriptor: &Descriptor,
    span: Range<u64>,
    ranges: bool,
) -> Result<Blob, Failure> {
    let (offset, until, size) = (span.start, span.end, descriptor.size);
    if answer.media_type().as_deref() == Some("text/html") {
        return Err(answer.unusable("the answer is an HTML page, not the blob: is this a registry?"));
    }
    if let Some(length) = answer.length().filter(|&length| length != until.saturating_sub(offset)) {
        return Err(other_size(&answer, size, offset.saturating_add(length)));
    }
    Ok(Blob { offset, until, ranges, answer, size, position: offset })
}

fn other_size(answer: &Answer, stated: u64, sent: u64) -> Failure {
    Failure::Size { url: redacted(&answer.url), stated, sent }
}

/// The answer to a request for a range, and the range if it is the one asked for rather than the whole. `None` when the
/// whole must be asked for instead.
async fn ranged(
    session: &Session<'_>,
    descriptor: &Descriptor,
    span: &Range<u64>,
) -> Result<Option<(Answer, Option<ContentRange>)>, Failure> {
    let host = &session.host.authority;
    let end = Some(span.end).filter(|&end| end < descriptor.size);
    let wanted = span.start > 0 || (end.is_some() && session.standing.ranges(host));
    if !wanted || !session.standing.can_range(host) {
        return Ok(None);
    }
    let answer = send(session, descriptor, span.start, end).await?;
    let range = answer.header(CONTENT_RANGE).and_then(ContentRange::parse);
    let status = answer.response.status();
    let refused = matches!(status, StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::BAD_REQUEST);
    if !status.is_success() && !refused {
        return Err(session.refusal(answer).await);
    }
    let range = range.filter(|range| {
        status == StatusCode::PARTIAL_CONTENT && range.continues(span.start, descriptor.size)
    });
    session.standing.ranged(host, range.is_some());
    Ok(match status {
        _ if range.is_some() => Some((answer, range)),
        // The range was ignored.
        StatusCode::OK => Some((answer, None)),
        // Answered with other bytes, or refused: without a range the host may still serve.
        _ => None,
    })
}

async fn whole(session: &Session<'_>, descriptor: &Descriptor) -> Result<Answer, Failure> {
    let answer = send(session, descriptor, 0, None).await?;
    match answer.response.status() {
        StatusCode::OK => Ok(answer),
        status if status.is_success() => {
            Err(answer.unusable(format!("status {status} where the whole is wanted")))
        }
        _ => Err(session.refusal(answer).await),
    }
}

async fn send(
    session: &Session<'_>,
    descriptor: &Descriptor,
    offset: u64,
    end: Option<u64>,
) -> Result<Answer, Failure> {
    let manifest = is_manifest(&descriptor.media_type);
    let (collection, role) = if manifest { ("manifests", Role::Document) } else { ("blobs", Role::Blob) };
    let accept = format!("{}, */*", descriptor.media_type);
    let object = descriptor.digest.as_str();
    session.send(Ask { method: &Method::GET, collection, object, accept: &accept, offset, end, role }).await
}
