//! Which snapshotter a pull unpacks into, and why: a pure function of the request's runtime handler and of what this
//! node is configured for. The whole decision is in this file.
//!
//! The table that counts is the one that container creation uses: `runtimes.<handler>.snapshotter` of containerd's
//! runtime configuration, on 1.7 and 2.x alike (2.x consults another table for its own pulls, which may disagree).
//! containerd 1.6 creates every container on the default snapshotter, so there only `[snapshotter.handlers]` counts.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;

use crate::containerd::Snapshotter;
use crate::containerd::introspection::LoadedSnapshotter;
use crate::oci::Reference;

/// The runtime handler of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedHandler {
    /// The request names none.
    None,
    /// `ImageSpec.runtime_handler`.
    Spec(String),
    /// Sandbox annotation `io.containerd.cri.runtime-handler`; empty means the default runtime, as in containerd 1.7.
    Annotation(String),
}

/// What to do with a runtime handler that nobody configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownHandler {
    /// Fail the pull, as containerd 1.7 does.
    Error,
    /// Use the default snapshotter and warn, as containerd 2.x does (without the warning).
    Default,
}

/// Everything that the choice depends on, besides the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The snapshotter of requests without a handler, and of handlers without one.
    pub default: Snapshotter,
    /// Runtime that an empty annotation stands for.
    pub default_handler: String,
    /// `[snapshotter.handlers]` of drayd's own configuration: wins over the next.
    pub configured: BTreeMap<String, Snapshotter>,
    /// containerd's runtimes, each with its own snapshotter if it has one.
    pub runtimes: HashMap<String, Option<Snapshotter>>,
    /// Snapshotters that containerd has loaded.
    pub loaded: Vec<LoadedSnapshotter>,
    /// What to do with other handlers.
    pub unknown: UnknownHandler,
    /// The image of pod sandboxes, where containerd tells it. Decides about no snapshotter; it is known from where
    /// all of this is.
    pub sandbox_image: Option<Reference>,
    /// The directory of containerd's content store, where containerd tells it. As above.
    pub content_root: Option<PathBuf>,
}

/// The snapshotter of one pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Where to unpack.
    pub snapshotter: LoadedSnapshotter,
    /// The handler that decided; empty if the request named none.
    pub handler: String,
    /// Why this one.
    pub reason: Reason,
}

/// Why a snapshotter was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The request names no runtime handler.
    NoHandler,
    /// `[snapshotter.handlers]` maps the handler.
    Configured,
    /// containerd's runtime of that name has its own snapshotter.
    Runtime,
    /// containerd's runtime of that name has none of its own.
    RuntimeWithout,
    /// Nobody knows the handler, and `unknown_handler` is `default`.
    UnknownAllowed,
    /// A rule of `[pull] rules` names it for requests like this.
    Rule,
}

impl WantedHandler {
    /// The handler's name; empty if the request names none, or the default one.
    pub fn name(&self) -> &str {
        match self {
            Self::None => "",
            Self::Spec(name) | Self::Annotation(name) => name,
        }
    }
}

/// Why there is no choice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// Nobody knows the runtime handler. The text begins as containerd 1.7's does.
    #[error(
        "failed to get sandbox runtime for {handler:?}, err: no runtime for {handler:?} is configured; known are \
         {known}; map it in [snapshotter.handlers], or set snapshotter.unknown_handler = \"default\""
    )]
    UnknownHandler {
        /// The handler's name.
        handler: String,
        /// Names of all that are known.
        known: String,
    },
    /// The snapshotter is not there.
    #[error(
        "snapshotter {snapshotter} (chosen because {reason}) is not loaded in containerd, which has {loaded}; check \
         its proxy_plugins section and that its process runs, then restart containerd"
    )]
    NotLoaded {
        /// The snapshotter that was chosen.
        snapshotter: Snapshotter,
        /// Why it was.
        reason: Reason,
        /// Names of all that are loaded.
        loaded: String,
    },
}

