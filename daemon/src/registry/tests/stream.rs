//! Bodies that break, and how a stream goes on.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const WHOLE: &str = "0123456789";
/// Longer than what counts as little.
const PART: usize = 20 << 10;

fn long() -> String {
    WHOLE.repeat(PART)
}

/// All of `whole` from `fake` alone.
async fn fetched(fake: &Fake, whole: &str, offset: usize) -> Result<(Vec<u8>, u64), Error> {
    let (registry, _directory) = direct(fake);
    let (repository, blob, login) = (repository(fake), blob_of(whole.as_bytes()), Credentials::anonymous());
    let mut stream = registry.stream(&repository, &blob, offset as u64, &login);
    let bytes = drain(&mut stream).await?;
    Ok((bytes, stream.received()))
}

/// Fault 54.
#[tokio::test(start_paused = true)]
async fn a_body_that_ends_early_goes_on_at_the_exact_byte_as_often_as_it_brought_some() {
    for (whole, step) in [(WHOLE.to_owned(), 1), (long(), PART)] {
        let body = whole.clone();
        let fake = Fake::start(move |request| Reply::range_of(request, &body).cut(step, Ending::Close)).await;
        let (bytes, received) = fetched(&fake, &whole, 0).await.unwrap();
        assert_eq!((bytes, received), (whole.clone().into_bytes(), whole.len() as u64));
        let expected: Vec<_> = (0..10).map(|n| (n > 0).then_some(n * step)).collect();
        assert_eq!(offsets(&fake), expected);
    }
}

/// Fault 54, without progress.
#[tokio::test(start_paused = true)]
async fn a_body_that_brings_nothing_is_asked_for_a_bounded_number_of_times() {
    for ending in [Ending::Close, Ending::Reset] {
        let fake = Fake::start(move |request| Reply::range_of(request, WHOLE).cut(0, ending)).await;
        let error = fetched(&fake, WHOLE, 4).await.unwrap_err();
        assert_eq!((error.kind(), error.is_transient()), (Kind::Unavailable, true), "{error}");
        // The last try is without a range, in case that is the reason.
        assert_eq!(offsets(&fake), [Some(4), Some(4), Some(4), Some(4), None]);
    }
}

/// Fault 54, with hardly any progress.
#[tokio::test(start_paused = true)]
async fn a_blob_does_not_come_in_thousands_of_connections() {
    let whole = long();
    let fake = Fake::start(move |request| Reply::range_of(request, &whole).cut(1, Ending::Close)).await;
    assert!(fetched(&fake, &long(), 0).await.is_err());
    assert!((64..80).contains(&fake.received().len()), "{}", fake.received().len());
}

/// Fault 56.
#[tokio::test(start_paused = true)]
async fn a_range_that_is_answered_with_other_bytes_is_never_appended() {
    for (status, content_range, body) in [
        (206, Some("bytes 0-9/10"), WHOLE),
        (206, None, "456789"),
        (206, Some("bytes 5-9/10"), "56789"),
        (206, Some("bytes 4-9/11"), "456789"),
        (206, Some("bytes 4-9/11"), "4567890"),
        (200, None, WHOLE),
        (416, None, ""),
    ] {
        let fake = Fake::start_counting(move |request, count| match (count, request.offset()) {
            (0, None) => Reply::ok(WHOLE).cut(4, Ending::Close),
            (_, None) => Reply::ok(WHOLE),
            _ => {
                let reply = Reply { status, ..Reply::ok(body) };
                content_range.map_or(reply.clone(), |range| reply.header("content-range", range))
            }
        })
        .await;
        let (bytes, received) = fetched(&fake, WHOLE, 0).await.unwrap();
        assert_eq!((bytes.as_slice(), received), (WHOLE.as_bytes(), 14), "{status} {content_range:?}");
    }
}

