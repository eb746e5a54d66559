//! `Retry-After`: how long a host asks to be left alone.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::RETRY_AFTER;

/// The wait that an answer asks for. `None` when it asks for none, or for one that makes no sense: hosts in the field
/// write durations of their own language, dates that have passed, and 0 while they refuse every request.
pub(super) fn told(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // More digits than fit are still a wait without end.
        Duration::from_secs(text.parse().unwrap_or(u64::MAX))
    } else {
        httpdate::parse_http_date(text).ok()?.duration_since(now).ok()?
    };
    (!wait.is_zero()).then_some(wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_dates_are_waits_and_all_else_is_none() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (text, expected) in [
            ("2", seconds(2)),
            (" 120 ", seconds(120)),
            ("86400", seconds(86400)),
            ("99999999999999999999", seconds(u64::MAX)),
            ("Sun, 06 Nov 1994 08:49:42 GMT", seconds(5)),
            ("Sunday, 06-Nov-94 08:49:42 GMT", seconds(5)),
            ("Sun Nov  6 08:49:42 1994", seconds(5)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1993 08:49:42 GMT", None),
            ("0", None),
            ("-2", None),
            ("1.5", None),
            ("2s", None),
            ("", None),
            ("soon", None),
        ] {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
            assert_eq!(told(&headers, now), expected, "{text}");
        }
        let micros = http::HeaderValue::from_bytes("880.092µs".as_bytes()).unwrap();
        assert_eq!(told(&HeaderMap::from_iter([(RETRY_AFTER, micros)]), now), None);
        assert_eq!(told(&HeaderMap::new(), now), None);
    }
}
