#include "base/thread.h"

#include <pthread.h>
#include <signal.h>

/* What a thread does to itself is no signal for others. Blocked, it would end the process without a word of whoever
 * handles it, such as Python's faulthandler. */
static const int own[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};

int thread_start(void *(*run)(void *nothing), size_t stack_bytes) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t others, kept;
    if (pthread_attr_init(&attributes) != 0) return -1;
    (void)pthread_attr_setstacksize(&attributes, stack_bytes);
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&others); /* the thread inherits the mask */
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) sigdelset(&others, own[i]);
    pthread_sigmask(SIG_SETMASK, &others, &kept);
    int code = pthread_create(&thread, &attributes, run, NULL);
    pthread_sigmask(SIG_SETMASK, &kept, NULL);
    pthread_attr_destroy(&attributes);
    return code == 0 ? 0 : -1;
}
