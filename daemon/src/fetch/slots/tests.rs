use std::collections::BTreeSet;

use futures_util::poll;

use super::*;

fn slots(limit: usize) -> Arc<Slots> {
    Slots::new(NonZeroUsize::new(limit))
}

fn places<const N: usize>(line: &mut Line) -> [Place; N] {
    std::array::from_fn(|_| line.place())
}

fn line(slots: &Arc<Slots>) -> Line {
    slots.line(&Priority::default())
}

/// Which of the places hold a slot.
fn open<const N: usize>(places: &[Place; N]) -> Vec<usize> {
    (0..N).filter(|index| places[*index].is_open()).collect()
}

#[test]
fn lower_layers_come_first_however_late_they_ask() {
    let slots = slots(2);
    let places: [Place; 5] = places(&mut line(&slots));
    for index in [4, 3, 2] {
        assert!(!places[index].try_open(), "{index} went before those below it");
    }
    places[0].try_open();
    assert_eq!(open(&places), [0]);
    places[1].try_open();
    assert_eq!(open(&places), [0, 1]);
    for (done, expected) in [(1, vec![0, 2]), (0, vec![2, 3]), (3, vec![2, 4])] {
        places[done].step_aside();
        assert_eq!(open(&places), expected);
    }
}

#[test]
fn a_place_that_waits_for_something_else_holds_up_nobody() {
    let slots = slots(1);
    let [low, high] = places(&mut line(&slots));
    low.step_aside();
    assert!(high.try_open());
    assert!(!low.try_open());
    drop(high);
    assert!(low.is_open());
}

#[test]
fn a_free_slot_goes_to_the_pull_with_the_fewest_and_then_to_the_one_served_longest_ago() {
    let slots = slots(3);
    let (mut first, mut second, mut third) = (line(&slots), line(&slots), line(&slots));
    let first: [Place; 4] = places(&mut first);
    assert!(!first.each_ref().map(Place::try_open)[3]);
    assert_eq!(open(&first), [0, 1, 2]);
    let second: [Place; 2] = places(&mut second);
    assert_eq!(second.each_ref().map(Place::try_open), [false; 2]);
    let third: [Place; 1] = places(&mut third);
    third[0].try_open();
    first[0].step_aside();
    assert_eq!((open(&first), open(&second), open(&third)), (vec![1, 2], vec![0], vec![]));
    first[1].step_aside();
    assert_eq!((open(&first), open(&second), open(&third)), (vec![2], vec![0], vec![0]));
    // Each has one now: the first pull's last slot was given before the others'.
    third[0].step_aside();
    assert_eq!((open(&first), open(&second), open(&third)), (vec![2, 3], vec![0], vec![]));
}

#[test]
fn without_a_limit_everyone_is_open() {
    let places: [Place; 50] = places(&mut line(&Slots::new(None)));
    assert!(places.iter().all(Place::try_open));
}

