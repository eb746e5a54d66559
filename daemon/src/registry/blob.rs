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
    /// Whether these bytes are a range.
    pub(super) partial: bool,
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

/// What a host is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// The bytes of the span, or those and more.
    Enough,
    /// Not more than these bytes.
    Range,
    /// The whole, though a range would do: those were tried.
    Whole,
}

/// What a host gives that is asked for a range.
enum Given {
    Range(Answer, ContentRange),
    Whole(Answer),
    /// Nothing that can be used; without a range it may still serve.
    Nothing,
}

/// Asks one host for the bytes of `span`. `None` where [`Want::Range`] is wanted and the host serves none.
pub(super) async fn open(
    session: &Session<'_>,
    descriptor: &Descriptor,
    span: Range<u64>,
    want: Want,
) -> Result<Option<Blob>, Failure> {
    let (size, host, standing) = (descriptor.size, &session.host.authority, session.standing);
    let end = Some(span.end).filter(|&end| end < size);
    let useful = span.start > 0 || (end.is_some() && standing.ranges(host));
    let given = match want {
        _ if !useful || !standing.can_range(host) => None,
        Want::Whole => Some(Given::Nothing),
        Want::Enough | Want::Range => Some(ranged(session, descriptor, span.start, end).await?),
    };
    let (answer, offset, until) = match given {
        Some(Given::Range(answer, range)) => {
            standing.ranged(host, true);
            (answer, range.start, range.end.min(size))
        }
        Some(_) if want == Want::Range => {
            standing.ranged(host, false);
            return Ok(None);
        }
        None if want == Want::Range => return Ok(None),
        Some(Given::Whole(answer)) => {
            standing.ranged(host, false);
            (answer, 0, size)
        }
        Some(Given::Nothing) => {
            let answer = whole(session, descriptor).await?;
            // Only now it is known that the range was what the host did not like.
            standing.ranged(host, false);
            (answer, 0, size)
        }
        None => (whole(session, descriptor).await?, 0, size),
    };
    let partial = answer.response.status() == StatusCode::PARTIAL_CONTENT;
    let accepts =
        answer.header(ACCEPT_RANGES).is_some_and(|units| units.trim().eq_ignore_ascii_case("bytes"));
    let ranges = partial || (accepts && standing.can_range(host));
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
    if is_page(&answer) {
        return Err(answer.unusable("the answer is an HTML page, not the blob: is this a registry?"));
    }
    if let Some(length) = answer.length().filter(|&length| length != until.saturating_sub(offset)) {
        return Err(other_size(&answer, size, offset.saturating_add(length)));
    }
    let partial = answer.response.status() == StatusCode::PARTIAL_CONTENT;
    Ok(Blob { offset, until, ranges, partial, answer, size, position: offset })
}

fn is_page(answer: &Answer) -> bool {
    answer.media_type().as_deref() == Some("text/html")
}

fn other_size(answer: &Answer, stated: u64, sent: u64) -> Failure {
    Failure::Size { url: redacted(&answer.url), stated, sent }
}

/// Asks for a range. The error is one that says nothing of ranges; it may pass, or concerns who is asking.
async fn ranged(
    session: &Session<'_>,
    descriptor: &Descriptor,
    offset: u64,
    end: Option<u64>,
) -> Result<Given, Failure> {
    let answer = send(session, descriptor, offset, end).await?;
    let length = answer.length();
    match answer.response.status() {
        status if says_nothing_of_ranges(status) => Err(session.refusal(answer).await),
        StatusCode::PARTIAL_CONTENT => {
            let range = answer.header(CONTENT_RANGE).and_then(ContentRange::parse).filter(|range| {
                range.continues(offset, descriptor.size)
                    && length.is_none_or(|length| length == range.end - range.start)
            });
            Ok(range.map_or(Given::Nothing, |range| Given::Range(answer, range)))
        }
        StatusCode::OK if !is_page(&answer) && length.is_none_or(|length| length == descriptor.size) => {
            Ok(Given::Whole(answer))
        }
        _ => Ok(Given::Nothing),
    }
}

/// Whether a status is about the moment or the caller, and so the same without a range.
fn says_nothing_of_ranges(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
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
