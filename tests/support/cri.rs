//! A client of the CRI on a unix socket: containerd's, or drayd's in front of it.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use drayd_proto::cri;
use drayd_proto::cri::image_service_client::ImageServiceClient;
use drayd_proto::cri::runtime_service_client::RuntimeServiceClient;
use tokio::time::{Instant, sleep};
use tonic::Status;
use tonic::transport::Channel;

use crate::registry::Account;
use crate::socket;

/// The sandbox annotation by which the kubelet's side names the runtime handler of a pull.
pub const HANDLER_ANNOTATION: &str = "io.containerd.cri.runtime-handler";

/// From start to exit of a container that prints one line.
const RUN: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(20);
const NAMESPACE: &str = "bed";

/// Makes pod names and uids of this program distinct.
static PODS: AtomicU32 = AtomicU32::new(0);

/// Both CRI services of one socket.
#[derive(Clone, Debug)]
pub struct Cri {
    /// `ImageService`.
    pub images: ImageServiceClient<Channel>,
    /// `RuntimeService`.
    pub runtime: RuntimeServiceClient<Channel>,
}

/// A pod that runs.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Its sandbox id.
    pub id: String,
    /// What it was asked for with: creating a container takes it again.
    config: cri::PodSandboxConfig,
}

impl Cri {
    /// Connects at the first call.
    pub fn connect(socket: &Path) -> Self {
        let channel = socket::channel(socket);
        Self {
            images: ImageServiceClient::new(channel.clone()),
            // A verbose status holds the whole configuration.
            runtime: RuntimeServiceClient::new(channel).max_decoding_message_size(16 << 20),
        }
    }

    /// Pulls as the kubelet does, for a pod of `handler` if one is named; returns the image id.
    pub async fn pull(
        &self,
        reference: &str,
        handler: Option<&str>,
        account: Option<&Account>,
    ) -> Result<String, Status> {
        let auth = account.map(|account| cri::AuthConfig {
            username: account.user.clone(),
            password: account.password.clone(),
            ..cri::AuthConfig::default()
        });
        let sandbox_config = handler.map(|handler| cri::PodSandboxConfig {
            annotations: HashMap::from([(HANDLER_ANNOTATION.to_owned(), handler.to_owned())]),
            ..sandbox("pull", Path::new("/tmp"))
        });
        self.pull_as(cri::PullImageRequest { image: Some(image(reference)), auth, sandbox_config }).await
    }

    /// Pulls with a request that is made elsewhere.
    pub async fn pull_as(&self, request: cri::PullImageRequest) -> Result<String, Status> {
        Ok(self.images.clone().pull_image(request).await?.into_inner().image_ref)
    }

    /// The image of this name or id, if it is there.
    pub async fn image(&self, name: &str) -> Result<Option<cri::Image>, Status> {
        self.image_for(image(name)).await
    }

    /// The same, as it is asked for a pod.
    pub async fn image_for(&self, spec: cri::ImageSpec) -> Result<Option<cri::Image>, Status> {
        let request = cri::ImageStatusRequest { image: Some(spec), verbose: false };
        Ok(self.images.clone().image_status(request).await?.into_inner().image)
    }

    /// What a verbose status tells of an image besides itself.
    pub async fn image_info(&self, name: &str) -> Result<HashMap<String, String>, Status> {
        let request = cri::ImageStatusRequest { image: Some(image(name)), verbose: true };
        Ok(self.images.clone().image_status(request).await?.into_inner().info)
    }

    /// Removes an image under all its names.
    pub async fn remove(&self, name: &str) -> Result<(), Status> {
        self.images.clone().remove_image(cri::RemoveImageRequest { image: Some(image(name)) }).await?;
        Ok(())
    }

    /// Every image.
    pub async fn list(&self) -> Result<Vec<cri::Image>, Status> {
        Ok(self.images.clone().list_images(cri::ListImagesRequest::default()).await?.into_inner().images)
    }

    /// The images that a filter of this name lets through.
    pub async fn list_by(&self, name: &str) -> Result<Vec<cri::Image>, Status> {
        let request = cri::ListImagesRequest { filter: Some(filter(name)) };
        Ok(self.images.clone().list_images(request).await?.into_inner().images)
    }

    /// The messages of a stream of images: every image, or what a filter of this name lets through.
    pub async fn stream(&self, name: Option<&str>) -> Result<Vec<Vec<cri::Image>>, Status> {
        let request = cri::StreamImagesRequest { filter: name.map(filter) };
        let mut stream = self.images.clone().stream_images(request).await?.into_inner();
        let mut messages = Vec::new();
        while let Some(message) = stream.message().await? {
            messages.push(message.images);
        }
        Ok(messages)
    }

    /// What images take on disk: the directory, and bytes and inodes in use.
    pub async fn images_on_disk(&self) -> Result<(String, u64, u64), Status> {
        let answer = self.images.clone().image_fs_info(cri::ImageFsInfoRequest::default()).await?;
        let usage = answer.into_inner().image_filesystems.into_iter().next().unwrap_or_default();
        let count =
            |counted: Option<cri::UInt64Value>| counted.map(|counted| counted.value).unwrap_or_default();
        let mountpoint = usage.fs_id.map(|id| id.mountpoint).unwrap_or_default();
        Ok((mountpoint, count(usage.used_bytes), count(usage.inodes_used)))
    }

