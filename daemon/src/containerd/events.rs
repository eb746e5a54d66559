//! containerd's event stream, used to learn that the connection is gone.

use containerd_client::services::v1::SubscribeRequest;
use containerd_client::services::v1::events_client::EventsClient;

use super::{Containerd, Error};

impl Containerd {
    /// Returns when the connection to containerd is lost. containerd answers a subscription only when the first
    /// event comes, so this says nothing about when it began to listen.
    pub async fn disconnected(&self) -> Error {
        const OPERATION: &str = "subscribe to events";
        // Image events are rare; whatever comes is only taken in.
        let filters = vec!["topic~=\"^/images/\"".to_owned()];
        let request = self.stream_request(SubscribeRequest { filters });
        let mut stream = match EventsClient::new(self.channel()).subscribe(request).await {
            Ok(response) => response.into_inner(),
            Err(status) => return Error::new(OPERATION, "", &status),
        };
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return Error::unexpected(OPERATION, "", "the stream ended"),
                Err(status) => return Error::new(OPERATION, "", &status),
            }
        }
    }
}
