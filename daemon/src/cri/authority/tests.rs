//! Blocks as Go's encoder writes them, through the filter into h2 itself: what it makes of them is what counts.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use drayd_tests::hpack::Encoder;
use futures_util::FutureExt as _;
use http::{HeaderMap, Request};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use super::frames::Frames;
use super::{Tolerant, forget};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(super) const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
pub(super) const END_STREAM: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// The three ways, and one that is as long as paths get.
fn ways() -> Vec<String> {
    let longest = format!("/{}", "d".repeat(106));
    let mut ways: Vec<String> =
        ["%2Fhostvarrun%2Fdrayd%2Fdrayd.sock", "/run/drayd/drayd.sock", "", "/", "%2F~~~~~~"]
            .map(String::from)
            .into();
    ways.push(longest.replace('/', "%2F"));
    // Huffman codes make this one longer, so it goes as it is, with its length in two bytes.
    ways.push("/<".repeat(70));
    ways.push(longest);
    ways
}

/// A client's connection that was written in advance, and is read in pieces of these sizes.
struct Written {
    bytes: VecDeque<u8>,
    pieces: Vec<usize>,
    turn: usize,
    /// Whether the client leaves after it; h2 drops what it has not handed out then.
    leaves: bool,
}

impl AsyncRead for Written {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.bytes.is_empty() && !self.leaves {
            return Poll::Pending;
        }
        let piece = self.pieces[self.turn % self.pieces.len()].clamp(1, out.remaining());
        self.turn += 1;
        let piece = piece.min(self.bytes.len());
        out.put_slice(&self.bytes.drain(..piece).collect::<Vec<_>>());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Written {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn written(bytes: &[u8], pieces: &[usize]) -> Written {
    Written { bytes: bytes.iter().copied().collect(), pieces: pieces.to_vec(), turn: 0, leaves: false }
}

/// The requests that h2 takes from a connection until there are no more, or it ends the connection.
fn served(connection: impl AsyncRead + AsyncWrite + Unpin) -> Vec<Request<()>> {
    let mut builder = h2::server::Builder::new();
    let handshake = builder.max_concurrent_streams(10_000).handshake::<_, bytes::Bytes>(connection);
    let mut connection = handshake.now_or_never().expect("all was written").expect("HTTP/2");
    let mut requests = Vec::new();
    while let Some(Some(Ok((request, _)))) = connection.accept().now_or_never() {
        requests.push(request.map(drop));
    }
    requests
}

/// What the filter makes of a client's bytes, read in these pieces into these.
fn filtered(bytes: &[u8], pieces: &[usize], out: usize) -> Vec<u8> {
    let mut filter = Tolerant::new(Written { leaves: true, ..written(bytes, pieces) });
    let (mut read, mut piece) = (Vec::new(), vec![0; out]);
    loop {
        match filter
            .read(&mut piece)
            .now_or_never()
            .expect("all was written")
            .expect("reads do not fail here")
        {
            0 => return read,
            length => read.extend_from_slice(&piece[..length]),
        }
    }
}

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

pub(super) fn opening() -> Vec<u8> {
    [PREFACE, &frame(4, 0, 0, &[])].concat()
}

/// The fields of a call, in grpc-go's order.
pub(super) fn call<'a>(path: &'a str, authority: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.65.0"),
        ("te", "trailers"),
    ]
}

#[test]
fn a_socket_named_in_any_way_is_served_and_only_the_name_of_that_field_changes() {
    for authority in ways() {
        let (mut encoder, mut bytes) = (Encoder::default(), opening());
        for stream in [1, 3, 5] {
            let block = encoder.encode(&call("/runtime.v1.ImageService/ImageFsInfo", &authority));
            bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &block));
        }
        let requests = served(Tolerant::new(written(&bytes, &[usize::MAX])));
        assert_eq!(requests.len(), 3, "{authority:?}");
        for mut request in requests {
            assert_eq!(request.uri().to_string(), "/runtime.v1.ImageService/ImageFsInfo");
            assert_eq!(request.headers()["set-cookie"], authority);
            forget(&mut request);
            let left = call("", "").split_off(4);
            let left: HeaderMap = left
                .iter()
                .map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")))
                .collect();
            assert_eq!(request.headers(), &left);
        }
        let after = filtered(&bytes, &[usize::MAX], 1 << 16);
        let changed: Vec<_> = bytes.iter().zip(&after).filter(|(before, after)| before != after).collect();
        // An empty one is in no table of the connection, so it comes in full each time; others only once.
        let expected = if authority.is_empty() { vec![(&0x81, &0xb7); 3] } else { vec![(&0x41, &0x77)] };
        assert_eq!((changed, after.len()), (expected, bytes.len()), "{authority:?}");
    }
}

