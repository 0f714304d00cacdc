/* Threads of a test, and how its processes end. */
#ifndef MPIXLA_TEST_RUN_H
#define MPIXLA_TEST_RUN_H

#include <pthread.h>
#include <stdint.h>
#include <sys/wait.h>

#include "check.h"

enum { RUN_THREADS = 16 };
typedef struct run_threads {
    pthread_t all[RUN_THREADS];
    int n;
} run_threads;

/* Each is given its number, from 0, as a pointer. */
static inline run_threads threads_start(int n, void *(*run)(void *number)) {
    run_threads t = {.n = n};
    for (int i = 0; i < n; i++) CHECK(pthread_create(&t.all[i], NULL, run, (void *)(intptr_t)i) == 0);
    return t;
}

static inline void threads_join(const run_threads *t) {
    for (int i = 0; i < t->n; i++) pthread_join(t->all[i], NULL);
}

static inline void threads_run(int n, void *(*run)(void *number)) {
    const run_threads t = threads_start(n, run);
    threads_join(&t);
}

/* Waits for a process. The status with which it exits, or the number of the signal that ends it, as a negative one. */
static inline int process_end(pid_t process) {
    int status = 0;
    CHECK(waitpid(process, &status, 0) == process);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#endif
