#include "scarce.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "fixture.h"
#include "run.h"

/* Under sanitizers too, what does not fit into memory is NULL. */
#define MALLOC_MAY_FAIL(options)                                      \
    __attribute__((visibility("default"))) const char *options(void); \
    const char *options(void) {                                       \
        return "allocator_may_return_null=1";                         \
    }
MALLOC_MAY_FAIL(__asan_default_options)
MALLOC_MAY_FAIL(__msan_default_options)
MALLOC_MAY_FAIL(__tsan_default_options)

/* GCC says it in one way, Clang in another. */
#if defined __has_feature
#if __has_feature(memory_sanitizer) || __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED
#endif
#endif
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define IS_SANITIZED
#endif

int scarce_is_real(void) {
#ifdef IS_SANITIZED
    return 0;
#else
    const char *preloaded = getenv("LD_PRELOAD");
    return !preloaded || !strstr(preloaded, "valgrind");
#endif
}

static void (*to_run)(void);
static int status;

/* Sanitizers have no limit on addresses, and refuse what is larger than they can manage. */
static void memory_limit(void) {
#ifndef IS_SANITIZED
    const rlim_t bytes = (rlim_t)1 << 36;
    const struct rlimit limit = {.rlim_cur = bytes, .rlim_max = bytes};
    (void)setrlimit(RLIMIT_AS, &limit);
#endif
}

static void run_in_a_child(void) {
    pid_t child = fork();
    if (child == 0) {
        memory_limit();
        to_run();
        _exit(0);
    }
    status = process_end(child);
}

scarce_end scarce_run(void (*run)(void)) {
    to_run = run;
    const char *told = fixture_stderr_of(run_in_a_child);
    return (scarce_end){.status = status, .told = told};
}
