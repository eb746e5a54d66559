//! One event as one line of text: `TIME LEVEL MESSAGE FIELDS SPANS`.

use std::fmt::{self, Write as _};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// The text format. Control characters in messages and values are escaped, because some come from outside (an
/// annotation, an answer of a registry) and must neither begin a line of their own nor reach a terminal.
pub(super) struct Line {
    pub(super) colour: bool,
}

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        SystemTime.format_time(&mut writer)?;
        writer.write_char(' ')?;
        self.write_level(&mut writer, *event.metadata().level())?;
        writer.write_char(' ')?;
        let mut escaped = Escape(&mut writer);
        context.field_format().format_fields(Writer::new(&mut escaped), event)?;
        for span in context.event_scope().into_iter().flat_map(tracing_subscriber::registry::Scope::from_root)
        {
            write!(escaped, " {}", span.name())?;
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>().filter(|f| !f.is_empty()) {
                write!(escaped, "{{{fields}}}")?;
            }
        }
        writer.write_char('\n')
    }
}

impl Line {
    fn write_level(&self, writer: &mut Writer<'_>, level: Level) -> fmt::Result {
        let colour = match level {
            _ if !self.colour => return write!(writer, "{level:>5}"),
            Level::ERROR => 31,
            Level::WARN => 33,
            Level::INFO => 32,
            Level::DEBUG => 34,
            _ => 35,
        };
        write!(writer, "\x1b[{colour}m{level:>5}\x1b[0m")
    }
}

struct Escape<'a, W>(&'a mut W);

impl<W: fmt::Write> fmt::Write for Escape<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive(breaks_out) {
            match part.chars().next_back().filter(|c| breaks_out(*c)) {
                Some(last) => {
                    self.0.write_str(&part[..part.len() - last.len_utf8()])?;
                    write!(self.0, "{}", last.escape_default())?;
                }
                None => self.0.write_str(part)?,
            }
        }
        Ok(())
    }
}

/// Control characters, and the two separators that Unicode counts as line ends.
fn breaks_out(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}
