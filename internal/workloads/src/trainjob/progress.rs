//! What lets the training program report its progress: the address, the server's certificate, and a token that is good
//! for the reports of this TrainJob alone. As the plugin `trainjobstatus` of Kubeflow Trainer gives them.

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, Container, EnvVar, KeyToPath, PodSpec, ProjectedVolumeSource,
    ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
};
use resources::training_progress::{
    CA_VARIABLE, DIRECTORY, TOKEN_VARIABLE, URL_VARIABLE, audience,
};

use super::policy::upsert;

/// The volume with the token and the certificate.
const VOLUME: &str = "kubeflow-trainer-token";
const TOKEN_FILE: &str = "token";
const CA_FILE: &str = "ca.crt";
/// Seconds that a token is good for; the agent renews it while the pod runs.
const TOKEN_SECONDS: i64 = 3600;
/// The ConfigMap that every namespace has.
const CA_CONFIG: &str = "kube-root-ca.crt";
/// The API's address, in the variables that the agent gives every container.
const SERVER: &str = "https://$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)";

/// Lets all containers of the pod report the progress of this TrainJob.
pub(crate) fn allow_reports(spec: &mut PodSpec, namespace: &str, name: &str) {
    let audience = audience(namespace, name);
    let variables = [
        (URL_VARIABLE, format!("{SERVER}/apis/{audience}")),
        (CA_VARIABLE, format!("{DIRECTORY}/{CA_FILE}")),
        (TOKEN_VARIABLE, format!("{DIRECTORY}/{TOKEN_FILE}")),
    ]
    .map(|(name, value)| EnvVar {
        name: name.to_owned(),
        value: Some(value),
        value_from: None,
    });
    for container in &mut spec.containers {
        upsert(&mut container.env, &variables);
        mount(container);
    }
    let volumes = spec.volumes.get_or_insert_default();
    volumes.retain(|known| known.name != VOLUME);
    volumes.push(volume(audience));
}

fn mount(container: &mut Container) {
    let mounts = container.volume_mounts.get_or_insert_default();
    mounts.retain(|known| known.name != VOLUME && known.mount_path != DIRECTORY);
    mounts.push(VolumeMount {
        name: VOLUME.to_owned(),
        mount_path: DIRECTORY.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    });
}

fn volume(audience: String) -> Volume {
    let token = ServiceAccountTokenProjection {
        audience: Some(audience),
        expiration_seconds: Some(TOKEN_SECONDS),
        path: TOKEN_FILE.to_owned(),
    };
    let certificate = ConfigMapProjection {
        name: CA_CONFIG.to_owned(),
        items: Some(vec![KeyToPath {
            key: CA_FILE.to_owned(),
            path: CA_FILE.to_owned(),
            mode: None,
        }]),
        optional: None,
    };
    let sources = vec![
        VolumeProjection {
            service_account_token: Some(token),
            ..VolumeProjection::default()
        },
        VolumeProjection {
            config_map: Some(certificate),
            ..VolumeProjection::default()
        },
    ];
    Volume {
        name: VOLUME.to_owned(),
        projected: Some(ProjectedVolumeSource {
            sources: Some(sources),
            default_mode: None,
        }),
        ..Volume::default()
    }
}
