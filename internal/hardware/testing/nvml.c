/* A stand-in for the GPU driver's library: five GPUs, of which 0 and 1 hang on an NVLink
 * switch that hides its address, 3 and 4 share a PCIe switch, and 2 is lost. Only what the
 * inventory asks for. GPU 3 is lost as well while there is a file LOST_FILE. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, LOST = 15 };
enum { SINGLE = 10, SYSTEM = 50, GPUS = 5, LINKS = 18 };

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
struct rates { unsigned gpu, memory; };
struct memory { unsigned version; unsigned long long total, reserved, free, used; };

/* A handle is the index and one, so that none is null. */
static unsigned at(void *device) { return (unsigned)((size_t)device - 1); }

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "an error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { snprintf(out, size, "550.54.15"); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= GPUS) return INVALID;
    if (index == 2 || (index == 3 && access(LOST_FILE, F_OK) == 0)) return LOST;
    *device = (void *)(size_t)(index + 1);
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *out, unsigned size) {
    snprintf(out, size, "GPU-0000000%u-0000-0000-0000-000000000000", at(device));
    return SUCCESS;
}

int nvmlDeviceGetName(void *device, char *out, unsigned size) {
    snprintf(out, size, "%s", at(device) < 2 ? "NVIDIA H100 80GB HBM3" : "NVIDIA L4");
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *device, struct pci *out) {
    memset(out, 0, sizeof *out);
    out->bus = 0x10 + at(device);
    snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", out->bus);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory *out) {
    out->total = (at(device) < 2 ? 81559ull : 23034ull) << 20;
    out->used = (at(device) == 0 ? 40000ull : 0ull) << 20;
    out->free = out->total - out->used;
    out->reserved = 0;
    return SUCCESS;
}

/* GPU 0 is at work; the last has no sensor for its power. */
int nvmlDeviceGetUtilizationRates(void *device, struct rates *out) {
    out->gpu = at(device) == 0 ? 97 : 0;
    out->memory = 0;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *out) {
    if (sensor != 0) return INVALID;
    *out = 40 + at(device);
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *out) {
    if (at(device) == 4) return NOT_SUPPORTED;
    *out = at(device) == 0 ? 612000 : 70000;
    return SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *out) {
    if (at(device) == 4) return NOT_SUPPORTED;
    *out = 700000;
    return SUCCESS;
}

/* The device files need not be numbered as the driver counts. */
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) { *minor = 7 - at(device); return SUCCESS; }

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    if (at(device) == 4) return NOT_SUPPORTED;
    *major = at(device) < 2 ? 9 : 8;
    *minor = at(device) < 2 ? 0 : 9;
    return SUCCESS;
}

int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, int *level) {
    *level = at(one) > 2 && at(other) > 2 ? SINGLE : SYSTEM;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *active) {
    if (at(device) > 1) return NOT_SUPPORTED;
    if (link >= LINKS) return INVALID;
    *active = !(at(device) == 1 && link == 0);
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct pci *out) {
    (void)device;
    (void)link;
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "FFFFFFFF:FF:FF.0");
    return SUCCESS;
}
