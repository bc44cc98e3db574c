//! The help texts on the files that describe a node's devices.

/// Format of the device plugin's configuration.
pub const DEVICE_PLUGIN: &str = "Device plugin (--device-plugin-config):
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
  driver's root has them. No hook runs: programs that ask the linker's cache do not find them there.

  By sharing.mps an nvidia-cuda-mps-control runs for each GPU, started anew when it dies; a
  container gets its CUDA_MPS_PIPE_DIRECTORY, /dev/shm, and its limits: the part that its pod
  asks for where Muster's scheduler placed it, else one of the GPU's equal parts. It has one such
  GPU, as with failRequestsGreaterThanOne; a container that requests more than one GPU is placed
  only on nodes with enough GPUs that are not shared through MPS. Renaming by product, and the
  strategy volume-mounts are refused. The agent names an invalid field at its start, with the
  valid form.";

/// The MIG manager, and the format of its configurations.
pub const MIG_MANAGER: &str = "MIG manager (--mig-manager): the node's label nvidia.com/mig.config names a configuration, and
nvidia.com/mig.config.state says how far it is: pending, rebooting (MIG mode waits for a reset of the
GPU, which the agent does not do), success, or failed. The condition muster.io/mig-config-failed has the
reason of a failure, and events name the pods that the agent waits for. A GPU that will be partitioned
anew is not offered to pods. Instances that the new configuration has too stay, with their pods, and a
GPU that has the configuration already stays as it is. If a step fails, the agent restores the GPU's
earlier partition.

  Without --mig-config the names are all-disabled, all-enabled, all-balanced, and all- with a profile of
  the node's GPUs, its + a dot: all-1g.10gb, all-1g.10gb.me. With it they are the file's, in the format
  of NVIDIA's MIG manager:
  version: v1
  mig-configs:
    half:
      - device-filter: [\"0x233010DE\"]   # left out: GPUs of any product
        devices: all                     # or indices, [0, 1]; other GPUs stay as they are
        mig-enabled: true
        mig-devices: {1g.10gb: 4, 3g.40gb: 1}   # left out: MIG mode without instances";

/// Format of other vendors' devices.
pub const VENDORS: &str = "Other vendors (--vendor); packaging/examples/vendors has AMD, Gaudi, Ascend and Trainium:
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
  health:                                  # else a device is healthy while its file exists
    command: [grep, -qx, Operational, \"/sys/class/accel/accel{number}/device/status\"]
    timeoutSeconds: 5                      # the defaults; a command that takes longer has failed
    everySeconds: 30

  An unhealthy device is not offered to pods until it is healthy again; pods that have it keep running.
  For an agent of Muster's own server, the scheduler chooses devices by their files (of one NUMA node if
  these are enough), and the node's condition muster.io/devices-unhealthy lists unhealthy devices with
  the reasons. A container without an image has the variables, and the files of its own devices as far as
  the node has them; the files of all other devices are hidden from it.";

/// Format of RDMA cards.
pub const RDMA: &str = "RDMA cards (--rdma-config), as k8s-rdma-shared-dev-plugin has it:
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
  there are umad and issm); if it has GPUs, NCCL_IB_HCA lists those of its cards that are near them. A
  container without an image, of an agent of Muster's own server, sees the node's device files in any
  case. The configuration does not change a pod's network. The shares are healthy while a port of a card
  is up.";
