/* libnvidia-ml.so.1 of a simulated node: each call reads its answer from files of the node's tree.
 *
 * The node is the first directory above this library that contains nvml/, so the library file must be inside
 * the tree, like a driver's library on a host. No environment variable is used: production code that
 * loads it needs no change for the simulation.
 *
 *   nvml/driver_version nvml/nvml_version     the two versions
 *   nvml/count                                answers nvmlDeviceGetCount; absent: the number of gpuN directories
 *   nvml/hang nvml/crash                      empty: every call hangs or dies by SIGSEGV; else only the named function
 *   nvml/error/<function>                     the nvmlReturn_t of that function
 *   nvml/gpuN/error                           the nvmlReturn_t of the call for that GPU's handle
 *   nvml/gpuN/error.<function>                the nvmlReturn_t of that function on that GPU
 *   nvml/gpuN/error.field.<id>                the nvmlReturn_t of that field on that GPU
 *   nvml/gpuN/<value>, nvml/gpuN/field/<id>   values; an absent one is NVML_ERROR_NOT_SUPPORTED. A field's may be
 *                                             written "7 of type 1", with its nvmlValueType_t
 *   nvml/gpuN/samples/<type>                  "<count> <microseconds between two> <value>…": the buffer of that
 *                                             nvmlSamplingType_t, with the values in turn
 *   nvml/gpuN/sram/<value>                    counts of the SRAM's errors; all 0 without the folder
 *   nvml/gpuN/sram_unique                     "<unit> <location> <sublocation> <extlocation> <address> <parity> <count>;…"
 *   nvml/gpuN/unrepairable_with_version       that structure begins with a version, as in nvidia-ml-py
 *   nvml/gpuN/nvlink/<link>/                  a link: state (absent: active), version, and field/<id>, as of fields of
 *                                             scope <link>; without the folder the link is NOT_SUPPORTED
 *   nvml/gpuN/p2p_read.<M>, p2p_nvlink.<M>    nvmlGpuP2PStatus_t towards gpuM; absent: OK, by NVLink where both have it
 *   nvml/gpuN/mig/<index>                     the GPU instance id of that MIG device, listed while mig_current is 1
 *
 * A GPU's index is its rank among the gpuN directories: if a GPU vanishes, the indices of later GPUs decrease.
 * With -DOLD_LIBRARY the library lacks the functions that were added after R450.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef int nvmlReturn_t;
enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    FUNCTION_NOT_FOUND = 13,
    CORRUPTED_INFOROM = 14,
    OPERATING_SYSTEM = 17,
    LIB_RM_VERSION_MISMATCH = 18,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999
};

#define MAX_GPUS 16 /* twice the largest instance */
#define MAX_MIG_DEVICES 8
#define MAX_LINKS 36
#define VALUE_SIZE 256

typedef struct {
    unsigned number; /* the N of gpuN: unchanged when another GPU vanishes */
    int descriptor;  /* on dev/nvidiaN, as the driver keeps one per GPU in use */
} Gpu;
typedef struct {
    unsigned number, index; /* of the GPU, and on it */
} MigDevice;
typedef Gpu *nvmlDevice_t; /* or a MigDevice: distinguished by their address, as in NVML */

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef union {
    double dVal;
    int siVal;
    unsigned uiVal;
    unsigned long long ullVal;
} nvmlValue_t;

typedef struct {
    unsigned long long timeStamp;
    nvmlValue_t sampleValue;
} nvmlSample_t;

typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t; /* of the functions _v2 and _v3 */

typedef struct {
    unsigned char clusterUuid[16];
    nvmlReturn_t status;
    unsigned cliqueId, state;
} nvmlGpuFabricInfo_t;

static int node = -1; /* its directory: relative paths are short, and a check cycle opens thousands */
static char library_version[VALUE_SIZE];
static Gpu gpus[MAX_GPUS];
static MigDevice mig_devices[MAX_GPUS][MAX_MIG_DEVICES];
static int control_descriptor = -1;
static int initialised; /* NVML counts its initialisations */

/* -- the node's files ------------------------------------------------------------------------------------- */

static int format_path(char *path, const char *format, va_list arguments)
{
    int length = vsnprintf(path, PATH_MAX, format, arguments);
    return length >= 0 && length < PATH_MAX;
}

__attribute__((format(printf, 1, 2))) static int exists(const char *format, ...)
{
    char path[PATH_MAX];
    va_list arguments;
    va_start(arguments, format);
    int named = format_path(path, format, arguments);
    va_end(arguments);
    return named && faccessat(node, path, F_OK, 0) == 0;
}

__attribute__((format(printf, 1, 2))) static int open_device(const char *format, ...)
{
    char path[PATH_MAX];
    va_list arguments;
    va_start(arguments, format);
    int named = format_path(path, format, arguments);
    va_end(arguments);
    /* Only by its path: a device file of a simulated node has no driver. */
    return named ? openat(node, path, O_PATH | O_CLOEXEC) : -1;
}

