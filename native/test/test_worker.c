#include <fenv.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "call.h"
#include "call/worker.h"
#include "check.h"
#include "fixture.h"
#include "run.h"

/* XLA's side. */

struct ffi_future {
    atomic_int ended;
    char message[CALL_MESSAGE];
};

static int refuses_futures;
static void (*_Atomic goes_on)(void); /* what XLA does in the thread that tells it of an end */

static ffi_error *future_create(ffi_future_create_args *args) {
    ffi_error_create_args why = {.struct_size = sizeof why, .message = "no future", .code = FFI_INTERNAL};
    CHECK_INT(args->struct_size, sizeof *args);
    args->future = refuses_futures ? NULL : calloc(1, sizeof *args->future);
    static call any; /* has XLA's way to make one */
    if (!refuses_futures) return NULL;
    call_make(&any, "barrier", FIXTURE_SELF, 0);
    return any.api.error_create(&why);
}

static void future_end(ffi_future *future) {
    void (*go)(void) = atomic_exchange(&goes_on, NULL);
    atomic_store(&future->ended, 1);
    if (go) go();
}

static ffi_error *future_set_available(ffi_future_set_available_args *args) {
    CHECK_INT(args->struct_size, sizeof *args);
    future_end(args->future);
    return NULL;
}

static ffi_error *future_set_error(ffi_future_set_error_args *args) {
    CHECK_INT(args->struct_size, sizeof *args);
    snprintf(args->future->message, sizeof args->future->message, "%s", call_error_message(args->error));
    future_end(args->future);
    return NULL;
}

static void make(call *c, const char *op, int64_t comm) {
    call_make(c, op, comm, 0);
    c->api.future_create = future_create;
    c->api.future_set_available = future_set_available;
    c->api.future_set_error = future_set_error;
}

static void wait_for(const ffi_future *future) {
    while (!atomic_load(&future->ended)) sched_yield();
}

/* How the call ended; until the next one. */
static const char *end_of(call *c) {
    static char message[CALL_MESSAGE];
    if (!c->frame.future) return "there is no future";
    wait_for(c->frame.future);
    snprintf(message, sizeof message, "%s", c->frame.future->message);
    free(c->frame.future);
    c->frame.future = NULL;
    while (worker_call_count() > 0) sched_yield(); /* XLA has gone on before the library's thread has */
    return message;
}

/* A call in MPI that stays there. */

static atomic_int stays, inside;

static void stay(void) {
    if (!atomic_exchange(&stays, 0)) return;
    atomic_store(&inside, 1);
    while (atomic_load(&inside)) sched_yield();
}

static void leave(void) {
    atomic_store(&inside, 0);
}

static void makes_calls_at_once_until_told(void) {
    static call c;
    make(&c, "allreduce", FIXTURE_RANK0);
    CHECK_STR(call_run(&c), "");
    CHECK(c.frame.future == NULL);
    mpixla_calls_apart();
}

static void returns_while_the_call_waits(void) {
    static call first, second;
    make(&first, "allreduce", FIXTURE_RANK0);
    make(&second, "barrier", FIXTURE_RANK2);
    atomic_store(&stays, 1);
    CHECK_STR(call_run(&first), "");
    while (!atomic_load(&inside)) sched_yield();
    CHECK(mpixla_calls_in_flight() > 0);
    CHECK_STR(call_run(&second), "");
    wait_for(second.frame.future);
    free(second.frame.future);
    CHECK(!atomic_load(&first.frame.future->ended));
    leave();
    CHECK_STR(end_of(&first), "");
    CHECK_INT(mpixla_calls_in_flight(), 0);
}

/* The handler's caller uses its frame again. */
static void keeps_what_the_frame_says(void) {
    static call c;
    make(&c, "barrier", FIXTURE_RANK2); /* every thread that has nothing to do is busy with this one first */
    atomic_store(&stays, 1);
    CHECK_STR(call_run(&c), "");
    while (!atomic_load(&inside)) sched_yield();
    static call other;
    make(&other, "scan", FIXTURE_RANK0);
    CHECK_STR(call_run(&other), "");
    ffi_future *future = other.frame.future;
    memset(other.sides, 0xff, sizeof other.sides);
    memset(&other.frame, 0xff, sizeof other.frame);
    wait_for(future);
    CHECK_STR(future->message, "");
    CHECK_IN(fake->call, "MPI_Scan");
    free(future);
    leave();
    CHECK_STR(end_of(&c), "");
}

