/* Every call of the driver that an operation makes fails once: the operation says so, naming the function, keeps no
 * memory, and works the next time. Failures that need not be told, since all is right nevertheless, leave right
 * results. Where other ranks wait for this one, the job ends.
 */
#include <stdlib.h>
#include <unistd.h>

#include "test/gpu/fake_context.h"
#include "test/gpu/fake_event.h"
#include "test/gpu/fake_memory.h"
#include "test/gpu/fake_pinned.h"
#include "test/gpu/gpu_check.h"
#include "test/gpu/gpu_scene.h"
#include "test/run.h"
#include "test/scarce.h"

enum { MOST = 256, CODE = 700 };

static scene on_host, on_device;

/* Runs a step on both, with other numbers each time. The sentence of that on the GPU. */
static const char *run_both(const scene_step *step) {
    static int seed;
    static char sentence[CALL_MESSAGE];
    scene_open(&on_host, 0, ++seed);
    scene_open(&on_device, 1, seed);
    gpu_mpi_reset(seed);
    CHECK_STR(scene_run(&on_host, step), "");
    gpu_mpi_reset(seed);
    snprintf(sentence, sizeof sentence, "%s", scene_run(&on_device, step));
    return sentence;
}

static void end_both(void) {
    gpu_recover();
    scene_close(&on_host);
    scene_close(&on_device);
}

/* Of the pool. */
static int64_t blocks_live(void) {
    return fake_pinned_live() + fake_memory_live();
}

static void works(const scene_step *step) {
    CHECK_STR(run_both(step), "");
    CHECK_INT(gpu_drain(), 0);
    CHECK_STR(complaint(), "");
    CHECK_INT(fake_context_depth(), 0);
    CHECK(scenes_differ(&on_host, &on_device) == NULL);
    end_both();
    CHECK_INT(fake_events_live(), blocks_live()); /* each has one */
}

/* Nothing is lost without these: a block that cannot be recorded is waited for and freed, one that cannot be asked for
 * is not taken, and nobody can do anything about a context that stays. */
static int is_got_over(const char *function) {
    return strcmp(function, "cuEventRecord") == 0 || strcmp(function, "cuEventQuery") == 0 ||
           strcmp(function, "cuCtxPopCurrent_v2") == 0;
}

static void fails_once(const scene_step *step, const char *function, int64_t nth) {
    int64_t blocks = blocks_live();
    CHECK_INT(fake_fail(function, nth, CODE), 0);
    const char *sentence = run_both(step);
    if (*sentence) {
        CHECK_IN(sentence, function);
        CHECK_IN(sentence, "of the CUDA driver returned error code 700, CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory");
        CHECK_INT(on_device.c.code, FFI_ABORTED);
        CHECK_INT(fake_context_depth(), 0);
    } else {
        CHECK(is_got_over(function));
        CHECK_INT(gpu_drain(), 0);
        CHECK_STR(complaint(), "");
        CHECK(scenes_differ(&on_host, &on_device) == NULL);
    }
    CHECK_INT(mpixla_calls_in_flight(), 0);
    end_both();
    works(step);
    /* The block that was not taken comes back after the one that was made instead. */
    int64_t more = strcmp(function, "cuEventQuery") == 0;
    CHECK(blocks_live() <= blocks + more);
}

/* What comes before the call is read: nobody knows yet whether others wait. */
static int is_before(const char *function) {
    return strcmp(function, "cuStreamGetCtx") == 0 || strcmp(function, "cuCtxPushCurrent_v2") == 0 ||
           strcmp(function, "cuCtxGetDevice") == 0;
}

/* How many calls of the driver there were before the last one of MPI: if one of them fails, this rank has not made its
 * part. */
static int64_t before_mpi;

static void note(void) {
    before_mpi = fake_calls_count(NULL);
}

/* A process in which one call fails: it ends with status 1 if that is the end of the job. All share the memory of the
 * fake GPU, so nobody looks at that before they have ended. */
typedef struct trial {
    const char *function;
    int64_t nth;
    pid_t process;
    FILE *told; /* its stderr */
    int ends_the_job;
} trial;

enum { CAME_BACK = 3 };

