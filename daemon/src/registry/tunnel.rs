//! Why a proxy opens no tunnel. The HTTP library tells of its answer only that it was not 200, so the proxy is asked
//! once more for its status: whoever reads the error must know whether to correct a rule of the proxy or wait for it.

use std::time::Duration;

use http::StatusCode;
use http::header::HeaderValue;
use reqwest::Url;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Where the status stands in an answer's first line, `HTTP/1.1 403 …`.
const STATUS: std::ops::Range<usize> = 9..12;

/// What `proxy` answers to a request for a tunnel to the host of `url`, unless it opens one. `None` also for a proxy
/// that is reached by TLS, and after `limit`.
pub(super) async fn refusal(
    proxy: &Url,
    authorization: Option<&HeaderValue>,
    url: &Url,
    limit: Duration,
) -> Option<StatusCode> {
    let proxy = (proxy.scheme() == "http").then_some(proxy)?;
    let status = timeout(limit, status(proxy, authorization, url)).await.ok()??;
    (!status.is_success()).then_some(status)
}

async fn status(proxy: &Url, authorization: Option<&HeaderValue>, url: &Url) -> Option<StatusCode> {
    let (host, port) = (proxy.host_str()?.trim_matches(['[', ']']), proxy.port_or_known_default()?);
    let target = format!("{}:{}", url.host_str()?, url.port_or_known_default()?);
    let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
    if let Some(authorization) = authorization {
        request.extend([b"Proxy-Authorization: ", authorization.as_bytes(), b"\r\n"].concat());
    }
    request.extend(b"\r\n");
    let mut stream = TcpStream::connect((host, port)).await.ok()?;
    stream.write_all(&request).await.ok()?;
    let mut answer = Vec::new();
    while answer.len() < STATUS.end {
        if stream.read_buf(&mut answer).await.ok()? == 0 {
            return None;
        }
    }
    StatusCode::from_bytes(&answer[STATUS]).ok()
}
