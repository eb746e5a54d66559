//! Docker's credential helpers: programs that are asked for the credentials of a server on their standard input and
//! answer on their standard output. One that does not answer in time is killed, with all that it started.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

use super::credentials::Login;
use super::credentials_file::HelperQuery;
use super::secret::Secret;

/// How long a helper may take. One that asks a cloud for a token needs a second or two; a pull waits for it.
const DEADLINE: Duration = Duration::from_secs(10);
/// Largest answer read. The tokens of clouds are a few KiB.
const LIMIT: u64 = 1 << 20;
/// The user name that says the secret is an identity token.
const TOKEN_USER: &str = "<token>";
/// What a helper says of a server it does not know; the protocol has no other sign of it.
const UNKNOWN: &[u8] = b"credentials not found";

/// Why a helper gave no answer. Shows nothing of what it wrote, which may hold anything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelperError {
    /// There is no such program.
    #[error("docker-credential-{0} is not in PATH")]
    Missing(String),
    /// The program cannot be run.
    #[error("{path} cannot be run: {cause}")]
    Start {
        /// The program.
        path: PathBuf,
        /// The system's reason.
        cause: String,
    },
    /// It was killed.
    #[error("{path} did not answer within {} s", DEADLINE.as_secs())]
    Slow {
        /// The program.
        path: PathBuf,
    },
    /// It ended with an error.
    #[error("{path} failed ({status})")]
    Failed {
        /// The program.
        path: PathBuf,
        /// How it ended.
        status: String,
    },
    /// Its answer is not the protocol's.
    #[error("{path} did not answer with JSON of Username and Secret")]
    Answer {
        /// The program.
        path: PathBuf,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Credentials {
    username: String,
    secret: String,
}

/// The program of a helper. `directories` is where programs are, in the form of `PATH`.
pub(super) fn find(directories: &OsStr, name: &str) -> Result<PathBuf, HelperError> {
    let program = OsString::from(format!("docker-credential-{name}"));
    std::env::split_paths(directories)
        .map(|directory| directory.join(&program))
        .find(|path| is_program(path))
        .ok_or_else(|| HelperError::Missing(name.to_owned()))
}

/// What the helper knows of the server. `directories` is where programs are, in the form of `PATH`.
pub(super) async fn ask(directories: &OsStr, query: &HelperQuery) -> Result<Option<Login>, HelperError> {
    let path = find(directories, &query.name)?;
    let cannot = |error: std::io::Error| HelperError::Start { path: path.clone(), cause: error.to_string() };
    let mut child = Running(
        Command::new(&path)
            .arg("get")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(cannot)?,
    );
    let answer = tokio::time::timeout(DEADLINE, child.exchange(&query.server)).await;
    let (output, status) = answer.map_err(|_| HelperError::Slow { path: path.clone() })?.map_err(cannot)?;
    if !status.success() {
        let unknown = output.windows(UNKNOWN.len()).any(|part| part == UNKNOWN);
        return if unknown {
            Ok(None)
        } else {
            Err(HelperError::Failed { path, status: status.to_string() })
        };
    }
    let Ok(Credentials { username, secret }) = serde_json::from_slice(&output) else {
        return Err(HelperError::Answer { path });
    };
    let secret = Secret::new(secret);
    Ok(Some(match username.as_str() {
        TOKEN_USER => Login::IdentityToken(secret),
        _ => Login::Password { username: username.into(), password: secret },
    }))
}

impl HelperError {
    /// Whether asking again may help.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self, Self::Slow { .. })
    }
}

/// A helper at work. Helpers are often scripts, so its whole process group ends with it.
struct Running(Child);