/// The day this fails, the filter may go.
#[test]
fn h2_itself_still_refuses_them() {
    for authority in ways() {
        let block = Encoder::default().encode(&call("/a.b/C", &authority));
        let bytes = [opening(), frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)].concat();
        assert_eq!(served(written(&bytes, &[usize::MAX])).len(), 0, "{authority:?}");
    }
    let block = Encoder::default().encode(&call("/a.b/C", "localhost"));
    let bytes = [opening(), frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)].concat();
    assert_eq!(served(written(&bytes, &[usize::MAX])).len(), 1);
}

#[test]
fn an_authority_with_its_name_and_value_in_different_frames_is_left_to_h2() {
    let mut encoder = Encoder::default();
    let before = encoder.encode(&call("/a.b/C", "")[..3]);
    let mut block = before.clone();
    block.extend(encoder.encode(&[(":authority", "/run/x.sock")]));
    for (cut, requests) in [(0, 1), (1, 0), (2, 0), (3, 1)] {
        let (first, second) = block.split_at(before.len() + cut);
        let bytes =
            [opening(), frame(HEADERS, END_STREAM, 1, first), frame(CONTINUATION, END_HEADERS, 1, second)]
                .concat();
        assert_eq!(served(Tolerant::new(written(&bytes, &[usize::MAX]))).len(), requests, "cut at {cut}");
    }
}

#[test]
fn an_authority_in_a_form_that_grpc_go_does_not_write_is_left_to_h2() {
    let before = Encoder::default().encode(&call("/a.b/C", "")[..3]);
    let forms: [&[u8]; 5] = [
        b"\x01\x02/x",
        b"\x11\x02/x",
        b"\x01\x00",
        b"\x40\x0a:authority\x02/x",
        // A length in more bytes than h2 reads.
        b"\x41\x7f\x80\x80\x80\x80\x00/",
    ];
    for form in forms {
        let block = [before.as_slice(), form].concat();
        let bytes = [opening(), frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)].concat();
        for pieces in [1, usize::MAX] {
            assert_eq!(filtered(&bytes, &[pieces], 1 << 16), bytes, "{form:x?}");
        }
        assert_eq!(served(Tolerant::new(written(&bytes, &[usize::MAX]))).len(), 0, "{form:x?}");
    }
}

#[test]
fn changes_of_the_tables_size_are_passed_over() {
    let block = Encoder::default().encode(&call("/a.b/C", "/run/x.sock"));
    // To 0 and back to 4096, as an encoder does after a change of settings.
    let block = [b"\x20\x3f\xe1\x1f".as_slice(), &block].concat();
    let bytes = [opening(), frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)].concat();
    assert_eq!(served(Tolerant::new(written(&bytes, &[1]))).len(), 1);
}

#[test]
fn after_what_is_not_http2_nothing_is_changed() {
    let block = Encoder::default().encode(&call("/a.b/C", ""));
    let call = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block);
    for (what, beginning) in [
        ("another protocol", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec()),
        ("no preface", frame(4, 0, 0, &[])),
        (
            "more of a block that was not begun",
            [opening(), frame(CONTINUATION, END_HEADERS, 1, &block)].concat(),
        ),
        (
            "a frame in a block",
            [opening(), frame(HEADERS, 0, 1, &block[..2]), frame(6, 0, 0, &[0; 8])].concat(),
        ),
        (
            "more padding than frame",
            [opening(), frame(HEADERS, PADDED | END_HEADERS, 1, &[3, 0, 0])].concat(),
        ),
        ("padding without length", [opening(), frame(HEADERS, PADDED | END_HEADERS, 1, &[])].concat()),
        ("half a priority", [opening(), frame(HEADERS, PRIORITY | END_HEADERS, 1, &[0; 4])].concat()),
        ("a promise", [opening(), frame(5, END_HEADERS, 1, &[0, 0, 0, 2])].concat()),
        ("half a field", [opening(), frame(HEADERS, END_HEADERS, 1, &[0x41])].concat()),
        ("an index without end", [opening(), frame(HEADERS, 0, 1, &[0xff; 6])].concat()),
    ] {
        let bytes = [beginning, call.clone()].concat();
        assert_eq!(filtered(&bytes, &[usize::MAX], 1 << 16), bytes, "{what}");
        assert_eq!(filtered(&bytes, &[1], 1 << 16), bytes, "{what}, byte by byte");
    }
    let good = [opening(), call].concat();
    assert_ne!(filtered(&good, &[usize::MAX], 1 << 16), good);
}

