//! gRPC calls by path with messages as bytes: for services that the client has no types of.

use std::path::Path;

use bytes::{Buf as _, BufMut as _};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder, Streaming};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Status};

use crate::socket;

/// Calls `path` with an empty message; returns the answers as they come.
pub async fn call(socket: &Path, path: &'static str) -> Result<Streaming<Vec<u8>>, Status> {
    let mut grpc = Grpc::new(socket::channel(socket));
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let answer = grpc.server_streaming(Request::new(Vec::new()), PathAndQuery::from_static(path), Bytes);
    Ok(answer.await?.into_inner())
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
