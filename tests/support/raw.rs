//! gRPC calls by path with messages as bytes: for services that the client has no types of.

use std::path::Path;

use bytes::{Buf as _, BufMut as _};
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder, Streaming};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Status};

use crate::socket;

/// Calls `path` with an empty message; returns the answers as they come.
pub async fn call(socket: &Path, path: &'static str) -> Result<Streaming<Vec<u8>>, Status> {
    call_with(socket, path, Vec::new()).await
}

/// The same with a message.
pub async fn call_with(
    socket: &Path,
    path: &'static str,
    message: Vec<u8>,
) -> Result<Streaming<Vec<u8>>, Status> {
    let mut grpc = Grpc::new(socket::channel(socket));
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let answer = grpc.server_streaming(Request::new(message), PathAndQuery::from_static(path), Bytes);
    Ok(answer.await?.into_inner())
}

/// A connection on the frame level, for calls that are left in the middle: a gRPC client would tidy up after itself.
pub struct Connection {
    calls: SendRequest<bytes::Bytes>,
    driver: JoinHandle<()>,
}

/// A call that was begun; [`Call::reset`] is `RST_STREAM`.
pub struct Call {
    request: SendStream<bytes::Bytes>,
    answer: ResponseFuture,
}

impl Connection {
    /// Opens one.
    pub async fn open(socket: &Path) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket).await?;
        let (calls, connection) = h2::client::handshake(stream).await?;
        let driver = tokio::spawn(async move {
            // Its end is seen by whoever calls next.
            let _ = connection.await;
        });
        Ok(Self { calls, driver })
    }

    /// Sends a whole request for `path` and waits for nothing.
    pub async fn begin(&self, path: &str, message: &[u8]) -> anyhow::Result<Call> {
        let request = http::Request::post(format!("http://localhost{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        let (answer, mut body) = self.calls.clone().ready().await?.send_request(request, false)?;
        let mut frame = vec![0];
        frame.extend(u32::try_from(message.len())?.to_be_bytes());
        frame.extend(message);
        body.send_data(frame.into(), true)?;
        Ok(Call { request: body, answer })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Call {
    /// Waits until the answer begins.
    pub async fn answered(self) -> anyhow::Result<()> {
        self.answer.await?;
        Ok(())
    }

    /// Leaves the call.
    pub fn reset(mut self) {
        self.request.send_reset(Reason::CANCEL);
    }
}

struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut message = vec![0; buffer.remaining()];
        buffer.copy_to_slice(&mut message);
        Ok(Some(message))
    }
}