#[test]
fn a_second_authority_is_left_to_h2() {
    for [first, second] in [["", "/run/x"], ["/run/x", ""], ["localhost", ""], ["localhost", "/run/x"]] {
        let mut fields = call("/a.b/C", first);
        fields.insert(4, (":authority", second));
        let block = Encoder::default().encode(&fields);
        let bytes = [opening(), frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)].concat();
        assert_eq!(served(Tolerant::new(written(&bytes, &[5]))).len(), 0, "{first:?} and {second:?}");
    }
}

#[test]
fn a_cookie_beside_an_authority_is_the_clients_own() {
    let mut request = Request::builder().uri("http://localhost/a").header("set-cookie", "a=b").body(());
    forget(request.as_mut().expect("a request"));
    assert_eq!(request.expect("a request").headers()["set-cookie"], "a=b");
}

/// One call of a random connection, and how it is written.
#[derive(Clone, Debug)]
struct Call {
    path: String,
    authority: String,
    metadata: Vec<(String, String)>,
    padding: Option<u8>,
    priority: bool,
    /// Where the block is cut into frames.
    cuts: Vec<prop::sample::Index>,
    /// Sent before it: kind, flags, payload.
    other: Vec<(u8, u8, Vec<u8>)>,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let bad = prop::sample::select(ways());
    let authority = prop_oneof![3 => bad, 1 => Just("localhost".to_owned()), 1 => "[a-z]{1,40}"];
    // Long and different, so that entries are driven out of the table; `:authority` is, too, in the end.
    let value = prop_oneof!["[ -~]{0,20}", "[a-z0-9]{100,400}", "[<{}|~]{1,200}"];
    let metadata = vec(("x-[a-c]", value.prop_map(|value| value.trim().to_owned())), 0..4);
    let other = (prop::sample::select(vec![0_u8, 2, 6, 8, 10, 200]), any::<u8>(), vec(any::<u8>(), 0..64));
    let call = (
        "/[a-z]{1,30}/[A-Z]{1,9}",
        authority,
        metadata,
        proptest::option::of(0..60_u8),
        any::<bool>(),
        vec(any::<prop::sample::Index>(), 0..3),
        vec(other.prop_map(lawful), 0..3),
    );
    let call = call.prop_map(|(path, authority, metadata, padding, priority, cuts, other)| Call {
        path,
        authority,
        metadata,
        padding,
        priority,
        cuts,
        other,
    });
    vec(call, 1..30)
}

/// A frame that h2 takes, made of a random one: it may hold anything where anything is allowed.
fn lawful((kind, flags, mut payload): (u8, u8, Vec<u8>)) -> (u8, u8, Vec<u8>) {
    match kind {
        // PRIORITY, PING, WINDOW_UPDATE; one of an unknown kind is ignored whatever is in it.
        2 => (2, flags, vec![0, 0, 0, 0, 7]),
        6 => {
            payload.resize(8, 0x81);
            (6, flags & !1, payload)
        }
        8 => (8, flags, vec![0, 0, 0, 65]),
        _ => (kind.max(10), flags, payload),
    }
}