    /// Runtime conditions that hold, by name.
    pub async fn conditions(&self) -> Result<Vec<String>, Status> {
        let answer = self.runtime.clone().status(cri::StatusRequest { verbose: false }).await?.into_inner();
        let conditions = answer.status.unwrap_or_default().conditions;
        Ok(conditions
            .into_iter()
            .filter(|condition| condition.status)
            .map(|condition| condition.r#type)
            .collect())
    }

    /// The `info` map of a verbose status; `config` is containerd's configuration as JSON.
    pub async fn status_info(&self) -> Result<HashMap<String, String>, Status> {
        Ok(self.runtime.clone().status(cri::StatusRequest { verbose: true }).await?.into_inner().info)
    }

    /// Runs the image's own command in a pod of `handler` on the host's network, and returns what it printed. The pod
    /// is removed whatever happens; its log goes under `directory`.
    pub async fn run_pod(&self, reference: &str, handler: &str, directory: &Path) -> Result<String> {
        let pod = self.start_pod(handler, directory).await?;
        let printed = self.run_container(&pod, reference).await;
        self.stop_pod(&pod).await?;
        printed.with_context(|| format!("cannot run {reference} in a pod of {handler}"))
    }

    /// Starts a pod without containers; it stays until [`Cri::stop_pod`], or until its bed is cleared.
    pub async fn start_pod(&self, handler: &str, directory: &Path) -> Result<Pod> {
        let number = PODS.fetch_add(1, Ordering::Relaxed);
        let uid = format!("{}-{number}", process::id());
        let logs = directory.join("pods").join(&uid);
        fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
        let config = sandbox(&uid, &logs);
        let request =
            cri::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: handler.to_owned() };
        let answer = self.runtime.clone().run_pod_sandbox(request).await;
        let id =
            answer.with_context(|| format!("cannot run a pod of {handler}"))?.into_inner().pod_sandbox_id;
        Ok(Pod { id, config })
    }

    /// Stops and removes a pod with its containers.
    pub async fn stop_pod(&self, pod: &Pod) -> Result<()> {
        let stop = cri::StopPodSandboxRequest { pod_sandbox_id: pod.id.clone() };
        self.runtime.clone().stop_pod_sandbox(stop).await.context("cannot stop the pod")?;
        let remove = cri::RemovePodSandboxRequest { pod_sandbox_id: pod.id.clone() };
        self.runtime.clone().remove_pod_sandbox(remove).await.context("cannot remove the pod")?;
        Ok(())
    }

    /// Creates and runs a container in a pod; returns what it printed.
    pub async fn run_container(&self, pod: &Pod, reference: &str) -> Result<String> {
        let id = self.create_container(pod, reference).await?;
        let start = cri::StartContainerRequest { container_id: id.clone() };
        self.runtime.clone().start_container(start).await.context("cannot start the container")?;
        self.await_exit(&id).await?;
        let log = Path::new(&pod.config.log_directory).join("main.log");
        let text = fs::read_to_string(&log).with_context(|| format!("cannot read {}", log.display()))?;
        Ok(printed(&text))
    }

    /// Creates a container in a pod; returns its id.
    pub async fn create_container(&self, pod: &Pod, reference: &str) -> Result<String> {
        let config = cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata { name: "main".into(), attempt: 0 }),
            image: Some(image(reference)),
            log_path: "main.log".into(),
            linux: Some(cri::LinuxContainerConfig {
                security_context: Some(cri::LinuxContainerSecurityContext {
                    namespace_options: Some(host_network()),
                }),
            }),
            ..cri::ContainerConfig::default()
        };
        let create = cri::CreateContainerRequest {
            pod_sandbox_id: pod.id.clone(),
            config: Some(config),
            sandbox_config: Some(pod.config.clone()),
        };
        let created = self.runtime.clone().create_container(create).await;
        Ok(created.context("cannot create the container")?.into_inner().container_id)
    }

    async fn await_exit(&self, container: &str) -> Result<()> {
        let deadline = Instant::now() + RUN;
        loop {
            let request = cri::ContainerStatusRequest { container_id: container.to_owned(), verbose: false };
            let answer = self.runtime.clone().container_status(request).await?.into_inner();
            let status = answer.status.context("a container status without a status")?;
            if status.state() == cri::ContainerState::ContainerExited {
                ensure!(status.exit_code == 0, "exit code {}: {}", status.exit_code, status.message);
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("still {:?} after {RUN:?}", status.state());
            }
            sleep(TICK).await;
        }
    }
}

fn image(reference: &str) -> cri::ImageSpec {
    cri::ImageSpec { image: reference.to_owned(), ..cri::ImageSpec::default() }
}

fn filter(name: &str) -> cri::ImageFilter {
    cri::ImageFilter { image: Some(image(name)) }
}

fn host_network() -> cri::NamespaceOption {
    cri::NamespaceOption { network: cri::NamespaceMode::Node.into(), ..cri::NamespaceOption::default() }
}

fn sandbox(uid: &str, logs: &Path) -> cri::PodSandboxConfig {
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: format!("pod-{uid}"),
            uid: uid.to_owned(),
            namespace: NAMESPACE.into(),
            attempt: 0,
        }),
        log_directory: logs.display().to_string(),
        linux: Some(cri::LinuxPodSandboxConfig {
            security_context: Some(cri::LinuxSandboxSecurityContext {
                namespace_options: Some(host_network()),
            }),
            ..cri::LinuxPodSandboxConfig::default()
        }),
        ..cri::PodSandboxConfig::default()
    }
}

/// The text of a CRI log: each line is `time stream tag text`.
fn printed(log: &str) -> String {
    let texts = log.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
    texts.collect::<Vec<_>>().join("\n")
}
