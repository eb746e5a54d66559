//! docker-registry on a free loopback port, and what it was asked. Several may stand over one storage
//! directory: an open one for pushing and one that wants a password.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::process::Process;
use crate::scripted::tokens::SERVICE;
use crate::scripted::{Authority, ISSUER, Identity};

const PROGRAM: &str = "docker-registry";
const START: Duration = Duration::from_secs(10);
/// The access log is written after the answer; a log this long quiet holds every request that was answered before.
const QUIET: Duration = Duration::from_millis(60);
/// A registry that is being asked without end never falls quiet.
const QUIET_LIMIT: Duration = Duration::from_secs(5);

/// User name and password of a registry that wants them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// User name.
    pub user: String,
    /// Password.
    pub password: String,
}

/// A running registry.
#[derive(Debug)]
pub struct Registry {
    process: Process,
    address: String,
    account: Option<Account>,
}

/// A place in a registry's request log.
#[derive(Clone, Copy, Debug)]
pub struct Mark(usize);

/// One request that a registry answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `HEAD`, …
    pub method: String,
    /// Path with the query string.
    pub path: String,
    /// Status code: 206 tells a range.
    pub status: u16,
    /// Bytes of the body that was sent.
    pub bytes: u64,
}

impl Request {
    /// Whether this transferred bytes of the blob `digest`.
    pub fn fetches_blob(&self, digest: &str) -> bool {
        self.method == "GET" && self.path.contains("/blobs/") && self.path.ends_with(digest)
    }
}

impl Registry {
    /// Starts a registry named `name` over `storage`; with an account it answers nobody else.
    pub fn start(name: &str, run: &Path, storage: &Path, account: Option<Account>) -> Result<Self> {
        let mut auth = String::new();
        if let Some(account) = &account {
            let passwords = run.join(format!("{name}.htpasswd"));
            write(&passwords, &hashed(account)?)?;
            auth = format!("auth: {{htpasswd: {{realm: bed, path: {}}}}}\n", passwords.display());
        }
        Ok(Self { account, ..Self::start_with(name, run, storage, "", &auth)? })
    }

    /// Starts one whose API lies below a path of its own, such as `/nested/`.
    pub fn start_below(name: &str, run: &Path, storage: &Path, path: &str) -> Result<Self> {
        Self::start_with(name, run, storage, &format!(", prefix: {path}"), "")
    }

    /// Starts one that speaks TLS; of its clients it wants a certificate of `clients`, if there is such.
    pub fn start_tls(
        name: &str,
        run: &Path,
        storage: &Path,
        identity: &Identity,
        clients: Option<&Authority>,
    ) -> Result<Self> {
        let [certificate, key] = ["cert", "key"].map(|ending| run.join(format!("{name}.{ending}")));
        write(&certificate, &identity.certificate)?;
        write(&key, &identity.key)?;
        let mut client_authorities = String::new();
        if let Some(clients) = clients {
            let bundle = run.join(format!("{name}.clients"));
            write(&bundle, &clients.pem())?;
            client_authorities = format!(", clientcas: [{}]", bundle.display());
        }
        let (certificate, key) = (certificate.display(), key.display());
        let tls = format!(", tls: {{certificate: {certificate}, key: {key}{client_authorities}}}");
        Self::start_with(name, run, storage, &tls, "")
    }

    /// Starts one that wants tokens: from the server at `realm`, signed with the key of `certificate` (PEM).
    pub fn start_with_tokens(
        name: &str,
        run: &Path,
        storage: &Path,
        realm: &str,
        certificate: &str,
    ) -> Result<Self> {
        let bundle = run.join(format!("{name}.pem"));
        write(&bundle, certificate)?;
        let (service, bundle) = (SERVICE, bundle.display());
        let auth = format!(
            "auth: {{token: {{realm: \"{realm}\", service: {service}, issuer: {ISSUER}, rootcertbundle: {bundle}}}}}\n"
        );
        Self::start_with(name, run, storage, "", &auth)
    }

