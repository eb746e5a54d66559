//! HTTP/2 on the frame level: streams that are reset and connections that go away in the middle of a body, which a
//! server library would not send.

use std::future::{pending, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::Response;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::reply::{End, Reply};
use super::wire::Connection;
use super::{Peer, Request, State, Version, locked};

/// A reset throws away the frames that wait, so what was sent gets this long to leave.
const DRAIN: Duration = Duration::from_millis(20);
/// What goes into one frame at most; the peer's own bound may be lower.
const FRAME: usize = 16 << 10;

/// Answers streams, several at a time, until either side ends the connection.
pub(super) async fn converse(connection: impl Connection, peer: Peer, state: &State) {
    let connection = Kept(Arc::new(Mutex::new(connection)));
    let kept = Kept(Arc::clone(&connection.0));
    let Ok(mut connection) = h2::server::handshake(connection).await else { return };
    // A stream whose script ends the whole connection says so here.
    let (end, mut ends) = mpsc::unbounded_channel();
    // Owned by this connection: dropped with it.
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            accepted = connection.accept() => {
                let Some(Ok((request, respond))) = accepted else { return };
                streams.spawn(answer(request, respond, peer, state.clone(), end.clone()));
            }
            ended = ends.recv() => match ended {
                Some((End::Unprocessed, stream)) => {
                    drop(connection);
                    let _ = disown(kept, stream).await;
                    return;
                }
                Some((End::GoAway, _)) => {
                    connection.abrupt_shutdown(Reason::NO_ERROR);
                    // Polled on, so that the frame is written.
                    while let Some(Ok(_)) = connection.accept().await {}
                    return;
                }
                _ => return,
            },
            Some(_) = streams.join_next() => {}
        }
    }
}

async fn answer(
    request: http::Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    peer: Peer,
    state: State,
    end: mpsc::UnboundedSender<Ending>,
) {
    let stream = respond.stream_id().as_u32();
    let Some(request) = receive(request, peer).await else { return };
    let head = request.method == "HEAD";
    let (reply, _open) = state.reply(&request);
    sleep(reply.delay).await;
    if reply.silent {
        match reply.end {
            End::Stall => {
                let _ = poll_fn(|context| respond.poll_reset(context)).await;
            }
            End::Reset => respond.send_reset(Reason::INTERNAL_ERROR),
            other => finish(&end, other, stream).await,
        }
        return;
    }
    let mut response = Response::builder().status(reply.status);
    for (name, value) in &reply.headers {
        response = response.header(name, value);
    }
    if let Some(length) = reply.announced() {
        response = response.header("content-length", length);
    }
    let Ok(response) = response.body(()) else { return };
    let Ok(mut body) = respond.send_response(response, head) else { return };
    if head {
        return;
    }
    if send_body(&mut body, &reply).await.is_none() {
        return;
    }
    match reply.end {
        End::Keep if reply.cut.is_none() => drop(body.send_data(Bytes::new(), true)),
        End::Keep | End::Reset => {
            sleep(DRAIN).await;
            body.send_reset(Reason::INTERNAL_ERROR);
        }
        End::Stall => {
            let _ = poll_fn(|context| body.poll_reset(context)).await;
        }
        other => {
            if reply.delimited() {
                let _ = body.send_data(Bytes::new(), true);
            }
            sleep(DRAIN).await;
            finish(&end, other, stream).await;
        }
    }
}

/// How a connection ends, and the number of the stream that ends it.
type Ending = (End, u32);

/// Ends the connection, holding this stream until then: dropping it would reset it first.
async fn finish(end: &mpsc::UnboundedSender<Ending>, how: End, stream: u32) {
    if end.send((how, stream)).is_ok() {
        pending::<()>().await;
    }
}

/// Says that this stream and all later ones were not processed, which the library only says of what it never gave out.
async fn disown(mut connection: Kept<impl Connection>, stream: u32) -> io::Result<()> {
    // RFC 9113, sections 4.1 and 6.8: length, type, no flags, stream 0; the last stream that was processed (clients'
    // have odd numbers), and no error.
    let mut frame = vec![0, 0, 8, 7, 0, 0, 0, 0, 0];
    frame.extend_from_slice(&stream.saturating_sub(2).to_be_bytes());
    frame.extend_from_slice(&[0; 4]);
    connection.write_all(&frame).await?;
    connection.shutdown().await?;
    // Closing with bytes unread would be a reset.
    tokio::io::copy(&mut connection, &mut tokio::io::sink()).await.map(drop)
}

/// A connection that is at hand when the library has let go of it.
struct Kept<C>(Arc<Mutex<C>>);

impl<C: AsyncRead + Unpin> AsyncRead for Kept<C> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *locked(&self.0)).poll_read(context, buffer)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Kept<C> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *locked(&self.0)).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *locked(&self.0)).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *locked(&self.0)).poll_shutdown(context)
    }
}

async fn receive(request: http::Request<RecvStream>, peer: Peer) -> Option<Request> {
    let (head, mut stream) = request.into_parts();
    let mut body = Vec::new();
    while let Some(piece) = stream.data().await {
        let piece = piece.ok()?;
        let _ = stream.flow_control().release_capacity(piece.len());
        body.extend_from_slice(&piece);
    }
    let authority = head.uri.authority().map(|authority| ("host".to_owned(), authority.to_string()));
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = head.headers.iter().map(|(name, value)| (name.to_string(), text(value)));
    Some(Request {
        method: head.method.to_string(),
        target: head.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
        headers: authority.into_iter().chain(headers).collect(),
        body: String::from_utf8_lossy(&body).into_owned(),
        to: peer.to,
        from: peer.from,
        version: Version::Http2,
        secure: peer.secure,
    })
}

/// Sends what the reply sends of its body; `None` if the other side has left.
async fn send_body(stream: &mut SendStream<Bytes>, reply: &Reply) -> Option<()> {
    let mut body = reply.sent();
    let (piece, pause) = reply.pace.unwrap_or((FRAME, Duration::ZERO));
    while !body.is_empty() {
        sleep(pause).await;
        let mut part = body.split_to(piece.clamp(1, body.len()));
        while !part.is_empty() {
            stream.reserve_capacity(part.len());
            let room = poll_fn(|context| stream.poll_capacity(context)).await?.ok()?;
            let frame = part.split_to(room.min(part.len()));
            stream.send_data(frame, false).ok()?;
        }
    }
    Some(())
}
