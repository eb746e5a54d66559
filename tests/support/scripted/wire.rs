//! HTTP/1.1 by hand: a library would repair what is broken on purpose.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::Request;
use super::reply::{End, Reply};

/// Longest request taken.
const LIMIT: usize = 1 << 20;

/// Reads one request; `None` for a connection that brings none, such as one that tries TLS.
pub(super) async fn receive(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    loop {
        if stream.read_buf(&mut bytes).await.ok()? == 0 || bytes.len() > LIMIT {
            return None;
        }
        // The first byte of a TLS handshake.
        if bytes.first() == Some(&0x16) {
            return None;
        }
        if let Some(request) = parse(&bytes) {
            return Some(request);
        }
    }
}

fn parse(bytes: &[u8]) -> Option<Request> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.get("content-length").map_or(Some(0), |length| length.parse().ok())?;
    (body.len() >= length).then_some(())?;
    Some(Request {
        method: first.next()?.to_owned(),
        target: first.next()?.to_owned(),
        headers,
        body: body.to_owned(),
    })
}

/// Sends an answer, with the faults that it has.
pub(super) async fn send(stream: &mut TcpStream, reply: &Reply, head: bool) -> io::Result<()> {
    if !reply.silent {
        let mut text = format!("HTTP/1.1 {} Scripted\r\nConnection: close\r\n", reply.status);
        for (name, value) in &reply.headers {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        if reply.announced {
            let _ = write!(text, "Content-Length: {}\r\n", reply.body.len());
        }
        text.push_str("\r\n");
        stream.write_all(text.as_bytes()).await?;
        if !head {
            send_body(stream, reply).await?;
        }
    }
    match reply.end {
        End::Stall if !head || reply.silent => await_leave(stream).await,
        _ => stream.shutdown().await,
    }
}

async fn send_body(stream: &mut TcpStream, reply: &Reply) -> io::Result<()> {
    let body = &reply.body[..reply.cut.unwrap_or(usize::MAX).min(reply.body.len())];
    let Some((piece, pause)) = reply.pace else { return stream.write_all(body).await };
    for part in body.chunks(piece.max(1)) {
        sleep(pause).await;
        stream.write_all(part).await?;
    }
    Ok(())
}

async fn await_leave(stream: &mut TcpStream) -> io::Result<()> {
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
