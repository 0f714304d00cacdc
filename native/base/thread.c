#include "base/thread.h"

#include <pthread.h>
#include <signal.h>

int thread_start(void *(*run)(void *nothing), size_t stack_bytes) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, kept;
    if (pthread_attr_init(&attributes) != 0) return -1;
    (void)pthread_attr_setstacksize(&attributes, stack_bytes);
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all); /* the thread inherits the mask */
    pthread_sigmask(SIG_SETMASK, &all, &kept);
    int code = pthread_create(&thread, &attributes, run, NULL);
    pthread_sigmask(SIG_SETMASK, &kept, NULL);
    pthread_attr_destroy(&attributes);
    return code == 0 ? 0 : -1;
}