/* The first line of a file, cut at VALUE_SIZE; 0 when the file is absent. */
__attribute__((format(printf, 2, 3))) static int read_line(char *line, const char *format, ...)
{
    char path[PATH_MAX];
    va_list arguments;
    va_start(arguments, format);
    int named = format_path(path, format, arguments);
    va_end(arguments);
    int descriptor = named ? openat(node, path, O_RDONLY | O_CLOEXEC) : -1;
    if (descriptor < 0)
        return 0;
    ssize_t length = read(descriptor, line, VALUE_SIZE - 1);
    close(descriptor);
    line[length > 0 ? length : 0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    return 1;
}

static nvmlReturn_t parse_number(const char *line, unsigned long long *number)
{
    char *end;
    *number = strtoull(line, &end, 0);
    return end != line && *end == '\0' ? SUCCESS : UNKNOWN;
}

static nvmlReturn_t copy_text(const char *text, char *out, unsigned size)
{
    if (out == NULL)
        return INVALID_ARGUMENT;
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    memcpy(out, text, strlen(text) + 1);
    return SUCCESS;
}

static nvmlReturn_t gpu_number(nvmlDevice_t gpu, const char *value, unsigned long long *number)
{
    char line[VALUE_SIZE];
    if (!read_line(line, "nvml/gpu%u/%s", gpu->number, value))
        return NOT_SUPPORTED;
    return parse_number(line, number);
}

static nvmlReturn_t gpu_unsigned(nvmlDevice_t gpu, const char *value, unsigned *out)
{
    unsigned long long number;
    if (out == NULL)
        return INVALID_ARGUMENT;
    nvmlReturn_t result = gpu_number(gpu, value, &number);
    if (result == SUCCESS)
        *out = (unsigned)number;
    return result;
}

static int gpu_has(nvmlDevice_t gpu, const char *value)
{
    return exists("nvml/gpu%u/%s", gpu->number, value);
}

static nvmlReturn_t gpu_text(nvmlDevice_t gpu, const char *value, char *out, unsigned size)
{
    char line[VALUE_SIZE];
    if (!read_line(line, "nvml/gpu%u/%s", gpu->number, value))
        return NOT_SUPPORTED;
    return copy_text(line, out, size);
}

/* -- faults: rare, so their existence is checked first, which costs less than opening the files ------------------- */

static int struck(const char *fault, const char *function)
{
    char line[VALUE_SIZE];
    return exists("nvml/%s", fault) && read_line(line, "nvml/%s", fault) && (line[0] == '\0' || strcmp(line, function) == 0);
}

static nvmlReturn_t written_error(const char *line)
{
    unsigned long long number;
    return parse_number(line, &number) == SUCCESS ? (nvmlReturn_t)number : UNKNOWN;
}

/* Faults that apply before a call does anything. */
static nvmlReturn_t enter(const char *function)
{
    char line[VALUE_SIZE];
    if (struck("hang", function))
        for (;;)
            pause();
    if (struck("crash", function)) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    int fails = exists("nvml/error/%s", function) && read_line(line, "nvml/error/%s", function);
    return fails ? written_error(line) : SUCCESS;
}

static nvmlReturn_t enter_initialised(const char *function)
{
    nvmlReturn_t result = enter(function);
    if (result == SUCCESS && initialised == 0)
        return UNINITIALIZED;
    return result;
}

static nvmlReturn_t error_on_gpu(const char *function, unsigned number)
{
    char line[VALUE_SIZE];
    int fails = exists("nvml/gpu%u/error.%s", number, function) &&
                read_line(line, "nvml/gpu%u/error.%s", number, function);
    return fails ? written_error(line) : SUCCESS;
}

static nvmlReturn_t enter_gpu(const char *function, nvmlDevice_t gpu)
{
    nvmlReturn_t result = enter_initialised(function);
    if (result != SUCCESS)
        return result;
    if (gpu < gpus || gpu >= gpus + MAX_GPUS)
        return INVALID_ARGUMENT;
    return error_on_gpu(function, gpu->number);
}

static nvmlReturn_t enter_mig(const char *function, MigDevice *device)
{
    nvmlReturn_t result = enter_initialised(function);
    if (result != SUCCESS)
        return result;
    if (device < mig_devices[0] || device >= (MigDevice *)(mig_devices + MAX_GPUS))
        return INVALID_ARGUMENT;
    return error_on_gpu(function, device->number);
}

#define ENTER(entered)                                                                                            \
    do {                                                                                                          \
        nvmlReturn_t met = (entered);                                                                             \
        if (met != SUCCESS)                                                                                       \
            return met;                                                                                           \
    } while (0)

/* -- loading, initialising -------------------------------------------------------------------------------- */

__attribute__((constructor)) static void find_node(void)
{
    Dl_info self;
    struct stat found;
    char path[PATH_MAX + sizeof "/nvml"];
    if (dladdr((void *)find_node, &self) == 0 || self.dli_fname == NULL || strlen(self.dli_fname) >= PATH_MAX)
        return;
    strcpy(path, self.dli_fname);
    for (char *slash; (slash = strrchr(path, '/')) != NULL; *slash = '\0') {
        strcpy(slash, "/nvml");
        if (stat(path, &found) == 0 && S_ISDIR(found.st_mode)) {
            *slash = '\0';
            node = open(path[0] != '\0' ? path : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);
            break;
        }
    }
    /* A process keeps the library that it loaded, also after an upgrade on disk. */
    read_line(library_version, "nvml/nvml_version");
}

/* nvml_version is <CUDA major>.<driver version>: a library works only with the driver of its release. */
static int matches_driver(void)
{
    char driver[VALUE_SIZE];
    const char *own = strchr(library_version, '.');
    return own == NULL || !read_line(driver, "sys/module/nvidia/version") || strcmp(own + 1, driver) == 0;
}

static nvmlReturn_t initialise(const char *function)
{
    ENTER(enter(function));
    if (initialised == 0) {
        if (!matches_driver())
            return LIB_RM_VERSION_MISMATCH;
        control_descriptor = open_device("dev/nvidiactl");
        if (control_descriptor < 0)
            return DRIVER_NOT_LOADED;
        for (unsigned number = 0; number < MAX_GPUS; number++)
            gpus[number] = (Gpu){.number = number, .descriptor = -1};
    }
    initialised++;
    return SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
    return initialise(__func__);
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return initialise(__func__);
}

nvmlReturn_t nvmlShutdown(void)
{
    ENTER(enter_initialised(__func__));
    if (--initialised > 0)
        return SUCCESS;
    for (unsigned number = 0; number < MAX_GPUS; number++) {
        if (gpus[number].descriptor >= 0)
            close(gpus[number].descriptor);
        gpus[number].descriptor = -1;
    }
    close(control_descriptor);
    control_descriptor = -1;
    return SUCCESS;
}

/* Never enters the driver, so it neither hangs nor fails. */
const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case 8: return "Insufficient External Power";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 11: return "Interrupt Request Issue";
    case 12: return "NVML Shared Library Not Found";
    case CORRUPTED_INFOROM: return "Corrupted infoROM";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case OPERATING_SYSTEM: return "The operating system has blocked the request";
    case LIB_RM_VERSION_MISMATCH: return "RM has detected an NVML/RM version mismatch.";
    default: return "Unknown Error";
    }
}

