//! Foreign layers: blobs whose descriptors tell addresses outside of the registry. They are for a registry that may not
//! hand such a blob out itself, so they are asked only once it said that it does not have it. What is found there is as
//! little trusted as any host, and is shown nothing: no credentials, no headers of the node's configuration.

use std::time::Duration;

use http::header::{ACCEPT, CONTENT_RANGE, RANGE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use reqwest::Url;

use super::blob::{self, Blob};
use super::error::{Attempt, Error, Kind, decisive_kind};
use super::failure::{Failure, redacted};
use super::range::ContentRange;
use super::tls::Tls;
use super::wire::{Answer, Request, Role, Transport, Wire};
use crate::oci::Descriptor;

/// Addresses tried of one descriptor; real ones have one. With the time for each it bounds the whole.
const URLS: usize = 4;
/// For a connection: a manifest may name any address, and many of the real ones are gone for good.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens the blob at the first of its addresses that serves it, and tells which that is, where `error` says that the registry does not have it;
/// else gives the error back, with the failure of each address.
pub(super) async fn open_instead(
    wire: &Wire,
    descriptor: &Descriptor,
    offset: u64,
    subject: String,
    error: Error,
) -> Result<(String, Blob), Error> {
    let mut attempts = match error {
        Error::Unserved { attempts, .. } if decisive_kind(&attempts) == Some(Kind::NotFound) => attempts,
        error => return Err(error),
    };
    for url in descriptor.urls.iter().take(URLS).filter_map(|url| address(url)) {
        let host = url.origin().ascii_serialization();
        let opened = ask(wire, descriptor, offset, &url).await.and_then(|(answer, offset)| {
            // Read over one connection, whatever it says of ranges.
            blob::received(answer, descriptor, offset..descriptor.size, false)
        });
        match opened {
            Ok(blob) => return Ok((host, blob)),
            Err(failure) => attempts.push(Attempt { host, own: false, tries: 1, failure }),
        }
    }
    Err(Error::Unserved { subject, attempts })
}

/// An address that may be asked. Credentials in it are left out: whoever wrote the manifest put them there.
fn address(text: &str) -> Option<Url> {
    let mut url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
    url.set_username("").and_then(|()| url.set_password(None)).ok()?;
    Some(url)
}

/// The answer of one address, and where it starts.
async fn ask(wire: &Wire, descriptor: &Descriptor, offset: u64, url: &Url) -> Result<(Answer, u64), Failure> {
    let answer = wire.send(request(url, offset)).await?;
    let range = answer.header(CONTENT_RANGE).and_then(ContentRange::parse);
    match answer.response.status() {
        StatusCode::OK => Ok((answer, 0)),
        StatusCode::PARTIAL_CONTENT
            if range.is_some_and(|range| {
                range.continues(offset, descriptor.size) && range.end == descriptor.size
            }) =>
        {
            Ok((answer, offset))
        }
        // A range that it does not understand: without one it may still serve.
        _ if offset > 0 => {
            let answer = wire.send(request(url, 0)).await?;
            if answer.response.status() == StatusCode::OK { Ok((answer, 0)) } else { Err(refusal(&answer)) }
        }
        _ => Err(refusal(&answer)),
    }
}

fn request(url: &Url, offset: u64) -> Request {
    let mut headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("*/*"))]);
    if offset > 0
        && let Ok(range) = HeaderValue::from_str(&format!("bytes={offset}-"))
    {
        headers.insert(RANGE, range);
    }
    let transport = Transport { tls: Tls::default(), dial_timeout: DIAL_TIMEOUT, role: Role::Blob };
    let origin_headers = HeaderMap::new();
    Request { method: Method::GET, url: url.clone(), headers, origin_headers, body: None, transport }
}

/// Its status alone: the words of any web server are for nobody.
fn refusal(answer: &Answer) -> Failure {
    let (method, status) = (answer.method.clone(), answer.response.status());
    Failure::Status { method, url: redacted(&answer.url), status, message: None, told: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_web_addresses_are_asked_and_nothing_is_proved_to_them() {
        for (url, expected) in [
            ("https://blobs.test/layer?x=1", Some("https://blobs.test/layer?x=1")),
            ("http://blobs.test:81/", Some("http://blobs.test:81/")),
            ("https://user:secret@blobs.test/layer", Some("https://blobs.test/layer")),
            ("ftp://blobs.test/layer", None),
            ("file:///etc/passwd", None),
            ("unix:/run/containerd.sock", None),
            ("layer", None),
            ("", None),
        ] {
            assert_eq!(address(url).as_ref().map(Url::as_str), expected, "{url}");
        }
    }
}
