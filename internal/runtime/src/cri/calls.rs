//! Calls to the container runtime: bounded in time, with errors that name the socket. Images
//! and sandboxes are made here when a container needs them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use tonic::transport::Channel;

use super::api::image_service_client::ImageServiceClient;
use super::api::runtime_service_client::RuntimeServiceClient;
use super::{CALL_LIMIT, ContainerEntry, CriState, api, convert};
use crate::error::RuntimeError;
use crate::spec::{ContainerId, ContainerSpec, PullPolicy};
use crate::state::ContainerState;

/// How long fetching an image may take.
const PULL_LIMIT: Duration = Duration::from_secs(3600);
/// Largest answer read; lists of containers are the largest.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;

impl CriState {
    pub(super) fn table(&self) -> MutexGuard<'_, BTreeMap<ContainerId, ContainerEntry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn runtime(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub(super) fn images(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub(super) fn fault(&self, action: &str, detail: &str) -> RuntimeError {
        RuntimeError::Cri {
            endpoint: self.config.socket.display().to_string(),
            action: action.into(),
            detail: detail.into(),
        }
    }

    pub(super) async fn call<T>(
        &self,
        action: &str,
        limit: Duration,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, RuntimeError> {
        match tokio::time::timeout(limit, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(self.fault(action, status.message())),
            Err(_) => Err(self.fault(action, &format!("no answer within {limit:?}"))),
        }
    }

    /// The runtime's id of a container that has not ended.
    pub(super) fn running(&self, id: &ContainerId) -> Result<Option<String>, RuntimeError> {
        let table = self.table();
        let entry = table
            .get(id)
            .ok_or_else(|| RuntimeError::NotFound(id.clone()))?;
        Ok(entry.status.exit().is_none().then(|| entry.cri_id.clone()))
    }

    pub(super) async fn ensure_image(
        &self,
        image: &str,
        policy: PullPolicy,
    ) -> Result<String, RuntimeError> {
        let spec = api::ImageSpec {
            image: image.into(),
            annotations: HashMap::new(),
        };
        if policy != PullPolicy::Always {
            let request = api::ImageStatusRequest {
                image: Some(spec.clone()),
            };
            let found = self
                .call(
                    "look for an image",
                    CALL_LIMIT,
                    self.images().image_status(request),
                )
                .await?;
            match (found.image, policy) {
                (Some(found), _) => return Ok(found.id),
                (None, PullPolicy::Never) => {
                    return Err(RuntimeError::Image {
                        reason: "ErrImageNeverPull",
                        image: image.into(),
                        detail: "it is not on this node and imagePullPolicy is Never; import it \
                                 there, or use IfNotPresent"
                            .into(),
                    });
                }
                _ => {}
            }
        }
        let request = api::PullImageRequest {
            image: Some(spec),
            auth: None,
            sandbox_config: None,
        };
        let pulled = self
            .call(
                "pull an image",
                PULL_LIMIT,
                self.images().pull_image(request),
            )
            .await;
        match pulled {
            Ok(answer) => Ok(answer.image_ref),
            Err(RuntimeError::Cri { detail, .. }) => Err(RuntimeError::Image {
                reason: "ErrImagePull",
                image: image.into(),
                detail,
            }),
            Err(other) => Err(other),
        }
    }

    pub(super) async fn sandboxes_of(
        &self,
        pod_uid: &str,
    ) -> Result<Vec<api::PodSandbox>, RuntimeError> {
        let label_selector = HashMap::from([
            (convert::OWNER.to_string(), self.config.owner.clone()),
            (convert::POD_UID.to_string(), pod_uid.to_string()),
        ]);
        let filter = Some(api::PodSandboxFilter {
            id: String::new(),
            label_selector,
        });
        let request = api::ListPodSandboxRequest { filter };
        Ok(self
            .call(
                "list sandboxes",
                CALL_LIMIT,
                self.runtime().list_pod_sandbox(request),
            )
            .await?
            .items)
    }

    /// The pod's sandbox that is ready, made if there is none.
    pub(super) async fn ensure_sandbox(
        &self,
        spec: &ContainerSpec,
    ) -> Result<(String, api::PodSandboxConfig), RuntimeError> {
        let _one = self.sandboxes.lock().await;
        let found = self.sandboxes_of(&spec.pod.uid).await?;
        let attempt = |sandbox: &api::PodSandbox| {
            sandbox
                .metadata
                .as_ref()
                .map_or(0, |metadata| metadata.attempt)
        };
        let ready = found
            .iter()
            .find(|sandbox| sandbox.state() == api::PodSandboxState::SandboxReady);
        if let Some(sandbox) = ready {
            return Ok((
                sandbox.id.clone(),
                convert::sandbox(spec, &self.config.owner, attempt(sandbox)),
            ));
        }
        let next = found.iter().map(attempt).max().map_or(0, |last| last + 1);
        let config = convert::sandbox(spec, &self.config.owner, next);
        let request = api::RunPodSandboxRequest {
            config: Some(config.clone()),
            runtime_handler: self.config.runtime_handler.clone(),
        };
        let made = self
            .call(
                "make a sandbox",
                CALL_LIMIT,
                self.runtime().run_pod_sandbox(request),
            )
            .await?;
        Ok((made.pod_sandbox_id, config))
    }

    /// Stores a state and reports a change. An end is final.
    pub(super) fn settle(&self, id: &ContainerId, state: ContainerState) {
        let status = {
            let mut table = self.table();
            let Some(entry) = table.get_mut(id) else {
                return;
            };
            if entry.status.exit().is_some() || entry.status.state == state {
                return;
            }
            entry.status.state = state;
            entry.status.clone()
        };
        let _ = self.changes.send(status);
    }
}