/* -- the system ------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    char line[VALUE_SIZE];
    ENTER(enter_initialised(__func__));
    return read_line(line, "nvml/driver_version") ? copy_text(line, version, length) : NOT_SUPPORTED;
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    char line[VALUE_SIZE];
    ENTER(enter(__func__));
    return read_line(line, "nvml/nvml_version") ? copy_text(line, version, length) : NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    char line[VALUE_SIZE];
    unsigned long long number = 0;
    ENTER(enter_initialised(__func__));
    if (count == NULL)
        return INVALID_ARGUMENT;
    if (read_line(line, "nvml/count"))
        ENTER(parse_number(line, &number));
    else
        for (unsigned gpu = 0; gpu < MAX_GPUS; gpu++)
            number += exists("nvml/gpu%u", gpu) ? 1 : 0;
    *count = (unsigned)number;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    char line[VALUE_SIZE];
    unsigned long long minor;
    unsigned number = 0;
    ENTER(enter_initialised(__func__));
    if (device == NULL)
        return INVALID_ARGUMENT;
    for (unsigned rank = 0;; number++) {
        if (number == MAX_GPUS)
            return INVALID_ARGUMENT;
        if (exists("nvml/gpu%u", number) && rank++ == index)
            break;
    }
    Gpu *gpu = &gpus[number];
    if (read_line(line, "nvml/gpu%u/error", number))
        return written_error(line);
    ENTER(enter_gpu(__func__, gpu));
    if (gpu_number(gpu, "minor", &minor) != SUCCESS)
        minor = number;
    if (gpu->descriptor < 0)
        gpu->descriptor = open_device("dev/nvidia%llu", minor);
    if (gpu->descriptor < 0)
        return OPERATING_SYSTEM;
    *device = gpu;
    return SUCCESS;
}

/* -- one GPU ---------------------------------------------------------------------------------------------- */