impl Running {
    async fn exchange(&mut self, server: &str) -> std::io::Result<(Vec<u8>, std::process::ExitStatus)> {
        if let Some(mut input) = self.0.stdin.take() {
            // A helper may have its answer without reading.
            let _ = input.write_all(server.as_bytes()).await;
        }
        let mut output = Vec::new();
        if let Some(stdout) = self.0.stdout.take() {
            stdout.take(LIMIT).read_to_end(&mut output).await?;
        }
        Ok((output, self.0.wait().await?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // There is an id only until the process was waited for, so no other process can have it.
        if let Some(id) = self.0.id().and_then(|id| i32::try_from(id).ok()) {
            // It may just have ended by itself.
            let _ = killpg(Pid::from_raw(id), Signal::SIGKILL);
        }
    }
}

fn is_program(path: &std::path::Path) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use super::*;

    /// Installs `docker-credential-test`. Another test may be between fork and exec with the new file still open for
    /// writing, and then it cannot be run, so it is run once for nothing.
    pub(in super::super) fn install(directory: &Path, script: &str) {
        let path = directory.join("docker-credential-test");
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, format!("#!/bin/sh\n[ \"$1\" = get ] || exit 0\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        while std::process::Command::new(&path).status().is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    async fn asked(directory: &Path) -> Result<Option<Login>, HelperError> {
        let query = HelperQuery { name: "test".into(), server: "reg.test".into() };
        ask(directory.as_os_str(), &query).await
    }

    #[tokio::test]
    async fn a_helper_is_asked_for_the_server_and_answers_with_a_login() {
        let directory = tempfile::tempdir().unwrap();
        for (user, expected) in [
            ("u", Login::Password { username: "u".into(), password: Secret::new("of get reg.test") }),
            ("<token>", Login::IdentityToken(Secret::new("of get reg.test"))),
        ] {
            let script = format!(r#"printf '{{"Username":"{user}","Secret":"of %s %s"}}' "$1" "$(cat)""#);
            install(directory.path(), &script);
            assert_eq!(asked(directory.path()).await, Ok(Some(expected)));
        }
    }

    #[tokio::test]
    async fn a_server_that_is_unknown_to_the_helper_has_no_login() {
        let directory = tempfile::tempdir().unwrap();
        install(directory.path(), "echo credentials not found in native keychain; exit 1");
        assert_eq!(asked(directory.path()).await, Ok(None));
    }

    #[tokio::test]
    async fn a_helper_that_fails_is_named_and_its_words_are_not_shown() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(asked(directory.path()).await, Err(HelperError::Missing("test".into())));
        for script in
            ["echo canary; echo canary >&2; exit 3", "echo canary", "echo '{\"Username\":\"canary\"}'"]
        {
            install(directory.path(), script);
            let error = asked(directory.path()).await.unwrap_err();
            assert!(matches!(error, HelperError::Failed { .. } | HelperError::Answer { .. }), "{error}");
            assert!(error.to_string().contains("docker-credential-test"), "{error}");
            assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_helper_that_hangs_is_killed_with_what_it_started() {
        let directory = tempfile::tempdir().unwrap();
        let pid = directory.path().join("pid");
        install(directory.path(), &format!("sleep 300 & echo $! > {}; wait", pid.display()));
        let limit = Duration::from_millis(500);
        let read = || std::fs::read_to_string(&pid).ok()?.trim().parse::<i32>().ok();
        while read().is_none() {
            let _ = tokio::time::timeout(limit, asked(directory.path())).await;
        }
        let started = Pid::from_raw(read().unwrap());
        let gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{started}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        };
        for _ in 0..200 {
            if gone() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("process {started} is still there");
    }

    #[tokio::test(start_paused = true)]
    async fn a_helper_has_ten_seconds() {
        let directory = tempfile::tempdir().unwrap();
        install(directory.path(), "sleep 300");
        let error = asked(directory.path()).await.unwrap_err();
        assert!(error.to_string().ends_with("did not answer within 10 s"), "{error}");
    }

    #[test]
    fn only_a_slow_helper_is_worth_another_try() {
        assert!(HelperError::Slow { path: PathBuf::new() }.is_transient());
        assert!(!HelperError::Missing(String::new()).is_transient());
    }
}
