//! A gRPC client that writes every byte as grpc-go does: its preface, header order, HPACK, frame sizes, window updates
//! and pings. One call at a time, with one message of the client's. It can send the `:authority` of a path, which no HTTP/2 library of Rust would.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use prost::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tonic::{Code, Status};

use crate::hpack::{Decoder, Encoder, Field};

/// `:authority` of grpc-go from 1.57 on, for a socket that is dialed by its path.
pub const ENCODED_PATH: &str = "%2Fhostvarrun%2Fdrayd%2Fdrayd.sock";
/// The same before that.
pub const RAW_PATH: &str = "/run/drayd/drayd.sock";

/// What kubelet, crictl and kruise-daemon take at most.
const MAX_ANSWER: usize = 16 << 20;
/// grpc-go writes data in frames of at most this size.
const MAX_FRAME: usize = 16_384;
/// Window of a connection and of a stream before any update.
const WINDOW: i64 = 65_535;
/// So that a server that never answers fails the test.
const PATIENCE: Duration = Duration::from_secs(60);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;

/// One connection.
#[derive(Debug)]
pub struct GrpcGo {
    stream: UnixStream,
    authority: String,
    encoder: Encoder,
    decoder: Decoder,
    next_stream: u32,
    /// What may still be sent on the connection.
    window: i64,
    /// What may be sent on a new stream.
    stream_window: i64,
    /// Sent with every call, behind its own fields.
    pub metadata: Vec<Field>,
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// A call that is under way.
#[derive(Debug)]
struct Call {
    stream: u32,
    window: i64,
    answer: Vec<u8>,
    /// The last block of header fields, which is the trailers in the end.
    fields: Vec<Field>,
    ended: bool,
}

impl GrpcGo {
    /// Connects and exchanges settings.
    pub async fn dial(socket: &Path, authority: &str) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .await
            .with_context(|| format!("cannot connect to {}", socket.display()))?;
        let mut client = Self {
            stream,
            authority: authority.to_owned(),
            encoder: Encoder::default(),
            decoder: Decoder::default(),
            next_stream: 1,
            window: WINDOW,
            stream_window: WINDOW,
            metadata: Vec::new(),
        };
        client.stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?;
        client.write(SETTINGS, 0, 0, &[]).await?;
        let first = client.read().await?;
        ensure!(first.kind == SETTINGS, "the server began with a frame of type {}", first.kind);
        client.settings(&first).await?;
        Ok(client)
    }

    /// One call with one message each way. An error of the server's is a status; `Err` is what must not happen on the
    /// wire, such as a reset.
    pub async fn call<M: Message, R: Message + Default>(
        &mut self,
        path: &str,
        message: &M,
        deadline: Option<Duration>,
    ) -> Result<Result<R, Status>> {
        let answered = self.stream(path, message, deadline).await?;
        let Ok(mut messages) = answered else { return Ok(answered.map(|_| R::default())) };
        ensure!(messages.len() == 1, "{path} was answered with {} messages", messages.len());
        Ok(Ok(messages.remove(0)))
    }

