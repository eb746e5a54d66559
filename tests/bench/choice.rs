//! What of it is measured: all, unless the environment says otherwise.

use std::env;

use anyhow::{Context, Result, bail, ensure};

use crate::content;
use crate::contestant::{self, Contestant};

const ROUNDS: &str = "BENCH_ROUNDS";
const IMAGES: &str = "BENCH_IMAGES";
const CONTESTANTS: &str = "BENCH_CONTESTANTS";
/// Among the images: `typical` over the link.
const LINK: &str = "link";

pub(crate) struct Choice {
    pub(crate) rounds: usize,
    pub(crate) images: Vec<&'static str>,
    pub(crate) contestants: Vec<&'static Contestant>,
    pub(crate) link: bool,
    /// Whether something is left out.
    pub(crate) narrowed: bool,
}

impl Choice {
    /// From the variables `BENCH_ROUNDS`, `BENCH_IMAGES` and `BENCH_CONTESTANTS`.
    pub(crate) fn of_environment() -> Result<Self> {
        let rounds = env::var(ROUNDS).unwrap_or_else(|_| "3".to_owned());
        let rounds = rounds.parse().with_context(|| format!("{ROUNDS} is not a number"))?;
        ensure!(rounds > 0, "{ROUNDS} is 0");
        let mut names: Vec<&str> = content::NAMES.to_vec();
        names.push(LINK);
        let images = chosen(IMAGES, &names)?;
        let shorts: Vec<&str> = contestant::ALL.iter().map(|contestant| contestant.short).collect();
        let contestants = chosen(CONTESTANTS, &shorts)?;
        Ok(Self {
            rounds,
            narrowed: images.len() < names.len() || contestants.len() < shorts.len(),
            link: images.contains(&LINK),
            images: content::NAMES.into_iter().filter(|name| images.contains(name)).collect(),
            contestants: contestant::ALL
                .iter()
                .filter(|contestant| contestants.contains(&contestant.short))
                .collect(),
        })
    }
}

/// Those of `all` that the variable lists, between commas.
fn chosen<'a>(variable: &str, all: &[&'a str]) -> Result<Vec<&'a str>> {
    let Ok(list) = env::var(variable) else { return Ok(all.to_vec()) };
    list.split(',')
        .map(str::trim)
        .map(|name| match all.iter().find(|known| **known == name) {
            Some(known) => Ok(*known),
            None => bail!("{variable}: {name} is none of {}", all.join(", ")),
        })
        .collect()
}