/* Functions whose answer is one file, or two. */
#define GPU_NUMBER(function, value)                                                                               \
    nvmlReturn_t function(nvmlDevice_t gpu, unsigned *number)                                                     \
    {                                                                                                             \
        ENTER(enter_gpu(#function, gpu));                                                                         \
        return gpu_unsigned(gpu, value, number);                                                                  \
    }
#define GPU_MODE(function, current_value, pending_value)                                                          \
    nvmlReturn_t function(nvmlDevice_t gpu, unsigned *current, unsigned *pending)                                 \
    {                                                                                                             \
        ENTER(enter_gpu(#function, gpu));                                                                         \
        ENTER(gpu_unsigned(gpu, current_value, current));                                                         \
        return gpu_unsigned(gpu, pending_value, pending);                                                         \
    }
#define GPU_TEXT(function, value)                                                                                 \
    nvmlReturn_t function(nvmlDevice_t gpu, char *text, unsigned length)                                          \
    {                                                                                                             \
        ENTER(enter_gpu(#function, gpu));                                                                         \
        return gpu_text(gpu, value, text, length);                                                                \
    }
GPU_NUMBER(nvmlDeviceGetMinorNumber, "minor")
GPU_NUMBER(nvmlDeviceGetPersistenceMode, "persistence_mode")
GPU_NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
GPU_NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_max_width")
GPU_NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
GPU_NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_max_generation")
GPU_NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
GPU_NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power_default_limit")
GPU_MODE(nvmlDeviceGetMigMode, "mig_current", "mig_pending")
GPU_MODE(nvmlDeviceGetEccMode, "ecc_mode_current", "ecc_mode_pending")
GPU_TEXT(nvmlDeviceGetSerial, "serial")
GPU_TEXT(nvmlDeviceGetName, "name")

/* That of the GPU, with the index of the MIG device as its last two digits. */
static nvmlReturn_t mig_uuid(MigDevice *mig, char *uuid, unsigned length)
{
    char whole[VALUE_SIZE];
    ENTER(enter_mig("nvmlDeviceGetUUID", mig));
    ENTER(gpu_text(&gpus[mig->number], "uuid", whole, sizeof whole));
    snprintf(uuid, length, "MIG-%.*s%02u", (int)strlen(whole) - 6, whole + 4, mig->index);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t gpu, char *uuid, unsigned length)
{
    if ((MigDevice *)gpu >= mig_devices[0] && (MigDevice *)gpu < (MigDevice *)(mig_devices + MAX_GPUS))
        return mig_uuid((MigDevice *)gpu, uuid, length);
    ENTER(enter_gpu(__func__, gpu));
    return gpu_text(gpu, "uuid", uuid, length);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t gpu, nvmlPciInfo_t *pci)
{
    ENTER(enter_gpu(__func__, gpu));
    if (pci == NULL)
        return INVALID_ARGUMENT;
    memset(pci, 0, sizeof *pci);
    ENTER(gpu_text(gpu, "bus_id", pci->busId, sizeof pci->busId));
    if (sscanf(pci->busId, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) == 3)
        snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffffU,
                 pci->bus & 0xffU, pci->device & 0xffU);
    ENTER(gpu_unsigned(gpu, "pci_device_id", &pci->pciDeviceId));
    return gpu_unsigned(gpu, "pci_subsystem_id", &pci->pciSubSystemId);
}

static int has_mig_on(nvmlDevice_t gpu)
{
    unsigned long long mode;
    return gpu_number(gpu, "mig_current", &mode) == SUCCESS && mode == 1;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t gpu, unsigned *count)
{
    ENTER(enter_gpu(__func__, gpu));
    if (count == NULL)
        return INVALID_ARGUMENT;
    *count = 0;
    return has_mig_on(gpu) ? gpu_unsigned(gpu, "mig_most", count) : SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t gpu, unsigned index, nvmlDevice_t *device)
{
    ENTER(enter_gpu(__func__, gpu));
    if (index >= MAX_MIG_DEVICES || device == NULL)
        return INVALID_ARGUMENT;
    if (!has_mig_on(gpu) || !exists("nvml/gpu%u/mig/%u", gpu->number, index))
        return NOT_FOUND;
    mig_devices[gpu->number][index] = (MigDevice){.number = gpu->number, .index = index};
    *device = (nvmlDevice_t)&mig_devices[gpu->number][index];
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
    char name[VALUE_SIZE];
    MigDevice *mig = (MigDevice *)device;
    ENTER(enter_mig(__func__, mig));
    snprintf(name, sizeof name, "mig/%u", mig->index);
    nvmlReturn_t result = gpu_unsigned(&gpus[mig->number], name, id);
    return result == NOT_SUPPORTED ? NOT_FOUND : result; /* destroyed since its handle was taken */
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t gpu, unsigned kind, unsigned counter, unsigned long long *count)
{
    static const char *const values[2][2] = {{"ecc_corrected_volatile", "ecc_corrected_aggregate"},
                                             {"ecc_uncorrected_volatile", "ecc_uncorrected_aggregate"}};
    ENTER(enter_gpu(__func__, gpu));
    if (kind > 1 || counter > 1 || count == NULL)
        return INVALID_ARGUMENT;
    return gpu_number(gpu, values[kind][counter], count);
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t gpu, unsigned kind, unsigned counter, unsigned memory,
                                             unsigned long long *count)
{
    enum { DRAM = 2, SRAM = 7 };
    ENTER(enter_gpu(__func__, gpu));
    if (kind > 1 || counter > 1 || memory > SRAM || count == NULL)
        return INVALID_ARGUMENT;
    if (kind != 0 || counter != 0 || (memory != DRAM && memory != SRAM))
        return NOT_SUPPORTED;
    return gpu_number(gpu, memory == DRAM ? "dram_corrected" : "sram_corrected", count);
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                       unsigned *failed)
{
    ENTER(enter_gpu(__func__, gpu));
    ENTER(gpu_unsigned(gpu, "remap_corrected", corrected));
    ENTER(gpu_unsigned(gpu, "remap_uncorrected", uncorrected));
    ENTER(gpu_unsigned(gpu, "remap_pending", pending));
    return gpu_unsigned(gpu, "remap_failed", failed);
}

static nvmlReturn_t clock_reasons(const char *function, nvmlDevice_t gpu, unsigned long long *reasons)
{
    ENTER(enter_gpu(function, gpu));
    if (reasons == NULL)
        return INVALID_ARGUMENT;
    return gpu_number(gpu, "clocks_event_reasons", reasons);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t gpu, unsigned long long *reasons)
{
    return clock_reasons(__func__, gpu, reasons);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t gpu, unsigned sensor, unsigned *celsius)
{
    ENTER(enter_gpu(__func__, gpu));
    return sensor == 0 ? gpu_unsigned(gpu, "temperature", celsius) : INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t gpu, unsigned threshold, unsigned *celsius)
{
    enum { SLOWDOWN = 1 };
    ENTER(enter_gpu(__func__, gpu));
    return threshold == SLOWDOWN ? gpu_unsigned(gpu, "temperature_slowdown", celsius) : NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t gpu, unsigned kind, unsigned *mhz)
{
    enum { SM = 1, MEMORY = 2 };
    ENTER(enter_gpu(__func__, gpu));
    if (kind != SM && kind != MEMORY)
        return INVALID_ARGUMENT;
    return gpu_unsigned(gpu, kind == SM ? "sm_clock" : "memory_clock", mhz);
}

/* Percent of the last period, as in nvmlUtilization_t. */
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t gpu, unsigned *percent)
{
    ENTER(enter_gpu(__func__, gpu));
    if (percent == NULL)
        return INVALID_ARGUMENT;
    ENTER(gpu_unsigned(gpu, "utilization_gpu", &percent[0]));
    return gpu_unsigned(gpu, "utilization_memory", &percent[1]);
}

/* Without room for the samples, their number; the newest sample is of this moment. */
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t gpu, unsigned kind, unsigned long long since, unsigned *type,
                                  unsigned *count, nvmlSample_t *samples)
{
    enum { UNSIGNED_INT = 1 };
    char line[VALUE_SIZE], *rest;
    unsigned long long values[VALUE_SIZE / 2];
    unsigned room, size, period, known = 0;
    struct timespec now;
    ENTER(enter_gpu(__func__, gpu));
    if (type == NULL || count == NULL || since != 0)
        return INVALID_ARGUMENT;
    if (!read_line(line, "nvml/gpu%u/samples/%u", gpu->number, kind))
        return NOT_SUPPORTED;
    room = samples != NULL ? *count : 0;
    size = (unsigned)strtoul(line, &rest, 10);
    period = (unsigned)strtoul(rest, &rest, 10);
    for (char *end; known < VALUE_SIZE / 2; known++, rest = end) {
        values[known] = strtoull(rest, &end, 10);
        if (end == rest)
            break;
    }
    *type = UNSIGNED_INT;
    *count = size;
    if (samples == NULL)
        return SUCCESS;
    if (known == 0)
        return NOT_FOUND;
    if (room < size)
        return INSUFFICIENT_SIZE;
    clock_gettime(CLOCK_REALTIME, &now);
    for (unsigned i = 0; i < size; i++) {
        samples[i].timeStamp = (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000 -
                               (unsigned long long)period * (size - 1 - i);
        samples[i].sampleValue.ullVal = values[i % known];
    }
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceValidateInforom(nvmlDevice_t gpu)
{
    unsigned valid;
    ENTER(enter_gpu(__func__, gpu));
    ENTER(gpu_unsigned(gpu, "inforom", &valid));
    return valid ? SUCCESS : CORRUPTED_INFOROM;
}

/* Reserved bytes belong to the driver; the first version of the structure counts them as used. */
static nvmlReturn_t gpu_memory(nvmlDevice_t gpu, nvmlMemory_t *memory, unsigned long long *reserved)
{
    if (memory == NULL)
        return INVALID_ARGUMENT;
    ENTER(gpu_number(gpu, "memory_total", &memory->total));
    ENTER(gpu_number(gpu, "memory_reserved", reserved));
    ENTER(gpu_number(gpu, "memory_used", &memory->used));
    memory->free = memory->total - *reserved - memory->used;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t gpu, nvmlMemory_t *memory)
{
    unsigned long long reserved;
    ENTER(enter_gpu(__func__, gpu));
    ENTER(gpu_memory(gpu, memory, &reserved));
    memory->used += reserved;
    return SUCCESS;
}

/* -- processes: every process of a simulated GPU computes --------------------------------------------------- */

static nvmlReturn_t list_processes(nvmlDevice_t gpu, const char *value, unsigned *count, nvmlProcessInfo_t *processes)
{
    char line[VALUE_SIZE];
    unsigned room, found = 0;
    if (count == NULL)
        return INVALID_ARGUMENT;
    if (!read_line(line, "nvml/gpu%u/%s", gpu->number, value))
        return NOT_SUPPORTED;
    room = processes != NULL ? *count : 0;
    for (char *rest, *word = strtok_r(line, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        unsigned long long pid;
        ENTER(parse_number(word, &pid));
        if (found < room)
            processes[found] = (nvmlProcessInfo_t){.pid = (unsigned)pid};
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

static nvmlReturn_t no_processes(nvmlDevice_t gpu, unsigned *count)
{
    if (count == NULL)
        return INVALID_ARGUMENT;
    *count = 0;
    return gpu_has(gpu, "processes") ? SUCCESS : NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t gpu, unsigned *count, nvmlProcessInfo_t *processes)
{
    ENTER(enter_gpu(__func__, gpu));
    return list_processes(gpu, "processes", count, processes);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t gpu, unsigned *count, nvmlProcessInfo_t *processes)
{
    (void)processes;
    ENTER(enter_gpu(__func__, gpu));
    return no_processes(gpu, count);
}

/* -- fields ------------------------------------------------------------------------------------------------- */

/* The file of a field; fields that another function also returns have a name instead of a number. */
static void name_field(char *name, size_t size, const nvmlFieldValue_t *field)
{
    switch (field->fieldId) {
    case 29: snprintf(name, size, "retired_sbe"); return;
    case 30: snprintf(name, size, "retired_dbe"); return;
    case 31: snprintf(name, size, "retired_pending"); return;
    case 94: snprintf(name, size, "pcie_replays"); return;
    case 161: /* NVLINK_ERROR_DL_REPLAY … _CRC */
    case 162:
    case 163:
    case 165: /* NVLINK_GET_STATE */
    case 206: /* NVLINK_COUNT_MALFORMED_PACKET_ERRORS … _SYMBOL_BER */
    case 207:
    case 208:
    case 209:
    case 210:
    case 211:
    case 212:
    case 213:
    case 214:
    case 215:
    case 219:
    case 220:
    case 221:
    case 222: snprintf(name, size, "nvlink/%u/field/%u", field->scopeId, field->fieldId); return;
    default: snprintf(name, size, "field/%u", field->fieldId);
    }
}

static nvmlReturn_t read_field(nvmlDevice_t gpu, nvmlFieldValue_t *field)
{
    enum { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3, SIGNED_INT = 5 }; /* nvmlValueType_t */
    char name[VALUE_SIZE], line[VALUE_SIZE], *type;
    field->value.ullVal = 0;
    field->valueType = UNSIGNED_INT;
    snprintf(name, sizeof name, "field.%u", field->fieldId);
    ENTER(error_on_gpu(name, gpu->number));
    name_field(name, sizeof name, field);
    if (!read_line(line, "nvml/gpu%u/%s", gpu->number, name))
        return NOT_SUPPORTED;
    if ((type = strstr(line, " of type ")) != NULL)
        *type = '\0';
    ENTER(parse_number(line, &field->value.ullVal));
    if (type != NULL)
        field->valueType = atoi(type + strlen(" of type "));
    else if ((long long)field->value.ullVal < 0 && (long long)field->value.ullVal >= INT_MIN)
        field->valueType = SIGNED_INT;
    else if (field->value.ullVal > UINT_MAX)
        field->valueType = UNSIGNED_LONG_LONG;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t gpu, int count, nvmlFieldValue_t *values)
{
    ENTER(enter_gpu(__func__, gpu));
    if (count < 1 || values == NULL)
        return INVALID_ARGUMENT;
    for (int i = 0; i < count; i++)
        values[i].nvmlReturn = read_field(gpu, &values[i]);
    return SUCCESS;
}

/* -- NVLink and the fabric ---------------------------------------------------------------------------------- */

static nvmlReturn_t link_number(nvmlDevice_t gpu, unsigned link, const char *value, unsigned long long *number)
{
    char name[VALUE_SIZE];
    if (link >= MAX_LINKS || number == NULL)
        return INVALID_ARGUMENT;
    snprintf(name, sizeof name, "nvlink/%u/%s", link, value);
    return gpu_number(gpu, name, number);
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t gpu, unsigned link, unsigned *active)
{
    unsigned long long state = 1;
    ENTER(enter_gpu(__func__, gpu));
    if (active == NULL)
        return INVALID_ARGUMENT;
    nvmlReturn_t result = link_number(gpu, link, "state", &state);
    if (result == NOT_SUPPORTED && exists("nvml/gpu%u/nvlink/%u", gpu->number, link))
        result = SUCCESS;
    *active = (unsigned)state;
    return result;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t gpu, unsigned link, unsigned *version)
{
    unsigned long long number;
    ENTER(enter_gpu(__func__, gpu));
    if (version == NULL)
        return INVALID_ARGUMENT;
    ENTER(link_number(gpu, link, "version", &number));
    *version = (unsigned)number;
    return SUCCESS;
}

/* Replays, recoveries, CRC errors of flits; also fields 161 to 163 if the driver has them. */
nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t gpu, unsigned link, unsigned counter,
                                             unsigned long long *count)
{
    static const char *const values[] = {"field/161", "field/162", "field/163", "crc_data_errors"};
    ENTER(enter_gpu(__func__, gpu));
    if (counter >= sizeof values / sizeof *values)
        return INVALID_ARGUMENT;
    return link_number(gpu, link, values[counter], count);
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t gpu, nvmlDevice_t other, unsigned index, unsigned *status)
{
    enum { READ = 0, NVLINK = 2 };                  /* nvmlGpuP2PCapsIndex_t */
    enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5 }; /* nvmlGpuP2PStatus_t */
    char name[VALUE_SIZE];
    ENTER(enter_gpu(__func__, gpu));
    if (other < gpus || other >= gpus + MAX_GPUS || (index != READ && index != NVLINK) || status == NULL)
        return INVALID_ARGUMENT;
    ENTER(error_on_gpu(__func__, other->number));
    snprintf(name, sizeof name, "p2p_%s.%u", index == READ ? "read" : "nvlink", other->number);
    nvmlReturn_t result = gpu_unsigned(gpu, name, status);
    if (result != NOT_SUPPORTED)
        return result;
    *status = index == READ || (gpu_has(gpu, "nvlink") && gpu_has(other, "nvlink")) ? P2P_OK : P2P_NOT_SUPPORTED;
    return SUCCESS;
}

static void parse_uuid(const char *text, unsigned char *uuid)
{
    memset(uuid, 0, 16);
    for (unsigned digit = 0; *text != '\0' && digit < 32; text++) {
        const char digits[] = "0123456789abcdef", *found = strchr(digits, *text | 0x20);
        if (*text == '-' || found == NULL)
            continue;
        uuid[digit / 2] = (unsigned char)(uuid[digit / 2] << 4 | (found - digits));
        digit++;
    }
}

static nvmlReturn_t gpu_fabric(nvmlDevice_t gpu, nvmlGpuFabricInfo_t *info)
{
    char line[VALUE_SIZE];
    unsigned status;
    ENTER(gpu_unsigned(gpu, "fabric_state", &info->state));
    ENTER(gpu_unsigned(gpu, "fabric_status", &status));
    info->status = (nvmlReturn_t)status;
    if (gpu_unsigned(gpu, "fabric_clique", &info->cliqueId) != SUCCESS)
        info->cliqueId = 0;
    parse_uuid(read_line(line, "nvml/gpu%u/fabric_cluster", gpu->number) ? line : "", info->clusterUuid);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t gpu, nvmlGpuFabricInfo_t *info)
{
    ENTER(enter_gpu(__func__, gpu));
    return info != NULL ? gpu_fabric(gpu, info) : INVALID_ARGUMENT;
}

#ifndef OLD_LIBRARY
/* -- functions added after R450 ------------------------------------------------------------------------------ */

/* The version field of a structure: its size, and its number in the highest byte. */
#define VERSION(type, number) ((unsigned)sizeof(type) | (number) << 24)

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned version;
    unsigned long long aggregateUncParity, aggregateUncSecDed, aggregateCor;
    unsigned long long volatileUncParity, volatileUncSecDed, volatileCor;
    unsigned long long aggregateUncBuckets[5];
    unsigned bThresholdExceeded;
} nvmlEccSramErrorStatus_v1_t;

typedef struct {
    unsigned unit, location, sublocation, extlocation, address, isParity, count;
} nvmlEccSramUniqueUncorrectedErrorEntry_v1_t;

typedef struct {
    unsigned version, entryCount;
    nvmlEccSramUniqueUncorrectedErrorEntry_v1_t *entries;
} nvmlEccSramUniqueUncorrectedErrorCounts_v1_t;

typedef struct {
    unsigned version, bChannelRepairPending, bTpcRepairPending;
} nvmlRepairStatus_v1_t;

typedef struct {
    unsigned version;
    int marginTemperature;
} nvmlMarginTemperature_v1_t;

typedef struct {
    unsigned max, high, partial, low, none;
} nvmlRowRemapperHistogramValues_t;

typedef struct {
    unsigned version;
    nvmlGpuFabricInfo_t info;
    unsigned healthMask;
} nvmlGpuFabricInfo_v2_t;

typedef struct {
    unsigned version;
    nvmlGpuFabricInfo_t info;
    unsigned healthMask;
    unsigned char healthSummary;
} nvmlGpuFabricInfo_v3_t;

typedef struct {
    unsigned char type;
    unsigned id;
} nvmlGpuFabricClique_v1_t;

typedef struct {
    unsigned char clusterUuid[16];
    nvmlReturn_t status;
    nvmlGpuFabricClique_v1_t cliques[64];
    unsigned numCliques;
    unsigned char state;
    unsigned healthMask;
    unsigned char healthSummary;
} nvmlGpuFabricInfo_v4_t;

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t gpu, unsigned long long *reasons)
{
    return clock_reasons(__func__, gpu, reasons);
}

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t gpu, nvmlEccSramErrorStatus_v1_t *status)
{
    ENTER(enter_gpu(__func__, gpu));
    if (status == NULL)
        return INVALID_ARGUMENT;
    if (status->version != VERSION(*status, 1))
        return ARGUMENT_VERSION_MISMATCH;
    ENTER(gpu_unsigned(gpu, "sram_threshold_exceeded", &status->bThresholdExceeded));
    status->aggregateCor = status->volatileCor = 0;
    const struct {
        const char *value;
        unsigned long long *count;
    } counts[] = {
        {"sram/parity_aggregate", &status->aggregateUncParity},  {"sram/parity_volatile", &status->volatileUncParity},
        {"sram/secded_aggregate", &status->aggregateUncSecDed},  {"sram/secded_volatile", &status->volatileUncSecDed},
    };
    int counted = gpu_has(gpu, "sram");
    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
        *counts[i].count = 0;
        if (counted && gpu_has(gpu, counts[i].value))
            ENTER(gpu_number(gpu, counts[i].value, counts[i].count));
    }
    memset(status->aggregateUncBuckets, 0, sizeof status->aggregateUncBuckets);
    return SUCCESS;
}

/* With no room the number of the entries, as for other lists. */
nvmlReturn_t nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts(nvmlDevice_t gpu,
                                                              nvmlEccSramUniqueUncorrectedErrorCounts_v1_t *errors)
{
    char line[VALUE_SIZE];
    unsigned room, found = 0;
    ENTER(enter_gpu(__func__, gpu));
    if (errors == NULL)
        return INVALID_ARGUMENT;
    if (errors->version != VERSION(*errors, 1))
        return ARGUMENT_VERSION_MISMATCH;
    if (!read_line(line, "nvml/gpu%u/sram_unique", gpu->number))
        return NOT_SUPPORTED;
    room = errors->entries != NULL ? errors->entryCount : 0;
    for (char *rest, *word = strtok_r(line, ";", &rest); word != NULL; word = strtok_r(NULL, ";", &rest)) {
        nvmlEccSramUniqueUncorrectedErrorEntry_v1_t entry;
        if (sscanf(word, "%u %u %u %u %u %u %u", &entry.unit, &entry.location, &entry.sublocation, &entry.extlocation,
                   &entry.address, &entry.isParity, &entry.count) != 7)
            return UNKNOWN;
        if (found < room)
            errors->entries[found] = entry;
        found++;
    }
    errors->entryCount = found;
    return found > room && room > 0 ? INSUFFICIENT_SIZE : SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t gpu, unsigned *status)
{
    enum { VERSION_1 = 0x1000008 };
    ENTER(enter_gpu(__func__, gpu));
    if (status == NULL)
        return INVALID_ARGUMENT;
    if (!gpu_has(gpu, "unrepairable_with_version"))
        return gpu_unsigned(gpu, "unrepairable_memory", status);
    return status[0] == VERSION_1 ? gpu_unsigned(gpu, "unrepairable_memory", &status[1]) : ARGUMENT_VERSION_MISMATCH;
}

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t gpu, nvmlRowRemapperHistogramValues_t *banks)
{
    char line[VALUE_SIZE];
    ENTER(enter_gpu(__func__, gpu));
    if (banks == NULL)
        return INVALID_ARGUMENT;
    ENTER(gpu_text(gpu, "remap_histogram", line, sizeof line));
    int read = sscanf(line, "%u %u %u %u %u", &banks->max, &banks->high, &banks->partial, &banks->low, &banks->none);
    return read == 5 ? SUCCESS : UNKNOWN;
}

nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t gpu, nvmlRepairStatus_v1_t *status)
{
    ENTER(enter_gpu(__func__, gpu));
    if (status == NULL)
        return INVALID_ARGUMENT;
    if (status->version != VERSION(*status, 1))
        return ARGUMENT_VERSION_MISMATCH;
    ENTER(gpu_unsigned(gpu, "repair_channel", &status->bChannelRepairPending));
    return gpu_unsigned(gpu, "repair_tpc", &status->bTpcRepairPending);
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t gpu, nvmlMarginTemperature_v1_t *margin)
{
    unsigned celsius;
    ENTER(enter_gpu(__func__, gpu));
    if (margin == NULL)
        return INVALID_ARGUMENT;
    if (margin->version != VERSION(*margin, 1))
        return ARGUMENT_VERSION_MISMATCH;
    ENTER(gpu_unsigned(gpu, "temperature_margin", &celsius));
    margin->marginTemperature = (int)celsius;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t gpu, nvmlMemory_v2_t *memory)
{
    nvmlMemory_t known;
    ENTER(enter_gpu(__func__, gpu));
    if (memory == NULL)
        return INVALID_ARGUMENT;
    if (memory->version != VERSION(*memory, 2))
        return ARGUMENT_VERSION_MISMATCH;
    ENTER(gpu_memory(gpu, &known, &memory->reserved));
    memory->total = known.total;
    memory->free = known.free;
    memory->used = known.used;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t gpu, unsigned *count, nvmlProcessInfo_t *processes)
{
    ENTER(enter_gpu(__func__, gpu));
    return list_processes(gpu, "processes", count, processes);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t gpu, unsigned *count, nvmlProcessInfo_t *processes)
{
    (void)processes;
    ENTER(enter_gpu(__func__, gpu));
    return no_processes(gpu, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t gpu, unsigned *count,
                                                        nvmlProcessInfo_t *processes)
{
    (void)processes;
    ENTER(enter_gpu(__func__, gpu));
    return no_processes(gpu, count);
}

/* Both versions begin with the same fields, and a library may support only the first. */
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t gpu, nvmlGpuFabricInfo_v3_t *fabric)
{
    unsigned newest, summary;
    ENTER(enter_gpu(__func__, gpu));
    if (fabric == NULL)
        return INVALID_ARGUMENT;
    if (gpu_unsigned(gpu, "fabric_newest_version", &newest) != SUCCESS)
        newest = 3;
    if (fabric->version != VERSION(nvmlGpuFabricInfo_v2_t, 2) &&
        (newest < 3 || fabric->version != VERSION(nvmlGpuFabricInfo_v3_t, 3)))
        return ARGUMENT_VERSION_MISMATCH;
    ENTER(gpu_fabric(gpu, &fabric->info));
    ENTER(gpu_unsigned(gpu, "fabric_health_mask", &fabric->healthMask));
    if (fabric->version == VERSION(nvmlGpuFabricInfo_v3_t, 3)) {
        ENTER(gpu_unsigned(gpu, "fabric_health_summary", &summary));
        fabric->healthSummary = (unsigned char)summary;
    }
    return SUCCESS;
}

