/* Calls that follow one another while the stream has not yet done what those before left on it. The seam, through which
 * Python tests the same handlers, runs the stream after each call, so it cannot see a call that disturbs the one
 * before.
 *
 * And that this test would see it: the fake driver leaves out, one at a time, each of its calls.
 *
 *   left out              seen as
 *   a wait for the        wrong results, or wrong numbers for MPI, in each place: MPI reads before the copy to the host
 *   stream, or an event   is made, or writes where the copy to the GPU before still reads
 *   a copy, a fill        likewise, in each place
 *   recording an event    likewise, in the pieces of large calls; for blocks of the pool in a process that has none
 * yet, as is an event that is there too early a context pushed or   the driver's sentence, or a context that is left
 *   popped, asking for it
 */
#include <stdlib.h>
#include <unistd.h>

#include "test/gpu/fake_context.h"
#include "test/gpu/fake_memory.h"
#include "test/gpu/gpu_check.h"
#include "test/gpu/gpu_scene.h"
#include "test/run.h"

enum { MOST = 2048 };

/* CUDA's name of a function, or, where the driver is SYCL's, that of the function that does the same. */
static int is_sycl;
static const char *called(const char *function) {
    static const char *const names[][2] = {{"cuEventQuery", "DPCTLEvent_GetCommandExecutionStatus"},
                                           {"cuEventRecord", "DPCTLQueue_SubmitBarrier"},
                                           {"cuEventSynchronize", "DPCTLEvent_Wait"},
                                           {"cuStreamSynchronize", "DPCTLQueue_Wait"}};
    for (size_t i = 0; i < sizeof names / sizeof *names && is_sycl; i++)
        if (strcmp(names[i][0], function) == 0) return names[i][1];
    return function;
}

static scene on_host, on_device;

/* All steps, and not once is the stream waited for but by the library. The sentence of the first that fails. */
static const char *program(scene *s, int is_on_device, int seed) {
    const char *sentence = "";
    scene_open(s, is_on_device, seed);
    gpu_mpi_reset(seed);
    for (int i = 0; i < scene_step_count && !*sentence; i++) sentence = scene_run(s, &scene_steps[i]);
    return sentence;
}

/* What is noticed when the program runs on the GPU, or NULL. Each time it runs with other numbers, so that none are
 * right that were left in memory. */
static const char *notice(void) {
    static char text[4096];
    static int seed;
    const char *noticed = NULL;
    CHECK_STR(program(&on_host, 0, ++seed), "");
    uint64_t sent_by_host = gpu_mpi_sent();
    const char *sentence = program(&on_device, 1, seed);
    int is_late = !fake_stream_is_idle(gpu_stream), code = gpu_drain();
    fake_fail_nothing();
    if (*sentence) {
        snprintf(text, sizeof text, "%s", sentence);
        noticed = text;
    } else if (fake_complaint_take(text, sizeof text)) {
        noticed = text;
    } else if (code != 0) {
        noticed = "the stream's error";
    } else if (fake_context_depth() != 0) {
        noticed = "the context";
    } else {
        noticed = scenes_differ(&on_host, &on_device);
        if (!noticed && gpu_mpi_sent() != sent_by_host) noticed = "what was sent";
    }
    if (!noticed) CHECK(is_late); /* else this test tests nothing */
    gpu_recover();
    scene_close(&on_device);
    scene_close(&on_host);
    return noticed;
}

static void calls_do_not_disturb_each_other(void) {
    for (int i = 0; i < 5; i++) {
        const char *noticed = notice();
        CHECK_STR(noticed ? noticed : "", "");
    }
}

/* The calls of the driver that the program makes, when it has made them before. */
static gpu_noted calls[MOST];

static int64_t calls_list(void) {
    fake_calls_forget();
    CHECK(notice() == NULL);
    int64_t count = gpu_calls_list(calls, MOST);
    CHECK(count > 100);
    return count;
}

