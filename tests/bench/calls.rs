//! Calls to two sides in turns, and what they took.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::Result;
use drayd_tests::cri::Cri;
use drayd_tests::usage::processor_time;

/// Who is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Drayd,
    Containerd,
}

/// Both, and their processes: a call to the one may be work for the other.
pub(crate) struct Sides {
    pub(crate) clients: [Cri; 2],
    pub(crate) processes: [u32; 2],
}

/// What calls of one kind took on one side.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken {
    times: Vec<Duration>,
    /// Seconds of all of them.
    processor: f64,
}

/// One row for each kind of call.
#[derive(Default)]
pub(crate) struct Table(String);

impl Sides {
    pub(crate) fn client(&self, side: Side) -> &Cri {
        &self.clients[side as usize]
    }

    /// Makes `calls` in each of `blocks`, one after another, to one side and then to the other. `call` is told how many
    /// came before on its side.
    pub(crate) async fn measure(
        &self,
        blocks: usize,
        calls: usize,
        call: impl AsyncFn(&Cri, usize) -> Result<()>,
    ) -> Result<[Taken; 2]> {
        let mut taken = [Taken::default(), Taken::default()];
        for block in 0..blocks {
            let mut sides = [Side::Drayd, Side::Containerd];
            // Whoever is first finds the machine as the other left it.
            sides.rotate_left(block % 2);
            for side in sides {
                let taken = &mut taken[side as usize];
                let before = self.processor()?;
                for number in 0..calls {
                    let started = Instant::now();
                    call(self.client(side), block * calls + number).await?;
                    taken.times.push(started.elapsed());
                }
                taken.processor += self.processor()? - before;
            }
        }
        Ok(taken)
    }

    fn processor(&self) -> Result<f64> {
        let [drayd, containerd] = self.processes.map(processor_time);
        Ok(drayd?.own + containerd?.own)
    }
}

impl Taken {
    /// The time in milliseconds that a share of the calls stayed within.
    fn quantile(&self, share: f64) -> f64 {
        let mut times = self.times.clone();
        times.sort();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "some thousands of calls"
        )]
        let index = ((times.len() - 1) as f64 * share).ceil() as usize;
        times[index].as_secs_f64() * 1e3
    }

    fn processor_each(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "some thousands of calls")]
        let calls = self.times.len() as f64;
        self.processor / calls * 1e3
    }
}

impl Table {
    pub(crate) fn row(&mut self, name: &str, [drayd, containerd]: &[Taken; 2]) {
        let _ = write!(self.0, "| {name} ");
        let numbers: [fn(&Taken) -> f64; 3] =
            [|taken| taken.quantile(0.5), |taken| taken.quantile(0.99), Taken::processor_each];
        for number in numbers {
            let (ours, theirs) = (number(drayd), number(containerd));
            let _ = write!(self.0, "| {ours:.2} | {theirs:.2} | {:.2} ", ours / theirs);
        }
        let _ = writeln!(self.0, "|");
    }

    pub(crate) fn text(&self) -> String {
        format!(
            "| call | p50: drayd | containerd | ratio | p99: drayd | containerd | ratio | CPU: drayd | containerd | ratio |\n\
             {}|\n{}",
            "|---".repeat(10),
            self.0
        )
    }
}
