/* What the ranks of a communicator agree on, from what each has said. This process is rank 0; what the others say is
 * made up, and where NCCL is to start there is another rank, a thread that has the second GPU.
 */
#include <pthread.h>
#include <stdlib.h>

#include "mpi/agreed.h"
#include "routes/plan.h"
#include "test/gpu/fake_context.h"
#include "test/gpu/fake_driver.h"
#include "test/gpu/fake_memory.h"
#include "test/gpu/fake_nccl.h"
#include "test/gpu/fake_pinned.h"
#include "test/gpu/gpu_check.h"
#include "test/gpu/gpu_scene.h"

/* As in plan.c: what a rank says of itself. */
enum { NEVER_ON_GPU, NOT_NOW, ON_GPU };
typedef struct report {
    int32_t where, wish, nccl, platform;
    int64_t shares, piece;
    driver_uuid gpu;
    char why[256];
} report;

/* What the other ranks say in place of what rank 0 does. */
static void (*script)(report *all);
static int failing[2]; /* the rank that fails in each of NCCL's two steps; -1: none */
static int reports, steps, ids;

static struct {
    pthread_t thread;
    nccl_id id;
    int is_running, has_joined;
} other;

static void *other_rank(void *unused) {
    nccl_comm comm = NULL;
    CHECK_INT(fake_context_push(fake_context_get(1)), 0);
    other.has_joined = ncclCommInitRank(&comm, 2, other.id, 1) == 0;
    if (other.has_joined) CHECK_INT(ncclCommDestroy(comm), 0);
    CHECK_INT(fake_context_pop(NULL), 0);
    return unused;
}

static void others_agree(int64_t bytes) {
    if (bytes == (int64_t)sizeof(report)) {
        reports++;
        if (script) script(fake->recv);
    } else if (bytes == AGREED_WORDS * (int64_t)sizeof(uint64_t)) { /* on the first rank that fails */
        uint64_t *words = fake->recv;
        if (failing[steps] >= 0 && ~(uint64_t)failing[steps] > words[1]) words[1] = ~(uint64_t)failing[steps];
        steps++;
    } else {
        CHECK_INT(bytes, sizeof(nccl_id));
        ids++;
        if (gpu_mpi_ranks < 2) return;
        memcpy(&other.id, fake->send, sizeof other.id);
        other.is_running = pthread_create(&other.thread, NULL, other_rank, NULL) == 0;
        CHECK(other.is_running);
    }
}

static void others_end(void) {
    if (other.is_running) pthread_join(other.thread, NULL);
    other.is_running = 0;
}

static scene s;
static int number; /* of the communicator, in the fake MPI */
static int64_t comm;

static void comm_make(int size) {
    number = fake->comm_new(0, size, 0);
    comm = mpixla_comm_register(fake->handle(number), "ranks");
    gpu_mpi_ranks = size;
    script = NULL;
    failing[0] = failing[1] = -1;
    reports = steps = ids = 0;
}

static void comm_end(void) {
    CHECK_INT(fake->comm_free(number), 0);
    CHECK_INT(fake_comms_live(), 0);
    CHECK_STR(complaint(), "");
    CHECK_INT(fake_context_depth(), 0);
}

/* Runs an allreduce of the scene's small or large array. */
static const char *allreduce(int on_device, int64_t items) {
    static char sentence[CALL_MESSAGE];
    scene_open(&s, on_device, 1);
    scene_call(&s, "allreduce", comm, 0);
    scene_buffer(&s, CALL_OPERANDS, 0, FFI_S32, items, SCENE_LARGE);
    scene_buffer(&s, CALL_RESULTS, 0, FFI_S32, items, SCENE_LARGE_REDUCED);
    snprintf(sentence, sizeof sentence, "%s", call_run(&s.c));
    CHECK_INT(mpixla_calls_in_flight(), 0);
    CHECK_INT(gpu_drain(), 0);
    scene_close(&s);
    others_end();
    return sentence;
}

static const char *description(void) {
    static char text[1024];
    mpixla_gpu_transport_describe(comm, text, sizeof text);
    return text;
}

static void wish(const char *name) {
    CHECK_INT(mpixla_gpu_transport_set(name), 0);
}

