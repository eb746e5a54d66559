//! What can be wrong with a configuration file, told with its place in the file.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {file}")]
    Read {
        /// The file.
        file: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file has mistakes: all that were found, in the order of the file.
    #[error("{}", lines(.0))]
    Invalid(Vec<Problem>),
}

/// One mistake in the file; shown as `FILE:LINE:COLUMN: FAULT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// What is wrong there.
    pub fault: Fault,
}

/// What is wrong at one place in the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It is not TOML. The rest of the file is not looked at.
    #[error("{0}")]
    Syntax(String),
    /// There is no such section.
    #[error("unknown section [{name}]{hint}")]
    UnknownSection {
        /// What stands there.
        name: String,
        /// What may have been meant.
        hint: Hint,
    },
    /// There is no such key in this section.
    #[error("unknown key `{key}` in [{section}]{hint}")]
    UnknownKey {
        /// What stands there.
        key: String,
        /// Where it stands.
        section: String,
        /// What may have been meant.
        hint: Hint,
    },
    /// A key stands before the first section; every key belongs to one.
    #[error("key `{key}` is outside of any section{hint}")]
    OutsideSection {
        /// What stands there.
        key: String,
        /// Where it may belong.
        hint: Hint,
    },
    /// The name of a section has a value that is not a section.
    #[error("`{0}` is a section: write its keys below a line [{0}]")]
    NotASection(String),
    /// The value has the wrong type or form.
    #[error("`{key}` in [{section}]: {reason}")]
    Value {
        /// Whose value it is.
        key: String,
        /// Where it stands.
        section: String,
        /// What was found and what is expected.
        reason: String,
    },
}

/// What may have been meant by an unknown name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// A key of the same section that is spelt nearly so.
    Key(String),
    /// A section that is spelt nearly so.
    Section(String),
    /// The key exists, but in these sections.
    Elsewhere(Vec<String>),
    /// Nothing is near: these are the names there are.
    Known(Vec<String>),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, fault } = self;
        write!(f, "{}:{line}:{column}: {fault}", file.display())
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, ": did you mean `{key}`?"),
            Self::Section(section) => write!(f, ": did you mean [{section}]?"),
            Self::Elsewhere(sections) => write!(f, ": it belongs in [{}]", sections.join("] or [")),
            Self::Known(names) => write!(f, ": known are {}", names.join(", ")),
        }
    }
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}
