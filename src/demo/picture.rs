//! What is to be seen of the demo at one moment, drawn for the terminal and for the status page.

use std::fmt::Write;
use std::time::Duration;

use ebbtide_queue::control::{ControlView, NodeRecord, NodeState};
use ebbtide_queue::status::ShardStatus;

use crate::words::counted;

/// Events that are shown at a time.
pub const EVENTS_SHOWN: usize = 8;
/// Characters of the progress bar.
const BAR_WIDTH: usize = 40;

/// One moment of the demo.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    /// Whether nobody has enqueued work yet, so that the time does not run.
    pub is_waiting: bool,
    pub elapsed: Duration,
    pub total: Duration,
    pub nodes: Vec<NodeRow>,
    /// Nodes that the controller wants.
    pub nodes_wanted: u32,
    pub status: ShardStatus,
    pub updates: u64,
    pub notices: u32,
    pub kills: u32,
    /// What the trainer runs on, in words.
    pub trainer: String,
    pub last_decision: String,
    /// Newest last.
    pub events: Vec<Event>,
}

/// A node as it is shown.
#[derive(Debug, Clone)]
pub struct NodeRow {
    pub name: String,
    pub market: &'static str,
    pub state: String,
    pub in_flight: u32,
    pub tokens_per_second: f64,
    pub is_leaving: bool,
}

/// Something that happened.
#[derive(Debug, Clone)]
pub struct Event {
    pub at: Duration,
    pub text: String,
}

impl NodeRow {
    /// A row for a node that has reported.
    pub fn of(record: &NodeRecord, market: &'static str, view: &ControlView) -> Self {
        let remaining = record.notice_deadline.map(|deadline| deadline.remaining(view.now));
        let state = match (record.state, remaining) {
            (NodeState::Draining | NodeState::Drained, Some(left)) => {
                format!("{}, gone in {:.1} s", state_word(record.state), left.as_secs_f64())
            }
            (state, _) => state_word(state).to_owned(),
        };
        Self {
            name: record.node.to_string(),
            market,
            state,
            in_flight: record.in_flight,
            tokens_per_second: record.tokens_per_second,
            is_leaving: matches!(record.state, NodeState::Draining | NodeState::Drained),
        }
    }
}

fn state_word(state: NodeState) -> &'static str {
    match state {
        NodeState::Starting => "starting",
        NodeState::Loading => "loading weights",
        NodeState::Ready => "at work",
        NodeState::NotReady => "not ready",
        NodeState::Draining => "draining",
        NodeState::Drained => "drained",
    }
}

impl Picture {
    /// The lines for a terminal.
    pub fn to_lines(&self) -> Vec<String> {
        let mut lines = vec![self.bar()];
        lines.push(format!(
            "  {:<10} {:<10} {:<24} {:>6} {:>9}",
            "NODE", "MARKET", "STATE", "UNITS", "TOKENS/S"
        ));
        for node in &self.nodes {
            lines.push(format!(
                "  {:<10} {:<10} {:<24} {:>6} {:>9.0}",
                node.name, node.market, node.state, node.in_flight, node.tokens_per_second
            ));
        }
        lines.push(String::new());
        lines.push(format!("  {}", self.fleet_line()));
        lines.push(format!("  {}", self.queue_line()));
        lines.push(format!("  {}", self.work_line()));
        lines.push(String::new());
        let hidden = self.events.len().saturating_sub(EVENTS_SHOWN);
        lines.extend(self.events[hidden..].iter().map(Event::to_line));
        lines
    }

    fn bar(&self) -> String {
        if self.is_waiting {
            return format!("  {} waiting for work", "░".repeat(BAR_WIDTH));
        }
        let part = self.elapsed.as_secs_f64() / self.total.as_secs_f64().max(0.001);
        let filled = ((part * BAR_WIDTH as f64) as usize).min(BAR_WIDTH);
        format!(
            "  {}{} {:>4.1} / {:.0} s · {} · {}",
            "█".repeat(filled),
            "░".repeat(BAR_WIDTH - filled),
            self.elapsed.as_secs_f64(),
            self.total.as_secs_f64(),
            counted(self.notices.into(), "notice"),
            counted(self.kills.into(), "kill"),
        )
    }

    fn fleet_line(&self) -> String {
        let trainer = match self.trainer.as_str() {
            "" => String::new(),
            trainer => format!(" · trainer: {trainer}"),
        };
        format!("fleet: {} of {} nodes{trainer}", self.nodes.len(), self.nodes_wanted)
    }

    fn queue_line(&self) -> String {
        let to_score = self.status.reward_ready + self.status.reward_leased;
        let to_score = if to_score > 0 { format!(", {to_score} to score") } else { String::new() };
        format!(
            "queue: {} ready, {} in flight{to_score} · buffer: {} · policy version {}",
            self.status.ready,
            self.status.leased,
            counted(self.status.sealed_waiting, "sealed group"),
            self.status.version,
        )
    }

    fn work_line(&self) -> String {
        format!(
            "{} · {} · {} handed back · {} saved from lost nodes",
            counted(self.status.completed, "sample"),
            counted(self.updates, "update"),
            counted(self.status.hand_backs.values().sum(), "unit"),
            counted(self.status.tokens.preserved, "token"),
        )
    }

    /// The page for a browser; it loads itself anew every second.
    pub fn to_html(&self) -> String {
        let mut rows = String::new();
        for node in &self.nodes {
            let class = if node.is_leaving { " class=\"leaving\"" } else { "" };
            // Writing to a string cannot fail.
            let _ = write!(
                rows,
                "<tr{class}><td>{}</td><td>{}</td><td>{}</td><td class=\"number\">{}</td>\
                 <td class=\"number\">{:.0}</td></tr>",
                escape(&node.name),
                node.market,
                escape(&node.state),
                node.in_flight,
                node.tokens_per_second,
            );
        }
        let events: String = self
            .events
            .iter()
            .rev()
            .map(|event| format!("<li>{}</li>", escape(event.to_line().trim())))
            .collect();
        let percent = 100.0 * self.elapsed.as_secs_f64() / self.total.as_secs_f64().max(0.001);
        include_str!("page.html")
            .replace("{{percent}}", &format!("{:.0}", percent.min(100.0)))
            .replace("{{headline}}", &escape(self.bar().trim_start_matches([' ', '█', '░'])))
            .replace("{{fleet}}", &escape(&self.fleet_line()))
            .replace("{{queue}}", &escape(&self.queue_line()))
            .replace("{{work}}", &escape(&self.work_line()))
            .replace("{{decision}}", &escape(&self.last_decision))
            .replace("{{rows}}", &rows)
            .replace("{{events}}", &events)
    }
}

impl Event {
    /// `  12.3 s  text`
    pub fn to_line(&self) -> String {
        format!("  {:>5.1} s  {}", self.at.as_secs_f64(), self.text)
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
