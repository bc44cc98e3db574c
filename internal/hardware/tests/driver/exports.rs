//! The stand-in has every call that node agents use.

use crate::standin::StandIn;

/// The names of the calls that a library lacks.
macro_rules! lacking {
    ($library:expr, $($name:ident),* $(,)?) => {{
        let library = $library;
        let found = [$((stringify!($name), library.$name.is_ok())),*];
        found.into_iter().filter(|(_, found)| !found).map(|(name, _)| name).collect::<Vec<_>>()
    }};
}

#[test]
fn no_call_is_lacking() {
    let standin = StandIn::of("4x-a40.toml");
    let nvml = standin.nvml();
    let lacking: Vec<&str> = lacking!(
        nvml.lib(),
        nvmlInitWithFlags,
        nvmlErrorString,
        nvmlSystemGetDriverVersion,
        nvmlSystemGetNVMLVersion,
        nvmlSystemGetCudaDriverVersion_v2,
        nvmlSystemGetProcessName,
        nvmlDeviceGetCount_v2,
        nvmlDeviceGetHandleByIndex_v2,
        nvmlDeviceGetHandleByUUID,
        nvmlDeviceGetHandleByPciBusId_v2,
        nvmlDeviceGetName,
        nvmlDeviceGetUUID,
        nvmlDeviceGetIndex,
        nvmlDeviceGetMinorNumber,
        nvmlDeviceGetSerial,
        nvmlDeviceGetBrand,
        nvmlDeviceGetArchitecture,
        nvmlDeviceGetCudaComputeCapability,
        nvmlDeviceGetPciInfo_v3,
        nvmlDeviceGetMemoryInfo_v2,
        nvmlDeviceGetBAR1MemoryInfo,
        nvmlDeviceGetAttributes_v2,
        nvmlDeviceGetVbiosVersion,
        nvmlDeviceGetBoardPartNumber,
        nvmlDeviceGetComputeMode,
        nvmlDeviceSetComputeMode,
        nvmlDeviceGetPersistenceMode,
        nvmlDeviceGetEccMode,
        nvmlDeviceGetTopologyCommonAncestor,
        nvmlDeviceGetTopologyNearestGpus,
        nvmlDeviceGetP2PStatus,
        nvmlDeviceGetCpuAffinity,
        nvmlDeviceGetCpuAffinityWithinScope,
        nvmlDeviceGetMemoryAffinity,
        nvmlDeviceGetNvLinkState,
        nvmlDeviceGetNvLinkVersion,
        nvmlDeviceGetNvLinkCapability,
        nvmlDeviceGetNvLinkRemotePciInfo_v2,
        nvmlDeviceGetNvLinkRemoteDeviceType,
        nvmlDeviceGetNvLinkErrorCounter,
        nvmlDeviceGetGpuFabricInfoV,
        nvmlDeviceGetCurrPcieLinkGeneration,
        nvmlDeviceGetMaxPcieLinkGeneration,
        nvmlDeviceGetCurrPcieLinkWidth,
        nvmlDeviceGetMaxPcieLinkWidth,
        nvmlDeviceGetMigMode,
        nvmlDeviceSetMigMode,
        nvmlDeviceGetMaxMigDeviceCount,
        nvmlDeviceGetMigDeviceHandleByIndex,
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle,
        nvmlDeviceIsMigDeviceHandle,
        nvmlDeviceGetGpuInstanceId,
        nvmlDeviceGetComputeInstanceId,
        nvmlDeviceGetGpuInstanceProfileInfo,
        nvmlDeviceGetGpuInstanceProfileInfoV,
        nvmlDeviceGetGpuInstancePossiblePlacements_v2,
        nvmlDeviceGetGpuInstanceRemainingCapacity,
        nvmlDeviceCreateGpuInstance,
        nvmlDeviceCreateGpuInstanceWithPlacement,
        nvmlDeviceGetGpuInstances,
        nvmlDeviceGetGpuInstanceById,
        nvmlGpuInstanceDestroy,
        nvmlGpuInstanceGetInfo,
        nvmlGpuInstanceGetComputeInstanceProfileInfo,
        nvmlGpuInstanceGetComputeInstanceProfileInfoV,
        nvmlGpuInstanceCreateComputeInstance,
        nvmlGpuInstanceGetComputeInstances,
        nvmlGpuInstanceGetComputeInstanceById,
        nvmlComputeInstanceDestroy,
        nvmlComputeInstanceGetInfo_v2,
        nvmlEventSetCreate,
        nvmlEventSetFree,
        nvmlEventSetWait_v2,
        nvmlDeviceRegisterEvents,
        nvmlDeviceGetSupportedEventTypes,
        nvmlDeviceGetTemperature,
        nvmlDeviceGetClockInfo,
        nvmlDeviceGetMaxClockInfo,
        nvmlDeviceGetUtilizationRates,
        nvmlDeviceGetEncoderUtilization,
        nvmlDeviceGetDecoderUtilization,
        nvmlDeviceGetPowerUsage,
        nvmlDeviceGetEnforcedPowerLimit,
        nvmlDeviceGetPowerManagementLimit,
        nvmlDeviceGetTotalEnergyConsumption,
        nvmlDeviceGetPcieReplayCounter,
        nvmlDeviceGetPcieThroughput,
        nvmlDeviceGetTotalEccErrors,
        nvmlDeviceGetMemoryErrorCounter,
        nvmlDeviceGetRetiredPages,
        nvmlDeviceGetRetiredPages_v2,
        nvmlDeviceGetRemappedRows,
        nvmlDeviceGetCurrentClocksThrottleReasons,
        nvmlDeviceGetSupportedClocksThrottleReasons,
        nvmlDeviceGetViolationStatus,
        nvmlDeviceGetFieldValues,
        nvmlDeviceGetProcessUtilization,
        nvmlDeviceGetComputeRunningProcesses_v3,
        nvmlDeviceGetGraphicsRunningProcesses_v3,
        nvmlDeviceGetMPSComputeRunningProcesses_v3,
        nvmlDeviceGetPerformanceState,
        nvmlGpmSampleAlloc,
        nvmlGpmSampleFree,
        nvmlGpmSampleGet,
        nvmlGpmMigSampleGet,
        nvmlGpmMetricsGet,
        nvmlGpmQueryDeviceSupport,
    );
    assert!(lacking.is_empty(), "{lacking:?}");
}

#[test]
fn one_that_the_driver_lacks_too_is_refused_and_does_not_crash() {
    let standin = StandIn::of("4x-a40.toml");
    let nvml = standin.nvml();
    let error = nvml.device_by_index(0).unwrap().fan_speed(0).unwrap_err();
    assert!(
        error.to_string().contains("nvmlDeviceGetFanSpeed"),
        "{error}"
    );
}
