//! Shows the demo while it runs: redrawn in place on a terminal, line by line elsewhere. The
//! summary goes to stdout, everything here to stderr.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use super::picture::Picture;

/// Between two status lines where nothing can be redrawn.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// Where the pictures go.
pub struct Screen {
    is_terminal: bool,
    /// Lines of the last picture, to be drawn over.
    lines_drawn: usize,
    events_told: usize,
    next_status_at: Duration,
}

impl Screen {
    /// A screen on stderr; `is_quiet` shows nothing at all.
    pub fn new() -> Self {
        Self {
            is_terminal: std::io::stderr().is_terminal(),
            lines_drawn: 0,
            events_told: 0,
            next_status_at: Duration::ZERO,
        }
    }

    /// Shows a moment.
    pub fn show(&mut self, picture: &Picture) {
        let text = if self.is_terminal { self.redraw(picture) } else { self.tell(picture) };
        // Nobody may be reading; the demo goes on.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    fn redraw(&mut self, picture: &Picture) -> String {
        let lines = picture.to_lines();
        let mut text = String::new();
        if self.lines_drawn > 0 {
            text.push_str(&format!("\x1b[{}A", self.lines_drawn));
        }
        for line in &lines {
            text.push_str(&format!("{line}\x1b[K\n"));
        }
        // What the last picture had below.
        text.push_str("\x1b[J");
        self.lines_drawn = lines.len();
        text
    }

    fn tell(&mut self, picture: &Picture) -> String {
        let mut text: String =
            picture.events[self.events_told..].iter().map(|e| e.to_line() + "\n").collect();
        self.events_told = picture.events.len();
        if !picture.is_waiting && picture.elapsed >= self.next_status_at {
            self.next_status_at = picture.elapsed + STATUS_INTERVAL;
            let lines = picture.to_lines();
            let summary = lines.iter().filter(|line| line.trim_start().starts_with("queue:"));
            text.extend(summary.map(|line| {
                format!("  {:>5.1} s  {}\n", picture.elapsed.as_secs_f64(), line.trim())
            }));
        }
        text
    }
}
