//! Puts blobs and manifests into a registry exactly as they are: no client in between that would drop an odd index
//! entry, merge equal layers or change a media type.

use std::io::{Read, Write as _, copy};
use std::net::TcpStream;

use anyhow::{Context, Result, ensure};

/// An answer of the registry.
struct Answer {
    status: u16,
    location: Option<String>,
}

/// Uploads a blob unless the registry has it.
pub fn blob(registry: &str, repository: &str, digest: &str, bytes: &[u8]) -> Result<()> {
    blob_from(registry, repository, digest, bytes.len() as u64, bytes)
}

/// The same for one of `length` bytes that does not have to be in memory.
pub fn blob_from(
    registry: &str,
    repository: &str,
    digest: &str,
    length: u64,
    bytes: impl Read,
) -> Result<()> {
    let path = format!("/v2/{repository}/blobs/{digest}");
    if ask(registry, "HEAD", &path, None, 0, &[][..])?.status == 200 {
        return Ok(());
    }
    let begun = ask(registry, "POST", &format!("/v2/{repository}/blobs/uploads/"), None, 0, &[][..])?;
    let location =
        begun.location.with_context(|| format!("{registry} began an upload without a Location"))?;
    let upload = location.strip_prefix(&format!("http://{registry}")).unwrap_or(&location);
    let separator = if upload.contains('?') { '&' } else { '?' };
    let target = format!("{upload}{separator}digest={digest}");
    let done = ask(registry, "PUT", &target, Some("application/octet-stream"), length, bytes)?;
    ensure!(done.status == 201, "{registry} answered {} to the blob {digest}", done.status);
    Ok(())
}

/// Uploads a manifest or index under a tag or digest.
pub fn manifest(registry: &str, repository: &str, name: &str, media_type: &str, bytes: &[u8]) -> Result<()> {
    let path = format!("/v2/{repository}/manifests/{name}");
    let answer = ask(registry, "PUT", &path, Some(media_type), bytes.len() as u64, bytes)?;
    ensure!(
        answer.status == 201,
        "{registry} answered {} to the manifest {repository}:{name}",
        answer.status
    );
    Ok(())
}

fn ask(
    registry: &str,
    method: &str,
    path: &str,
    media_type: Option<&str>,
    length: u64,
    body: impl Read,
) -> Result<Answer> {
    exchange(registry, method, path, media_type, length, body)
        .with_context(|| format!("{method} {path} at the registry {registry} failed"))
}

/// One request on its own connection: the end of the connection is then the end of the answer.
fn exchange(
    registry: &str,
    method: &str,
    path: &str,
    media_type: Option<&str>,
    length: u64,
    mut body: impl Read,
) -> Result<Answer> {
    let mut connection = TcpStream::connect(registry)?;
    let content_type = media_type.map(|name| format!("Content-Type: {name}\r\n")).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {registry}\r\nConnection: close\r\n{content_type}Content-Length: {length}\r\n\r\n"
    );
    connection.write_all(head.as_bytes())?;
    copy(&mut body, &mut connection)?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    let head = text.split("\r\n\r\n").next().unwrap_or_default();
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let location = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("location").then(|| value.to_owned())
    });
    Ok(Answer { status: status.with_context(|| format!("an answer without a status: {head}"))?, location })
}
