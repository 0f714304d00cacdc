#include "base/thread.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "mpixla.h"

typedef void *thread_finder(void);
static _Atomic(thread_finder *) front_end_thread; /* mpixla_failures_raised_on */

void mpixla_failures_raised_on(void *(*thread)(void)) {
    atomic_store(&front_end_thread, thread);
}

int thread_is_front_end(void) {
    thread_finder *find = atomic_load_explicit(&front_end_thread, memory_order_relaxed);
    return find && find();
}

/* Synchronous signals stay unblocked: blocked, one would end the process before its handler, such as Python's
 * faulthandler, can print. */
static const int synchronous[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};

int thread_start(void *(*work)(void *nothing), size_t stack_bytes, const char *what_for) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t others, kept;
    int code = pthread_attr_init(&attributes);
    if (code != 0) return error_set("no thread can be started %s: %s", what_for, strerror(code));
    (void)pthread_attr_setstacksize(&attributes, stack_bytes);
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&others); /* the thread inherits the mask */
    for (size_t i = 0; i < sizeof synchronous / sizeof synchronous[0]; i++) sigdelset(&others, synchronous[i]);
    pthread_sigmask(SIG_SETMASK, &others, &kept);
    code = pthread_create(&thread, &attributes, work, NULL);
    pthread_sigmask(SIG_SETMASK, &kept, NULL);
    pthread_attr_destroy(&attributes);
    if (code == 0) return 0;
    return error_set("no thread can be started %s: %s; the limit on processes (ulimit -u) may be too low", what_for,
                     strerror(code));
}
