//! The help text on the pod security files.

/// Formats of the Kubernetes configuration and of the allow-list.
pub const POD_SECURITY: &str = "Pod security (--pod-security-config), as kube-apiserver's admission reads it, alone or as a plugin
of an AdmissionConfiguration. Labels of a namespace take precedence there:
pod-security.kubernetes.io/enforce, audit and warn, each with -version too:
  apiVersion: pod-security.admission.config.k8s.io/v1
  kind: PodSecurityConfiguration
  defaults:                      # without labels; what is left out is baseline, latest
    enforce: baseline            # or privileged, restricted: such pods are refused
    enforce-version: latest      # or v1.34 and older
    audit: baseline
    audit-version: latest
    warn: baseline
    warn-version: latest
  exemptions: {usernames: [], runtimeClasses: [], namespaces: []}

  What some namespaces may have beyond that (--pod-security-allow); these are the defaults:
  apiVersion: muster.io/v1alpha1
  kind: PodSecurityAllowList
  spec:
    hostPaths: []                # - {path: /srv/datasets, readOnly: true, namespaces: [vision]}
    capabilities: []             # - {add: [IPC_LOCK], namespaces: [training]}

  hostNetwork: [{namespaces: [rdma]}] lists the namespaces whose pods may set hostNetwork. Without it all may, unless a node's
  pods have networks of their own (--pod-network own of its agent).

  A directory of hostPaths is allowed with all that lies below it, by its path as it is written;
  readOnly: true asks for mounts that say so. packaging/examples/pod-security-allow.yaml is one to
  start from.";