/// Fault 58.
#[tokio::test(start_paused = true)]
async fn the_first_request_has_no_range_and_one_that_is_refused_is_followed_by_the_whole() {
    let fake = Fake::start_counting(|request, count| match (count, request.offset()) {
        (_, Some(_)) => Reply::status(400),
        (0, None) => Reply::ok(WHOLE).cut(4, Ending::Close),
        _ => Reply::ok(WHOLE),
    })
    .await;
    assert_eq!(fetched(&fake, WHOLE, 0).await.unwrap().0, WHOLE.as_bytes());
    assert_eq!(offsets(&fake), [None, Some(4), None]);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_ignored_two_ranges_is_asked_for_no_third() {
    let whole = long();
    let body = whole.clone();
    let fake = Fake::start_counting(move |_, count| match count {
        0..4 => Reply::ok(&body).cut((count + 1) * PART, Ending::Close),
        _ => Reply::ok(&body),
    })
    .await;
    let (bytes, received) = fetched(&fake, &whole, 0).await.unwrap();
    assert_eq!(bytes, whole.as_bytes());
    assert_eq!(received, (1 + 2 + 3 + 4 + 10) * PART as u64);
    assert_eq!(offsets(&fake), [None, Some(PART), Some(2 * PART), None, None]);
}

/// Fault 60.
#[tokio::test(start_paused = true)]
async fn a_reset_is_no_more_than_an_end_too_early() {
    let fake = Fake::start(|request| match request.offset() {
        None => Reply::ok(WHOLE).cut(4, Ending::Reset),
        _ => Reply::range_of(request, WHOLE),
    })
    .await;
    assert_eq!(fetched(&fake, WHOLE, 0).await.unwrap(), (WHOLE.into(), 10));
    assert_eq!(offsets(&fake), [None, Some(4)]);
}

/// Fault 60, behind a redirect.
#[tokio::test(start_paused = true)]
async fn a_body_that_broke_behind_a_redirect_goes_on_by_way_of_the_registry() {
    let storage = Fake::start_counting(|request, count| match count {
        0 => Reply::ok(WHOLE).cut(4, Ending::Reset),
        _ => Reply::range_of(request, WHOLE),
    })
    .await;
    let signed = plain(&storage);
    let fake = Fake::start_counting(move |_, count| {
        Reply::status(307).header("location", &format!("{signed}/signed-{count}"))
    })
    .await;
    assert_eq!(fetched(&fake, WHOLE, 0).await.unwrap(), (WHOLE.into(), 10));
    let paths: Vec<_> = storage.received().iter().map(|request| request.path().to_owned()).collect();
    assert_eq!(paths, ["/signed-0", "/signed-1"]);
    assert_eq!(offsets(&storage), [None, Some(4)]);
}

/// Fault 64, after the headers.
#[tokio::test(start_paused = true)]
async fn a_body_that_stands_still_goes_on_over_a_new_connection() {
    let whole = long();
    let body = whole.clone();
    let fake = Fake::start(move |request| match request.offset() {
        None => Reply::ok(&body).cut(PART, Ending::Silence),
        _ => Reply::range_of(request, &body),
    })
    .await;
    let began = Instant::now();
    assert_eq!(fetched(&fake, &whole, 0).await.unwrap().0, whole.as_bytes());
    assert_eq!(offsets(&fake), [None, Some(PART)]);
    assert!(began.elapsed() < Duration::from_secs(32), "{:?}", began.elapsed());
}

/// Fault 64, with a body that trickles.
#[tokio::test(start_paused = true)]
async fn a_body_that_trickles_goes_on_at_the_next_host() {
    let drip = Some(Duration::from_secs(5));
    let mirror = Fake::start(move |request| Reply { drip, ..Reply::range_of(request, WHOLE) }).await;
    let fake = Fake::start(|request| Reply::range_of(request, WHOLE)).await;
    let (registry, _directory) = mirrored(&[&mirror], &plain(&fake));
    let (repository, blob, login) = (repository(&fake), blob_of(WHOLE.as_bytes()), Credentials::anonymous());
    let mut stream = registry.stream(&repository, &blob, 0, &login);
    assert_eq!(drain(&mut stream).await.unwrap(), WHOLE.as_bytes());
    assert_eq!((stream.host(), stream.received()), (fake.authority().as_str(), 10));
    assert_eq!(mirror.received().len(), 1);
    assert!(offsets(&fake)[0].is_some_and(|offset| (4..7).contains(&offset)), "{:?}", offsets(&fake));
}

/// Fault 64, with a body that trickles from the only host.
#[tokio::test(start_paused = true)]
async fn a_pull_from_a_host_that_only_trickles_ends_within_a_bound() {
    let whole = long();
    let drip = Some(Duration::from_secs(5));
    let fake = Fake::start(move |request| Reply { drip, ..Reply::range_of(request, &whole) }).await;
    let began = Instant::now();
    let error = fetched(&fake, &long(), 0).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("stood still"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(180), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_host_that_breaks_again_without_progress_is_left_for_the_next() {
    let whole = long();
    let (one, two) = (whole.clone(), whole.clone());
    let mirror = Fake::start(move |request| match request.offset() {
        None => Reply::ok(&one).cut(PART, Ending::Reset),
        _ => Reply::range_of(request, &one).cut(0, Ending::Reset),
    })
    .await;
    let fake = Fake::start(move |request| Reply::range_of(request, &two)).await;
    let (registry, _directory) = mirrored(&[&mirror], &plain(&fake));
    let (repository, blob, login) = (repository(&fake), blob_of(whole.as_bytes()), Credentials::anonymous());
    let mut stream = registry.stream(&repository, &blob, 0, &login);
    assert_eq!(drain(&mut stream).await.unwrap(), whole.as_bytes());
    assert_eq!(offsets(&mirror), [None, Some(PART)]);
    assert_eq!(offsets(&fake), [Some(PART)]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_suspended_goes_on_at_the_same_host() {
    let fake = Fake::start_counting(|request, count| match count {
        0 => Reply::ok(WHOLE).cut(4, Ending::Silence),
        _ => Reply::range_of(request, WHOLE),
    })
    .await;
    let (registry, _directory) = direct(&fake);
    let (repository, blob, login) = (repository(&fake), blob_of(WHOLE.as_bytes()), Credentials::anonymous());
    let mut stream = registry.stream(&repository, &blob, 0, &login);
    assert_eq!(stream.next().await.unwrap().unwrap(), "0123");
    stream.suspend();
    assert_eq!(drain(&mut stream).await.unwrap(), b"456789");
    assert_eq!(offsets(&fake), [None, Some(4)]);
    assert!(!stream.repeated());
}

#[tokio::test(start_paused = true)]
async fn an_empty_blob_that_should_not_be_empty_comes_to_an_end() {
    let fake = Fake::start(|_| Reply::ok("")).await;
    let (registry, _directory) = direct(&fake);
    let empty = Descriptor { size: 0, ..blob_of(WHOLE.as_bytes()) };
    let error = registry.document(&repository(&fake), &empty, &Credentials::anonymous()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
}

#[tokio::test]
async fn a_blob_that_is_said_to_be_empty_and_is_not_is_shown_with_its_true_size() {
    let fake = Fake::start(|_| Reply::ok(WHOLE)).await;
    let (registry, _directory) = direct(&fake);
    let empty = Descriptor { size: 0, ..blob_of(WHOLE.as_bytes()) };
    let error = read(&registry, &repository(&fake), &empty, &Credentials::anonymous()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Size);
    assert!(error.to_string().contains("the descriptor says 0 bytes, the host sends 10"), "{error}");
    assert_eq!(fake.received().len(), 1);
}

/// Fault 59: the wait that a host asks for is no stall of the pull.
#[tokio::test(start_paused = true)]
async fn a_request_is_under_way_only_while_its_answer_is_waited_for() {
    let fake = Fake::start_counting(|request, count| match count {
        0 => Reply::status(429).header("retry-after", "20"),
        1 => Reply::ok(WHOLE).cut(4, Ending::Silence),
        _ => Reply::range_of(request, WHOLE),
    })
    .await;
    let (registry, _directory) = direct(&fake);
    let requests = Requests::default();
    let registry = registry.counting(&requests);
    let (repository, blob, login) = (repository(&fake), blob_of(WHOLE.as_bytes()), Credentials::anonymous());
    let mut stream = registry.stream(&repository, &blob, 0, &login);
    for _ in 0..4 {
        let next = tokio::time::timeout(Duration::from_secs(1), async {
            tokio::select! {
                next = stream.next() => Some(next),
                () = tokio::time::sleep(Duration::from_millis(900)) => None,
            }
        });
        assert!(next.await.unwrap().is_none());
        assert!(!requests.any());
    }
    let waited = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        requests.any()
    };
    let resting = tokio::select! {
        _ = stream.next() => panic!("asked too early"),
        any = waited => any,
    };
    assert!(!resting, "a pause counts as a request");
    assert_eq!(stream.next().await.unwrap().unwrap(), "0123");
    let waited = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        requests.any()
    };
    let silent = tokio::select! {
        _ = stream.next() => panic!("went on"),
        any = waited => any,
    };
    assert!(silent && !requests.any(), "silence counts, and only while it is waited for");
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_not_the_blob_come_again_from_another_host() {
    let mirror = Fake::start(|request| Reply::range_of(request, "012345678!")).await;
    let fake = Fake::start(|request| Reply::range_of(request, WHOLE)).await;
    let (registry, _directory) = mirrored(&[&mirror], &plain(&fake));
    let (repository, blob, login) = (repository(&fake), blob_of(WHOLE.as_bytes()), Credentials::anonymous());
    let mut stream = registry.stream(&repository, &blob, 4, &login);
    assert_eq!(drain(&mut stream).await.unwrap(), b"45678!");
    // What was there before may be what is wrong.
    stream.refuse(None);
    assert_eq!(drain(&mut stream).await.unwrap(), b"012345678!");
    stream.refuse(None);
    assert_eq!(drain(&mut stream).await.unwrap(), WHOLE.as_bytes());
    assert_eq!(offsets(&mirror), [Some(4), None]);
    stream.refuse(None);
    let error = drain(&mut stream).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    for host in [&mirror, &fake] {
        assert!(error.to_string().contains(&host.authority()), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_loses_nothing() {
    let asked = Arc::new(AtomicUsize::new(0));
    let fake = Fake::start(move |request| match (request.offset(), asked.fetch_add(1, Ordering::Relaxed)) {
        (_, 0) => Reply::status(503),
        (_, 1) => Reply::ok(WHOLE).cut(4, Ending::Close),
        _ => Reply::range_of(request, WHOLE),
    })
    .await;
    let (registry, _directory) = direct(&fake);
    let (repository, blob, login) = (repository(&fake), blob_of(WHOLE.as_bytes()), Credentials::anonymous());
    let mut stream = registry.stream(&repository, &blob, 0, &login);
    let mut bytes = Vec::new();
    while bytes.len() < WHOLE.len() {
        if let Ok(part) = tokio::time::timeout(Duration::from_millis(100), stream.next()).await {
            bytes.extend_from_slice(&part.unwrap().unwrap());
        }
    }
    assert_eq!(bytes, WHOLE.as_bytes());
    assert_eq!(fake.received().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_longer_than_its_blob_is_refused() {
    let fake = Fake::start(|_| Reply { length: None, ..Reply::ok("0123456789+") }).await;
    let error = fetched(&fake, WHOLE, 0).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Size);
    assert!(error.to_string().contains("the descriptor says 10 bytes, the host sends 11"), "{error}");
}