/* Calls that may do nothing: they are for other programs, and for one that has no memory yet. */
static int may_pass(const char *function, int64_t number) {
    static const char *const of_the_device[] = {"cuCtxGetDevice",       "hipStreamGetDevice",    "hipGetDevice",
                                                "DPCTLQueue_GetDevice", "DPCTLQueue_GetContext", "DPCTLDevice_Hash",
                                                "DPCTLContext_Hash"};
    for (size_t i = 0; i < sizeof of_the_device / sizeof *of_the_device; i++)
        if (strcmp(function, of_the_device[i]) == 0) return 1;    /* there is one device, number 0 */
    if (is_sycl && strstr(function, "_Delete")) return 1;         /* the fake deletes all the same */
    if (strcmp(function, "DPCTLQueue_Memcpy") == 0) return 1;     /* one of many lines, which another step may write */
    if (strcmp(function, called("cuEventQuery")) == 0) return 1;  /* when there are blocks enough, the oldest is free */
    if (strcmp(function, called("cuEventRecord")) == 0) return 1; /* likewise, where a block is given back */
    /* A bcast that receives has nothing to wait for in its first two pieces, which are the 8th and the 9th here. */
    return strcmp(function, called("cuEventSynchronize")) == 0 && (number == 8 || number == 9);
}

static int64_t noticed_of(const char *function, int64_t count) {
    int64_t noticed = 0;
    for (int64_t i = 0; i < count; i++) {
        if (strcmp(calls[i].function, function) != 0) continue;
        CHECK_INT(fake_fail(calls[i].function, calls[i].nth, FAKE_SKIP), 0);
        const char *what = notice();
        noticed += what != NULL;
        if (what || may_pass(function, calls[i].nth)) continue;
        printf("nobody noticed that %s number %lld did nothing\n", function, (long long)calls[i].nth);
        CHECK(what != NULL);
    }
    return noticed;
}

static void every_mistake_is_noticed(const char *const *waits, size_t kinds) {
    int64_t count = calls_list();
    for (int64_t i = 0; i < count; i++)
        if (calls[i].nth == 1) (void)noticed_of(calls[i].function, count);
    for (size_t i = 0; i < kinds; i++) CHECK(noticed_of(called(waits[i]), count) >= 20);
    if (is_sycl) CHECK(noticed_of("DPCTLQueue_Memcpy", count) >= 100);
    CHECK(notice() == NULL);
}

/* In a process that has no memory for calls yet, so that blocks are asked for while the stream still needs them: how
 * many places there are where leaving out the call is noticed. */
static int places_noticed(const char *function) {
    enum { RIGHT, NOTICED, NOT_CALLED };
    int places = 0;
    for (int64_t number = 1;; number++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            (void)fake_fail(function, number, FAKE_SKIP);
            const char *what = notice();
            _exit(fake_calls_count(function) < number ? NOT_CALLED : what ? NOTICED : RIGHT);
        }
        const int end = process_end(child);
        CHECK(end >= RIGHT && end <= NOT_CALLED);
        if (end != RIGHT && end != NOTICED) return places;
        places += end == NOTICED;
    }
}

static void blocks_are_not_used_too_early(void) {
    CHECK(places_noticed(called("cuEventQuery")) >= 2);
    CHECK(places_noticed(called("cuEventRecord")) >= 20);
    CHECK_INT(places_noticed("cuInit"), 0);
}

int main(int argc, char **argv) {
    static const char *const waits[] = {"cuStreamSynchronize", "cuEventSynchronize", "cuEventRecord"};
    gpu_start(argc, argv);
    is_sycl = driver_get()->platform == DRIVER_SYCL;
    fake_fail_may_pass(1);
    int is_host = strcmp(argv[3], "host") == 0;
    if (is_host) blocks_are_not_used_too_early();
    calls_do_not_disturb_each_other();
    every_mistake_is_noticed(waits, is_host ? 3 : 1); /* events are for copies by way of the host */
    return check_failures();
}