impl Table {
    /// Chooses the snapshotter for a pull.
    pub fn choose(&self, wanted: &WantedHandler) -> Result<Choice, ChoiceError> {
        self.choose_by(wanted, None)
    }

    /// The same where a rule may have chosen already.
    pub fn choose_by(
        &self,
        wanted: &WantedHandler,
        rule: Option<&Snapshotter>,
    ) -> Result<Choice, ChoiceError> {
        let handler = match wanted {
            WantedHandler::Annotation(name) if name.is_empty() => &self.default_handler,
            wanted => wanted.name(),
        };
        let (snapshotter, reason) = match rule {
            Some(snapshotter) => (snapshotter, Reason::Rule),
            None => self.of_handler(handler)?,
        };
        let loaded = self.loaded.iter().find(|loaded| loaded.name == *snapshotter);
        let Some(loaded) = loaded else {
            let loaded = list(self.loaded.iter().map(|loaded| loaded.name.as_str()));
            return Err(ChoiceError::NotLoaded { snapshotter: snapshotter.clone(), reason, loaded });
        };
        Ok(Choice { snapshotter: loaded.clone(), handler: handler.into(), reason })
    }

    /// The snapshotter of each runtime handler that has one of its own.
    pub fn handlers(&self) -> BTreeMap<String, Snapshotter> {
        let of_runtimes =
            self.runtimes.iter().filter_map(|(handler, it)| Some((handler.clone(), it.clone()?)));
        let configured = self.configured.iter().map(|(handler, it)| (handler.clone(), it.clone()));
        of_runtimes.chain(configured).collect()
    }

    /// Every other loaded snapshotter that pods of some handler run on.
    pub fn all_but(&self, chosen: &LoadedSnapshotter) -> Vec<LoadedSnapshotter> {
        let used = |name: &Snapshotter| {
            let of_runtimes =
                self.runtimes.iter().filter(|(handler, _)| !self.configured.contains_key(*handler));
            let mut all = of_runtimes.filter_map(|(_, snapshotter)| snapshotter.as_ref());
            *name == self.default || self.configured.values().any(|it| it == name) || all.any(|it| it == name)
        };
        self.loaded.iter().filter(|it| it.name != chosen.name && used(&it.name)).cloned().collect()
    }

    fn of_handler(&self, handler: &str) -> Result<(&Snapshotter, Reason), ChoiceError> {
        if handler.is_empty() {
            return Ok((&self.default, Reason::NoHandler));
        }
        if let Some(snapshotter) = self.configured.get(handler) {
            return Ok((snapshotter, Reason::Configured));
        }
        match (self.runtimes.get(handler), self.unknown) {
            (Some(Some(snapshotter)), _) => Ok((snapshotter, Reason::Runtime)),
            (Some(None), _) => Ok((&self.default, Reason::RuntimeWithout)),
            (None, UnknownHandler::Default) => Ok((&self.default, Reason::UnknownAllowed)),
            (None, UnknownHandler::Error) => {
                let names = self.configured.keys().chain(self.runtimes.keys());
                let known = list(names.map(String::as_str));
                Err(ChoiceError::UnknownHandler { handler: handler.into(), known })
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoHandler => "the request names no runtime handler, so the default applies",
            Self::Configured => "[snapshotter.handlers] maps the runtime handler to it",
            Self::Runtime => "containerd's runtime configuration maps the runtime handler to it",
            Self::RuntimeWithout => {
                "the runtime handler has no snapshotter of its own, so the default applies"
            }
            Self::UnknownAllowed => {
                "nobody configured the runtime handler, and unknown_handler is \"default\""
            }
            Self::Rule => "a rule of [pull] rules names it for such requests",
        })
    }
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Snapshotter {
        text.parse().expect("a snapshotter name")
    }