    /// Starts one that listens on `address` in the network namespace `namespace`, which `ip netns` knows.
    pub fn start_in(namespace: &str, address: &str, name: &str, run: &Path, storage: &Path) -> Result<Self> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, PROGRAM]);
        Self::serve(command, address, name, run, storage, "", "")
    }

    /// With more keys of `http`, each after a comma, and a section for who may come in.
    fn start_with(name: &str, run: &Path, storage: &Path, http: &str, auth: &str) -> Result<Self> {
        let address = free_loopback_address()?;
        Self::serve(Command::new(PROGRAM), &address, name, run, storage, http, auth)
    }

    fn serve(
        mut command: Command,
        address: &str,
        name: &str,
        run: &Path,
        storage: &Path,
        http: &str,
        auth: &str,
    ) -> Result<Self> {
        let config = format!(
            "version: 0.1\nlog: {{level: warn}}\n\
             storage: {{filesystem: {{rootdirectory: {}}}, delete: {{enabled: true}}}}\n\
             http: {{addr: {address}, secret: of-the-test-bed{http}}}\n{auth}",
            storage.display()
        );
        let file = run.join(format!("{name}.yml"));
        write(&file, &config)?;
        command.arg("serve").arg(&file).env("OTEL_TRACES_EXPORTER", "none");
        let mut process = Process::spawn(name, command, run)?;
        process
            .wait_until(&format!("listening on {address}"), START, || TcpStream::connect(address).is_ok())?;
        Ok(Self { process, address: address.to_owned(), account: None })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// `127.0.0.1:<port>` for all on loopback, as it begins a reference.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The account it wants.
    pub fn account(&self) -> Option<&Account> {
        self.account.as_ref()
    }

    /// The present end of the request log.
    pub fn mark(&self) -> Mark {
        self.await_quiet();
        Mark(self.log().len())
    }

    /// The requests since `mark`, in the order of their answers.
    pub fn requests_since(&self, mark: Mark) -> Vec<Request> {
        self.await_quiet();
        self.log().get(mark.0..).unwrap_or_default().lines().filter_map(parse).collect()
    }

    /// Gives the process up, for a bed that stays.
    pub fn leave(self) {
        self.process.leave();
    }

    fn log(&self) -> String {
        fs::read_to_string(self.process.stdout()).unwrap_or_default()
    }

    fn await_quiet(&self) {
        let limit = Instant::now() + QUIET_LIMIT;
        let mut length = self.log().len();
        loop {
            thread::sleep(QUIET);
            let now = self.log().len();
            if now == length || Instant::now() > limit {
                return;
            }
            length = now;
        }
    }
}

/// A port that was free a moment ago. The kernel hands ports out in turn, so it will not come again at once.
pub fn free_loopback_address() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no free loopback port")?;
    Ok(listener.local_addr().context("a listener without an address")?.to_string())
}

fn hashed(account: &Account) -> Result<String> {
    let output = Command::new("htpasswd")
        .args(["-nbB", &account.user, &account.password])
        .output()
        .context("cannot run htpasswd; run `make install`")?;
    ensure!(output.status.success(), "htpasswd failed: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).context("htpasswd printed something that is not text")
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Reads a line of the combined log format: `host - user [time] "GET /v2/ HTTP/1.1" 200 2 "referer" "agent"`.
fn parse(line: &str) -> Option<Request> {
    let mut quoted = line.split('"');
    let mut request = quoted.nth(1)?.split(' ');
    let mut numbers = quoted.next()?.split_whitespace();
    Some(Request {
        method: request.next()?.to_owned(),
        path: request.next()?.to_owned(),
        status: numbers.next()?.parse().ok()?,
        bytes: numbers.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::{Request, parse};

    #[test]
    fn a_line_of_the_access_log_becomes_a_request() {
        let line = "127.0.0.1 - - [01/Dec/2026:02:40:00 +0000] \"GET /v2/a/blobs/sha256:00 HTTP/1.1\" 206 17 \"\" \"x\"";
        let expected =
            Request { method: "GET".into(), path: "/v2/a/blobs/sha256:00".into(), status: 206, bytes: 17 };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(parse("time=now level=info msg=\"listening\""), None);
    }
}
