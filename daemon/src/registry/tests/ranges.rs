//! Large blobs over several connections.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const RANGE: usize = 16 << 10;

fn parallel(fake: &Fake, parallel_ranges: usize) -> (Registry, Hosts) {
    let hosts = Hosts::new();
    hosts.write(&fake.authority(), &format!("server = '{}'\n", plain(fake)));
    let config = Config { parallel_ranges, range_size: RANGE as u64, ..hosts.config() };
    (Registry::new(config).unwrap(), hosts)
}

/// No two of its ranges are equal.
fn large() -> String {
    let parts: Vec<_> = (0..10 * RANGE / 8).map(|n| format!("{n:08}")).collect();
    parts.concat()
}

/// What an honest host answers, in random time.
fn honest(request: &Received, whole: &str) -> Reply {
    let reply = Reply::range_of(request, whole).header("accept-ranges", "bytes");
    Reply { pause: Duration::from_millis(fastrand::u64(0..500)), ..reply }
}

async fn fetched(fake: &Fake, whole: &str, parallel_ranges: usize) -> Result<(Vec<u8>, u64), Error> {
    let (registry, _directory) = parallel(fake, parallel_ranges);
    let (repository, blob, login) = (repository(fake), blob_of(whole.as_bytes()), Credentials::anonymous());
    let mut stream = registry.stream(&repository, &blob, 0, &login);
    let bytes = drain(&mut stream).await?;
    Ok((bytes, stream.received()))
}

fn ranges(fake: &Fake) -> Vec<Option<String>> {
    let mut ranges: Vec<_> =
        fake.received().iter().map(|request| request.header("range").map(str::to_owned)).collect();
    ranges.sort();
    ranges.dedup();
    ranges
}

