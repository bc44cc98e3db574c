//! The help text on the audit log's policy.

/// Format of the policy; the example is the default policy.
pub const AUDIT: &str =
    "Audit log (--audit-policy-file), as kube-apiserver reads it. The first rule that
matches a request says how much of it is recorded: None, Metadata, Request (with the object that was
sent) or RequestResponse (also with the object in the answer). A request that no rule matches is not
recorded; answers 401 and 403 always are. This is the default:
  apiVersion: audit.k8s.io/v1
  kind: Policy
  rules:                         # also users, namespaces, nonResourceURLs, omitStages
    - {level: None, verbs: [get, list, watch, head, options]}
    - level: None                # questions about rights
      resources:
        - {group: authorization.k8s.io, resources: [\"*\"]}
        - {group: authentication.k8s.io, resources: [\"*\"]}
    - level: None                # frequent writes of nodes and of the server's own parts
      userGroups: [\"system:muster\", \"system:nodes\"]
      resources:
        - {group: \"\", resources: [events, \"*/status\", endpoints]}
        - {group: events.k8s.io, resources: [events]}
        - {group: discovery.k8s.io, resources: [endpointslices]}
        - {group: coordination.k8s.io, resources: [leases]}
        - {group: batch, resources: [\"*/status\"]}
        - {group: kubeflow.org, resources: [\"*/status\"]}
        - {group: scheduling.volcano.sh, resources: [\"*/status\"]}
        - {group: policy, resources: [\"*/status\"]}
    - {level: Metadata}

  packaging/examples/audit-policy.yaml is an example. `muster audit verify` checks the log.";
