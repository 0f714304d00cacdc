#include "test/fuzz/fuzz_main.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "test/fuzz/fuzz_run.h"

enum { CASE_BYTES = 192, CASES = 100000, PATIENCE = 60 /* seconds for a thousand cases */ };

static unsigned long long seed, first;
static char name[96];

/* Whatever ends the process. Not all of it is safe in a handler of a signal, but there is nothing to lose. */
static void say_seed(void) {
    if (write(STDERR_FILENO, name, strlen(name)) < 0) return;
    fuzz_print();
}

static void on_signal(int number) {
    static const char slow[] = "fuzz: a case does not end\n";
    if (number == SIGALRM && write(STDERR_FILENO, slow, sizeof slow - 1) < 0) return;
    say_seed();
    signal(number, SIG_DFL);
    raise(number == SIGALRM ? SIGABRT : number);
}

/* Sizes for which there is no memory are what is tried; a report ends with SIGABRT, so that the seed is said. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__ubsan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1:max_allocation_size_mb=256:abort_on_error=1";
}
const char *__ubsan_default_options(void) {
    return "print_stacktrace=1:abort_on_error=1";
}

static unsigned long long next_random(unsigned long long *state) {
    unsigned long long z = *state += 0x9E3779B97F4A7C15ULL;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ z >> 27) * 0x94D049BB133111EBULL;
    return z ^ z >> 31;
}

static void run(void) {
    uint8_t bytes[CASE_BYTES];
    unsigned long long state = seed;
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(next_random(&state) >> 24);
    snprintf(name, sizeof name, "fuzz: --seed=%llu --runs=1, or --seed=%llu --runs=%llu\n", seed, first,
             seed - first + 1);
    fuzz_one(bytes, sizeof bytes);
}

static const char *option_find(int argc, char **argv, const char *wanted) {
    const char *found = getenv("FUZZ_OPTIONS");
    found = found ? strstr(found, wanted) : NULL;
    for (int i = 0; i < argc && !found; i++) found = strstr(argv[i], wanted);
    return found;
}

static unsigned long long option(int argc, char **argv, const char *wanted, unsigned long long otherwise) {
    const char *found = option_find(argc, argv, wanted);
    return found ? strtoull(found + strlen(wanted), NULL, 10) : otherwise;
}

int fuzz_main(int argc, char **argv) {
    unsigned long long seconds = option(argc, argv, "--seconds=", 0), runs = option(argc, argv, "--runs=", CASES);
    if (option_find(argc, argv, "--watched")) fuzz_watch();
    time_t start = time(NULL), end = start + (time_t)seconds;
    first = option(argc, argv, "--seed=", seconds > 0 ? (unsigned long long)start * 1000000 : 1);
    signal(SIGALRM, on_signal);
    signal(SIGABRT, on_signal);
#if !defined(__SANITIZE_ADDRESS__)
    signal(SIGSEGV, on_signal);
    signal(SIGBUS, on_signal);
    signal(SIGFPE, on_signal);
#endif
    for (seed = first; seconds > 0 ? time(NULL) < end : seed < first + runs; seed++) {
        if ((seed - first) % 1000 == 0) alarm(PATIENCE);
        run();
    }
    alarm(0);
    fuzz_tally t = fuzz_tally_get();
    printf("%llu cases: %lld calls made, %lld refused, %lld failed in MPI\n", seed - first, (long long)t.made,
           (long long)t.refused, (long long)t.failed);
    return seed - first >= CASES && !fuzz_is_thorough();
}
