//! Values of a label, of which there may be any number: the first ones count, each for itself.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use super::OTHER;

#[derive(Debug)]
pub(super) struct Bounded {
    most: usize,
    /// Guards the values that have been admitted.
    known: Mutex<HashSet<String>>,
}

impl Bounded {
    pub(super) fn new(most: usize) -> Self {
        Self { most, known: Mutex::default() }
    }

    /// The value as it is counted.
    pub(super) fn admit(&self, value: &str) -> String {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = value.is_empty() || known.contains(value) || {
            let room = known.len() < self.most;
            if room {
                known.insert(value.to_owned());
            }
            room
        };
        if counts { value.to_owned() } else { OTHER.to_owned() }
    }
}
