//! Blobs whose descriptors tell where else they may be had.

use super::*;

const LAYER: &str = "a foreign layer";

fn elsewhere(urls: Vec<String>) -> Descriptor {
    Descriptor { urls, ..blob_of(LAYER.as_bytes()) }
}

fn missing(status: u16) -> impl Fn(&Received) -> Reply + Send + Sync + 'static {
    move |_| Reply::status(status)
}

async fn read_from(
    fake: &Fake,
    descriptor: &Descriptor,
    credentials: &Credentials,
) -> Result<Vec<u8>, Error> {
    read(&registry(), &repository(fake), descriptor, credentials).await
}

/// Fault 84.
#[tokio::test]
async fn the_registrys_copy_of_a_foreign_layer_is_taken_and_its_address_never_asked() {
    let fake = Fake::start(|_| Reply::ok(LAYER)).await;
    let outside = Fake::start(|_| Reply::ok("other bytes")).await;
    let descriptor = elsewhere(vec![format!("http://{}/layer", outside.authority())]);
    assert_eq!(read_from(&fake, &descriptor, &password()).await.unwrap(), LAYER.as_bytes());
    assert_eq!(outside.received().len(), 0);
}

#[tokio::test]
async fn an_address_is_asked_when_the_registry_has_no_copy_and_is_shown_no_credentials() {
    let fake = Fake::start(|request| match request.header("authorization") {
        Some(_) => Reply::status(404),
        None => Reply::status(401).header("www-authenticate", "Basic"),
    })
    .await;
    let outside = Fake::start(|_| Reply::ok(LAYER)).await;
    let behind = format!("http://{}/moved", outside.authority());
    let moved = Fake::start(move |_| Reply::status(302).header("location", &behind)).await;
    let urls = vec![
        "ftp://127.0.0.1/layer".to_owned(),
        // Nobody listens there.
        "http://127.0.0.1:1/layer".to_owned(),
        format!("http://{USER}:{PASSWORD}@{}/layer", moved.authority()),
    ];
    assert_eq!(read_from(&fake, &elsewhere(urls), &password()).await.unwrap(), LAYER.as_bytes());
    assert_eq!((moved.received().len(), outside.received().len()), (1, 1));
    assert!(authorizations(&fake).contains(&basic(USER, PASSWORD)));
    assert_eq!((authorizations(&moved).len(), authorizations(&outside).len()), (0, 0));
}

#[tokio::test]
async fn a_registry_that_refuses_or_breaks_is_no_reason_to_look_elsewhere() {
    for (status, kind) in [(403, Kind::Denied), (500, Kind::Unavailable)] {
        let fake = Fake::start(missing(status)).await;
        let outside = Fake::start(|_| Reply::ok(LAYER)).await;
        let descriptor = elsewhere(vec![format!("http://{}/layer", outside.authority())]);
        let read = read_from(&fake, &descriptor, &Credentials::anonymous()).await;
        assert_eq!(read.unwrap_err().kind(), kind);
        assert_eq!(outside.received().len(), 0, "{status}");
    }
}

#[tokio::test]
async fn a_layer_that_is_nowhere_is_not_found_and_every_address_is_named() {
    let fake = Fake::start(missing(404)).await;
    let outside = Fake::start(missing(404)).await;
    let descriptor = elsewhere(vec![format!("http://{}/layer?signed=canary", outside.authority())]);
    let error = read_from(&fake, &descriptor, &Credentials::anonymous()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    let text = error.to_string();
    assert!(text.contains(&format!("foreign url http://{}: ", outside.authority())), "{text}");
    assert!(!text.contains("canary"), "{text}");
}

#[tokio::test]
async fn a_broken_foreign_layer_is_continued_where_the_address_can_and_begun_anew_where_not() {
    for ranges in [true, false] {
        let fake = Fake::start(missing(404)).await;
        let outside = Fake::start(move |request| match request.header("range") {
            Some(range) if ranges => {
                assert_eq!(range, "bytes=2-");
                let whole = format!("bytes 2-{}/{}", LAYER.len() - 1, LAYER.len());
                Reply { status: 206, ..Reply::ok(&LAYER[2..]) }.header("content-range", &whole)
            }
            Some(_) => Reply::status(400),
            None => Reply::ok(LAYER),
        })
        .await;
        let descriptor = elsewhere(vec![format!("http://{}/layer", outside.authority())]);
        let (registry, repository) = (registry(), repository(&fake));
        let anonymous = Credentials::anonymous();
        let mut stream = registry.stream(&repository, &descriptor, 2, &anonymous);
        assert_eq!(drain(&mut stream).await.unwrap(), LAYER.as_bytes()[2..]);
        assert_eq!(stream.repeated(), !ranges);
    }
}

#[tokio::test]
async fn a_stream_goes_to_the_address_too_and_not_back_to_one_whose_bytes_were_wrong() {
    let fake = Fake::start(missing(404)).await;
    let outside = Fake::start(|_| Reply::ok(LAYER)).await;
    let descriptor = elsewhere(vec![format!("http://{}/layer", outside.authority())]);
    let (registry, repository) = (registry(), repository(&fake));
    let anonymous = Credentials::anonymous();
    let mut stream = registry.stream(&repository, &descriptor, 0, &anonymous);
    assert_eq!(drain(&mut stream).await.unwrap(), LAYER.as_bytes());
    stream.refuse(None);
    let error = stream.next().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains(&format!("foreign url http://{}: ", outside.authority())), "{error}");
    assert_eq!(outside.received().len(), 1);
}

#[tokio::test]
async fn a_large_layer_that_the_registry_lost_halfway_is_read_on_from_its_address() {
    let whole = "0123456789abcdefghij";
    let fake = Fake::start_counting(move |_, count| match count {
        0 => Reply::ok(whole).header("accept-ranges", "bytes").cut(3, Ending::Close),
        _ => Reply::status(404),
    })
    .await;
    let outside = Fake::start(move |request| {
        let from = request.offset().unwrap_or_default();
        let range = format!("bytes {from}-19/20");
        Reply { status: 206, ..Reply::ok(&whole[from..]) }.header("content-range", &range)
    })
    .await;
    let urls = vec![format!("http://{}/layer", outside.authority())];
    let descriptor = Descriptor { urls, ..blob_of(whole.as_bytes()) };
    let registry = Registry::new(Config { parallel_ranges: 3, range_size: 4, ..config() }).unwrap();
    let (repository, anonymous) = (repository(&fake), Credentials::anonymous());
    let mut stream = registry.stream(&repository, &descriptor, 0, &anonymous);
    assert_eq!(drain(&mut stream).await.unwrap(), whole.as_bytes());
    // Where the first range broke and, if its end came before the others had failed, behind it.
    assert!(matches!(offsets(&outside)[..], [Some(3)] | [Some(3), Some(4)]), "{:?}", offsets(&outside));
}

#[tokio::test]
async fn an_address_whose_range_is_wrong_is_asked_for_the_whole() {
    let fake = Fake::start(missing(404)).await;
    let outside = Fake::start_counting(|request, count| {
        let reply = Reply::range_of(request, LAYER);
        let reply = Reply { body: LAYER[..reply.body.len()].to_owned(), ..reply };
        if count == 0 { reply.cut(2, Ending::Close) } else { reply }
    })
    .await;
    let descriptor = elsewhere(vec![format!("http://{}/layer", outside.authority())]);
    let bytes = registry().document(&repository(&fake), &descriptor, &Credentials::anonymous()).await;
    assert_eq!(bytes.unwrap(), LAYER.as_bytes());
    assert_eq!(offsets(&outside), [None, Some(2), None]);
}