static void trial_start(trial *t, const scene_step *step) {
    t->told = tmpfile();
    fflush(stdout);
    t->process = fork();
    if (t->process != 0) return;
    dup2(fileno(t->told), STDERR_FILENO);
    (void)fake_fail(t->function, t->nth, CODE);
    (void)run_both(step);
    _exit(CAME_BACK);
}

static void trial_wait(trial *t) {
    char text[4096];
    const int status = process_end(t->process);
    rewind(t->told);
    text[fread(text, 1, sizeof text - 1, t->told)] = '\0';
    fclose(t->told);
    t->ends_the_job = status != CAME_BACK;
    if (!t->ends_the_job) return;
    CHECK_INT(status, 1);
    CHECK_IN(text, "mpixla: r0 | ");
    CHECK_IN(text, t->function);
    CHECK_IN(text, "of the CUDA driver returned error code 700, CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory");
    CHECK_IN(text, "wait for this one in the same call");
}

static void each_call_fails_once(const scene_step *step) {
    static gpu_noted calls[MOST];
    static trial trials[MOST];
    int ended = 0;
    works(step);
    fake_calls_forget();
    before_mpi = 0;
    gpu_mpi_watch = note;
    works(step);
    gpu_mpi_watch = NULL;
    int64_t count = gpu_calls_list(calls, MOST);
    CHECK(count >= 4);
    for (int64_t i = 0; i < count; i++) {
        trials[i] = (trial){.function = calls[i].function, .nth = calls[i].nth};
        if (step->is_collective) trial_start(&trials[i], step); /* all at once, since the end of a job takes a while */
    }
    for (int64_t i = 0; i < count && step->is_collective; i++) trial_wait(&trials[i]);
    for (int64_t i = 0; i < count; i++) {
        int before = atomic_load(&check_failed);
        if (!trials[i].ends_the_job) fails_once(step, trials[i].function, trials[i].nth);
        if (is_before(calls[i].function))
            CHECK(!trials[i].ends_the_job);
        else if (step->is_collective && i < before_mpi && !is_got_over(calls[i].function))
            CHECK(trials[i].ends_the_job);
        ended += trials[i].ends_the_job;
        if (atomic_load(&check_failed) > before)
            printf("... in %s, where %s number %lld fails\n", step->name, calls[i].function, (long long)trials[i].nth);
    }
    CHECK((ended > 0) == step->is_collective);
}

/* Numbers that are known only at run time are brought from the GPU while the call is read. */

static const char *failing;

static void run_once(void) {
    (void)fake_fail(failing, 1, CODE);
    (void)call_run(&on_device.c);
}

static void numbers_cannot_be_brought(void) {
    static const char *const functions[] = {"cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"};
    static const struct {
        const char *op, *attribute;
        int numbers, is_collective;
    } rows[] = {{"gatherv", "counts", FIXTURE_SIZE, 1}, {"send", "dest", 1, 0}};
    for (int i = 0; i < 4; i++) {
        scene_open(&on_device, 1, 1);
        CHECK_INT(gpu_drain(), 0);
        int32_t *numbers = fake_memory_engine(on_device.arrays[SCENE_SHORT]);
        for (int k = 0; k < FIXTURE_SIZE; k++) numbers[k] = 1;
        scene_call(&on_device, rows[i / 2].op, FIXTURE_RANK2, 0);
        call_put_off(&on_device.c, rows[i / 2].attribute);
        scene_buffer(&on_device, CALL_OPERANDS, 0, FFI_S32, SCENE_ITEMS, SCENE_SENT);
        scene_buffer(&on_device, CALL_OPERANDS, 1, FFI_S32, rows[i / 2].numbers, SCENE_SHORT);
        CHECK_STR(call_run(&on_device.c), "");
        failing = functions[i % 2];
        scarce_end end = scarce_run(run_once);
        CHECK_INT(end.status, rows[i / 2].is_collective);
        if (rows[i / 2].is_collective) {
            CHECK_IN(end.told, failing);
            CHECK_IN(end.told, "wait for this one in the same call");
        } else {
            run_once();
            CHECK_IN(on_device.c.message, failing);
        }
        gpu_recover();
        scene_close(&on_device);
    }
}

int main(int argc, char **argv) {
    gpu_start(argc, argv);
    fake_fail_may_pass(1);
    for (int i = 0; i < scene_step_count; i++) each_call_fails_once(&scene_steps[i]);
    numbers_cannot_be_brought();
    return check_failures();
}