    fn table() -> Table {
        let loaded =
            |text: &str, remote_capable| LoadedSnapshotter { name: name(text), root: None, remote_capable };
        Table {
            default: name("overlayfs"),
            default_handler: "runc".into(),
            configured: BTreeMap::from([("kata".into(), name("nydus")), ("lost".into(), name("stargz"))]),
            runtimes: HashMap::from([
                ("runc".into(), None),
                ("kata".into(), Some(name("native"))),
                ("plain".into(), None),
                ("copy".into(), Some(name("native"))),
            ]),
            loaded: vec![loaded("overlayfs", false), loaded("native", false), loaded("nydus", true)],
            unknown: UnknownHandler::Error,
            sandbox_image: None,
            content_root: None,
        }
    }

    /// Fault 162.
    #[test]
    fn every_kind_of_handler_has_its_answer() {
        use WantedHandler::{Annotation, None, Spec};
        for (wanted, snapshotter, reason) in [
            (None, "overlayfs", Reason::NoHandler),
            (Annotation(String::new()), "overlayfs", Reason::RuntimeWithout),
            (Annotation("kata".into()), "nydus", Reason::Configured),
            (Annotation("copy".into()), "native", Reason::Runtime),
            (Spec("copy".into()), "native", Reason::Runtime),
            (Annotation("plain".into()), "overlayfs", Reason::RuntimeWithout),
        ] {
            let choice = table().choose(&wanted).expect("a choice");
            assert_eq!((choice.snapshotter.name, choice.reason), (name(snapshotter), reason), "{wanted:?}");
        }
    }

    #[test]
    fn an_empty_annotation_takes_the_default_runtimes_own_snapshotter() {
        let mut table = table();
        table.runtimes.insert("runc".into(), Some(name("native")));
        let choice = table.choose(&WantedHandler::Annotation(String::new())).expect("a choice");
        assert_eq!((choice.snapshotter.name, choice.handler.as_str()), (name("native"), "runc"));
        let choice = table.choose(&WantedHandler::None).expect("a choice");
        assert_eq!(choice.snapshotter.name, name("overlayfs"));
    }

    #[test]
    fn every_loaded_snapshotter_that_some_handler_runs_on_counts_but_the_chosen_one() {
        let (mut table, names) = (table(), |found: Vec<LoadedSnapshotter>| -> Vec<String> {
            found.into_iter().map(|loaded| loaded.name.to_string()).collect()
        });
        let chosen = |table: &Table, handler: &str| {
            table.choose(&WantedHandler::Annotation(handler.into())).expect("a choice").snapshotter
        };
        assert_eq!(names(table.all_but(&chosen(&table, "runc"))), ["native", "nydus"]);
        assert_eq!(names(table.all_but(&chosen(&table, "copy"))), ["overlayfs", "nydus"]);
        // What the runtime table says of a handler that drayd's own configuration maps does not count.
        table.runtimes.remove("copy");
        assert_eq!(names(table.all_but(&chosen(&table, "runc"))), ["nydus"]);
    }

    #[test]
    fn only_a_snapshotter_behind_a_proxy_is_remote_capable() {
        let remote = |handler: &str| {
            let choice = table().choose(&WantedHandler::Annotation(handler.into()));
            choice.expect("a choice").snapshotter.remote_capable
        };
        assert!(remote("kata"));
        assert!(!remote("copy"));
    }

    #[test]
    fn an_unknown_handler_fails_in_containerds_words_unless_allowed() {
        let mut table = table();
        let wanted = WantedHandler::Annotation("Kata".into());
        let error = table.choose(&wanted).expect_err("an error").to_string();
        assert!(error.contains(r#"no runtime for "Kata" is configured"#), "{error}");
        assert!(error.contains("copy, kata, lost, plain, runc"), "{error}");
        table.unknown = UnknownHandler::Default;
        let choice = table.choose(&wanted).expect("a choice");
        assert_eq!((choice.snapshotter.name, choice.reason), (name("overlayfs"), Reason::UnknownAllowed));
    }

    #[test]
    fn a_snapshotter_that_is_not_loaded_names_those_that_are() {
        let error = table().choose(&WantedHandler::Annotation("lost".into())).expect_err("an error");
        let text = error.to_string();
        assert!(text.contains("stargz") && text.contains("native, nydus, overlayfs"), "{text}");
    }
}
