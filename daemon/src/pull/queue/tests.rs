use std::collections::{BTreeSet, HashMap};

use futures_util::poll;

use super::*;

fn limits(node: usize, image: usize) -> Limits {
    Limits { node: NonZeroUsize::new(node), image: NonZeroUsize::new(image) }
}

fn level(level: Level) -> Priority {
    Priority::new(level)
}

#[tokio::test(start_paused = true)]
async fn a_pods_pull_comes_before_those_that_were_asked_for_earlier() {
    let queue = Queue::new(limits(1, 0));
    let first = queue.enter(1, "a", &level(Level::Low)).await;
    let (low, normal, high) = (level(Level::Low), level(Level::Normal), level(Level::High));
    let mut waiting = [
        Box::pin(queue.enter(2, "b", &low)),
        Box::pin(queue.enter(3, "c", &normal)),
        Box::pin(queue.enter(4, "d", &high)),
        Box::pin(queue.enter(5, "e", &normal)),
    ];
    for one in &mut waiting {
        assert!(poll!(one).is_pending());
    }
    assert_eq!([2, 3, 4, 5].map(|id| queue.place(id)), [Some(4), Some(2), Some(1), Some(3)]);
    assert_eq!((queue.place(1), queue.waiting()), (None, 4));
    let mut order = Vec::new();
    let mut running = first;
    let [two, three, four, five] = waiting;
    for (id, next) in [(4, four), (3, three), (5, five), (2, two)] {
        drop(running);
        running = next.await;
        order.push(id);
    }
    assert_eq!(order, [4, 3, 5, 2]);
}

#[tokio::test(start_paused = true)]
async fn the_last_free_place_waits_for_a_pod() {
    let queue = Queue::new(limits(3, 0));
    let low = level(Level::Low);
    let _running = [queue.enter(1, "a", &low).await, queue.enter(2, "b", &low).await];
    let mut third = Box::pin(queue.enter(3, "c", &low));
    assert!(poll!(&mut third).is_pending());
    let pod = queue.enter(4, "d", &level(Level::Normal)).await;
    drop(pod);
    assert!(poll!(&mut third).is_pending(), "a place became free that is not for it");
    low.raise(Level::Normal);
    queue.admit();
    assert!(poll!(&mut third).is_ready(), "a pod has joined it");
}

#[tokio::test(start_paused = true)]
async fn the_last_free_place_is_for_anybody_who_has_waited_long() {
    let queue = Queue::new(limits(2, 0));
    let low = level(Level::Low);
    let _running = queue.enter(1, "a", &low).await;
    // Nothing else happens.
    let began = Instant::now();
    let _second = queue.enter(2, "b", &low).await;
    assert_eq!(began.elapsed().as_secs(), AGE.as_secs());
}

#[tokio::test(start_paused = true)]
async fn no_image_has_more_than_its_own_places_and_holds_up_nobody_else() {
    let queue = Queue::new(limits(3, 1));
    let normal = level(Level::Normal);
    let first = queue.enter(1, "a", &normal).await;
    let mut second = Box::pin(queue.enter(2, "a", &normal));
    assert!(poll!(&mut second).is_pending());
    let _other = queue.enter(3, "b", &normal).await;
    drop(first);
    assert!(poll!(&mut second).is_ready());
}

#[tokio::test(start_paused = true)]
async fn whoever_leaves_takes_no_place_with_it() {
    let queue = Queue::new(limits(1, 0));
    let normal = level(Level::Normal);
    let first = queue.enter(1, "a", &normal).await;
    let (mut second, mut third) =
        (Box::pin(queue.enter(2, "b", &normal)), Box::pin(queue.enter(3, "c", &normal)));
    assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
    // It has got its turn, and nobody has told it yet.
    drop(first);
    drop(second);
    assert!(poll!(&mut third).is_ready());
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_nobody_waits() {
    let queue = Queue::new(Limits::default());
    let low = level(Level::Low);
    let mut all = Vec::new();
    for id in 0..1000 {
        all.push(queue.enter(id, "a", &low).await);
    }
    assert_eq!(queue.waiting(), 0);
}

/// 10,000 requests of random levels, lengths and images on a node that is asked for more than it can do for hours. The
/// clock is the simulation's own.
#[test]
fn nothing_starves_among_ten_thousand_requests() {
    let mut random = fastrand::Rng::with_seed(20_261_201);
    let limits = limits(6, 2);
    let (mut line, mut now) = (Line::default(), Duration::ZERO);
    // By when they end.
    let mut ends: BTreeSet<(Duration, u64)> = BTreeSet::new();
    let mut came: HashMap<u64, (Duration, Level)> = HashMap::new();
    let mut longest: HashMap<Level, Duration> = HashMap::new();
    let mut begun = 0;
    let mut next_arrival = Duration::ZERO;
    let mut id = 0;
    while begun < 10_000 {
        let end = ends.first().copied();
        let arrives = id < 10_000 && end.is_none_or(|(end, _)| next_arrival <= end);
        if arrives {
            now = next_arrival;
            id += 1;
            let level = [Level::Low, Level::Low, Level::Normal, Level::High][random.usize(0..4)];
            let image = random.u32(0..50).to_string();
            let (turn, _) = oneshot::channel();
            line.waiting.push(Waiting { id, image, priority: level.into(), since: now, turn });
            came.insert(id, (now, level));
            next_arrival += Duration::from_millis(random.u64(0..8_000));
        } else if let Some((end, done)) = end {
            now = end;
            ends.remove(&(end, done));
            line.running.retain(|(running, _)| *running != done);
        }
        while let Some(index) = line.next(&limits, now) {
            let waiting = line.waiting.remove(index);
            let (since, level) = came[&waiting.id];
            let longest = longest.entry(level).or_default();
            *longest = (*longest).max(now.saturating_sub(since));
            line.running.push((waiting.id, waiting.image));
            ends.insert((now + Duration::from_secs(random.u64(1..60)), waiting.id));
            begun += 1;
        }
    }
    assert_eq!((begun, line.waiting.len()), (10_000, 0));
    // Of those in front of a request there are none that came later than its age is worth; what the node does in that
    // time, twice over, and the longest pull bound its wait.
    assert!(longest[&Level::High] <= longest[&Level::Normal], "{longest:?}");
    assert!(longest[&Level::Normal] <= longest[&Level::Low], "{longest:?}");
    let spread = longest[&Level::Low].saturating_sub(longest[&Level::High]);
    assert!(spread <= 2 * AGE + Duration::from_secs(600), "{longest:?}");
}

impl From<Level> for Priority {
    fn from(level: Level) -> Self {
        Self::new(level)
    }
}
