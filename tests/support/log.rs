//! drayd's log in its JSON format, event by event, for checks that count what operators count.

use serde::Deserialize;
use serde_json::{Map, Value};

/// One event.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    /// `INFO`, `WARN`, …
    pub level: String,
    /// Its fields, the message among them.
    pub fields: Map<String, Value>,
}

impl Event {
    /// Reads a line; `None` for one that is no event, such as a panic's.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }

    /// The message.
    pub fn message(&self) -> &str {
        self.text("message")
    }

    /// A field as text; empty if there is none.
    pub fn text(&self, field: &str) -> &str {
        self.fields.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    /// A field as a number.
    pub fn number(&self, field: &str) -> Option<u64> {
        self.fields.get(field)?.as_u64()
    }

    /// A field as a truth; false if there is none.
    pub fn holds(&self, field: &str) -> bool {
        self.fields.get(field).and_then(Value::as_bool).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::Event;

    #[test]
    fn a_line_of_the_log_becomes_an_event() {
        let line = r#"{"timestamp":"2026-01-01T00:00:00Z","level":"INFO","fields":{"message":"Pulled","bytes":7,
            "joined":true},"target":"drayd::pull"}"#;
        let event = Event::parse(line).expect("an event");
        assert_eq!((event.level.as_str(), event.message()), ("INFO", "Pulled"));
        assert_eq!((event.number("bytes"), event.number("none")), (Some(7), None));
        assert!(event.holds("joined") && !event.holds("left"));
        assert!(Event::parse("thread 'main' panicked").is_none());
    }
}
