//! What is asked again, when, and what waits meanwhile. Time is the paused clock's.

use std::ops::RangeInclusive;
use std::time::SystemTime;

use tokio::net::{TcpListener, TcpStream};

use super::*;

const REFUSAL: &str = r#"{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}"#;

fn refusal(status: u16, wait: Option<&str>) -> Reply {
    let reply = Reply { body: REFUSAL.into(), ..Reply::status(status) };
    match wait {
        Some(wait) => reply.header("retry-after", wait),
        None => reply,
    }
}

/// Refusals, and how long the next request waits after each.
fn refusals() -> Vec<(Reply, RangeInclusive<Duration>)> {
    let seconds = |from, to| Duration::from_secs(from)..=Duration::from_secs(to);
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(30));
    let mut all = Vec::new();
    for status in [429, 503] {
        for (wait, expected) in [(Some("2"), seconds(2, 4)), (Some(date.as_str()), seconds(25, 32))] {
            all.push((refusal(status, wait), expected));
        }
        // Absent or senseless.
        for wait in [None, Some("0"), Some("880.092µs"), Some("soon")] {
            all.push((refusal(status, wait), Duration::from_millis(250)..=Duration::from_secs(1)));
        }
    }
    all
}

/// Fault 63, on manifests.
#[tokio::test(start_paused = true)]
async fn a_host_that_limits_manifests_is_asked_again_after_the_wait_it_told() {
    for (refusal, expected) in refusals() {
        // HEAD alone may be what a host refuses so, and its refusal has no words: GET follows, unless it is to wait.
        let waits = expected.end() > &Duration::from_secs(1);
        let refused = if refusal.status == 429 && waits { 1 } else { 2 };
        let reply = refusal.clone();
        let fake =
            Fake::start_counting(move |_, count| if count < refused { reply.clone() } else { manifest() });
        let fake = fake.await;
        let (registry, _directory) = direct(&fake);
        let began = Instant::now();
        registry.resolve(&repository(&fake), "1", &Credentials::anonymous()).await.unwrap();
        assert!(expected.contains(&began.elapsed()), "{refusal:?}: {:?}", began.elapsed());
        assert_eq!(fake.received().len(), refused + 1);
    }
}

/// Fault 63, on blobs.
#[tokio::test(start_paused = true)]
async fn a_host_that_limits_blobs_is_asked_again_after_the_wait_it_told() {
    for (refusal, expected) in refusals() {
        let reply = refusal.clone();
        let fake =
            Fake::start_counting(move |_, count| if count == 0 { reply.clone() } else { Reply::ok("layer") });
        let fake = fake.await;
        let (registry, _directory) = direct(&fake);
        let (repository, layer, login) = (repository(&fake), blob_of(b"layer"), Credentials::anonymous());
        let began = Instant::now();
        let mut stream = registry.stream(&repository, &layer, 0, &login);
        assert_eq!(drain(&mut stream).await.unwrap(), b"layer");
        assert!(expected.contains(&began.elapsed()), "{refusal:?}: {:?}", began.elapsed());
        assert_eq!(fake.received().len(), 2);
    }
}

