//! The loop that keeps Services' Endpoints and EndpointSlices as [`subsets`](super::subsets)
//! computes them. For a Service without a selector, its author maintains them.

use std::collections::BTreeMap;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Endpoints, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client};

use super::access::{answered, unless_gone};
use super::mirror::{self, FieldMirror, ObjectKey, key_of, reference, text};
use super::stopped;
use super::subsets::{self, Backend};
use super::work_queue::PendingKeys;
use crate::context::Context;
use crate::event_recorder::EventRecorder;
use crate::retry::guarded;

/// How many Services are reconciled before the watches are read again.
const TAKE_MAX: usize = 64;

pub(crate) async fn run(mut ctx: Context) {
    let client = &ctx.client;
    let any = watcher::Config::default;
    let kept = format!("{}={}", subsets::SLICE_KEEPER, subsets::SLICE_KEEPER_NAME);
    let mut services = mirror::watch(Api::<Service>::all(client.clone()), any());
    let mut pods = mirror::watch(
        Api::<Pod>::all(client.clone()),
        any().fields("status.podIP!="),
    );
    let mut endpoints = mirror::watch(Api::<Endpoints>::all(client.clone()), any());
    let slices = Api::<EndpointSlice>::all(client.clone());
    let mut slices = mirror::watch(slices, any().labels(&kept));
    let mut state = EndpointState {
        client: client.clone(),
        notes: EventRecorder::new(client.clone(), subsets::SLICE_KEEPER_NAME),
        services: FieldMirror::new(),
        pods: FieldMirror::new(),
        endpoints: FieldMirror::new(),
        slices: FieldMirror::new(),
        work: PendingKeys::new(),
    };
    loop {
        tokio::select! {
            () = stopped(&mut ctx.stop) => return,
            Some(event) = services.next() => {
                for change in state.services.take(event, |service| service) {
                    state.work.add(change.key);
                }
            }
            Some(event) = pods.next() => state.take_pod(event),
            Some(event) = endpoints.next() => {
                for change in state.endpoints.take(event, |endpoints| endpoints) {
                    state.work.add(change.key);
                }
            }
            Some(event) = slices.next() => {
                for change in state.slices.take(event, |slice| slice) {
                    let slice = state.slices.get(&change.key).or(change.before.as_ref());
                    if let Some(service) = slice.and_then(service_of) {
                        state.work.add((change.key.0, service.to_owned()));
                    }
                }
            }
            () = state.work.ready(), if state.synced() => state.act().await,
        }
    }
}

struct EndpointState {
    client: Client,
    notes: EventRecorder,
    services: FieldMirror<Service>,
    pods: FieldMirror<Backend>,
    endpoints: FieldMirror<Endpoints>,
    slices: FieldMirror<EndpointSlice>,
    work: PendingKeys<ObjectKey>,
}

fn service_of(slice: &EndpointSlice) -> Option<&str> {
    let labels = slice.metadata.labels.as_ref()?;
    labels.get(subsets::SERVICE_NAME).map(String::as_str)
}

impl EndpointState {
    fn synced(&self) -> bool {
        self.services.synced()
            && self.pods.synced()
            && self.endpoints.synced()
            && self.slices.synced()
    }

    /// Queues the Services that select a pod, or did.
    fn take_pod(&mut self, event: watcher::Event<Pod>) {
        for change in self.pods.take(event, Backend::of) {
            let now = self.pods.get(&change.key);
            if now == change.before.as_ref() {
                continue;
            }
            for (key, service) in self.services.in_namespace(&change.key.0) {
                let Some(selector) = subsets::selects(service) else {
                    continue;
                };
                let states = now.into_iter().chain(&change.before);
                let mut labels = states.map(|backend| &backend.labels);
                if labels.any(|labels| subsets::matches(selector, labels)) {
                    self.work.add(key.clone());
                }
            }
        }
    }

    async fn act(&mut self) {
        for key in self.work.take(TAKE_MAX) {
            match guarded(self.settle(&key)).await {
                Ok(()) => self.work.done(&key),
                Err(error) => {
                    let uid = self.services.get(&key).and_then(|s| s.metadata.uid.clone());
                    self.notes
                        .note_panic(&reference("v1", "Service", &key, uid), &error);
                    if !answered(&error, 409) {
                        tracing::warn!(service = ?key, %error, "the controller could not write endpoints; it tries again");
                    }
                    self.work.failed(key);
                }
            }
        }
    }