#[tokio::test(start_paused = true)]
async fn ranges_arrive_in_order_whatever_each_takes() {
    let whole = large();
    for parallel_ranges in [2, 4, 20] {
        let body = whole.clone();
        let fake = Fake::start(move |request| honest(request, &body)).await;
        let (bytes, _) = fetched(&fake, &whole, parallel_ranges).await.unwrap();
        assert!(bytes == whole.as_bytes(), "{parallel_ranges} at once");
        assert_eq!((fake.received().len(), ranges(&fake).len()), (10, 10));
        assert_eq!(fake.received()[0].header("range"), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_known_to_serve_ranges_is_asked_for_the_first_one_too() {
    let whole = large();
    let body = whole.clone();
    let fake = Fake::start(move |request| honest(request, &body)).await;
    let (registry, _directory) = parallel(&fake, 4);
    let (repository, blob, login) = (repository(&fake), blob_of(whole.as_bytes()), Credentials::anonymous());
    drain(&mut registry.stream(&repository, &blob, 0, &login)).await.unwrap();
    let mut stream = registry.stream(&repository, &blob, 0, &login);
    assert!(drain(&mut stream).await.unwrap() == whole.as_bytes());
    assert_eq!(stream.received(), whole.len() as u64);
    assert_eq!(fake.received()[10].header("range"), Some("bytes=0-16383"));
}

#[tokio::test(start_paused = true)]
async fn a_small_blob_or_one_connection_means_one_request() {
    for (parallel_ranges, length) in [(1, 10), (4, 2)] {
        let whole = large()[..length * RANGE].to_owned();
        let body = whole.clone();
        let fake = Fake::start(move |request| honest(request, &body)).await;
        assert!(fetched(&fake, &whole, parallel_ranges).await.unwrap().0 == whole.as_bytes());
        assert_eq!(fake.received().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_range_that_breaks_is_the_only_one_asked_for_again() {
    let whole = large();
    let (body, broken) = (whole.clone(), AtomicUsize::new(0));
    let fake = Fake::start(move |request| {
        let reply = honest(request, &body);
        if request.header("range") == Some("bytes=49152-65535") && broken.fetch_add(1, Ordering::Relaxed) == 0
        {
            return reply.cut(100, Ending::Reset);
        }
        reply
    })
    .await;
    assert!(fetched(&fake, &whole, 4).await.unwrap().0 == whole.as_bytes());
    let again = Some("bytes=49252-65535");
    assert_eq!(fake.received().iter().filter(|request| request.header("range") == again).count(), 1);
    assert_eq!(fake.received().len(), 11);
}

/// Faults 56 and 58.
#[tokio::test(start_paused = true)]
async fn a_host_without_ranges_gives_the_blob_over_one_connection() {
    let whole = large();
    for (accepts, status, content_range) in [
        (false, 200, None),
        (true, 200, None),
        (true, 416, None),
        (true, 400, None),
        (true, 403, None),
        (true, 404, None),
        (true, 500, None),
        (true, 501, None),
        (true, 206, None),
        (true, 206, Some("bytes 16384-32767/163840")),
        (true, 206, Some("bytes 0-16383/163840")),
        (true, 206, Some("bytes 32768-49151/163841")),
    ] {
        let body = whole.clone();
        let fake = Fake::start(move |request| {
            if request.header("range").is_none() {
                let reply = Reply::ok(&body);
                return if accepts { reply.header("accept-ranges", "bytes") } else { reply };
            }
            let reply = Reply { status, ..Reply::ok(&body) };
            content_range.map_or(reply.clone(), |range| reply.header("content-range", range))
        })
        .await;
        let (bytes, _) = fetched(&fake, &whole, 4).await.unwrap();
        assert!(bytes == whole.as_bytes(), "{status} {content_range:?}");
        let asked = fake.received().len();
        assert!(asked <= if accepts { 8 } else { 1 }, "{asked} requests");
    }
}

type Answer = fn(&Received, &str) -> Reply;

/// A registry whose layers lie in a store that takes no range, or gives other bytes than it says.
async fn odd_store(answer: Answer) -> (Fake, Fake) {
    let store = Fake::start(move |request| match request.offset() {
        None => Reply::ok(&large()).header("accept-ranges", "bytes"),
        Some(_) => answer(request, &large()),
    })
    .await;
    let location = format!("{}/layer?sig=1", plain(&store));
    let fake = Fake::start(move |_| Reply::status(307).header("location", &location)).await;
    (fake, store)
}

/// Faults 56 and 58.
#[tokio::test(start_paused = true)]
async fn a_range_that_fails_or_is_wrong_costs_one_more_request_for_the_whole() {
    let whole = large();
    let wrong = |request: &Received, whole: &str| {
        let reply = Reply::range_of(request, whole);
        Reply { body: whole[..reply.body.len()].to_owned(), ..reply }
    };
    let longer = |request: &Received, whole: &str| {
        let reply = Reply::range_of(request, whole);
        Reply { body: format!("{}+", reply.body), length: None, ..reply }
    };
    let other_length = |request: &Received, whole: &str| {
        let reply = Reply::range_of(request, whole);
        Reply { status: 200, headers: Vec::new(), ..reply }
    };
    let answers: [(&str, Answer); 8] = [
        ("wrong", wrong),
        ("longer", longer),
        ("other length", other_length),
        ("page", |_, _| Reply::ok("<html>no</html>").header("content-type", "text/html")),
        ("denied", |_, _| Reply::status(403)),
        ("in passing", |_, _| Reply::status(503)),
        ("reset", |_, _| Reply { ending: Ending::Reset, ..Reply::hang_up() }),
        ("silent", |_, _| Reply::silence()),
    ];
    for (name, answer) in answers {
        // Read from the beginning, over several connections; then as what an earlier pull left is continued.
        for offset in [0, whole.len() as u64 / 2] {
            let (fake, store) = odd_store(answer).await;
            let (registry, _directory) = parallel(&fake, 4);
            let (repository, blob) = (repository(&fake), blob_of(whole.as_bytes()));
            let anonymous = Credentials::anonymous();
            let mut stream = registry.stream(&repository, &blob, offset, &anonymous);
            let mut bytes = drain(&mut stream).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            if bytes != whole.as_bytes()[usize::try_from(offset).unwrap()..] {
                stream.refuse(None);
                bytes = drain(&mut stream).await.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(bytes == whole.as_bytes(), "{name} from {offset}");
                // Whoever sent it once is asked for no range again.
                let asked = store.received().len();
                drain(&mut registry.stream(&repository, &blob, 0, &anonymous)).await.unwrap();
                drain(&mut registry.stream(&repository, &blob, offset, &anonymous)).await.unwrap();
                let after = store.received().split_off(asked);
                assert!(after.iter().all(|request| request.offset().is_none()), "{name}: {after:?}");
            }
        }
    }
}

/// Fault 56.
#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_before_a_wrong_range_is_not_the_end() {
    let whole = large();
    let body = whole.clone();
    let fake = Fake::start_counting(move |request, count| match (request.offset(), count) {
        (None, 0) => Reply::ok(&body).cut(RANGE, Ending::Close),
        // The blob's first bytes, whatever was asked for.
        (Some(_), _) => {
            let reply = Reply::range_of(request, &body);
            Reply { body: body[..reply.body.len()].to_owned(), ..reply }
        }
        // The second whole breaks as well, and its rest may not come by a range again.
        (None, 2) => Reply::ok(&body).cut(2 * RANGE, Ending::Close),
        (None, _) => Reply::ok(&body),
    })
    .await;
    let (registry, _directory) = parallel(&fake, 1);
    let (repository, blob, login) = (repository(&fake), blob_of(whole.as_bytes()), Credentials::anonymous());
    assert!(registry.document(&repository, &blob, &login).await.unwrap() == whole.as_bytes());
    assert_eq!(offsets(&fake), [None, Some(RANGE), None, None]);
}

#[tokio::test(start_paused = true)]
async fn a_registry_whose_ranges_and_whole_are_both_wrong_is_refused() {
    let (whole, wrong) = (large(), large().replace("00009999", "xxxxxxxx"));
    let fake = Fake::start(move |request| honest(request, &wrong)).await;
    let (registry, _directory) = parallel(&fake, 4);
    let (repository, blob, login) = (repository(&fake), blob_of(whole.as_bytes()), Credentials::anonymous());
    let error = registry.document(&repository, &blob, &login).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert_eq!(fake.received().len(), 11);
}

#[tokio::test(start_paused = true)]
async fn no_more_than_the_window_is_read_ahead() {
    let whole = large();
    let body = whole.clone();
    let fake = Fake::start(move |request| honest(request, &body)).await;
    let (registry, _directory) = parallel(&fake, 3);
    let (repository, blob, login) = (repository(&fake), blob_of(whole.as_bytes()), Credentials::anonymous());
    let mut stream = registry.stream(&repository, &blob, 0, &login);
    let (mut taken, mut most) = (0, 0);
    while let Some(bytes) = stream.next().await.unwrap() {
        taken += bytes.len() as u64;
        let ahead = stream.received() - taken;
        assert!(ahead <= 3 * RANGE as u64, "{ahead} ahead");
        most = most.max(ahead);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(taken, whole.len() as u64);
    assert!(most > RANGE as u64, "no more than {most} were read ahead");
}

#[tokio::test(start_paused = true)]
async fn no_more_than_one_window_is_read_ahead_for_all_blobs_and_none_waits_for_it() {
    let whole = large();
    let body = whole.clone();
    let fake = Fake::start(move |request| honest(request, &body)).await;
    let (registry, _directory) = parallel(&fake, 3);
    let (repository, blob, login) = (repository(&fake), blob_of(whole.as_bytes()), Credentials::anonymous());
    let mut streams: Vec<_> = (0..4).map(|_| (registry.stream(&repository, &blob, 0, &login), 0)).collect();
    while streams.iter().any(|(_, taken)| *taken < whole.len() as u64) {
        let mut ahead = 0;
        for (stream, taken) in &mut streams {
            *taken += stream.next().await.unwrap().map_or(0, |bytes| bytes.len() as u64);
            ahead += stream.received() - *taken;
        }
        // The first body of each is left in the middle of what it has brought.
        let most = (3 + streams.len() as u64 / 2) * RANGE as u64;
        assert!(ahead <= most, "{ahead} ahead, and {most} are the most");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_blob_that_is_refused_comes_again_from_a_host_that_gave_none_of_it() {
    let whole = large();
    let (wrong, right) = (whole.replace("00009999", "xxxxxxxx"), whole.clone());
    let mirror = Fake::start(move |request| honest(request, &wrong)).await;
    let fake = Fake::start(move |request| honest(request, &right)).await;
    let hosts = Hosts::new();
    let text = format!("server = '{}'\n[host.'{}']\n", plain(&fake), plain(&mirror));
    hosts.write(&fake.authority(), &text);
    let config = Config { parallel_ranges: 4, range_size: RANGE as u64, ..hosts.config() };
    let registry = Registry::new(config).unwrap();
    let (repository, blob, login) = (repository(&fake), blob_of(whole.as_bytes()), Credentials::anonymous());
    let bytes = registry.document(&repository, &blob, &login).await.unwrap();
    assert!(bytes == whole.as_bytes());
    // The mirror once more in one piece: its ranges alone may have been what was wrong.
    assert_eq!((mirror.received().len(), fake.received().len()), (11, 1));
}

#[tokio::test(start_paused = true)]
async fn all_connections_together_keep_the_rate() {
    let whole = "0123456789abcdef".repeat(RANGE);
    let body = whole.clone();
    let fake = Fake::start(move |request| honest(request, &body)).await;
    let hosts = Hosts::new();
    hosts.write(&fake.authority(), &format!("server = '{}'\n", plain(&fake)));
    let download_rate = Some(16 << 10);
    let config = Config { parallel_ranges: 4, range_size: 64 << 10, download_rate, ..hosts.config() };
    let registry = Registry::new(config).unwrap();
    let (repository, blob, login) = (repository(&fake), blob_of(whole.as_bytes()), Credentials::anonymous());
    let began = Instant::now();
    assert!(drain(&mut registry.stream(&repository, &blob, 0, &login)).await.unwrap() == whole.as_bytes());
    // 256 KiB, of which the first turns are free.
    assert!((8..30).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}
