//! What the filter costs: a measurement, printed and never asserted. `docs/performance.md` tells how to run it and what
//! it said.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use bytes::Bytes;
use drayd_tests::hpack::Encoder;
use h2::client::SendRequest;
use http::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tonic::body::Body;
use tower::service_fn;

use super::Tolerant;
use super::frames::Frames;
use super::tests::{END_HEADERS, END_STREAM, HEADERS, call, frame, opening};

/// The type of a frame.
const DATA: u8 = 0;
const ROUNDS: usize = 41;
/// Calls in one round, long enough for the clock.
const CALLS: u32 = 1000;
/// The message of a call, with gRPC's prefix.
const SMALL: usize = 64;
/// As large as a message may be.
const LARGE: usize = 16 << 20;

/// Serves one connection as `serve.rs` does, with an answer that costs nothing.
async fn client(
    server: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    client: UnixStream,
) -> SendRequest<Bytes> {
    let service = service_fn(|request: Request<hyper::body::Incoming>| async move {
        let mut body = Body::new(request.into_body());
        while let Some(Ok(_)) = std::future::poll_fn(|context| {
            hyper::body::Body::poll_frame(std::pin::Pin::new(&mut body), context)
        })
        .await
        {}
        Ok::<_, Infallible>(Response::new(Body::empty()))
    });
    tokio::spawn(async move {
        let http = auto::Builder::new(TokioExecutor::new()).http2_only();
        let _ = http.serve_connection(TokioIo::new(server), TowerToHyperService::new(service)).await;
    });
    let (send, connection) = h2::client::handshake(client).await.expect("HTTP/2");
    tokio::spawn(connection);
    send
}

/// The time for so many calls, each with a message of this size.
async fn calls(client: &mut SendRequest<Bytes>, calls: u32, message: &Bytes) -> Duration {
    let begun = Instant::now();
    for _ in 0..calls {
        let request = Request::post("http://localhost/runtime.v1.ImageService/ImageStatus")
            .header("content-type", "application/grpc")
            .header("user-agent", "grpc-go/1.65.0")
            .header("te", "trailers")
            .body(())
            .expect("a request");
        let mut ready = client.clone().ready().await.expect("a connection");
        let (answer, mut body) = ready.send_request(request, false).expect("a stream");
        body.send_data(message.clone(), true).expect("a body");
        assert!(answer.await.expect("an answer").status().is_success());
    }
    begun.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[tokio::test]
#[ignore = "a measurement, for an optimised build"]
async fn cost_of_the_filter() {
    let pair = || UnixStream::pair().expect("two ends");
    let ((plain, to_plain), (filtered, to_filtered)) = (pair(), pair());
    let mut clients = [client(plain, to_plain).await, client(Tolerant::new(filtered), to_filtered).await];
    for (what, count, size) in [("a small call", CALLS, SMALL), ("16 MiB", 1, LARGE)] {
        let message = Bytes::from(vec![0; size]);
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            // Each is first in turn.
            for which in [round % 2, 1 - round % 2] {
                times[which].push(calls(&mut clients[which], count, &message).await / count);
            }
        }
        let [plain, filtered] = times.map(median);
        let ratio = filtered.as_secs_f64() / plain.as_secs_f64();
        println!("{what}: {plain:?} without, {filtered:?} with the filter, ratio {ratio:.3}");
    }
}

#[test]
#[ignore = "a measurement, for an optimised build"]
fn cost_of_a_scan() {
    for authority in ["localhost", "%2Fhostvarrun%2Fdrayd%2Fdrayd.sock", ""] {
        let mut encoder = Encoder::default();
        let [first, second] = [(); 2].map(|()| {
            let block = encoder.encode(&call("/runtime.v1.ImageService/ImageStatus", authority));
            [frame(HEADERS, END_HEADERS, 1, &block), frame(DATA, END_STREAM, 1, &[0; SMALL])].concat()
        });
        for (which, bytes) in [("first", first), ("a later", second)] {
            let mut frames = Frames::new();
            frames.scan(&mut opening());
            let times = (0..ROUNDS).map(|_| {
                let begun = Instant::now();
                for _ in 0..CALLS {
                    let mut bytes = bytes.clone();
                    assert_eq!(frames.scan(std::hint::black_box(&mut bytes)), bytes.len());
                }
                begun.elapsed() / CALLS
            });
            println!("{which} call with authority {authority:?}: {:?}", median(times.collect()));
        }
    }
}