static void the_wish_is_read(void) {
    comm_make(FIXTURE_SIZE);
    CHECK_STR(description(), "not chosen yet");
    CHECK_INT(mpixla_gpu_transport_set("gpu"), -1);
    CHECK_STR(mpixla_last_error(), "MPIXLA_GPU_TRANSPORT is 'gpu', but must be auto, nccl, mpi or host");
    static const char *const wishes[] = {"host", "mpi"};
    for (int i = 0; i < 2; i++) {
        wish(wishes[i]);
        CHECK_STR(allreduce(1, SCENE_ITEMS), "");
        CHECK_STR(allreduce(1, SCENE_ITEMS), "");
        CHECK_INT(reports, 1); /* once */
        CHECK_INT(steps, 0);
        char expected[64];
        snprintf(expected, sizeof expected, "%s: MPIXLA_GPU_TRANSPORT is %s", wishes[i], wishes[i]);
        CHECK_STR(description(), expected);
        comm_end();
        comm_make(FIXTURE_SIZE);
    }
    comm_end();
}

static void rank1_wants_host(report *all) {
    all[1].wish = PLAN_HOST;
}

static void rank3_wants_nccl(report *all) {
    all[3].wish = PLAN_NCCL;
}

static void different_wishes_are_refused(void) {
    static const struct {
        void (*script)(report *all);
        const char *sentence;
    } rows[] = {
        {rank1_wants_host, "MPIXLA_GPU_TRANSPORT is auto on rank 0, and host on rank 1"},
        {rank3_wants_nccl, "MPIXLA_GPU_TRANSPORT is auto on rank 0, and nccl on rank 3"},
    };
    wish("auto");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int first = 0; first < 2; first++) {
            char expected[512];
            comm_make(FIXTURE_SIZE);
            script = rows[i].script;
            snprintf(expected, sizeof expected,
                     "MPI_Allreduce on communicator 'ranks' cannot be made in the way that MPIXLA_GPU_TRANSPORT asks "
                     "for: %s",
                     rows[i].sentence);
            int before = fake->calls;
            CHECK_STR(allreduce(1, SCENE_ITEMS), expected);
            CHECK_INT(s.c.code, FFI_ABORTED);
            CHECK_INT(fake->calls, before + 1);
            CHECK_STR(allreduce(1, SCENE_ITEMS), expected); /* without asking again */
            CHECK_INT(fake->calls, before + 1);
            mpixla_gpus_expect(1, 1); /* then calls with the host's memory know it, too */
            CHECK_STR(allreduce(0, SCENE_ITEMS), expected);
            mpixla_gpus_expect(0, 1);
            CHECK_IN(description(), rows[i].sentence);
            CHECK(strncmp(description(), "none: ", 6) == 0);
            comm_end();
        }
}

static void rank2_is_on_the_host(report *all) {
    all[2].where = NOT_NOW;
}

static void rank1_has_no_nccl(report *all) {
    all[1].nccl = 0;
    snprintf(all[1].why, sizeof all[1].why, "NCCL cannot be loaded: there is none");
}

static void rank3_has_an_older_nccl(report *all) {
    all[1].gpu.bytes[0] = all[2].gpu.bytes[1] = all[3].gpu.bytes[2] = 1;
    all[3].nccl = 22703;
}

static void rank1_has_another_platform(report *all) {
    all[1].platform = DRIVER_ROCM;
}

static void ranks_1_and_3_share(report *all) {
    all[1].gpu.bytes[0] = all[3].gpu.bytes[0] = 1;
    all[2].gpu.bytes[0] = 2;
}

static void all_share_but_rank2_does_not_say(report *all) {
    all[2].shares = 0;
}

static void all_share_with_an_older_nccl(report *all) {
    for (int i = 0; i < FIXTURE_SIZE; i++) all[i].nccl = 22900;
}

