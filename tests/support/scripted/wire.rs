//! HTTP/1.1 by hand, over TCP or TLS: a library would repair what is broken on purpose.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_rustls::server::TlsStream;

use super::reply::{End, Length, Reply};
use super::{Peer, Request, State};

/// Longest request taken.
const LIMIT: usize = 1 << 20;
/// First byte of a TLS handshake.
const HANDSHAKE: u8 = 0x16;
/// A reset throws away what the kernel still holds, so what was sent gets this long to arrive.
const DRAIN: Duration = Duration::from_millis(20);

/// A connection that can be reset.
pub(super) trait Connection: AsyncRead + AsyncWrite + Unpin {
    /// What is under it.
    fn tcp(&self) -> &TcpStream;
}

impl Connection for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Connection for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// Answers request after request until either side ends the connection.
pub(super) async fn converse(mut connection: impl Connection, peer: Peer, state: &State) {
    let mut bytes = Vec::new();
    while let Some(request) = receive(&mut connection, &mut bytes, peer).await {
        let last = request.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let head = request.method == "HEAD";
        let (reply, _open) = state.reply(&request);
        match send(&mut connection, &reply, head).await {
            Ok(true) if !last => {}
            // The other side may leave at any time.
            _ => return,
        }
    }
}

/// Reads one request; `None` for a connection that brings none, such as one that tries TLS on a plain port.
async fn receive(connection: &mut impl Connection, bytes: &mut Vec<u8>, peer: Peer) -> Option<Request> {
    loop {
        if let Some((request, length)) = parse(bytes, peer) {
            bytes.drain(..length);
            return Some(request);
        }
        if bytes.first() == Some(&HANDSHAKE) {
            // As other servers do; containerd's client takes this, and nothing else, for a reason to try without TLS.
            let _ = connection.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").await;
            let _ = connection.shutdown().await;
            return None;
        }
        if bytes.len() > LIMIT {
            return None;
        }
        if connection.read_buf(bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// The first request in these bytes and its length.
fn parse(bytes: &[u8], peer: Peer) -> Option<(Request, usize)> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..end - 4]).into_owned();
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(Some(0), |(_, length)| length.parse::<usize>().ok())?;
    let body = bytes.get(end..end + length)?;
    let request = Request {
        method: first.next()?.to_owned(),
        target: first.next()?.to_owned(),
        headers,
        body: String::from_utf8_lossy(body).into_owned(),
        to: peer.to,
        from: peer.from,
        version: super::Version::Http1,
        secure: peer.secure,
    };
    Some((request, end + length))
}

/// Sends an answer, with the faults that it has; says whether the connection can be used again.
async fn send(connection: &mut impl Connection, reply: &Reply, head: bool) -> io::Result<bool> {
    sleep(reply.delay).await;
    if let Some(raw) = &reply.raw {
        connection.write_all(raw).await?;
    }
    if !reply.silent {
        connection.write_all(head_of(reply).as_bytes()).await?;
        if !head {
            send_body(connection, reply).await?;
        }
        connection.flush().await?;
        // A HEAD has no body to be broken.
        if reply.end == End::Keep || (head && reply.end == End::Stall) {
            let keeps = head || reply.delimited();
            if !keeps {
                connection.shutdown().await?;
            }
            return Ok(keeps);
        }
    }
    match reply.end {
        End::Keep | End::Close | End::GoAway | End::Unprocessed => connection.shutdown().await?,
        End::Stall => await_leave(connection).await?,
        End::Reset => {
            sleep(DRAIN).await;
            connection.tcp().set_zero_linger()?;
        }
    }
    Ok(false)
}

fn head_of(reply: &Reply) -> String {
    let mut text = format!("HTTP/1.1 {} Scripted\r\n", reply.status);
    for (name, value) in &reply.headers {
        let _ = write!(text, "{name}: {value}\r\n");
    }
    if let Some(length) = reply.announced() {
        let _ = write!(text, "Content-Length: {length}\r\n");
    }
    match reply.length {
        Length::Chunked => text.push_str("Transfer-Encoding: chunked\r\n"),
        Length::Unsaid => text.push_str("Connection: close\r\n"),
        Length::True | Length::Stated(_) => {}
    }
    text + "\r\n"
}

async fn send_body(connection: &mut impl Connection, reply: &Reply) -> io::Result<()> {
    let body = reply.sent();
    let (piece, pause) = reply.pace.unwrap_or((usize::MAX, Duration::ZERO));
    for part in body.chunks(piece.max(1)) {
        if reply.pace.is_some() {
            // What was written so far is to be seen before the pause; TLS would keep it.
            connection.flush().await?;
            sleep(pause).await;
        }
        if reply.length == Length::Chunked {
            connection.write_all(format!("{:x}\r\n", part.len()).as_bytes()).await?;
            connection.write_all(part).await?;
            connection.write_all(b"\r\n").await?;
        } else {
            connection.write_all(part).await?;
        }
    }
    if reply.length == Length::Chunked && reply.delimited() {
        connection.write_all(b"0\r\n\r\n").await?;
    }
    Ok(())
}

async fn await_leave(connection: &mut impl Connection) -> io::Result<()> {
    let mut rest = [0; 1024];
    while connection.read(&mut rest).await? > 0 {}
    Ok(())
}