    async fn settle(&self, key: &ObjectKey) -> kube::Result<()> {
        let service = self.services.get(key);
        let selected = service.and_then(|s| Some((s, subsets::selects(s)?)));
        let Some((service, selector)) = selected else {
            return self.clear(key).await;
        };
        // A namespace that is being emptied takes its Services with it.
        if service.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let backends: Vec<&Backend> = self
            .pods
            .in_namespace(&key.0)
            .map(|(_, backend)| backend)
            .filter(|backend| subsets::matches(selector, &backend.labels))
            .collect();
        self.put_endpoints(key, subsets::endpoints(service, &backends))
            .await?;
        self.put_slices(key, subsets::slices(service, &backends))
            .await
    }

    async fn put_endpoints(&self, key: &ObjectKey, mut wanted: Endpoints) -> kube::Result<()> {
        let api: Api<Endpoints> = Api::namespaced(self.client.clone(), &key.0);
        let params = PostParams::default();
        match self.endpoints.get(key) {
            None => {
                api.create(&params, &wanted).await?;
            }
            Some(found) => {
                let same = found.subsets == wanted.subsets
                    && found.metadata.labels == wanted.metadata.labels;
                if !same {
                    wanted.metadata.resource_version = found.metadata.resource_version.clone();
                    unless_gone(api.replace(&key.1, &params, &wanted).await)?;
                }
            }
        }
        Ok(())
    }

    async fn put_slices(&self, key: &ObjectKey, wanted: Vec<EndpointSlice>) -> kube::Result<()> {
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &key.0);
        let params = PostParams::default();
        let mut found = self.slices_of(key);
        for mut slice in wanted {
            let slice_key = key_of(&slice);
            // A slice's address type cannot be changed.
            let of_the_kind = |old: &&EndpointSlice| old.address_type == slice.address_type;
            match found.remove(&slice_key) {
                Some(old) if of_the_kind(&old) => {
                    let same = old.endpoints == slice.endpoints
                        && old.ports.clone().unwrap_or_default()
                            == slice.ports.clone().unwrap_or_default()
                        && old.metadata.labels == slice.metadata.labels
                        && old.metadata.owner_references == slice.metadata.owner_references;
                    if !same {
                        slice.metadata.resource_version = old.metadata.resource_version.clone();
                        unless_gone(api.replace(&slice_key.1, &params, &slice).await)?;
                    }
                }
                Some(old) => {
                    self.delete_slice(&api, old).await?;
                    api.create(&params, &slice).await?;
                }
                None => {
                    api.create(&params, &slice).await?;
                }
            }
        }
        for old in found.into_values() {
            self.delete_slice(&api, old).await?;
        }
        Ok(())
    }

    fn slices_of<'a>(&'a self, key: &'a ObjectKey) -> BTreeMap<ObjectKey, &'a EndpointSlice> {
        let here = self.slices.in_namespace(&key.0);
        here.filter(|(_, slice)| service_of(slice) == Some(&key.1))
            .map(|(key, slice)| (key.clone(), slice))
            .collect()
    }

    async fn delete_slice(
        &self,
        api: &Api<EndpointSlice>,
        slice: &EndpointSlice,
    ) -> kube::Result<()> {
        let name = text(slice.metadata.name.as_ref());
        unless_gone(api.delete(name, &DeleteParams::default()).await)?;
        Ok(())
    }

    /// Deletes the Endpoints and slices of a Service that is gone or has no selector any more.
    async fn clear(&self, key: &ObjectKey) -> kube::Result<()> {
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &key.0);
        for slice in self.slices_of(key).into_values() {
            self.delete_slice(&slices, slice).await?;
        }
        let keeper = |endpoints: &Endpoints| {
            let labels = endpoints.metadata.labels.as_ref();
            labels.and_then(|labels| labels.get(subsets::ENDPOINTS_KEEPER).cloned())
        };
        let kept = self.endpoints.get(key).and_then(keeper);
        if kept.as_deref() == Some(subsets::ENDPOINTS_KEEPER_NAME) {
            let api: Api<Endpoints> = Api::namespaced(self.client.clone(), &key.0);
            unless_gone(api.delete(&key.1, &DeleteParams::default()).await)?;
        }
        Ok(())
    }
}
