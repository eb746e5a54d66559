//! Opening a blob or manifest at an offset on one host, and reading it: never more bytes than its descriptor says,
//! and an error when there are fewer. The bytes are not hashed here.

use bytes::Bytes;
use http::header::CONTENT_RANGE;
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
                if self.position > self.size {
                    return Err(other_size(&self.answer, self.size, self.position));
                }
                Ok(Some(chunk))
            }
            None if self.position == self.size => Ok(None),
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

/// Asks one host.
pub(super) async fn open(
    session: &Session<'_>,
    descriptor: &Descriptor,
    offset: u64,
) -> Result<Blob, Failure> {
    let (answer, offset) = match ranged(session, descriptor, offset).await? {
        Some(continued) => continued,
        None => (whole(session, descriptor).await?, 0),
    };
    let remaining = descriptor.size.saturating_sub(offset);
    if answer.media_type().as_deref() == Some("text/html") {
        return Err(answer.unusable("the answer is an HTML page, not the blob: is this a registry?"));
    }
    if let Some(length) = answer.length().filter(|&length| length != remaining) {
        return Err(other_size(&answer, descriptor.size, offset.saturating_add(length)));
    }
    Ok(Blob { offset, answer, size: descriptor.size, position: offset })
}

fn other_size(answer: &Answer, stated: u64, sent: u64) -> Failure {
    Failure::Size { url: redacted(&answer.url), stated, sent }
}

/// The answer to a request for the bytes from `offset` on, and where it starts. `None` when the whole must be asked for
/// instead.
async fn ranged(
    session: &Session<'_>,
    descriptor: &Descriptor,
    offset: u64,
) -> Result<Option<(Answer, u64)>, Failure> {
    let host = &session.host.authority;
    if offset == 0 || !session.standing.can_range(host) {
        return Ok(None);
    }
    let answer = send(session, descriptor, offset).await?;
    let range = answer.header(CONTENT_RANGE).and_then(ContentRange::parse);
    let status = answer.response.status();
    let refused = matches!(status, StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::BAD_REQUEST);
    if !status.is_success() && !refused {
        return Err(session.refusal(answer).await);
    }
    let continues = range.is_some_and(|range| range.continues(offset, descriptor.size));
    let served = status == StatusCode::PARTIAL_CONTENT && continues;
    session.standing.ranged(host, served);
    Ok(match status {
        _ if served => Some((answer, offset)),
        // The range was ignored.
        StatusCode::OK => Some((answer, 0)),
        // Answered with other bytes, or refused: without a range the host may still serve.
        _ => None,
    })
}

async fn whole(session: &Session<'_>, descriptor: &Descriptor) -> Result<Answer, Failure> {
    let answer = send(session, descriptor, 0).await?;
    match answer.response.status() {
        StatusCode::OK => Ok(answer),
        status if status.is_success() => {
            Err(answer.unusable(format!("status {status} where the whole is wanted")))
        }
        _ => Err(session.refusal(answer).await),
    }
}

async fn send(session: &Session<'_>, descriptor: &Descriptor, offset: u64) -> Result<Answer, Failure> {
    let manifest = is_manifest(&descriptor.media_type);
    let (collection, role) = if manifest { ("manifests", Role::Document) } else { ("blobs", Role::Blob) };
    let accept = format!("{}, */*", descriptor.media_type);
    let object = descriptor.digest.as_str();
    session.send(Ask { method: &Method::GET, collection, object, accept: &accept, offset, role }).await
}
