/* A wall clock that is off by what a file says, for one program: LD_PRELOAD it, with TFLAUNCH_TEST_CLOCK=FILE.
 *
 * The file has one int64, in nanoseconds, and may change at any time. CLOCK_MONOTONIC and the times of files are the
 * kernel's. A wait until a time of the wall clock ends when the real one comes to what the caller means; one that has
 * begun does not notice a step. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <semaphore.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static const volatile int64_t *shared;

__attribute__((constructor)) static void map_file(void) {
    const char *path = getenv("TFLAUNCH_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *found = mmap(NULL, sizeof *shared, PROT_READ, MAP_SHARED, file, 0);
    shared = found == MAP_FAILED ? NULL : found;
    close(file);
}

static int64_t offset(void) { return shared ? *shared : 0; }

static struct timespec moved(const struct timespec *time, int64_t by) {
    int64_t all = time->tv_sec * SECOND + time->tv_nsec + by;
    if (all < 0)
        all = 0;
    return (struct timespec){.tv_sec = all / SECOND, .tv_nsec = all % SECOND};
}

static int is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    static __typeof__(&clock_gettime) real;
    if (!real)
        real = REAL(clock_gettime);
    int result = real(clock, now);
    if (result == 0 && is_wall(clock))
        *now = moved(now, offset());
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    *now = (struct timeval){.tv_sec = exact.tv_sec, .tv_usec = exact.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *kept) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (kept)
        *kept = exact.tv_sec;
    return exact.tv_sec;
}

int timespec_get(struct timespec *now, int base) { return clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0; }

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *rest) {
    if (!is_wall(clock) || !(flags & TIMER_ABSTIME))
        return REAL(clock_nanosleep)(clock, flags, time, rest);
    struct timespec end = moved(time, -offset());
    return REAL(clock_nanosleep)(clock, flags, &end, rest);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict time) {
    struct timespec end = moved(time, -offset());
    return REAL(sem_timedwait)(semaphore, &end);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict time) {
    struct timespec end = moved(time, -offset());
    return REAL(pthread_mutex_timedlock)(mutex, &end);
}

#define IS_MONOTONIC 2 /* in the condition variables of glibc, since 2.25 */

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict time) {
    struct timespec end = moved(time, condition->__data.__wrefs & IS_MONOTONIC ? 0 : -offset());
    return REAL(pthread_cond_timedwait)(condition, mutex, &end);
}

int pthread_cond_clockwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, clockid_t clock,
                           const struct timespec *restrict time) {
    struct timespec end = moved(time, is_wall(clock) ? -offset() : 0);
    return REAL(pthread_cond_clockwait)(condition, mutex, clock, &end);
}

int sem_clockwait(sem_t *restrict semaphore, clockid_t clock, const struct timespec *restrict time) {
    struct timespec end = moved(time, is_wall(clock) ? -offset() : 0);
    return REAL(sem_clockwait)(semaphore, clock, &end);
}

/* nsync, absl and so TensorFlow and gRPC wait like this. */
long syscall(long number, ...) {
    static __typeof__(&syscall) real;
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(arguments, long);
    va_end(arguments);
    if (!real)
        real = REAL(syscall);
    struct timespec end;
    if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) && a[3]) {
        end = moved((const struct timespec *)a[3], -offset());
        a[3] = (long)&end;
    }
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
