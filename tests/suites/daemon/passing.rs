//! What drayd does not serve itself goes to containerd and back unchanged.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use drayd_proto::cri;
use drayd_tests::bed::Bed;
use drayd_tests::containerd::RUNC_HANDLER;
use drayd_tests::launch::Launch;
use drayd_tests::peers::Release;
use drayd_tests::raw;
use drayd_tests::suite::Suite;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Code;

const EVENTS: &str = "/runtime.v1.RuntimeService/GetContainerEvents";

pub(crate) fn add(suite: &mut Suite, release: Release) {
    suite.check(release, "version_and_status_are_containerds_own", version_and_status);
    suite.check(release, "an_unknown_method_gets_containerds_own_error", unknown);
    if release == Release::V1_6 {
        suite.check(release, "a_stream_that_containerd_lacks_is_unimplemented", no_events);
    } else {
        suite.check(
            release,
            "container_events_stream_through_and_an_open_stream_does_not_hold_up_the_end",
            events,
        );
    }
}

async fn version_and_status(bed: Arc<Bed>) -> Result<()> {
    let drayd = Launch::new(&bed.containerd.socket(), "version")?.start()?;
    let (through, own) = (drayd.cri(), bed.containerd.cri());
    let version = cri::VersionRequest { version: "v1".into() };
    let passed = through.runtime.clone().version(version.clone()).await?.into_inner();
    ensure!(passed == own.runtime.clone().version(version).await?.into_inner(), "{passed:?}");
    ensure!(passed.runtime_name == "containerd" && passed.runtime_api_version == "v1", "{passed:?}");
    for verbose in [false, true] {
        let request = cri::StatusRequest { verbose };
        let passed = through.runtime.clone().status(request).await?.into_inner();
        let expected = own.runtime.clone().status(request).await?.into_inner();
        ensure!(passed == expected, "{passed:?}\nis not\n{expected:?}");
        ensure!(passed.info.contains_key("config") == verbose, "{:?}", passed.info.keys());
    }
    Ok(())
}

async fn unknown(bed: Arc<Bed>) -> Result<()> {
    let drayd = Launch::new(&bed.containerd.socket(), "unknown")?.start()?;
    for path in
        ["/no.such.Service/Method", "/runtime.v1.RuntimeService/NoSuchMethod", "/runtime.v1.ImageServiceX/Y"]
    {
        let passed = refusal(drayd.socket(), path).await?;
        let own = refusal(&bed.containerd.socket(), path).await?;
        ensure!(passed.0 == Code::Unimplemented && passed == own, "{path}: {passed:?}, not {own:?}");
    }
    // Of its own service drayd itself knows what there is not.
    let own = refusal(drayd.socket(), "/runtime.v1.ImageService/NoSuchMethod").await?;
    ensure!(own.0 == Code::Unimplemented, "{own:?}");
    Ok(())
}

async fn refusal(socket: &std::path::Path, path: &'static str) -> Result<(Code, String)> {
    let mut answers = match raw::call(socket, path).await {
        Err(status) => return Ok((status.code(), status.message().to_owned())),
        Ok(answers) => answers,
    };
    match answers.message().await {
        Err(status) => Ok((status.code(), status.message().to_owned())),
        Ok(answer) => bail!("{path} was answered: {answer:?}"),
    }
}

async fn no_events(bed: Arc<Bed>) -> Result<()> {
    let drayd = Launch::new(&bed.containerd.socket(), "no-events")?.start()?;
    let passed = refusal(drayd.socket(), EVENTS).await?;
    let own = refusal(&bed.containerd.socket(), EVENTS).await?;
    ensure!(passed.0 == Code::Unimplemented && passed == own, "{passed:?}, not {own:?}");
    Ok(())
}

async fn events(bed: Arc<Bed>) -> Result<()> {
    let mut drayd = Launch::new(&bed.containerd.socket(), "events")?.start()?;
    let reference = bed.images.pause.reference(bed.registry.address());
    drayd.cri().pull(&reference, None, None).await?;
    let (sender, mut received) = mpsc::unbounded_channel();
    let socket = drayd.socket().to_owned();
    // A task of its own: containerd sends its headers with the first event only.
    let reading = tokio::spawn(async move {
        let mut stream = raw::call(&socket, EVENTS).await?;
        while let Some(event) = stream.message().await? {
            let _ = sender.send(event);
        }
        Ok::<_, tonic::Status>(())
    });
    let cri = bed.containerd.cri();
    let mut seen = false;
    // The subscription may begin only after the first pod.
    for _ in 0..3 {
        let pod = cri.start_pod(RUNC_HANDLER, bed.run()).await?;
        let names_pod = |event: &Vec<u8>| event.windows(pod.id.len()).any(|part| part == pod.id.as_bytes());
        let event = async { while received.recv().await.is_some_and(|event| !names_pod(&event)) {} };
        seen = timeout(Duration::from_secs(3), event).await.is_ok();
        cri.stop_pod(&pod).await?;
        if seen {
            break;
        }
    }
    ensure!(!reading.is_finished(), "the stream ended by itself");
    ensure!(seen, "no event of any pod came through");
    drayd.tell_to_stop()?;
    let status = drayd.ended(Duration::from_secs(2)).await?;
    ensure!(status.code() == Some(0), "{status}");
    ensure!(timeout(Duration::from_secs(1), reading).await.is_ok(), "the stream outlived drayd");
    Ok(())
}
