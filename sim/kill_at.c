/* Loaded by LD_PRELOAD: kills its process (SIGKILL) at one of the process's own calls on the files of a directory.
 *
 *   KILL_AT_DIR   the directory with all its contents: an absolute path without symbolic links
 *   KILL_AT_CALL  the number of the call at which to kill the process, from 1; 0: none
 *   KILL_AT_WHEN  before: the call is not made; after: it is made but does not return
 *   KILL_AT_LOG   a file outside the directory; each call is appended as "<number> <call> <path>" before it is made
 *
 * Counted in the order of their starts: open for writing, write, pwrite, fsync, fdatasync, rename, unlink,
 * flock, and close of files not opened read-only; failed calls too. Only calls from outside libc are
 * intercepted: writes of its streams (fprintf) are not.
 * A child has its own count from its exec on; between fork and exec nothing is counted.
 */
#undef _FORTIFY_SOURCE /* its inline open() would conflict with ours */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

static char directory[PATH_MAX];
static long target;
static int dies_after;
static int log_descriptor = -1;
static pid_t owner;  /* 0 until all of the above is set */
static long counted; /* started calls */

/* -- selected files --------------------------------------------------------------------------------------- */

static int is_ours(const char *path)
{
    size_t length = strlen(directory);
    return strncmp(path, directory, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

static int path_of_descriptor(int descriptor, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = '\0';
    return length > 0;
}

/* Resolve a path except its last part, which the call may be about to create or remove. */
static int path_of_name(int at, const char *name, char *path)
{
    char whole[2 * PATH_MAX], parent[PATH_MAX];
    if (name == NULL || name[0] == '\0' || strlen(name) >= PATH_MAX)
        return 0;
    if (name[0] == '/')
        strcpy(whole, name);
    else if (at == AT_FDCWD ? getcwd(parent, sizeof parent) != NULL : path_of_descriptor(at, parent))
        snprintf(whole, sizeof whole, "%s/%s", parent, name);
    else
        return 0;
    char *last = strrchr(whole, '/');
    *last = '\0';
    if (realpath(last == whole ? "/" : whole, parent) == NULL)
        return 0;
    int length = snprintf(path, PATH_MAX, "%s/%s", strcmp(parent, "/") == 0 ? "" : parent, last + 1);
    return length > 0 && length < PATH_MAX;
}

/* -- count and kill --------------------------------------------------------------------------------------- */

__attribute__((constructor)) static void read_orders(void)
{
    const char *dir = getenv("KILL_AT_DIR"), *call = getenv("KILL_AT_CALL"), *when = getenv("KILL_AT_WHEN");
    const char *log = getenv("KILL_AT_LOG");
    if (dir == NULL || dir[0] != '/' || strlen(dir) >= sizeof directory)
        return;
    strcpy(directory, dir);
    target = call != NULL ? strtol(call, NULL, 10) : 0;
    dies_after = when != NULL && strcmp(when, "after") == 0;
    if (log != NULL)
        log_descriptor = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    owner = getpid();
}

/* A child of vfork shares our memory: ignore its closes before exec. */
static int is_counting(void)
{
    return owner != 0 && syscall(SYS_getpid) == owner;
}

static void die(void)
{
    syscall(SYS_kill, owner, SIGKILL);
}

static long begin(const char *call, const char *path)
{
    char line[PATH_MAX + 64];
    long number = __atomic_add_fetch(&counted, 1, __ATOMIC_SEQ_CST);
    int length = snprintf(line, sizeof line, "%ld %s %s\n", number, call, path);
    if (log_descriptor >= 0 && syscall(SYS_write, log_descriptor, line, (size_t)length) != length)
        abort(); /* a log without a call would let a test skip it */
    if (number == target && !dies_after)
        die();
    return number;
}

static long begin_on_descriptor(const char *call, int descriptor)
{
    char path[PATH_MAX];
    return is_counting() && path_of_descriptor(descriptor, path) && is_ours(path) ? begin(call, path) : 0;
}

static long begin_on_name(const char *call, int at, const char *name)
{
    char path[PATH_MAX];
    return is_counting() && path_of_name(at, name, path) && is_ours(path) ? begin(call, path) : 0;
}

static long begin_on_names(const char *call, int from_at, const char *from, int to_at, const char *to)
{
    char path[PATH_MAX];
    if (!is_counting())
        return 0;
    if (path_of_name(to_at, to, path) && is_ours(path))
        return begin(call, path);
    return path_of_name(from_at, from, path) && is_ours(path) ? begin(call, path) : 0;
}

static void end(long number)
{
    if (number != 0 && number == target && dies_after)
        die();
}

/* -- the calls -------------------------------------------------------------------------------------------- */

/* Make the real call between the records of its start and end. */
#define PASS(type, name, beginning, parameters, arguments)                                                        \
    do {                                                                                                          \
        static type(*real) parameters;                                                                            \
        if (real == NULL)                                                                                         \
            *(void **)&real = dlsym(RTLD_NEXT, #name);                                                            \
        long number = (beginning);                                                                                \
        type result = real arguments;                                                                             \
        end(number);                                                                                              \
        return result;                                                                                            \
    } while (0)

static int opens_for_writing(int flags)
{
    return (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) != 0;
}

#define BEGIN_OPEN(call, at, name, flags) (opens_for_writing(flags) ? begin_on_name(call, at, name) : 0)

static int takes_mode(int flags)
{
    return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
}

#define TAKE_MODE(flags)                                                                                          \
    va_list rest;                                                                                                 \
    va_start(rest, flags);                                                                                        \
    mode_t mode = takes_mode(flags) ? va_arg(rest, mode_t) : 0;                                                   \
    va_end(rest)

int open(const char *name, int flags, ...)
{
    TAKE_MODE(flags);
    PASS(int, open, BEGIN_OPEN("open", AT_FDCWD, name, flags), (const char *, int, mode_t), (name, flags, mode));
}

int open64(const char *name, int flags, ...)
{
    TAKE_MODE(flags);
    PASS(int, open64, BEGIN_OPEN("open", AT_FDCWD, name, flags), (const char *, int, mode_t), (name, flags, mode));
}

int openat(int at, const char *name, int flags, ...)
{
    TAKE_MODE(flags);
    PASS(int, openat, BEGIN_OPEN("open", at, name, flags), (int, const char *, int, mode_t), (at, name, flags, mode));
}

int openat64(int at, const char *name, int flags, ...)
{
    TAKE_MODE(flags);
    PASS(int, openat64, BEGIN_OPEN("open", at, name, flags), (int, const char *, int, mode_t),
         (at, name, flags, mode));
}

/* Called by a fortified program that passes no mode. */
int __open_2(const char *name, int flags)
{
    PASS(int, __open_2, BEGIN_OPEN("open", AT_FDCWD, name, flags), (const char *, int), (name, flags));
}

int __open64_2(const char *name, int flags)
{
    PASS(int, __open64_2, BEGIN_OPEN("open", AT_FDCWD, name, flags), (const char *, int), (name, flags));
}

int __openat_2(int at, const char *name, int flags)
{
    PASS(int, __openat_2, BEGIN_OPEN("open", at, name, flags), (int, const char *, int), (at, name, flags));
}

int __openat64_2(int at, const char *name, int flags)
{
    PASS(int, __openat64_2, BEGIN_OPEN("open", at, name, flags), (int, const char *, int), (at, name, flags));
}

ssize_t write(int descriptor, const void *bytes, size_t size)
{
    PASS(ssize_t, write, begin_on_descriptor("write", descriptor), (int, const void *, size_t),
         (descriptor, bytes, size));
}

ssize_t pwrite(int descriptor, const void *bytes, size_t size, off_t offset)
{
    PASS(ssize_t, pwrite, begin_on_descriptor("pwrite", descriptor), (int, const void *, size_t, off_t),
         (descriptor, bytes, size, offset));
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t size, off64_t offset)
{
    PASS(ssize_t, pwrite64, begin_on_descriptor("pwrite", descriptor), (int, const void *, size_t, off64_t),
         (descriptor, bytes, size, offset));
}

int fsync(int descriptor)
{
    PASS(int, fsync, begin_on_descriptor("fsync", descriptor), (int), (descriptor));
}

int fdatasync(int descriptor)
{
    PASS(int, fdatasync, begin_on_descriptor("fdatasync", descriptor), (int), (descriptor));
}

int flock(int descriptor, int operation)
{
    PASS(int, flock, begin_on_descriptor("flock", descriptor), (int, int), (descriptor, operation));
}

static int is_read_only(int descriptor)
{
    long flags = syscall(SYS_fcntl, descriptor, F_GETFL);
    return flags < 0 || (flags & O_ACCMODE) == O_RDONLY;
}

int close(int descriptor)
{
    PASS(int, close, is_read_only(descriptor) ? 0 : begin_on_descriptor("close", descriptor), (int), (descriptor));
}

int rename(const char *from, const char *to)
{
    PASS(int, rename, begin_on_names("rename", AT_FDCWD, from, AT_FDCWD, to), (const char *, const char *),
         (from, to));
}

int renameat(int from_at, const char *from, int to_at, const char *to)
{
    PASS(int, renameat, begin_on_names("rename", from_at, from, to_at, to), (int, const char *, int, const char *),
         (from_at, from, to_at, to));
}

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
    PASS(int, renameat2, begin_on_names("rename", from_at, from, to_at, to),
         (int, const char *, int, const char *, unsigned), (from_at, from, to_at, to, flags));
}

int unlink(const char *name)
{
    PASS(int, unlink, begin_on_name("unlink", AT_FDCWD, name), (const char *), (name));
}

int unlinkat(int at, const char *name, int flags)
{
    PASS(int, unlinkat, begin_on_name("unlink", at, name), (int, const char *, int), (at, name, flags));
}
