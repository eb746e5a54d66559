//! HTTP/2 on the frame level: streams that are reset and connections that go away in the middle of a body, which a
//! server library would not send.

use std::future::{pending, poll_fn};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::Response;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::reply::{End, Reply};
use super::wire::Connection;
use super::{Peer, Request, State, Version};

/// A reset throws away the frames that wait, so what was sent gets this long to leave.
const DRAIN: Duration = Duration::from_millis(20);
/// What goes into one frame at most; the peer's own bound may be lower.
const FRAME: usize = 16 << 10;

/// Answers streams, several at a time, until either side ends the connection.
pub(super) async fn converse(connection: impl Connection, peer: Peer, state: &State) {
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
                Some(End::GoAway) => {
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
    end: mpsc::UnboundedSender<End>,
) {
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
            other => finish(&end, other).await,
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
            finish(&end, other).await;
        }
    }
}

/// Ends the connection, holding this stream until then: dropping it would reset it first.
async fn finish(end: &mpsc::UnboundedSender<End>, how: End) {
    if end.send(how).is_ok() {
        pending::<()>().await;
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