/* All draw the same conclusion, from what all have said: nothing but that matters, least of all the environment. */
static void nccl_is_not_used_where_it_cannot_be(void) {
    static const char same[] =
        " use the same GPU (NCCL from 2.30 on allows it with NCCL_MULTI_RANK_GPU_ENABLE=1 on "
        "every rank; mpixla.select_local_gpu() gives each rank its own)";
    static const struct {
        void (*script)(report *all);
        const char *shares, *why;
    } rows[] = {
        {rank2_is_on_the_host, "0", "rank 2 calls with the host's memory and others with a GPU's"},
        {rank1_has_no_nccl, "0", "on rank 1 NCCL cannot be loaded: there is none"},
        {rank3_has_an_older_nccl, "0", "ranks 0 and 3 have different versions of NCCL, 23004 and 22703"},
        {rank1_has_another_platform, "1", "ranks 0 and 1 have GPUs of different platforms"},
        {ranks_1_and_3_share, "0", "ranks 1 and 3 use the same GPU"},
        {NULL, "0", "ranks 0 and 1 use the same GPU"},
        {all_share_but_rank2_does_not_say, "1", "ranks 0 and 1 use the same GPU"},
        {all_share_with_an_older_nccl, "1", "ranks 0 and 1 use the same GPU"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int is_asked = 0; is_asked < 2; is_asked++) {
            char why[512];
            setenv("NCCL_MULTI_RANK_GPU_ENABLE", rows[i].shares, 1);
            snprintf(why, sizeof why, "%s%s", rows[i].why, strstr(rows[i].why, "same GPU") ? same + 17 : "");
            wish(is_asked ? "nccl" : "auto");
            comm_make(FIXTURE_SIZE);
            script = rows[i].script;
            const char *sentence = allreduce(1, SCENE_ITEMS);
            if (is_asked)
                CHECK_IN(sentence, why);
            else
                CHECK_STR(sentence, "");
            CHECK_INT(steps, 0);
            CHECK_IN(description(), why);
            CHECK(strncmp(description(), is_asked ? "none: " : "host: ", 6) == 0);
            CHECK_STR(allreduce(1, SCENE_ITEMS), sentence);
            CHECK_INT(reports, 1);
            comm_end();
        }
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

static void the_other_has_its_own_gpu(report *all) {
    all[1].gpu.bytes[0] = 1;
}

static void nccl_starts(void) {
    wish("auto");
    for (int size = 1; size <= 2; size++) {
        comm_make(size);
        script = size == 2 ? the_other_has_its_own_gpu : NULL;
        scene_open(&s, 1, 1);
        scene_call(&s, "allreduce", comm, 0);
        scene_buffer(&s, CALL_OPERANDS, 0, FFI_S32, 0, SCENE_LARGE); /* nothing that the other would have to do */
        scene_buffer(&s, CALL_RESULTS, 0, FFI_S32, 0, SCENE_LARGE_REDUCED);
        CHECK_STR(call_run(&s.c), "");
        CHECK_STR(call_run(&s.c), "");
        others_end();
        CHECK_INT(size == 1 || other.has_joined, 1);
        CHECK_INT(reports, 1);
        CHECK_INT(steps, 2);
        CHECK_INT(ids, 1);
        CHECK_INT(fake_comms_live(), 1);
        CHECK_IN(description(), "nccl: NCCL 2.30.4 (");
        CHECK_IN(description(), ", a GPU for each rank");
        CHECK_INT(gpu_drain(), 0);
        scene_close(&s);
        fake_calls_forget();
        comm_end();
        CHECK_INT(fake_calls_count("ncclCommDestroy"), 1);
        CHECK_INT(fake_calls_count("ncclCommAbort"), 0);
    }
    /* With one GPU for both, if all say so. */
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    setenv("MPIXLA_FAKE_DEVICE_SHARED", "1", 1);
    comm_make(2);
    CHECK_STR(allreduce(1, 0), "");
    CHECK_IN(description(), "nccl: ");
    comm_end();
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    unsetenv("MPIXLA_FAKE_DEVICE_SHARED");
}

/* What one rank cannot do, none does. */
static void nccl_that_does_not_start_is_not_used(void) {
    static const struct {
        int size;
        const char *function; /* that fails here, or NULL */
        int code, second;     /* who says so in the second step; -1: nobody */
        int aborted;
        const char *why;
    } rows[] = {
        {2, "ncclGetUniqueId", 2, -1, 0, "on rank 0: ncclGetUniqueId returned error code 2, unhandled system error"},
        {1, "ncclCommInitRank", 3, -1, 0, "on rank 0: ncclCommInitRank returned error code 3, internal error"},
        {1, "ncclCommInitRank", NCCL_IN_PROGRESS, -1, 0, "on rank 0: ncclCommInitRank returned before it was done"},
        {1, "ncclCommGetAsyncError", NCCL_IN_PROGRESS, -1, 1, "cannot use: unset NCCL_COMM_BLOCKING"},
        {1, "ncclCommGetAsyncError", 6, -1, 1, "on rank 0: ncclCommInitRank returned error code 6, remote process"},
        {2, NULL, 0, 1, 1, "NCCL does not start on rank 1"},
    };
    fake_fail_may_pass(1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int is_asked = 0; is_asked < 2; is_asked++) {
            wish(is_asked ? "nccl" : "auto");
            setenv("MPIXLA_FAKE_DEVICE_TIMEOUT", "1", 1); /* for the other, if this one does not come */
            comm_make(rows[i].size);
            script = rows[i].size == 2 ? the_other_has_its_own_gpu : NULL;
            failing[1] = rows[i].second;
            if (rows[i].function) CHECK_INT(fake_fail(rows[i].function, 1, rows[i].code), 0);
            fake_calls_forget();
            const char *sentence = allreduce(1, SCENE_ITEMS);
            if (is_asked)
                CHECK_IN(sentence, rows[i].why);
            else
                CHECK_STR(sentence, "");
            CHECK_IN(description(), rows[i].why);
            CHECK_INT(fake_calls_count("ncclCommAbort"), rows[i].aborted);
            CHECK_INT(fake_comms_live(), 0);
            CHECK_STR(allreduce(1, SCENE_ITEMS), sentence);
            CHECK_INT(reports, 1);
            comm_end();
        }
    unsetenv("MPIXLA_FAKE_DEVICE_TIMEOUT");
    fake_fail_may_pass(0);
}

/* MPI fails while they agree: nothing is kept, and the next call begins again. */
static void failures_of_mpi_are_told(void) {
    static const struct {
        const char *function;
        int spared;
    } rows[] = {
        {"MPI_Comm_dup", 0}, {"MPI_Allgather", 0}, {"MPI_Allreduce", 0}, {"MPI_Allreduce", 1}, {"MPI_Bcast", 0}};
    wish("auto");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        comm_make(1);
        fixture_fail(rows[i].function, 0xa06);
        fake->spared = rows[i].spared;
        CHECK_IN(allreduce(1, SCENE_ITEMS), "MPI_Allreduce returned error code 6: ");
        fixture_fail(NULL, 0);
        CHECK_STR(description(), "not chosen yet");
        CHECK_INT(fake_comms_live(), 0);
        steps = 0;
        CHECK_STR(allreduce(1, SCENE_ITEMS), "");
        CHECK_IN(description(), "nccl: ");
        CHECK_INT(fake_comms_live(), 1);
        comm_end();
    }
}

static void rank1_is_on_a_gpu(report *all) {
    all[1].where = ON_GPU;
}

static void rank1_may_come(report *all) {
    all[1].where = NOT_NOW;
}

/* Calls with the host's memory take part as long as somebody may come with a GPU's. */
static void ranks_on_the_host_take_part(void) {
    wish("auto");
    comm_make(FIXTURE_SIZE);
    CHECK_STR(allreduce(0, SCENE_ITEMS), ""); /* no job with GPUs */
    CHECK_INT(reports, 0);
    mpixla_gpus_expect(1, 1);
    for (int i = 1; i <= 3; i++) {
        CHECK_STR(allreduce(0, SCENE_ITEMS), "");
        CHECK_INT(reports, i);
        CHECK_STR(description(), "not chosen yet");
    }
    script = rank1_is_on_a_gpu;
    for (int i = 0; i < 3; i++) {
        CHECK_STR(allreduce(0, SCENE_ITEMS), "");
        CHECK_INT(reports, 4);
    }
    CHECK_STR(description(), "host: rank 0 calls with the host's memory and others with a GPU's");
    comm_end();
    comm_make(FIXTURE_SIZE);
    wish("nccl");
    script = rank1_is_on_a_gpu;
    CHECK_IN(allreduce(0, SCENE_ITEMS), "asks for: rank 0 calls with the host's memory");
    CHECK_INT(s.c.code, FFI_ABORTED);
    comm_end();

    wish("auto");
    mpixla_gpus_expect(1, 0); /* this rank will never have one */
    comm_make(FIXTURE_SIZE);
    script = rank1_may_come;
    for (int i = 1; i <= 3; i++) CHECK_STR(allreduce(0, SCENE_ITEMS), "");
    CHECK_INT(reports, 3);
    script = NULL; /* nor will the others */
    for (int i = 1; i <= 3; i++) CHECK_STR(allreduce(0, SCENE_ITEMS), "");
    CHECK_INT(reports, 4);
    comm_end();
    mpixla_gpus_expect(0, 1);
}

static void rank1_has_other_pieces(report *all) {
    all[1].piece = 2 * GPU_PIECE;
}

/* Only where all make the same pieces. */
static void pieces_are_agreed_on(void) {
    static void (*const scripts[])(report *all) = {NULL, rank1_has_other_pieces, rank2_is_on_the_host};
    wish("host");
    for (int i = 0; i < 3; i++) {
        comm_make(FIXTURE_SIZE);
        script = scripts[i];
        CHECK_STR(allreduce(1, SCENE_ITEMS), "");
        int before = fake->calls;
        CHECK_STR(allreduce(1, SCENE_LARGE_ITEMS), "");
        CHECK_INT(fake->calls - before, i == 0 ? 7 : 1);
        CHECK_IN(fake->call, i == 0 ? "MPI_Allreduce 4 " : "MPI_Allreduce 100 ");
        comm_end();
    }
}

/* Messages go on their own, and ask nobody. */
static void messages_need_no_plan(void) {
    static const char *const steps_[] = {"recv", "send", "sendrecv", "requests"};
    wish("auto");
    comm_make(FIXTURE_SIZE);
    for (int i = 0; i < 4; i++) {
        const scene_step *step = scene_step_find(steps_[i]);
        scene_open(&s, 1, 1);
        CHECK_STR(scene_run(&s, step), "");
        CHECK_INT(gpu_drain(), 0);
        scene_close(&s);
    }
    CHECK_INT(reports, 0);
    comm_end();
}

static void mpi_may_be_refused(void) {
    wish("mpi");
    comm_make(FIXTURE_SIZE);
    mpixla_gpu_mpi_refuse("this MPI says that it cannot");
    CHECK_STR(allreduce(1, SCENE_ITEMS),
              "MPI_Allreduce was called with a GPU's memory and MPIXLA_GPU_TRANSPORT=mpi, but this MPI says that it "
              "cannot; unset it, or set it to host");
    CHECK_INT(s.c.code, FFI_ABORTED);
    mpixla_gpu_mpi_refuse("");
    CHECK_STR(allreduce(1, SCENE_ITEMS), "");
    comm_end();
}

/* NCCL's communicator is of one GPU. */
static void another_gpu_is_refused(void) {
    wish("auto");
    comm_make(1);
    CHECK_STR(allreduce(1, SCENE_ITEMS), "");
    fake_stream *mine = gpu_stream;
    gpu_stream = fake_stream_take(1);
    CHECK_STR(allreduce(1, SCENE_ITEMS),
              "MPI_Allreduce on communicator 'ranks' was called for GPU 1, but before for GPU 0: use one GPU in each "
              "process");
    fake_stream_give(gpu_stream);
    gpu_stream = mine;
    CHECK_STR(allreduce(1, SCENE_ITEMS), "");
    comm_end();
}

int main(int argc, char **argv) {
    setenv("MPIXLA_FAKE_DEVICE_COUNT", "2", 1);
    gpu_start(argc, argv);
    gpu_mpi_agree = others_agree;
    the_wish_is_read();
    different_wishes_are_refused();
    nccl_is_not_used_where_it_cannot_be();
    nccl_starts();
    nccl_that_does_not_start_is_not_used();
    failures_of_mpi_are_told();
    ranks_on_the_host_take_part();
    pieces_are_agreed_on();
    messages_need_no_plan();
    mpi_may_be_refused();
    another_gpu_is_refused();
    return check_failures();
}