    /// One call with one message, which may be answered with several; returns when the stream has ended.
    pub async fn stream<M: Message, R: Message + Default>(
        &mut self,
        path: &str,
        message: &M,
        deadline: Option<Duration>,
    ) -> Result<Result<Vec<R>, Status>> {
        let answered =
            tokio::time::timeout(PATIENCE, self.exchange(path, message.encode_to_vec(), deadline)).await;
        let call = answered.with_context(|| format!("{path} got no answer in {PATIENCE:?}"))?;
        let call = call.with_context(|| format!("{path} with authority {:?}", self.authority))?;
        let field = |name| call.fields.iter().find(|field| field.0 == name).map(|field| field.1.as_str());
        let code = field("grpc-status").context("no grpc-status")?.parse().map(Code::from_i32)?;
        if code != Code::Ok {
            return Ok(Err(Status::new(code, decoded(field("grpc-message").unwrap_or_default()))));
        }
        let (mut messages, mut rest) = (Vec::new(), call.answer.as_slice());
        while !rest.is_empty() {
            let (prefix, after) = rest.split_at_checked(5).context("half a prefix")?;
            let length = usize::try_from(u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]))?;
            ensure!(prefix[0] == 0, "a compressed message, which was not asked for");
            ensure!(length <= MAX_ANSWER, "{length} bytes are more than the client takes");
            let (message, after) = after.split_at_checked(length).context("half a message")?;
            messages.push(R::decode(message)?);
            rest = after;
        }
        Ok(Ok(messages))
    }

    /// A ping of its keepalive, awaited. Where the server has enough of them it says so with GOAWAY.
    pub async fn ping(&mut self) -> Result<()> {
        self.write(PING, 0, 0, &[0; 8]).await?;
        let acknowledged = async {
            loop {
                let frame = self.read().await?;
                if frame.kind == PING && frame.flags & ACK != 0 {
                    return Ok(());
                }
                self.take(frame, None).await?;
            }
        };
        tokio::time::timeout(PATIENCE, acknowledged).await.context("no answer to a ping")?
    }

    async fn exchange(&mut self, path: &str, message: Vec<u8>, deadline: Option<Duration>) -> Result<Call> {
        let stream = self.next_stream;
        self.next_stream += 2;
        // Whole milliseconds, as for most deadlines there.
        let timeout = deadline.map(|deadline| format!("{}m", deadline.as_millis()));
        let mut fields = vec![
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", self.authority.as_str()),
            ("content-type", "application/grpc"),
            ("user-agent", "grpc-go/1.65.0"),
            ("te", "trailers"),
        ];
        fields.extend(timeout.as_ref().map(|timeout| ("grpc-timeout", timeout.as_str())));
        fields.extend(self.metadata.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let block = self.encoder.encode(&fields);
        ensure!(block.len() <= MAX_FRAME, "headers in one frame");
        self.write(HEADERS, END_HEADERS, stream, &block).await?;
        let mut body = vec![0];
        body.extend(u32::try_from(message.len())?.to_be_bytes());
        body.extend(message);
        let mut call =
            Call { stream, window: self.stream_window, answer: Vec::new(), fields: Vec::new(), ended: false };
        let mut rest = body.as_slice();
        while !rest.is_empty() && !call.ended {
            let allowed = usize::try_from(self.window.min(call.window)).unwrap_or_default();
            let (piece, after) = rest.split_at(rest.len().min(allowed).min(MAX_FRAME));
            if piece.is_empty() {
                let frame = self.read().await?;
                self.take(frame, Some(&mut call)).await?;
                continue;
            }
            let flags = if after.is_empty() { END_STREAM } else { 0 };
            self.write(DATA, flags, stream, piece).await?;
            let sent = i64::try_from(piece.len())?;
            (self.window, call.window, rest) = (self.window - sent, call.window - sent, after);
        }
        while !call.ended {
            let frame = self.read().await?;
            self.take(frame, Some(&mut call)).await?;
        }
        Ok(call)
    }

    /// Does what a frame of the server's asks for.
    async fn take(&mut self, frame: Frame, call: Option<&mut Call>) -> Result<()> {
        let increment = |payload: &[u8]| payload.try_into().map(u32::from_be_bytes).map(i64::from);
        match (frame.kind, call) {
            (SETTINGS, call) if frame.flags & ACK == 0 => {
                let before = self.stream_window;
                self.settings(&frame).await?;
                // A change counts for streams that are open, too (RFC 9113 §6.9.2).
                if let Some(call) = call {
                    call.window += self.stream_window - before;
                }
            }
            (PING, _) if frame.flags & ACK == 0 => self.write(PING, ACK, 0, &frame.payload).await?,
            (WINDOW_UPDATE, _) if frame.stream == 0 => self.window += increment(&frame.payload)?,
            (WINDOW_UPDATE, Some(call)) if frame.stream == call.stream => {
                call.window += increment(&frame.payload)?;
            }
            (GOAWAY, _) => bail!("GOAWAY {}", String::from_utf8_lossy(&frame.payload[8..])),
            (RST_STREAM, Some(call)) if frame.stream == call.stream => {
                // After the answer: the server did not want the rest of the message.
                ensure!(call.ended, "RST_STREAM {:?}", frame.payload);
            }
            (HEADERS, Some(call)) if frame.stream == call.stream => {
                ensure!(frame.flags & (END_HEADERS | PADDED) == END_HEADERS, "whole and plain headers");
                call.fields = self.decoder.decode(&frame.payload)?;
                call.ended = frame.flags & END_STREAM != 0;
            }
            (DATA, Some(call)) if frame.stream == call.stream => {
                ensure!(frame.flags & PADDED == 0, "plain data");
                call.answer.extend(&frame.payload);
                call.ended = frame.flags & END_STREAM != 0;
                let taken = u32::try_from(frame.payload.len())?.to_be_bytes();
                if taken != [0; 4] {
                    self.write(WINDOW_UPDATE, 0, 0, &taken).await?;
                    self.write(WINDOW_UPDATE, 0, frame.stream, &taken).await?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    async fn settings(&mut self, frame: &Frame) -> Result<()> {
        for setting in frame.payload.chunks_exact(6) {
            // SETTINGS_INITIAL_WINDOW_SIZE; the others leave this client as it is.
            if setting[..2] == [0, 4] {
                self.stream_window = u32::from_be_bytes(setting[2..].try_into()?).into();
            }
        }
        self.write(SETTINGS, ACK, 0, &[]).await
    }

    async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<()> {
        let mut frame = u32::try_from(payload.len())?.to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.stream.write_all(&frame).await.context("cannot write to the server")
    }

    async fn read(&mut self) -> Result<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await.context("the server ended the connection")?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, a, b, c]))?];
        self.stream.read_exact(&mut payload).await.context("the server ended the connection")?;
        Ok(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }
}

/// The text of a `grpc-message`, whose other characters are percent-encoded (gRPC over HTTP/2, "Percent-Byte-Encoded").
fn decoded(message: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = message.as_bytes();
    while let [first, after @ ..] = rest {
        let code = after.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
