#include "test/gpu/fake_calls.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAILURES = 32, SENTENCE = 1024 };

static const char *const names[] = {
#define MPIXLA_DRIVER(name, cuda, hip, sycl, prototype) #cuda,
#define MPIXLA_DRIVER_CUDA(name, cuda, prototype) #cuda,
#define MPIXLA_DRIVER_HIP(name, hip, prototype) #hip,
#define MPIXLA_SYCL(name, sycl, result, prototype) #sycl,
#define MPIXLA_NCCL(name, nccl, result, prototype) #nccl,
#include "tables/driver_functions.def"
#include "tables/nccl_functions.def"
#include "tables/sycl_functions.def"
#undef MPIXLA_DRIVER
#undef MPIXLA_DRIVER_CUDA
#undef MPIXLA_DRIVER_HIP
#undef MPIXLA_SYCL
#undef MPIXLA_NCCL
};

typedef struct failure {
    int function; /* -1: none */
    int64_t left; /* calls until it fails; 0: each fails */
    int code;
} failure;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static fake_noted list[FAKE_CALLS_KEPT];
static int64_t noted, counts[FAKE_FUNCTIONS];
static uint64_t threads;
static failure failures[FAILURES];
static int may_pass;
static char nobodys[SENTENCE];

static _Thread_local uint64_t thread;
static _Thread_local int is_mine;
static _Thread_local char mine[SENTENCE];

static int find(const char *function) {
    for (int i = 0; i < FAKE_FUNCTIONS; i++)
        if (strcmp(names[i], function) == 0) return i;
    return -1;
}

/* With the lock held. */
static int fail_add(int function, int64_t nth, int code) {
    if (function < 0 || nth < 0) return -1;
    for (int i = 0; i < FAILURES; i++)
        if (failures[i].function < 0) {
            failures[i] = (failure){.function = function, .left = nth, .code = code};
            return 0;
        }
    return -1;
}

static void start(void) {
    for (int i = 0; i < FAILURES; i++) failures[i].function = -1;
    const char *text = getenv("MPIXLA_FAKE_DEVICE_FAIL");
    while (text && *text) {
        char function[64];
        long long nth = 0;
        int code = 0, length = 0;
        if (sscanf(text, "%63[^:]:%lld:%d%n", function, &nth, &code, &length) != 3 ||
            fail_add(find(function), nth, code)) {
            fprintf(stderr, "MPIXLA_FAKE_DEVICE_FAIL: not understood from here: %s\n", text);
            abort();
        }
        text += length + (text[length] == ',');
    }
}

static void lock_it(void) {
    pthread_once(&once, start);
    pthread_mutex_lock(&lock);
}

static void unlock_it(void) {
    pthread_mutex_unlock(&lock);
}

int fake_call(fake_function function, uint64_t bytes) {
    int code = 0;
    lock_it();
    if (thread == 0) thread = ++threads;
    list[noted++ % FAKE_CALLS_KEPT] = (fake_noted){.function = names[function], .bytes = bytes, .thread = thread};
    counts[function]++;
    for (int i = 0; i < FAILURES; i++) {
        failure *f = &failures[i];
        if (f->function != (int)function) continue;
        if (f->left > 1) {
            f->left--;
            continue;
        }
        code = f->code;
        if (f->left == 1) f->function = -1;
        break;
    }
    int told = code != 0 && code != FAKE_SKIP && !may_pass;
    unlock_it();
    if (told) fake_complain("%s failed with code %d, as it was asked to, and nobody minded", names[function], code);
    return code;
}

int64_t fake_calls_count(const char *function) {
    int i = function ? find(function) : 0;
    if (i < 0) return -1;
    lock_it();
    int64_t count = function ? counts[i] : noted;
    unlock_it();
    return count;
}

int fake_calls_read(int64_t number, fake_noted *into) {
    lock_it();
    int is_there = number >= 0 && number < noted && number >= noted - FAKE_CALLS_KEPT;
    if (is_there) *into = list[number % FAKE_CALLS_KEPT];
    unlock_it();
    return is_there ? 0 : -1;
}

void fake_calls_forget(void) {
    lock_it();
    noted = 0;
    memset(counts, 0, sizeof counts);
    unlock_it();
}

int fake_fail(const char *function, int64_t nth, int code) {
    lock_it();
    int result = fail_add(find(function), nth, code);
    unlock_it();
    return result;
}

void fake_fail_nothing(void) {
    lock_it();
    for (int i = 0; i < FAILURES; i++) failures[i].function = -1;
    unlock_it();
}

int fake_fail_may_pass(int on) {
    lock_it();
    int before = may_pass;
    may_pass = on;
    unlock_it();
    return before;
}

void fake_complain(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    lock_it();
    char *text = is_mine ? mine : nobodys;
    if (!*text) vsnprintf(text, SENTENCE, format, arguments);
    unlock_it();
    va_end(arguments);
}

void fake_complaints_start(void) {
    is_mine = 1;
    mine[0] = '\0';
}

int fake_complaint_take(char *text, size_t bytes) {
    lock_it();
    char *from = *mine ? mine : nobodys;
    int is_there = *from != '\0';
    snprintf(text, bytes, "%s", from);
    *from = '\0';
    unlock_it();
    return is_there;
}

void fake_complaints_end(void) {
    is_mine = 0;
}

int64_t fake_setting(const char *variable, int64_t otherwise) {
    const char *text = getenv(variable);
    return text && *text ? strtoll(text, NULL, 10) : otherwise;
}
