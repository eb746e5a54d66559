//! How long a lease lives. One that is renewed all the time is nothing but work for containerd.

use std::time::Duration;

use super::written::Written;

/// A lease is renewed at half of its time: this still leaves seconds for that.
const SHORTEST: Duration = Duration::from_secs(5);

/// The lifetime of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime(pub Duration);

impl Written for Lifetime {
    const FORM: &'static str = "a duration of at least 5s, such as \"24h\" or \"90m\"";

    fn read(text: &str) -> Option<Self> {
        let lifetime = <Duration as Written>::read(text)?;
        (lifetime >= SHORTEST).then_some(Self(lifetime))
    }

    fn write(&self) -> String {
        self.0.write()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_leaves_time_to_renew() {
        for (text, expected) in
            [("24h", Some(86_400)), ("5s", Some(5)), ("4999ms", None), ("1ms", None), ("0", None)]
        {
            let expected = expected.map(|seconds| Lifetime(Duration::from_secs(seconds)));
            assert_eq!(Lifetime::read(text), expected, "{text}");
        }
        assert_eq!(Lifetime(SHORTEST).write(), "5s");
    }
}
