//! What the metadata of a request decides: how urgent the pull is and, where a rule says so, which snapshotter it is
//! for. Pure.

use std::collections::BTreeMap;

use wildmatch::WildMatch;

use super::request::Request;
use crate::containerd::Snapshotter;
use crate::priority::Level;

/// Set by OpenKruise on the sandbox of every image that it pulls before it is needed (kruise-daemon, `ImagePullJob`).
const PULLED_BEFORE: &str = "apps.kruise.io/pulling-image-by";

/// One rule of the configuration. It applies to requests that fit all that it names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    /// Annotations of the sandbox, each with a pattern for its value.
    pub annotations: BTreeMap<String, WildMatch>,
    /// Labels of the sandbox, the same.
    pub labels: BTreeMap<String, WildMatch>,
    /// The pod's Kubernetes namespace.
    pub namespace: Option<WildMatch>,
    /// The runtime handler; that of a request without one is empty.
    pub runtime_handler: Option<WildMatch>,
    /// The normalised reference.
    pub image: Option<WildMatch>,
    /// How urgent it is.
    pub priority: Option<Level>,
    /// Where it is unpacked, whatever its runtime handler says.
    pub snapshotter: Option<Snapshotter>,
}

/// What was decided about a request, and by what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// How urgent it is.
    pub level: Level,
    /// Why, for whoever asks.
    pub why: Why,
    /// Where a rule sends it.
    pub snapshotter: Option<Snapshotter>,
}

/// What made a request as urgent as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The rule of that number, from 1 on.
    Rule(usize),
    /// OpenKruise's annotation.
    PulledBefore,
    /// Nothing.
    Nothing,
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rule(number) => write!(f, "rule {number} of [pull] rules"),
            Self::PulledBefore => write!(f, "annotation {PULLED_BEFORE}"),
            Self::Nothing => f.write_str("nothing says otherwise"),
        }
    }
}

/// Decides about a request. Of the rules that apply, the first that says something about a thing decides that.
pub fn decide(rules: &[Rule], request: &Request) -> Decision {
    let applying = || rules.iter().enumerate().filter(|(_, rule)| rule.applies_to(request));
    let by_rule = applying().find_map(|(index, rule)| Some((rule.priority?, Why::Rule(index + 1))));
    let pulled_before = request.metadata.annotations.contains_key(PULLED_BEFORE);
    let by_kruise = || pulled_before.then_some((Level::Low, Why::PulledBefore));
    let (level, why) = by_rule.or_else(by_kruise).unwrap_or((Level::default(), Why::Nothing));
    let snapshotter = applying().find_map(|(_, rule)| rule.snapshotter.clone());
    Decision { level, why, snapshotter }
}

impl Rule {
    fn applies_to(&self, request: &Request) -> bool {
        let fits = |pattern: &Option<WildMatch>, value: &str| {
            pattern.as_ref().is_none_or(|pattern| pattern.matches(value))
        };
        let all = |patterns: &BTreeMap<String, WildMatch>, has: &BTreeMap<String, String>| {
            patterns.iter().all(|(key, pattern)| has.get(key).is_some_and(|value| pattern.matches(value)))
        };
        let namespace = request.pod.as_ref().map_or("", |pod| &pod.namespace);
        fits(&self.namespace, namespace)
            && fits(&self.runtime_handler, request.handler.name())
            && fits(&self.image, &request.reference.to_string())
            && all(&self.annotations, &request.metadata.annotations)
            && all(&self.labels, &request.metadata.labels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::snapshotter::WantedHandler;
    use crate::oci::Reference;
    use crate::pull::request::{Metadata, Pod};
    use crate::registry::Credentials;
    use crate::trace::Caller;

    fn request(annotations: &[(&str, &str)], labels: &[(&str, &str)]) -> Request {
        let map = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        Request {
            reference: Reference::parse("reg.test/team/model:1").unwrap(),
            handler: WantedHandler::Annotation("kata".into()),
            overridden: None,
            credentials: Credentials::anonymous(),
            pod: Some(Pod { namespace: "batch-7".into(), name: "p".into() }),
            caller: Caller::default(),
            metadata: Metadata { annotations: map(annotations), labels: map(labels) },
        }
    }

    fn of(text: &str) -> WildMatch {
        WildMatch::new(text)
    }

    #[test]
    fn what_kruise_pulls_before_its_need_is_less_urgent_than_a_pods() {
        let kruise = request(&[(PULLED_BEFORE, "ImagePullJob")], &[]);
        for (request, level, why) in
            [(&kruise, Level::Low, Why::PulledBefore), (&request(&[], &[]), Level::Normal, Why::Nothing)]
        {
            assert_eq!(decide(&[], request), Decision { level, why, snapshotter: None });
        }
        let rule =
            Rule { image: Some(of("reg.test/team/*")), priority: Some(Level::High), ..Rule::default() };
        let decision = decide(&[Rule::default(), rule], &kruise);
        assert_eq!((decision.level, decision.why), (Level::High, Why::Rule(2)));
    }

    #[test]
    fn a_rule_applies_where_all_that_it_names_fits() {
        let map = |key: &str, value| BTreeMap::from([(key.to_owned(), WildMatch::new(value))]);
        let request = request(&[("a", "one")], &[("l", "two")]);
        for (rule, applies) in [
            (Rule::default(), true),
            (Rule { namespace: Some(of("batch-*")), ..Rule::default() }, true),
            (Rule { namespace: Some(of("batch")), ..Rule::default() }, false),
            (Rule { runtime_handler: Some(of("kata")), ..Rule::default() }, true),
            (Rule { runtime_handler: Some(of("")), ..Rule::default() }, false),
            (Rule { image: Some(of("*/model:*")), ..Rule::default() }, true),
            (Rule { image: Some(of("reg.test/model*")), ..Rule::default() }, false),
            (Rule { annotations: map("a", "o*"), labels: map("l", "*"), ..Rule::default() }, true),
            (Rule { annotations: map("a", "two"), ..Rule::default() }, false),
            (Rule { labels: map("a", "*"), ..Rule::default() }, false),
            (Rule { namespace: Some(of("*")), labels: map("m", "*"), ..Rule::default() }, false),
        ] {
            assert_eq!(rule.applies_to(&request), applies, "{rule:?}");
        }
    }

    #[test]
    fn each_thing_is_decided_by_the_first_rule_that_says_something_about_it() {
        let to = |name: &str| Some(name.parse().unwrap());
        let rules = [
            Rule { namespace: Some(of("other")), snapshotter: to("first"), ..Rule::default() },
            Rule { priority: Some(Level::Low), ..Rule::default() },
            Rule { priority: Some(Level::High), snapshotter: to("second"), ..Rule::default() },
            Rule { snapshotter: to("third"), ..Rule::default() },
        ];
        let decision = decide(&rules, &request(&[], &[]));
        assert_eq!(decision, Decision { level: Level::Low, why: Why::Rule(2), snapshotter: to("second") });
    }
}
