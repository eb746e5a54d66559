//! containerd's event stream: that image records changed, and that the connection is gone.

use std::time::Duration;

use containerd_client::services::v1::events_client::EventsClient;
use containerd_client::services::v1::{ImageDelete, PublishRequest, SubscribeRequest};
use containerd_client::types::Envelope;
use prost::Message as _;
use tonic::Streaming;

use super::{Containerd, Error, METADATA_DEADLINE};

/// Topics under which containerd tells of image records: `create`, `update` and `delete`.
const IMAGES: &str = "/images/";
/// Topics of marks, each subscriber's under a name of its own. containerd takes in any topic.
const MARKS: &str = "/drayd/mark/";
/// Between the first two marks of a subscription that is not served yet, and twice as long each time after that.
const AGAIN: Duration = Duration::from_millis(50);
const OPERATION: &str = "subscribe to events";

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An image record of that name was made, changed or removed.
    Image(String),
    /// A mark that this subscriber has set. Events come in their order, so all that happened before it was told.
    Mark(u64),
}

/// Sets marks in containerd's events for one subscriber.
#[derive(Clone, Debug)]
pub struct Marker {
    containerd: Containerd,
    topic: String,
}

/// A subscription to what happens to image records. It misses nothing from the moment that it is there.
#[derive(Debug)]
pub struct ImageEvents {
    stream: Streaming<Envelope>,
    /// An event that came before it was asked for.
    first: Option<Envelope>,
}

impl Containerd {
    /// Returns when the connection to containerd is lost. containerd answers a subscription only when the first
    /// event comes, so this says nothing about when it began to listen.
    pub async fn disconnected(&self) -> Error {
        let mut events = match self.subscribe(&[images()]).await {
            Ok(events) => events,
            Err(error) => return error,
        };
        // Image events are rare; whatever comes is only taken in.
        loop {
            if let Err(error) = events.envelope().await {
                return error;
            }
        }
    }

    /// Marks for a subscriber of that name: letters and digits that no other one has.
    pub fn marker(&self, subscriber: &str) -> Marker {
        Marker { containerd: self.clone(), topic: format!("{MARKS}{subscriber}") }
    }

    async fn subscribe(&self, topics: &[String]) -> Result<ImageEvents, Error> {
        // Without a filter for the namespace those of all are told.
        let namespace = self.namespace.to_str().unwrap_or_default();
        let filters = topics.iter().map(|topic| format!("namespace==\"{namespace}\",topic{topic}")).collect();
        let request = self.stream_request(SubscribeRequest { filters });
        let answer = EventsClient::new(self.channel()).subscribe(request).await;
        let stream = answer.map_err(|status| Error::new(OPERATION, "", &status))?.into_inner();
        Ok(ImageEvents { stream, first: None })
    }
}

impl Marker {
    /// Sets a mark.
    pub async fn mark(&self, number: u64) -> Result<(), Error> {
        let type_url = "types.googleapis.com/google.protobuf.UInt64Value".into();
        let event = prost_types::Any { type_url, value: number.encode_to_vec() };
        let message = PublishRequest { topic: self.topic.clone(), event: Some(event) };
        let containerd = &self.containerd;
        let published = EventsClient::new(containerd.channel()).publish(containerd.request(message)).await;
        published.map(drop).map_err(|status| Error::new("publish an event", &self.topic, &status))
    }

    /// Subscribes to the image records of the namespace and to these marks, and returns once containerd has begun to
    /// listen: what happens after that is told. Nothing in containerd's answer says when that is, so marks of the
    /// number 0 are set until one comes back.
    pub async fn subscribe(&self) -> Result<ImageEvents, Error> {
        let topics = [images(), format!("==\"{}\"", self.topic)];
        let subscribed = async {
            let mut events = self.containerd.subscribe(&topics).await?;
            events.first = Some(events.envelope().await?);
            Ok(events)
        };
        let knocking = async {
            let mut pause = AGAIN;
            loop {
                if let Err(error) = self.mark(0).await {
                    break error;
                }
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        };
        tokio::select! {
            events = subscribed => events,
            error = knocking => Err(error),
            () = tokio::time::sleep(METADATA_DEADLINE) => Err(Error::late(OPERATION, "", METADATA_DEADLINE)),
        }
    }
}

fn images() -> String {
    format!("~=\"^{IMAGES}\"")
}

impl ImageEvents {
    /// What happens next. A call may be dropped and made again.
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            let Envelope { topic, event, .. } = self.envelope().await?;
            let payload = event.map(|event| event.value).unwrap_or_default();
            let event = if topic.starts_with(IMAGES) {
                // All three events have the name where this one has it; what else they have is skipped.
                ImageDelete::decode(payload.as_slice()).map(|event| Event::Image(event.name))
            } else {
                u64::decode(payload.as_slice()).map(Event::Mark)
            };
            if let Ok(event) = event {
                return Ok(event);
            }
        }
    }

    async fn envelope(&mut self) -> Result<Envelope, Error> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        match self.stream.message().await {
            Ok(Some(envelope)) => Ok(envelope),
            Ok(None) => Err(Error::unexpected(OPERATION, "", "the stream ended")),
            Err(status) => Err(Error::new(OPERATION, "", &status)),
        }
    }
}
