//! The dashboard and the alerts, asked of a Prometheus that reads drayd.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drayd_tests::metrics;
use drayd_tests::peers;
use drayd_tests::peers::Release;
use drayd_tests::process::Process;
use drayd_tests::registry::free_loopback_address;
use drayd_tests::scripted::image::Image;
use drayd_tests::scripted::tokens::{Rules, Tokens};
use drayd_tests::scripted::{Reply, Scripted};
use drayd_tests::stage;
use drayd_tests::suite::Suite;
use drayd_tests::wait;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::{Stage, request};

const READY: Duration = Duration::from_secs(60);

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "every_query_of_the_dashboard_has_data_and_every_alert_is_sound", queries);
}

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(file)
}

/// Starts one that reads `target` every second.
fn start(run: &Path, target: &str, rules: &Path) -> Result<(Process, String)> {
    let directory = run.join("prometheus");
    fs::create_dir_all(&directory)?;
    let config = directory.join("prometheus.yml");
    let text = format!(
        "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nrule_files: [\"{}\"]\n\
         scrape_configs:\n  - job_name: drayd\n    static_configs:\n      - targets: [\"{target}\"]\n",
        rules.display()
    );
    fs::write(&config, text)?;
    let address = free_loopback_address()?;
    let mut command = Command::new(peers::prometheus()?);
    command
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
        .arg(format!("--web.listen-address={address}"));
    let mut process = Process::spawn("prometheus", command, run)?;
    let listening = || std::net::TcpStream::connect(&address).is_ok();
    process.wait_until(&format!("listening on {address}"), READY, listening)?;
    Ok((process, address))
}

async fn get(address: &str, path: &str) -> Result<Value> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (_, body) = answer.split_once("\r\n\r\n").context("the answer has no end of its head")?;
    serde_json::from_str(body).with_context(|| format!("{path}: {answer}"))
}

/// What a query gives now.
async fn query(address: &str, expression: &str) -> Result<Vec<Value>> {
    let escaped: Vec<_> = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let escaped = escaped.concat();
    let answer = get(address, &format!("/api/v1/query?query={escaped}")).await?;
    ensure!(answer["status"] == "success", "{expression}: {answer}");
    Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default())
}

/// The queries of the dashboard, as Grafana would send them.
fn of_dashboard() -> Result<Vec<String>> {
    let dashboard: Value = serde_json::from_slice(&fs::read(packaging("grafana/drayd.json"))?)?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let queries = targets.filter_map(|target| target["expr"].as_str());
    Ok(queries.map(|it| it.replace("$__rate_interval", "1m").replace("$instance", ".*")).collect())
}

async fn queries(bed: Stage) -> Result<()> {
    let directory = bed.containerd.registry_configuration();
    let settings = format!("{}[registry]\nconfig_path = [\"{}\"]\n", metrics::SETTINGS, directory.display());
    let drayd = stage::configured(&bed, &settings, &[]).await?;
    let registry = Scripted::start().await?;
    let image = Image::new("seen", 2, 64)?;
    image.serve(&registry);
    let tokens = Tokens::at(&registry, "/token", Rules::default());
    tokens.guard(&registry);
    // So that each kind of trouble is there: a limit, a break, and a mirror that has nothing.
    let mirror = Scripted::start().await?;
    mirror.gate(|_| Some(Reply::error(404, "NAME_UNKNOWN", "no")));
    let hosts = directory.join(registry.address());
    fs::create_dir_all(&hosts)?;
    let text = format!("server = \"{}\"\n[host.\"{}\"]\n", registry.url(), mirror.url());
    fs::write(hosts.join("hosts.toml"), text)?;
    let limited = Scripted::start().await?;
    limited.gate(|_| Some(Reply::error(429, "TOOMANYREQUESTS", "slow down").header("Retry-After", "0")));
    let pulls = async || {
        let cri = drayd.cri();
        let _ = cri.pull_as(request(&format!("{}/a:1", limited.address()), &[])).await;
        cri.pull_as(request(&image.reference(&registry), &[])).await?;
        cri.remove(&image.reference(&registry)).await
    };
    let (_prometheus, address) =
        start(bed.run(), &metrics::address(&drayd)?, &packaging("prometheus/drayd.rules.yml"))?;
    let mut missing: BTreeSet<String> = of_dashboard()?.into_iter().collect();
    ensure!(missing.len() >= 12, "{missing:?}");
    // Rates need two values of each series, the first of which is none.
    wait::until("every query has data", READY, async || {
        pulls().await?;
        let mut still = BTreeSet::new();
        for expression in &missing {
            if query(&address, expression).await?.is_empty() {
                still.insert(expression.clone());
            }
        }
        missing = still;
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(missing.is_empty())
    })
    .await
    .with_context(|| format!("without data: {missing:?}"))?;

    let rules = get(&address, "/api/v1/rules").await?;
    let rules = rules["data"]["groups"][0]["rules"].as_array().cloned().context("no rules")?;
    ensure!(rules.len() == 6, "{rules:#?}");
    for rule in &rules {
        ensure!(rule["health"] == "ok", "{rule}");
    }
    let names = get(&address, "/api/v1/label/__name__/values").await?;
    let names: BTreeSet<&str> =
        names["data"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let text = fs::read_to_string(packaging("prometheus/drayd.rules.yml"))?;
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    for name in words.filter(|word| word.starts_with("drayd_")) {
        ensure!(names.contains(name), "the alerts ask for {name}, which there is not");
    }
    let firing = query(&address, "ALERTS{alertname=\"DraydDown\"}").await?;
    ensure!(firing.is_empty(), "{firing:?}");
    fs::remove_dir_all(hosts)?;
    Ok(())
}
