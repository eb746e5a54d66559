//! How urgent a pull is among those of this node.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Three levels: those who pull for later come after those whose pod waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Nobody waits for it: images that are pulled before they are needed.
    Low,
    /// A pod waits for it, as far as is known.
    #[default]
    Normal,
    /// It comes before all others.
    High,
}

impl Level {
    /// Its name in the configuration, in metrics and in answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The level of a pull under way, for all that work on it. It rises when somebody joins for whom it is more urgent, and
/// does not fall again.
#[derive(Clone, Debug)]
pub struct Priority(Arc<AtomicU8>);

impl Default for Priority {
    fn default() -> Self {
        Self::new(Level::default())
    }
}

impl Priority {
    /// That of a pull which begins.
    pub fn new(level: Level) -> Self {
        Self(Arc::new(AtomicU8::new(level as u8)))
    }

    /// What it is now.
    pub fn level(&self) -> Level {
        match self.0.load(Ordering::Relaxed) {
            0 => Level::Low,
            1 => Level::Normal,
            _ => Level::High,
        }
    }

    /// Makes it at least as urgent as this.
    pub fn raise(&self, level: Level) {
        self.0.fetch_max(level as u8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_rises_and_never_falls() {
        let priority = Priority::new(Level::Low);
        let shared = priority.clone();
        for (asked, expected) in
            [(Level::Low, Level::Low), (Level::High, Level::High), (Level::Normal, Level::High)]
        {
            shared.raise(asked);
            assert_eq!(priority.level(), expected);
        }
        assert_eq!(Priority::default().level(), Level::Normal);
    }
}