/* From R615 on; fabric_newest_version is 4 then. The clique of the older structures follows one of another type. */
nvmlReturn_t nvmlDeviceGetGpuFabricInfo_v4(nvmlDevice_t gpu, nvmlGpuFabricInfo_v4_t *fabric)
{
    enum { UNICAST_POINTER = 0, MULTICAST_POINTER = 1 };
    unsigned newest, summary;
    nvmlGpuFabricInfo_t info;
    ENTER(enter_gpu(__func__, gpu));
    if (gpu_unsigned(gpu, "fabric_newest_version", &newest) != SUCCESS || newest < 4)
        return FUNCTION_NOT_FOUND;
    if (fabric == NULL)
        return INVALID_ARGUMENT;
    ENTER(gpu_fabric(gpu, &info));
    ENTER(gpu_unsigned(gpu, "fabric_health_mask", &fabric->healthMask));
    ENTER(gpu_unsigned(gpu, "fabric_health_summary", &summary));
    memcpy(fabric->clusterUuid, info.clusterUuid, sizeof fabric->clusterUuid);
    fabric->status = info.status;
    fabric->state = (unsigned char)info.state;
    fabric->healthSummary = (unsigned char)summary;
    fabric->cliques[0] = (nvmlGpuFabricClique_v1_t){MULTICAST_POINTER, info.cliqueId + 1};
    fabric->cliques[1] = (nvmlGpuFabricClique_v1_t){UNICAST_POINTER, info.cliqueId};
    fabric->numCliques = 2;
    return SUCCESS;
}
#endif
