//! Every service that is not drayd's goes to containerd as it came: bodies, streams and trailers are not looked into
//! and not held back.

use http::{Request, Response};
use tonic::body::Body;
use tonic::transport::Channel;
use tower::{Service as _, ServiceExt as _};

use super::status;

/// Hands one call through. With containerd away the caller hears so at once.
pub(super) async fn pass(mut containerd: Channel, request: Request<Body>) -> Response<Body> {
    let passed = match containerd.ready().await {
        Ok(ready) => ready.call(request).await,
        Err(error) => Err(error),
    };
    passed.unwrap_or_else(|error| status::of_passthrough(&error).into_http())
}
