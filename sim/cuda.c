/* libcuda.so.1 of a simulated node: the functions of CUDA's driver API that the load test calls, in virtual time.
 *
 * The node is the first directory above this library that contains nvml/, as of the simulated NVML. Its GPUs are the
 * gpuN directories there. A launch and a copy take no real time: the events of a stream measure virtual time, by the
 * speed of the GPU. Copies do copy. A person or a test controls the library with these files:
 *
 *   cuda/error                 the CUresult of cuInit
 *   cuda/gpuN/fp32, bf16       TFLOPS of the two kernels (default 60, 930)
 *   cuda/gpuN/h2d, d2h, peer   GB/s of a copy (default 52, 52, 370); the slower peer counts
 *   cuda/gpuN/wrong            what gives wrong results: fp32, bf16, d2h, peer
 *   cuda/gpuN/fails            the CUresult of every launch
 *   cuda/gpuN/hangs            no work of the GPU ends
 *   cuda/gpuN/used             GiB of its memory that other processes use
 *   cuda/gpuN/unlinked         it has no NVLink
 *   cuda/crash                 cuInit dies by SIGSEGV
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_IMAGE = 200, PEER_ACCESS_ALREADY_ENABLED = 704, NOT_READY = 600 };
enum { MAX_GPUS = 16, VALUE_SIZE = 256, PROCESSORS = 108 };

typedef struct {
    unsigned number; /* the N of gpuN */
    double now;      /* seconds of its virtual time */
} Gpu;
typedef struct {
    Gpu *gpu;
    double at;
} Event;
typedef struct {
    const char *name;
    const char *target;
    int pairs;    /* of operations on each sum in one round */
    double flops; /* of one thread in one round */
} Kernel;

/* 8 pairs of 16 sums; 4 pairs of 8 tiles, each 4096 operations of 32 threads; 8 pairs of 64 by 256 by 16 in 128. */
static const Kernel kernels[] = {{"fp32", ".target sm_70\n", 8, 8 * 2 * 16 * 2.0},
                                 {"bf16", ".target sm_80\n", 4, 4 * 2 * 8 * 4096 / 32.0},
                                 {"bf16", ".target sm_90a\n", 8, 8 * 2 * 64 * 256 * 16 * 2 / 128.0}};
static int node = -1;
static Gpu gpus[MAX_GPUS];
static int count;
static Gpu *current;
static void *last_target;
static const void *last_source;

