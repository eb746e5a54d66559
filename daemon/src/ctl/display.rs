//! Pulls as they go on: bars on a terminal, lines elsewhere, or JSON.

use std::collections::HashMap;
use std::io::{self, IsTerminal as _, Write as _};

use drayd_proto::dray::{LayerProgress, LayerState, PullProgress, Stage, Word as _};
use indicatif::{HumanBytes, MultiProgress, ProgressBar, ProgressStyle};

use super::Error;
use super::text;

/// Bars for layers at most; of an image with more, only those that are worked on have one.
const BARS: usize = 16;

/// Whoever shows messages.
pub(super) enum Display {
    Json,
    Lines(Lines),
    Bars(Box<Bars>),
}

impl Display {
    pub(super) fn json() -> Self {
        Self::Json
    }

    /// Bars if standard error is a terminal. `one` says that all messages are about one pull, whose layers are shown.
    pub(super) fn for_this_terminal(one: bool) -> Self {
        if io::stderr().is_terminal() {
            let (screen, shown) = (MultiProgress::new(), HashMap::new());
            Self::Bars(Box::new(Bars { one, screen, shown }))
        } else {
            Self::Lines(Lines { one, last: HashMap::new() })
        }
    }

    pub(super) fn show(&mut self, message: &PullProgress) -> Result<(), Error> {
        match self {
            Self::Json => print(&(serde_json::to_string(message)? + "\n")),
            Self::Lines(lines) => lines.show(message),
            Self::Bars(bars) => bars.show(message),
        }
    }
}

/// A line for each change.
pub(super) struct Lines {
    one: bool,
    /// What was shown last of each pull.
    last: HashMap<u64, PullProgress>,
}

impl Lines {
    fn show(&mut self, message: &PullProgress) -> Result<(), Error> {
        let last = self.last.get(&message.id);
        let mut text = String::new();
        if last.is_none() {
            text.push_str(&text::begin(message));
        }
        if last.is_none_or(|last| last.stage != message.stage || last.queue_place != message.queue_place) {
            text.push_str(&text::stage(message));
        }
        for (index, layer) in message.layers.iter().enumerate().filter(|_| self.one) {
            let before = last.and_then(|last| last.layers.get(index));
            if before.is_none_or(|before| before.state != layer.state || before.host != layer.host) {
                text.push_str(&text::layer(layer));
            }
        }
        if let Some(ended) = &message.ended {
            text.push_str(&text::end(message, ended));
            self.last.remove(&message.id);
        } else {
            self.last.insert(message.id, message.clone());
        }
        print(&text)
    }
}

/// A bar for each pull and each of its layers.
pub(super) struct Bars {
    one: bool,
    screen: MultiProgress,
    /// By pull, and within it by layer; the pull's own stands under no digest.
    shown: HashMap<(u64, Option<usize>), ProgressBar>,
}

impl Bars {
    fn show(&mut self, message: &PullProgress) -> Result<(), Error> {
        let stage = text::stage_words(message);
        let own = self.bar(message.id, None, message.bytes_total);
        own.set_prefix(message.reference.clone());
        own.set_position(message.bytes_done);
        own.set_message(stage);
        let many = message.layers.len() > BARS;
        let layers = if self.one { message.layers.as_slice() } else { &[] };
        for (index, layer) in layers.iter().enumerate() {
            let working = matches!(layer.state(), LayerState::Fetching | LayerState::Unpacking);
            if many && !working {
                if let Some(bar) = self.shown.remove(&(message.id, Some(index))) {
                    bar.finish_and_clear();
                }
                continue;
            }
            let bar = self.bar(message.id, Some(index), layer.size);
            bar.set_prefix(text::short(&layer.digest));
            bar.set_position(layer.done);
            bar.set_message(words(layer));
        }
        if let Some(ended) = &message.ended {
            // The bars stay as they were last; what follows is for standard output.
            for (_, bar) in self.shown.iter().filter(|((id, _), _)| *id == message.id) {
                bar.abandon();
            }
            self.shown.retain(|(id, _), _| *id != message.id);
            print(&text::end(message, ended))?;
        }
        Ok(())
    }

    fn bar(&mut self, id: u64, layer: Option<usize>, size: u64) -> &ProgressBar {
        let screen = &self.screen;
        let bar = self.shown.entry((id, layer)).or_insert_with(|| {
            let template = match layer {
                None => "{prefix} [{bar:24}] {bytes}/{total_bytes} {msg}",
                Some(_) => "  {prefix} [{bar:24}] {bytes:>10}/{total_bytes:>10} {msg}",
            };
            let style = ProgressStyle::with_template(template).expect("the template is this one");
            screen.add(ProgressBar::new(size).with_style(style.progress_chars("=> ")))
        });
        // Of nothing, nothing is done.
        bar.set_length(size.max(1));
        bar
    }
}

fn words(layer: &LayerProgress) -> String {
    let mut words = layer.state().word();
    if layer.state() == LayerState::Fetching {
        words = format!("{words} from {}", layer.host);
    }
    words
}

/// What is here of a pull, in words.
pub(super) fn done(message: &PullProgress) -> String {
    format!("{} of {}", HumanBytes(message.bytes_done), HumanBytes(message.bytes_total))
}

/// Whether bytes can be told.
pub(super) fn has_size(message: &PullProgress) -> bool {
    message.stage() != Stage::Resolving && message.bytes_total > 0
}

fn print(text: &str) -> Result<(), Error> {
    Ok(io::stdout().write_all(text.as_bytes())?)
}
