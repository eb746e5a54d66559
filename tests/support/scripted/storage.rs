//! Blobs behind signed URLs, as registries over object storage serve them: each URL is good for a number of requests,
//! and a refusal after that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::image::Blob;
use super::{Reply, Scripted, locked};

/// Lets `registry` answer requests for the blob with 307 to a URL of `store`, signed anew each time: `secret` is in
/// its query. A URL serves `uses` requests and then answers 403, as object storage does after the time in the URL.
pub fn redirect(
    registry: &Scripted,
    store: &Scripted,
    repository: &str,
    blob: &Blob,
    secret: &str,
    uses: usize,
) {
    let path = format!("/store/{}", blob.digest);
    let (location, secret) = (format!("{}{path}", store.url()), secret.to_owned());
    let signed = AtomicUsize::new(0);
    let prefix = format!("X-Amz-Signature={secret}&n=");
    let query = prefix.clone();
    registry.on("GET", &blob.path(repository), move |_, _| {
        let nth = signed.fetch_add(1, Ordering::SeqCst);
        Reply::redirect(&format!("{location}?{query}{nth}"))
    });
    let bytes = Bytes::from(blob.bytes.clone());
    let counts: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    store.on("GET", &path, move |request, _| {
        if request.header("authorization").is_some() {
            // Object storage takes one proof of who asks and refuses two.
            return refusal(400, "InvalidArgument");
        }
        if !request.query().starts_with(&prefix) {
            return refusal(403, "SignatureDoesNotMatch");
        }
        let mut counts = locked(&counts);
        let count = counts.entry(request.query().to_owned()).or_default();
        *count += 1;
        if *count > uses { refusal(403, "AccessDenied") } else { Reply::ranged_of(request, &bytes) }
    });
}

fn refusal(status: u16, code: &str) -> Reply {
    let body = format!(
        "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>Request has expired</Message></Error>"
    );
    Reply::ok("application/xml", body.as_bytes()).with_status(status)
}
