//! A connection on which grpc-go may name the socket's path as `:authority`: `%2Frun%2Fdrayd.sock` (kruise-daemon,
//! kubelet up to 1.30), `/run/drayd.sock` (the same before grpc-go 1.57) or nothing. h2 resets such streams, but serves
//! requests without the field (<https://github.com/hyperium/h2/pull/487>). So its index is changed, where it lies, to
//! that of `set-cookie`, whose name is as long: no length on the wire and no size in HPACK's dynamic table changes, and
//! h2's table stays in step with the client's without being known here. What is no HTTP/2 is left to h2.

#[cfg(test)]
mod cost;
mod fields;
mod frames;
#[cfg(test)]
mod tests;

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Request;
use http::header::SET_COOKIE;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use fields::UNDECIDED;
use frames::Frames;

/// Bytes read ahead of those that wait to be judged.
const AHEAD: usize = 16;

/// The server's end of a connection.
#[derive(Debug)]
pub(super) struct Tolerant<S> {
    inner: S,
    frames: Frames,
    /// The start of a field that a read ended in, and what was read since to judge it.
    carry: [u8; UNDECIDED + AHEAD],
    /// How much of `carry` is in use.
    carried: usize,
    /// How much of that is judged and may go out.
    judged: usize,
}

impl<S> Tolerant<S> {
    pub(super) fn new(inner: S) -> Self {
        Self { inner, frames: Frames::new(), carry: [0; UNDECIDED + AHEAD], carried: 0, judged: 0 }
    }
}

/// Takes out what stands for a path in `:authority`, so that it reaches neither a service nor containerd.
pub(super) fn forget<B>(request: &mut Request<B>) {
    // No client sends cookies to a CRI, so one beside an authority is none of ours, but it came that way.
    if request.uri().authority().is_none() {
        request.headers_mut().remove(SET_COOKIE);
    }
}

impl<S: AsyncRead + Unpin> Tolerant<S> {
    /// Reads into `out` and judges it there. A field that the read ended in is taken back.
    fn poll_straight(&mut self, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, out))?;
        let read = &mut out.filled_mut()[before..];
        let judged = self.frames.scan(read);
        self.carried = read.len() - judged;
        self.carry[..self.carried].copy_from_slice(&read[judged..]);
        out.set_filled(before + judged);
        Poll::Ready(Ok(()))
    }

    /// Reads a few bytes more behind a field that cannot be judged yet.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut more = ReadBuf::new(&mut self.carry[self.carried..]);
        ready!(Pin::new(&mut self.inner).poll_read(context, &mut more))?;
        let read = more.filled().len();
        self.carried += read;
        // The connection ended in the middle of a field.
        self.judged =
            if read == 0 { self.carried } else { self.frames.scan(&mut self.carry[..self.carried]) };
        Poll::Ready(Ok(()))
    }

    fn give(&mut self, out: &mut ReadBuf<'_>) {
        let given = self.judged.min(out.remaining());
        out.put_slice(&self.carry[..given]);
        self.carry.copy_within(given..self.carried, 0);
        (self.carried, self.judged) = (self.carried - given, self.judged - given);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tolerant<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = out.filled().len();
        while this.judged == 0 {
            if this.carried > 0 {
                ready!(this.poll_more(context))?;
            } else {
                ready!(this.poll_straight(context, out))?;
                // With nothing taken back, nothing read is the end; otherwise nobody may take it for that.
                if this.carried == 0 || out.filled().len() > before {
                    return Poll::Ready(Ok(()));
                }
            }
        }
        this.give(out);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tolerant<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}