impl Call {
    fn fields(&self) -> Vec<(&str, &str)> {
        let mut fields = call(&self.path, &self.authority);
        fields.extend(self.metadata.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        fields
    }

    fn write(&self, encoder: &mut Encoder, stream: u32, bytes: &mut Vec<u8>) {
        for (kind, flags, payload) in &self.other {
            let stream = if *kind == 2 { stream } else { 0 };
            bytes.extend(frame(*kind, *flags, stream, payload));
        }
        let fields = self.fields();
        let mut block = encoder.encode(&fields[..3]);
        let authority = block.len();
        block.extend(encoder.encode(&fields[3..]));
        // Everywhere but behind the first byte of an authority or the second, see above.
        let mut cuts: Vec<usize> = self.cuts.iter().map(|cut| cut.index(block.len() + 1)).collect();
        cuts.retain(|cut| !(authority + 1..authority + 4).contains(cut));
        cuts.sort_unstable();
        cuts.insert(0, 0);
        cuts.push(block.len());
        for (at, ends) in cuts.windows(2).enumerate() {
            let last = if at + 2 == cuts.len() { END_HEADERS } else { 0 };
            let piece = &block[ends[0]..ends[1]];
            if at > 0 {
                bytes.extend(frame(CONTINUATION, last, stream, piece));
                continue;
            }
            let (mut payload, mut flags) = (Vec::new(), END_STREAM | last);
            if let Some(padding) = self.padding {
                payload.push(padding);
                flags |= PADDED;
            }
            if self.priority {
                payload.extend([0x80, 0, 0, 0, 0x41]);
                flags |= PRIORITY;
            }
            payload.extend(piece);
            payload.resize(payload.len() + usize::from(self.padding.unwrap_or_default()), 0x81);
            bytes.extend(frame(HEADERS, flags, stream, &payload));
        }
    }
}

/// Inputs that are the same in each run.
fn hold<T: std::fmt::Debug>(
    inputs: u32,
    strategy: &impl Strategy<Value = T>,
    property: impl Fn(T) -> Result<(), TestCaseError>,
) {
    let runs = Config { cases: inputs, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    if let Err(error) = TestRunner::new_with_rng(runs, rng).run(strategy, property) {
        panic!("{error}");
    }
}

fn connection(calls: &[Call]) -> Vec<u8> {
    let (mut encoder, mut bytes) = (Encoder::default(), opening());
    for (call, stream) in calls.iter().zip((1..).step_by(2)) {
        call.write(&mut encoder, stream, &mut bytes);
    }
    bytes
}

/// The proof that h2's table stays in step: hundreds of connections with tables that overflow, each call compared.
#[test]
fn whatever_else_a_connection_holds_h2_reads_every_call_as_it_was_meant() {
    hold(150, &(calls(), vec(1..200_usize, 1..5)), |(calls, pieces)| {
        let requests = served(Tolerant::new(written(&connection(&calls), &pieces)));
        prop_assert_eq!(requests.len(), calls.len());
        for (call, mut request) in calls.iter().zip(requests) {
            let good = !call.authority.is_empty() && !call.authority.starts_with(['/', '%']);
            prop_assert_eq!(request.uri().path(), &call.path);
            let authority = request.uri().authority().map(http::uri::Authority::as_str);
            prop_assert_eq!(authority, good.then_some(call.authority.as_str()));
            forget(&mut request);
            let expected: Vec<_> = call.fields().split_off(4);
            let names: Vec<&str> = request.headers().keys().map(http::HeaderName::as_str).collect();
            prop_assert!(!names.contains(&"set-cookie"), "{:?}", names);
            for name in names {
                let read: Vec<&[u8]> =
                    request.headers().get_all(name).iter().map(http::HeaderValue::as_bytes).collect();
                let meant: Vec<&[u8]> =
                    expected.iter().filter(|field| field.0 == name).map(|field| field.1.as_bytes()).collect();
                prop_assert_eq!(read, meant, "{}", name);
            }
            prop_assert_eq!(request.headers().len(), expected.len());
        }
        Ok(())
    });
}

#[test]
fn a_connection_with_hosts_alone_passes_unchanged() {
    hold(50, &(calls(), vec(1..200_usize, 1..5)), |(mut calls, pieces)| {
        for call in &mut calls {
            call.authority = format!("h{}", call.authority.replace(['%', '/'], "-"));
        }
        let bytes = connection(&calls);
        prop_assert_eq!(filtered(&bytes, &pieces, 300), bytes);
        Ok(())
    });
}

#[test]
fn how_the_bytes_are_cut_into_reads_makes_no_difference() {
    hold(30, &(calls(), vec(1..40_usize, 1..5), 1..40_usize), |(calls, pieces, out)| {
        let bytes = connection(&calls);
        let mut whole = bytes.clone();
        prop_assert_eq!(Frames::new().scan(&mut whole), bytes.len());
        prop_assert!(filtered(&bytes, &pieces, out) == whole, "in pieces of {pieces:?} into {out}");
        // One byte at a time, both ways: every field is held back in every place.
        prop_assert!(filtered(&bytes, &[1], 1) == whole, "byte by byte");
        Ok(())
    });
}

#[test]
fn a_connection_that_ends_in_a_field_ends_with_all_its_bytes() {
    let block = Encoder::default().encode(&call("/a.b/C", "/run/x.sock"));
    let bytes = [opening(), frame(HEADERS, END_HEADERS, 1, &block)].concat();
    for end in 0..bytes.len() {
        let read = filtered(&bytes[..end], &[usize::MAX], 1 << 16);
        assert_eq!(read.len(), end);
    }
}
