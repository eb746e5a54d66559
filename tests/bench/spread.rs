//! A number of several samples.

/// Median, least and most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    pub(crate) fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let mut numbers: Vec<f64> = numbers.into_iter().collect();
        numbers.sort_by(f64::total_cmp);
        let at = |index: usize| numbers.get(index).copied().unwrap_or(f64::NAN);
        let last = numbers.len().saturating_sub(1);
        Self { median: f64::midpoint(at(last / 2), at(numbers.len() / 2)), least: at(0), most: at(last) }
    }

    pub(crate) fn shown(&self, digits: usize) -> String {
        let Self { median, least, most } = self;
        format!("{median:.digits$} ({least:.digits$}–{most:.digits$})")
    }
}
