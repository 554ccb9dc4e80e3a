/* A stand-in for libnvidia-ml.so.1. The file that FAKE_NVML names says what its GPUs do, one "GPU.KEY VALUE" in a line,
 * and each call reads it again. GPU is an index; a line that begins with "all" is about the driver. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK 0
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define DRIVER_NOT_LOADED 9
#define TIMEOUT 10
#define GPU_IS_LOST 15
#define RESET_REQUIRED 16
#define GPUS 8

typedef struct { int index; } gpu_t;
static gpu_t gpus[GPUS], part;
static unsigned long long delivered;

static int text(int index, const char *key, char *value, size_t size) {
    char name[64], line[512], found[64];
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return 0;
    if (index < 0) snprintf(name, sizeof name, "all.%s", key);
    else snprintf(name, sizeof name, "%d.%s", index, key);
    int is_there = 0;
    while (!is_there && fgets(line, sizeof line, file)) {
        int end = 0;
        if (sscanf(line, "%63s %n", found, &end) == 1 && !strcmp(found, name)) {
            line[strcspn(line, "\n")] = 0;
            snprintf(value, size, "%s", line + end);
            is_there = 1;
        }
    }
    fclose(file);
    return is_there;
}

static unsigned long long number(int index, const char *key, unsigned long long otherwise) {
    char value[64];
    return text(index, key, value, sizeof value) ? strtoull(value, NULL, 0) : otherwise;
}

/* What every call about a GPU does first. */
static int enter(gpu_t *gpu) {
    char seconds[64];
    while (text(gpu->index, "hangs", seconds, sizeof seconds)) usleep(20000);
    if (number(gpu->index, "lost", 0)) return GPU_IS_LOST;
    return number(gpu->index, "reset_required", 0) ? RESET_REQUIRED : OK;
}

static int unsigned_of(gpu_t *gpu, const char *key, unsigned *value) {
    char found[64];
    int error = enter(gpu);
    if (error) return error;
    if (!text(gpu->index, key, found, sizeof found)) return NOT_SUPPORTED;
    *value = (unsigned)strtoull(found, NULL, 0);
    return OK;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return number(-1, "loaded", 1) ? OK : DRIVER_NOT_LOADED; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int error) { return error == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "an error"; }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)number(-1, "gpus", 0); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu_t **gpu) {
    gpus[index].index = (int)index;
    *gpu = &gpus[index];
    return enter(*gpu);
}

int nvmlDeviceGetUUID(gpu_t *gpu, char *uuid, unsigned size) {
    if (gpu == &part) { snprintf(uuid, size, "MIG-0"); return OK; }
    int error = enter(gpu);
    if (!error && !text(gpu->index, "uuid", uuid, size)) snprintf(uuid, size, "GPU-%d", gpu->index);
    return error;
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_t;

int nvmlDeviceGetPciInfo_v3(gpu_t *gpu, pci_t *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", 0x41 + gpu->index);
    return enter(gpu);
}

int nvmlDeviceGetMigMode(gpu_t *gpu, unsigned *now, unsigned *next) {
    *now = *next = (unsigned)number(gpu->index, "mig", 0);
    return enter(gpu);
}
int nvmlDeviceGetMaxMigDeviceCount(gpu_t *gpu, unsigned *count) { *count = 1; return enter(gpu); }
int nvmlDeviceGetMigDeviceHandleByIndex(gpu_t *gpu, unsigned index, gpu_t **found) {
    (void)index;
    *found = &part;
    return enter(gpu);
}

int nvmlDeviceGetMemoryInfo(gpu_t *gpu, unsigned long long *total_free_used) {
    total_free_used[0] = 80ULL << 30;
    total_free_used[2] = number(gpu->index, "memory_used", 0);
    total_free_used[1] = total_free_used[0] - total_free_used[2];
    return enter(gpu);
}

int nvmlDeviceGetUtilizationRates(gpu_t *gpu, unsigned *gpu_and_memory) {
    gpu_and_memory[1] = 0;
    return unsigned_of(gpu, "utilization", gpu_and_memory);
}
int nvmlDeviceGetTemperature(gpu_t *gpu, int sensor, unsigned *value) {
    (void)sensor;
    return unsigned_of(gpu, "temperature", value);
}
int nvmlDeviceGetPowerUsage(gpu_t *gpu, unsigned *milliwatts) { return unsigned_of(gpu, "milliwatts", milliwatts); }
int nvmlDeviceGetClockInfo(gpu_t *gpu, int clock, unsigned *value) {
    return unsigned_of(gpu, clock == 1 ? "sm_clock" : "memory_clock", value);
}

/* As before driver 535: the newer nvmlDeviceGetCurrentClocksEventReasons is not there. */
int nvmlDeviceGetCurrentClocksThrottleReasons(gpu_t *gpu, unsigned long long *mask) {
    *mask = number(gpu->index, "throttles", 1);
    return enter(gpu);
}

int nvmlDeviceGetTotalEccErrors(gpu_t *gpu, int type, int counter, unsigned long long *count) {
    *count = number(gpu->index, type == 1 && counter == 0 ? "ecc" : "other_ecc", 0);
    return enter(gpu);
}

int nvmlDeviceGetRemappedRows(gpu_t *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = *uncorrected = 0;
    *pending = (unsigned)number(gpu->index, "remap_pending", 0);
    *failed = (unsigned)number(gpu->index, "remap_failed", 0);
    return enter(gpu);
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type, error;
    unsigned long long value;
} field_t;

int nvmlDeviceGetFieldValues(gpu_t *gpu, int count, field_t *fields) {
    for (int i = 0; i < count; i++) {
        fields[i].error = i < 2 ? OK : NOT_SUPPORTED;
        fields[i].value = number(gpu->index, "nvlink", 0);
    }
    return enter(gpu);
}

typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} process_t;

int nvmlDeviceGetComputeRunningProcesses_v3(gpu_t *gpu, unsigned *count, process_t *found) {
    char pids[256] = "";
    unsigned number_of_pids = 0;
    int error = enter(gpu);
    if (error) return error;
    text(gpu->index, "pids", pids, sizeof pids);
    for (char *rest = pids, *pid; (pid = strtok_r(rest, ",", &rest)); number_of_pids++) {
        if (number_of_pids >= *count) { *count = 16; return INSUFFICIENT_SIZE; }
        memset(&found[number_of_pids], 0, sizeof *found);
        found[number_of_pids].pid = (unsigned)strtoul(pid, NULL, 0);
    }
    *count = number_of_pids;
    return OK;
}

typedef struct {
    gpu_t *gpu;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} event_t;

int nvmlEventSetCreate(void **set) { *set = &delivered; return OK; }
int nvmlDeviceRegisterEvents(gpu_t *gpu, unsigned long long types, void *set) { (void)types; (void)set; return enter(gpu); }

/* The lines "all.xid0 GPU:XID", "all.xid1 ..." are events, each delivered once. */
int nvmlEventSetWait_v2(void *set, event_t *event, unsigned milliseconds) {
    char key[32], value[64];
    unsigned gpu;
    (void)set;
    snprintf(key, sizeof key, "xid%llu", delivered);
    for (unsigned waited = 0; !text(-1, key, value, sizeof value); waited += 10) {
        if (waited >= milliseconds) return TIMEOUT;
        usleep(10000);
    }
    delivered++;
    memset(event, 0, sizeof *event);
    sscanf(value, "%u:%llu", &gpu, &event->data);
    gpus[gpu].index = (int)gpu;
    event->gpu = &gpus[gpu];
    event->type = 8;
    return OK;
}