/// Fault 63, on tokens.
#[tokio::test(start_paused = true)]
async fn a_token_server_that_limits_is_asked_again_after_the_wait_it_told() {
    for (refusal, expected) in refusals() {
        let reply = refusal.clone();
        let tokens = Fake::start_counting(move |_, count| match count {
            0 => reply.clone(),
            _ => Reply::ok(r#"{"token":"canary-token"}"#),
        })
        .await;
        let challenge = format!(r#"Bearer realm="{}/token""#, plain(&tokens));
        let fake = Fake::start(move |request| match request.header("authorization") {
            Some(_) => manifest(),
            None => Reply::status(401).header("www-authenticate", &challenge),
        })
        .await;
        let (registry, _directory) = direct(&fake);
        let began = Instant::now();
        registry.resolve(&repository(&fake), "1", &Credentials::anonymous()).await.unwrap();
        assert!(expected.contains(&began.elapsed()), "{refusal:?}: {:?}", began.elapsed());
        assert_eq!(tokens.received().len(), 2);
    }
}

/// Fault 63, with a wait that nobody can be kept for.
#[tokio::test(start_paused = true)]
async fn a_host_that_asks_for_a_day_fails_the_pull_at_once_in_its_own_words() {
    for status in [429, 503] {
        let fake = Fake::start(move |_| refusal(status, Some("86400"))).await;
        let (registry, _directory) = direct(&fake);
        let began = Instant::now();
        let error = registry.resolve(&repository(&fake), "1", &Credentials::anonymous()).await.unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert_eq!(error.kind(), if status == 429 { Kind::RateLimited } else { Kind::Unavailable });
        assert!(error.to_string().contains("slow down"), "{error}");
        assert!(error.to_string().contains("86400 s"), "{error}");
    }
}

/// Fault 63: who does not wait.
#[tokio::test(start_paused = true)]
async fn a_wait_for_one_repository_delays_its_other_requests_and_no_other_pull() {
    let fake = Fake::start_counting(|request, count| match (count, request.path()) {
        (0, _) => refusal(429, Some("20")),
        (_, path) if path.contains("/a/b/") => Reply::ok("layer"),
        _ => manifest(),
    })
    .await;
    let (registry, _directory) = direct(&fake);
    let (limited, login, layer) = (repository(&fake), Credentials::anonymous(), blob_of(b"layer"));
    let other = Repository { path: "c".into(), ..limited.clone() };
    let began = Instant::now();
    let took = async |repository: &Repository| {
        let mut stream = registry.stream(repository, &layer, 0, &login);
        assert_eq!(drain(&mut stream).await.unwrap(), b"layer");
        began.elapsed()
    };
    let first = took(&limited);
    let others = async {
        while fake.received().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        let second = took(&limited);
        let third = async {
            registry.resolve(&other, "1", &login).await.unwrap();
            began.elapsed()
        };
        tokio::join!(second, third)
    };
    let (first, (second, third)) = tokio::join!(first, others);
    assert!(first >= Duration::from_secs(20) && second >= Duration::from_secs(20), "{first:?} {second:?}");
    assert!(third < Duration::from_secs(1), "{third:?}");
    assert_eq!(fake.received().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn passing_failures_of_the_only_host_are_tried_again_and_lasting_ones_are_not() {
    for (status, tries) in
        [(0, 5), (408, 5), (500, 5), (502, 5), (503, 5), (504, 5), (400, 1), (404, 1), (501, 1)]
    {
        let fake = Fake::start(move |_| Reply::status(status)).await;
        let (registry, _directory) = direct(&fake);
        let (repository, layer, login) = (repository(&fake), blob_of(b"layer"), Credentials::anonymous());
        let error = drain(&mut registry.stream(&repository, &layer, 0, &login)).await.unwrap_err();
        assert_eq!(fake.received().len(), tries, "{status}: {error}");
        assert_eq!(error.to_string().contains("(after 5 tries)"), tries == 5, "{error}");
    }
}

/// A host that takes connections and says nothing on them.
async fn mute() -> (String, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    let holding = tokio::spawn(async move {
        let mut open: Vec<TcpStream> = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.push(stream);
        }
    });
    (authority, holding)
}

/// Fault 64, before the headers.
#[tokio::test(start_paused = true)]
async fn a_host_that_takes_connections_and_stays_silent_is_given_up_after_the_response_timeout() {
    let (authority, _holding) = mute().await;
    let fake = Fake::start(|_| manifest()).await;
    let hosts = Hosts::new();
    for scheme in ["http", "https"] {
        hosts.write(
            &fake.authority(),
            &format!("server = '{}'\n[host.'{scheme}://{authority}']", plain(&fake)),
        );
        let registry = hosts.registry();
        let began = Instant::now();
        registry.resolve(&repository(&fake), "1", &Credentials::anonymous()).await.unwrap();
        // The time for the connection alone is three times that.
        let expected = Duration::from_secs(10)..=Duration::from_secs(11);
        assert!(expected.contains(&began.elapsed()), "{scheme}: {:?}", began.elapsed());
    }
}

/// Fault 64, before the headers of the only host.
#[tokio::test(start_paused = true)]
async fn a_pull_from_a_silent_host_ends_within_a_bound() {
    let fake = Fake::start(|_| Reply::silence()).await;
    let (registry, _directory) = direct(&fake);
    let began = Instant::now();
    let error = registry.resolve(&repository(&fake), "1", &Credentials::anonymous()).await.unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (Kind::Unavailable, true));
    assert!(error.to_string().contains("no answer within 10 s"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(45), "{:?}", began.elapsed());
}