static void passes_errors_on(void) {
    static call c;
    make(&c, "send", FIXTURE_RANK0);
    fixture_fail("MPI_Send", 0x10006);
    CHECK_STR(call_run(&c), "");
    CHECK_IN(end_of(&c), "MPI_Send returned error code 6");
    fixture_fail(NULL, 0);
    make(&c, "send", FIXTURE_RANK0);
    call_attribute_set(&c, "dest", 99);
    CHECK_STR(call_run(&c), "");
    CHECK_IN(end_of(&c), "MPI_Send got dest = 99");
    mpixla_failures_seen("MPI_Send");
    make(&c, "barrier", FIXTURE_RANK0);
    refuses_futures = 1;
    CHECK_STR(call_run(&c), "no future");
    refuses_futures = 0;
    CHECK(c.frame.future == NULL);
    CHECK_INT(mpixla_calls_in_flight(), 0);
}

/* XLA goes on in the library's thread, comes to another call and to a collective of its own, and waits for both. */
static call next;
static atomic_int went_on;

static void run_next(void) {
    make(&next, "barrier", FIXTURE_RANK0);
    CHECK_STR(call_run(&next), "");
    wait_for(next.frame.future);
    atomic_store(&went_on, 1);
}

static void has_a_thread_for_each_call(void) {
    static call c;
    make(&c, "barrier", FIXTURE_RANK0);
    atomic_store(&goes_on, run_next);
    CHECK_STR(call_run(&c), "");
    CHECK_STR(end_of(&c), "");
    CHECK(atomic_load(&went_on)); /* and the call counted as long as that */
    free(next.frame.future);
}

static atomic_int rounding;

static void look_at_rounding(void) {
    atomic_store(&rounding, fegetround());
}

static void computes_as_the_caller_does(void) {
    static call c;
    void (*before)(void) = fake->during;
    int usual = fegetround();
    fake->during = look_at_rounding;
    for (int i = 0; i < 2; i++) {
        int mode = i ? usual : FE_UPWARD;
        (void)fesetround(mode);
        make(&c, "barrier", FIXTURE_RANK0);
        CHECK_STR(call_run(&c), "");
        CHECK_STR(end_of(&c), "");
        CHECK_INT(atomic_load(&rounding), mode);
    }
    fake->during = before;
}

enum { THREADS = 4, CALLS = 500 };

static void *run_many(void *unused) {
    static _Thread_local call mine;
    for (int i = 0; i < CALLS; i++) {
        make(&mine, "allreduce", FIXTURE_RANK0);
        CHECK_STR(call_run(&mine), "");
        wait_for(mine.frame.future);
        CHECK_STR(mine.frame.future->message, "");
        free(mine.frame.future);
    }
    return unused;
}

static void serves_many_threads(void) {
    threads_run(THREADS, run_many);
    while (worker_call_count() > 0) sched_yield();
    CHECK_INT(mpixla_calls_in_flight(), 0);
}

static void calls_at_once_where_xla_cannot_wait(void) {
    static call c;
    make(&c, "barrier", FIXTURE_RANK0);
    c.api.struct_size = offsetof(ffi_api, future_create);
    CHECK_STR(call_run(&c), "");
    CHECK(c.frame.future == NULL);
}

/* It has none of the threads. */
static void refuses_in_a_forked_process(void) {
    pid_t child = fork();
    if (child == 0) {
        static call c;
        mpixla_forked();
        make(&c, "barrier", FIXTURE_RANK0);
        const char *message = call_run(&c);
        _exit(c.frame.future || !strstr(message, "this process was forked"));
    }
    CHECK_INT(process_end(child), 0);
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    fake->during = stay;
    makes_calls_at_once_until_told();
    returns_while_the_call_waits();
    keeps_what_the_frame_says();
    passes_errors_on();
    has_a_thread_for_each_call();
    computes_as_the_caller_does();
    serves_many_threads();
    calls_at_once_where_xla_cannot_wait();
    refuses_in_a_forked_process();
    return check_failures();
}