#[tokio::test(start_paused = true)]
async fn a_pull_without_a_slot_gets_one_after_a_slice() {
    let slots = slots(3);
    let (mut greedy, mut modest) = (line(&slots), line(&slots));
    let greedy: [Place; 3] = places(&mut greedy);
    assert!(greedy.iter().all(Place::try_open));
    let small = modest.place();
    let begun = Instant::now();
    let transfers = greedy.iter().map(|place| async {
        place.asked_back().await;
        place.give_back();
        // Comes no sooner than the small one is done.
        place.open().await;
    });
    let small = async {
        small.open().await;
        let (waited, held) = (begun.elapsed(), open(&greedy).len());
        drop(small);
        (waited, held)
    };
    let everyone = futures_util::future::select_all(transfers.map(Box::pin));
    let ((waited, held), _) = tokio::join!(small, everyone);
    assert!(waited >= SLICE && waited <= SLICE + 2 * LOOK, "{waited:?}");
    assert_eq!(held, 2, "more was asked back than was needed");
    assert_eq!(open(&greedy), [0, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_has_a_slot_asks_none_back_and_some_are_never_given_back() {
    let slots = slots(2);
    let (mut first, mut second) = (line(&slots), line(&slots));
    let (held, kept) = (first.place(), second.place());
    assert!(held.try_open() && kept.try_open());
    let more = first.place();
    assert!(tokio::time::timeout(SLICE * 10, more.open()).await.is_err());
    assert!(
        poll!(Box::pin(kept.asked_back())).is_pending() && poll!(Box::pin(held.asked_back())).is_pending()
    );
    kept.keep();
    held.keep();
    let starving = line(&slots).place();
    assert!(tokio::time::timeout(SLICE * 10, starving.open()).await.is_err());
    assert!(
        poll!(Box::pin(kept.asked_back())).is_pending() && poll!(Box::pin(held.asked_back())).is_pending()
    );
}

/// More pulls than slots, none of which ever finishes: each moves, and never are more open than the limit.
#[tokio::test(start_paused = true)]
async fn pulls_without_end_take_turns() {
    const PULLS: usize = 7;
    let slots = slots(3);
    let lines: [[Place; 4]; PULLS] = std::array::from_fn(|_| places(&mut line(&slots)));
    let served = Mutex::new(BTreeSet::new());
    let transfers = lines.iter().enumerate().flat_map(|(number, places)| {
        let served = &served;
        places.iter().map(move |place| async move {
            loop {
                place.open().await;
                served.lock().unwrap().insert(number);
                place.asked_back().await;
                place.give_back();
            }
        })
    });
    let transfers = futures_util::future::join_all(transfers);
    let watch = async {
        for _ in 0..100 {
            tokio::time::sleep(LOOK).await;
            assert_eq!(slots.queue().open().count(), 3);
        }
    };
    tokio::select! {
        _ = transfers => {}
        () = watch => {}
    }
    assert_eq!(served.lock().unwrap().len(), PULLS);
    drop(lines);
    let queue = slots.queue();
    assert!(queue.places.is_empty() && queue.served.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_more_urgent_pull_has_the_slots_first_and_asks_them_back_at_once() {
    let slots = slots(2);
    let [mut low, mut high] = [Level::Low, Level::High].map(|level| slots.line(&Priority::new(level)));
    let low: [Place; 3] = places(&mut low);
    assert_eq!(low.each_ref().map(Place::try_open), [true, true, false]);
    let high: [Place; 2] = places(&mut high);
    let mut opening = Box::pin(high[0].open());
    assert!(poll!(&mut opening).is_pending());
    tokio::time::advance(LOOK).await;
    assert!(poll!(&mut opening).is_pending());
    let victim =
        [0, 1].into_iter().find(|index| poll_now(low[*index].asked_back())).expect("one is asked back");
    low[victim].give_back();
    opening.await;
    assert!(!high[1].try_open());
    low[1 - victim].step_aside();
    assert!(high[1].is_open(), "it comes before those that have waited for longer");
    high[0].step_aside();
    high[1].step_aside();
    assert_eq!(open(&low).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn whoever_has_waited_for_long_is_as_urgent_as_any() {
    let slots = slots(1);
    let [mut low, mut first, mut second] =
        [Level::Low, Level::High, Level::High].map(|level| slots.line(&Priority::new(level)));
    let [first] = places(&mut first);
    first.try_open();
    let [low] = places(&mut low);
    assert!(!low.try_open());
    tokio::time::advance(PATIENCE).await;
    let [second] = places(&mut second);
    assert!(!second.try_open());
    first.step_aside();
    assert!(low.is_open() && !second.is_open());
    // And is left what it waited for.
    let mut opening = Box::pin(second.open());
    assert!(poll!(&mut opening).is_pending());
    tokio::time::advance(LOOK).await;
    assert!(poll!(&mut opening).is_pending());
    assert!(!poll_now(low.asked_back()), "it is asked back before its slice is over");
    tokio::time::advance(SLICE).await;
    assert!(poll!(&mut opening).is_pending());
    tokio::time::advance(LOOK).await;
    assert!(poll!(&mut opening).is_pending());
    assert!(poll_now(low.asked_back()), "it is left more than others");
}

fn poll_now(future: impl Future<Output = ()>) -> bool {
    futures_util::FutureExt::now_or_never(future).is_some()
}
