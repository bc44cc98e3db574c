//! The help text on the files that describe a node's devices.

/// Formats of the device plugin's configuration, of other vendors' devices and of RDMA cards.
pub const DEVICE_PLUGIN: &str = "Device plugin (--device-plugin-config), with --engine kubernetes:
  version: v1
  flags:                         # may be left out
    migStrategy: mixed           # or none, single
    nvidiaDriverRoot: /          # for CDI: below which the node has the driver's files,
    nvidiaDevRoot: /             # and its dev; the driver's root where left out
    plugin:
      deviceListStrategy: envvar # or cdi-annotations, cdi-cri, or a list of these
      passDeviceSpecs: true      # false: no device files, where the runtime brings them (so with CDI)
      containerDriverRoot: /driver-root   # where the agent's own container has the driver's root
      cdiAnnotationPrefix: cdi.k8s.io/
  sharing:                       # none unless given: GPUs that several containers have
    timeSlicing:                 # in turns; or mps: at once, each within its limits (no
                                 # slices, and 48 replicas at most; 1 beside --gpu-parts)
      renameByDefault: true      # as nvidia.com/gpu.shared
      failRequestsGreaterThanOne: true
      resources:
        - name: nvidia.com/gpu   # or a profile of slices, nvidia.com/mig-1g.10gb
          replicas: 4            # what each counts as
          devices: [0, 1]        # or all (the default), a number, UUIDs, or 0:1 for a slice

  By CDI a container gets its devices from any runtime that reads such files (containerd from 1.7
  with enable_cdi, from 2.0 as it is; CRI-O), without NVIDIA's: the agent writes muster.io-gpu.json
  into --cdi-dir, with each GPU and slice by UUID and index, and `all`, as muster.io/gpu=NAME. With
  them come the driver's libraries for computing, watching and video, and nvidia-smi, as far as the
  driver's root has them. No hook runs: programs that ask the linker's cache don't find them there.

  By sharing.mps an nvidia-cuda-mps-control runs for each GPU, started anew when it dies; a
  container gets its CUDA_MPS_PIPE_DIRECTORY, /dev/shm, and its limits: the part that its pod
  asks for where Muster's scheduler placed it, else one of the GPU's equal parts. It has one such
  GPU, as with failRequestsGreaterThanOne: Muster's scheduler gives others to who asks for several.
  Renaming by product, and the strategy volume-mounts are refused. What is wrong is said at the
  start, with its field and what would be right.

MIG manager (--mig-manager), with --engine kubernetes: the node's label nvidia.com/mig.config names a
configuration, and nvidia.com/mig.config.state says how far it is: pending, rebooting (MIG mode waits
for a reset of the GPU, which the agent doesn't do), success, or failed; the condition
muster.io/mig-config-failed says why, and events who is waited for. GPUs to be cut anew are given to
nobody; instances that the new configuration has too stay, with what runs on them, and a GPU that is cut
so already is not touched. Where a step fails the GPU is put back to what it was.

  Without --mig-config the names are all-disabled, all-enabled, all-balanced, and all- with a profile of
  the node's GPUs, its + a dot: all-1g.10gb, all-1g.10gb.me. With it they are the file's, in the format
  of NVIDIA's MIG manager:
  version: v1
  mig-configs:
    half:
      - device-filter: [\"0x233010DE\"]   # left out: GPUs of any product
        devices: all                     # or indices, [0, 1]; GPUs that no entry means stay as they are
        mig-enabled: true
        mig-devices: {1g.10gb: 4, 3g.40gb: 1}   # left out: MIG mode without instances

Other vendors (--vendor); packaging/examples/vendors has AMD, Gaudi, Ascend and Trainium:
  resource: example.com/accelerator
  device: /dev/accel/accel{number}         # each such file is a device; its number is decimal
  only:                                    # left out: all are
    file: /sys/class/accel/accel{number}/device/vendor
    is: \"0x1da3\"
  with: [\"/dev/accel/accel_controlD{number}\"]   # its further files, where they are
  always: [/dev/manager]                   # files of every container that has one, where they are
  environment: {VISIBLE: \"{numbers}\"}      # {numbers} and {files}: the container's, with commas
  mounts: [{from: /opt/driver, to: /opt/driver, readOnly: true}]   # where the node has them
  numa: /sys/class/accel/accel{number}/device/numa_node
  health:                                  # else a device is well while its file is there
    command: [grep, -qx, Operational, \"/sys/class/accel/accel{number}/device/status\"]
    timeoutSeconds: 5                      # the defaults; who takes longer, is not well
    everySeconds: 30

  A device that isn't well is given to nobody until it is; what runs on it goes on. With --engine
  embedded the scheduler chooses devices by their files (of one NUMA node where they suffice), and the
  node's condition muster.io/devices-unhealthy says which are not well, and why. A process of the node
  (without an image) has the variables, and the files of its own devices where the node has them; those
  of all others are hidden from it.

RDMA cards (--rdma-config), as k8s-rdma-shared-dev-plugin has it:
  configList:
    - resourceName: hca_shared_devices_a   # after resourcePrefix, rdma where left out
      rdmaHcaMax: 1000                     # how many containers may have the cards at once
      selectors:                           # left out: all cards. One of each list
        vendors: [\"15b3\"]
        deviceIDs: [\"1021\"]
        drivers: [mlx5_core]
        ifNames: [ib0, ib1]
        linkTypes: [infiniband, ether]

  A container with one has the device files of all cards of the resource (uverbs, rdma_cm, and where
  there are umad and issm), and with GPUs is told by NCCL_IB_HCA which of its cards are near these. A
  process of the node (--engine embedded, without an image) sees the node's device files in any case.
  A pod's network is its own matter. The shares are well while a port of a card is up.";