static int read_line(char *line, const char *path)
{
    int descriptor = openat(node, path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return 0;
    ssize_t length = read(descriptor, line, VALUE_SIZE - 1);
    close(descriptor);
    line[length > 0 ? length : 0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    return 1;
}

static int read_gpu(char *line, const char *folder, const Gpu *gpu, const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/gpu%u/%s", folder, gpu->number, name);
    return read_line(line, path);
}

static double number_of(const Gpu *gpu, const char *name, double usual)
{
    char line[VALUE_SIZE];
    return read_gpu(line, "cuda", gpu, name) ? atof(line) : usual;
}

static int is_wrong(const Gpu *gpu, const char *what)
{
    char line[VALUE_SIZE];
    return read_gpu(line, "cuda", gpu, "wrong") && strcmp(line, what) == 0;
}

__attribute__((constructor)) static void find_node(void)
{
    Dl_info self;
    struct stat found;
    char path[PATH_MAX + sizeof "/nvml"];
    /* By the library's own file: a process may find it by a link in another folder. */
    if (dladdr((void *)find_node, &self) == 0 || self.dli_fname == NULL || realpath(self.dli_fname, path) == NULL)
        return;
    for (char *slash; (slash = strrchr(path, '/')) != NULL; *slash = '\0') {
        strcpy(slash, "/nvml");
        if (stat(path, &found) == 0 && S_ISDIR(found.st_mode)) {
            *slash = '\0';
            node = open(path[0] != '\0' ? path : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);
            break;
        }
    }
}

int cuInit(unsigned flags)
{
    char line[VALUE_SIZE];
    (void)flags;
    if (read_line(line, "cuda/crash"))
        raise(SIGSEGV);
    if (read_line(line, "cuda/error"))
        return atoi(line);
    count = 0;
    for (unsigned number = 0; number < MAX_GPUS; number++) {
        Gpu gpu = {.number = number};
        if (read_gpu(line, "nvml", &gpu, "bus_id") && !read_gpu(line, "nvml", &gpu, "error"))
            gpus[count++] = gpu;
    }
    return count > 0 ? SUCCESS : NO_DEVICE;
}

int cuGetErrorName(int code, const char **name)
{
    *name = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == 214         ? "CUDA_ERROR_ECC_UNCORRECTABLE"
            : code == 719         ? "CUDA_ERROR_LAUNCH_FAILED"
            : code == 802         ? "CUDA_ERROR_SYSTEM_NOT_READY"
                                  : "CUDA_ERROR_UNKNOWN";
    return SUCCESS;
}

/* -- devices ---------------------------------------------------------------------------------------------- */

int cuDeviceGetCount(int *devices)
{
    *devices = count;
    return SUCCESS;
}

int cuDeviceGetPCIBusId(char *text, int size, int device)
{
    char line[VALUE_SIZE];
    read_gpu(line, "nvml", &gpus[device], "bus_id"); /* with a domain of 8 digits, CUDA's has 4 */
    snprintf(text, (size_t)size, "%s", strlen(line) > 12 ? line + 4 : line);
    return SUCCESS;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    char line[VALUE_SIZE];
    const char *digit = line + strlen("GPU-");
    read_gpu(line, "nvml", &gpus[device], "uuid");
    for (int index = 0; index < 16; index++, digit += 2) {
        unsigned value = 0;
        digit += *digit == '-';
        sscanf(digit, "%2x", &value);
        uuid[index] = (unsigned char)value;
    }
    return SUCCESS;
}

int cuDeviceGetName(char *text, int size, int device)
{
    char line[VALUE_SIZE], mode[VALUE_SIZE];
    read_gpu(line, "nvml", &gpus[device], "name");
    int has_mig = read_gpu(mode, "nvml", &gpus[device], "mig_current") && strcmp(mode, "1") == 0;
    snprintf(text, (size_t)size, "%s%s", line, has_mig ? " MIG 1g.10gb" : "");
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == 16 ? PROCESSORS : attribute == 75 ? 9 : 0;
    return SUCCESS;
}

int cuDeviceGetP2PAttribute(int *value, int attribute, int device, int peer)
{
    char line[VALUE_SIZE];
    int unlinked = read_gpu(line, "cuda", &gpus[device], "unlinked") || read_gpu(line, "cuda", &gpus[peer], "unlinked");
    *value = attribute == 3 && !unlinked;
    return SUCCESS;
}

/* -- contexts and memory ---------------------------------------------------------------------------------- */

int cuDevicePrimaryCtxRetain(Gpu **context, int device)
{
    *context = &gpus[device];
    return SUCCESS;
}

int cuCtxSetCurrent(Gpu *context)
{
    current = context;
    return SUCCESS;
}

int cuCtxSynchronize(void)
{
    return SUCCESS;
}

int cuCtxEnablePeerAccess(Gpu *peer, unsigned flags)
{
    (void)flags;
    return peer == current ? INVALID_VALUE : PEER_ACCESS_ALREADY_ENABLED;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    char line[VALUE_SIZE];
    read_gpu(line, "nvml", current, "memory_total");
    *total = strtoull(line, NULL, 0);
    *free_bytes = *total - (size_t)(number_of(current, "used", 0.5) * (1 << 30));
    return SUCCESS;
}

int cuMemAlloc_v2(uint64_t *pointer, size_t size)
{
    *pointer = (uint64_t)(uintptr_t)malloc(size);
    return *pointer != 0 ? SUCCESS : OUT_OF_MEMORY;
}

int cuMemHostAlloc(void **pointer, size_t size, unsigned flags)
{
    (void)flags;
    *pointer = malloc(size);
    return *pointer != NULL ? SUCCESS : OUT_OF_MEMORY;
}

int cuMemFreeHost(void *pointer)
{
    free(pointer);
    return SUCCESS;
}

int cuMemsetD32_v2(uint64_t pointer, unsigned word, size_t words)
{
    memset((void *)(uintptr_t)pointer, (int)(word & 0xFF), 4 * words);
    last_target = NULL;
    return SUCCESS;
}

/* -- work ------------------------------------------------------------------------------------------------- */

int cuStreamCreate(Gpu **stream, unsigned flags)
{
    (void)flags;
    *stream = current;
    return SUCCESS;
}

int cuEventCreate(Event **event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof **event);
    return *event != NULL ? SUCCESS : OUT_OF_MEMORY;
}

int cuEventDestroy_v2(Event *event)
{
    free(event);
    return SUCCESS;
}

int cuEventRecord(Event *event, Gpu *stream)
{
    *event = (Event){stream, stream->now};
    return SUCCESS;
}

int cuEventQuery(Event *event)
{
    char line[VALUE_SIZE];
    return read_gpu(line, "cuda", event->gpu, "hangs") ? NOT_READY : SUCCESS;
}

int cuEventElapsedTime(float *milliseconds, Event *start, Event *end)
{
    *milliseconds = (float)((end->at - start->at) * 1000);
    return SUCCESS;
}

int cuModuleLoadData(const char **module, const char *ptx)
{
    *module = strdup(ptx);
    return strncmp(ptx, ".version ", 9) == 0 ? SUCCESS : INVALID_IMAGE;
}

int cuModuleGetFunction(const Kernel **function, const char *module, const char *name)
{
    for (size_t index = 0; index < sizeof kernels / sizeof *kernels; index++)
        if (strcmp(kernels[index].name, name) == 0 && strstr(module, kernels[index].target) != NULL) {
            *function = &kernels[index];
            return SUCCESS;
        }
    return INVALID_VALUE;
}

static float bf16(uint32_t half)
{
    float value;
    half <<= 16;
    memcpy(&value, &half, sizeof value);
    return value;
}

/* What a sum gains by one operation with these factors, which are two BF16 values each, or one FP32 value. */
static float gain(const Kernel *kernel, const void *first, const void *second)
{
    uint32_t a = *(const uint32_t *)first, b = *(const uint32_t *)second;
    if (strcmp(kernel->name, "fp32") == 0)
        return *(const float *)first * *(const float *)second;
    return 8 * (bf16(a & 0xFFFF) * bf16(b & 0xFFFF) + bf16(a >> 16) * bf16(b >> 16));
}

int cuLaunchKernel(const Kernel *function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned y_threads,
                   unsigned z_threads, unsigned shared, Gpu *stream, void **arguments, void **extra)
{
    char line[VALUE_SIZE];
    (void)shared, (void)extra;
    if (read_gpu(line, "cuda", stream, "fails"))
        return atoi(line);
    if (y * z * y_threads * z_threads != 1)
        return INVALID_VALUE;
    uint32_t *results = (uint32_t *)(uintptr_t)*(uint64_t *)arguments[0];
    uint32_t rounds = *(uint32_t *)arguments[1];
    double usual = strcmp(function->name, "fp32") == 0 ? 60 : 930;
    stream->now += (double)blocks * threads * rounds * function->flops / (number_of(stream, function->name, usual) * 1e12);
    float each = gain(function, arguments[2], arguments[3]) + gain(function, arguments[4], arguments[5]);
    int is_expected = (float)rounds * (float)function->pairs * each == *(float *)arguments[6];
    results[0] += (uint32_t)(is_wrong(stream, function->name) || !is_expected);
    results[1] += blocks * threads;
    return SUCCESS;
}

/* A copy that is repeated has been made. */
static void copy(void *target, const void *source, size_t size)
{
    if (target != last_target || source != last_source)
        memcpy(target, source, size);
    last_target = target;
    last_source = source;
}

static int copy_in_time(void *target, const void *source, size_t size, Gpu *stream, double rate, int wrong)
{
    copy(target, source, size);
    stream->now += (double)size / (rate * 1e9);
    if (wrong)
        ((unsigned char *)target)[size / 2] = (unsigned char)~((const unsigned char *)source)[size / 2];
    return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t size, Gpu *stream)
{
    return copy_in_time((void *)(uintptr_t)target, source, size, stream, number_of(stream, "h2d", 52), 0);
}

int cuMemcpyDtoHAsync_v2(void *target, uint64_t source, size_t size, Gpu *stream)
{
    const void *from = (const void *)(uintptr_t)source;
    return copy_in_time(target, from, size, stream, number_of(stream, "d2h", 52), is_wrong(stream, "d2h"));
}

int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t size)
{
    memcpy(target, (const void *)(uintptr_t)source, size);
    return SUCCESS;
}

int cuMemcpyPeerAsync(uint64_t target, Gpu *peer, uint64_t source, Gpu *gpu, size_t size, Gpu *stream)
{
    double own = number_of(gpu, "peer", 370), other = number_of(peer, "peer", 370);
    int wrong = is_wrong(gpu, "peer") || is_wrong(peer, "peer");
    const void *from = (const void *)(uintptr_t)source;
    return copy_in_time((void *)(uintptr_t)target, from, size, stream, own < other ? own : other, wrong);
}
