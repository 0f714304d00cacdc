#include "test/fuzz/fuzz_run.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test/call.h"
#include "test/fixture.h"

/* Each of the requests that are kept for later waits has two of MPI at most; and one message of a rank to itself may
 * not have been received. */
enum { SIZES = 5, MESSAGE = 4096, MAX_ROWS = 64, KEPT = 4, MOST_UNDER_WAY = 2 * KEPT + 1 };

struct ffi_error {
    int code;
    char message[MESSAGE];
};

static fuzz_world world;
static fuzz_setting gpu;
static char *vast; /* as in the world, unless the case is to have none */
static fuzz_frame tried, probe;
static const fuzz_frame *now; /* the one whose handler runs */
static fuzz_tally tally;
static int was_made[MAX_ROWS], was_refused[MAX_ROWS];
static void *agreed; /* what a comparison of checked mode has given, and MPI_Wait must leave */
static int complaints = STDERR_FILENO;
static int is_watched;

fuzz_tally fuzz_tally_get(void) {
    return tally;
}

void fuzz_print(void) {
    (void)dup2(complaints, STDERR_FILENO);
    fuzz_frame_print(&tried);
    if (now == &probe) fuzz_frame_print(&probe);
    fprintf(stderr, "  the last call of MPI: %s\n", fake->call);
}

__attribute__((format(printf, 1, 2), noreturn)) static void wrong(const char *format, ...) {
    va_list arguments;
    (void)dup2(complaints, STDERR_FILENO);
    va_start(arguments, format);
    fprintf(stderr, "fuzz: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    abort();
}

/* MPI, as it sees what it is given */

static int64_t number_behind(const char *text, const char *mark) {
    const char *found = strstr(text, mark);
    return found ? strtoll(found + strlen(mark), NULL, 10) : -1;
}

static int64_t item_bytes(int type) {
    if (fuzz_itemsize(type) == 0) wrong("MPI was given data type %d", type);
    return fuzz_itemsize(type);
}

/* Memory of the call must have all of it. Memory that is none of the call's is the library's, which the sanitizers
 * watch. */
static void is_within(const char *memory, int64_t bytes) {
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < now->sides[side].count; i++) {
            const fuzz_buffer *g = &now->sides[side].given[i];
            const char *first = g->data;
            if (!first || memory < first || memory >= first + (g->bytes > 0 ? g->bytes : 1)) continue;
            if (memory + bytes > first + g->bytes)
                wrong("MPI was given %lld bytes of a buffer that ends after %lld", (long long)bytes,
                      (long long)(first + g->bytes - memory));
        }
}

static volatile char seen;

static void touches(void *memory, int64_t bytes, int is_received) {
    if (bytes < 0) wrong("MPI was given a count that is negative");
    if (memory == agreed) return;
    if (!memory && bytes > 0) wrong("MPI was given a null pointer for %lld bytes", (long long)bytes);
    is_within(memory, bytes);
    char *reached = world.reach(memory);
    int64_t step = bytes > FUZZ_LARGE ? bytes - 1 : 1;
    for (int64_t i = 0; i < bytes; i += step) {
        if (is_received)
            reached[i] = 2;
        else
            seen = reached[i];
    }
}

static void peer_is_right(const char *arrow, int any_too) {
    const char *found = strstr(fake->call, arrow);
    if (!found) return;
    int64_t peer = strtoll(found + strlen(arrow), NULL, 10), tag = number_behind(found, "tag ");
    if (peer != FAKE_PROC_NULL && !(any_too && peer == FAKE_ANY_SOURCE) && (peer < 0 || peer >= now->comm->size))
        wrong("MPI was given the rank %lld", (long long)peer);
    if ((tag < 0 || tag > FAKE_TAG_UB) && !(any_too && tag == FAKE_ANY_TAG))
        wrong("MPI was given the tag %lld", (long long)tag);
}

/* The communicator that the program means: a change may have named another. */
static const fuzz_comm *comm_meant(const fuzz_frame *f) {
    for (int i = 0; i < f->attribute_count; i++)
        for (int k = 0; k < world.comm_count && strcmp(f->attributes[i].name, "comm") == 0; k++)
            if (world.comms[k].id == f->attributes[i].value) return &world.comms[k];
    return f->comm;
}

/* Whether it is memory of the call's, and not of the library's. */
static int is_of_call(const char *memory) {
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < now->sides[side].count; i++) {
            const fuzz_buffer *g = &now->sides[side].given[i];
            if (g->data && memory >= (char *)g->data && memory <= (char *)g->data + g->bytes) return 1;
        }
    return 0;
}

/* What checked mode compares is the same on all ranks (check/agree.c), and each sends what the others expect, which
 * lies before what comes (check/tally.c). */
static void all_agree(void) {
    enum { WORDS = 3 };
    const int64_t bytes = WORDS * (int64_t)sizeof(uint64_t), all = bytes * now->comm->size;
    if (number_behind(fake->call, " t") != FFI_U64 || is_of_call(fake->recv)) return;
    agreed = strncmp(fake->call, "MPI_Iallreduce 3 ", 17) == 0 ? fake->recv : NULL;
    if (agreed) memmove(agreed, fake->send, (size_t)bytes);
    if (strncmp(fake->call, "MPI_Alltoall 3 ", 15) == 0) memmove(fake->recv, (char *)fake->recv - all, (size_t)all);
}

static int has_leaves(const fuzz_frame *f) {
    return (f->row->shape.attributes & LEAVES) != 0;
}

/* Inside of each call that moves data. */
static void during(void) {
    if (strstr(fake->call, " root ")) {
        int64_t root = number_behind(fake->call, " root ");
        if (root < 0 || root >= now->comm->size) wrong("MPI was given the root %lld", (long long)root);
    }
    peer_is_right("-> ", 0);
    peer_is_right("<- ", 1);
    const char *comm = strrchr(fake->call, 'c');
    if (comm && strtoll(comm + 1, NULL, 10) < 0) wrong("MPI was given no communicator");
    /* What ranks agree on: all say the same. */
    if (strncmp(fake->call, "MPI_Allgather ", 14) == 0 && number_behind(fake->call, " t") == FFI_U8 &&
        world.reach(fake->recv) == fake->recv && world.reach(fake->send) == fake->send) {
        int64_t n = number_behind(fake->call, "Allgather ");
        for (int i = 0; n > 0 && i < now->comm->size; i++) memmove((char *)fake->recv + i * n, fake->send, (size_t)n);
    }
    /* And what the library compares is the same on all, but for calls that are not right. */
    if (now->changes == 0 && has_leaves(now) && strncmp(fake->call, "MPI_Allreduce 2 ", 16) == 0)
        memmove(fake->recv, fake->send, 2 * sizeof(uint64_t));
    if (is_watched) all_agree();
}

/* Calls */

static ffi_error *error_create(ffi_error_create_args *args) {
    static ffi_error error;
    error.code = args->code;
    snprintf(error.message, sizeof error.message, "%s", args->message);
    return &error;
}

static const ffi_error *run(fuzz_frame *f) {
    const fuzz_comm *drawn = f->comm;
    f->comm = comm_meant(f);
    now = f;
    f->api.error_create = error_create;
    f->api.stream_get = gpu.stream_get;
    f->frame.context = f;
    const ffi_error *error = (world.on_device ? f->row->device : f->row->host)(&f->frame);
    if (error) mpixla_failures_seen(error->message);
    const char *complaint = gpu.settle ? gpu.settle() : "";
    if (*complaint) wrong("%s", complaint);
    f->comm = drawn;
    return error;
}

/* A sentence is printable UTF-8: Python must be able to have it. */
static int is_sentence(const char *text) {
    size_t length = strlen(text);
    const unsigned char *at = (const unsigned char *)text;
    if (length < 20 || strstr(text, "(null)")) return 0;
    while (*at) {
        int more = *at < 0x80                  ? 0
                   : *at >= 0xc2 && *at < 0xe0 ? 1
                   : *at >= 0xe0 && *at < 0xf0 ? 2
                   : *at >= 0xf0 && *at < 0xf5 ? 3
                                               : -1;
        if (more < 0 || (*at < 0x20 && *at != '\n') || *at == 0x7f) return 0;
        for (at++; more > 0; more--, at++)
            if ((*at & 0xc0) != 0x80) return 0;
    }
    return 1;
}

/* The reduction must be one that MPI, or a function of ours, has for the type: else it would compute something else. */
static void reduction_is_right(const fuzz_frame *f) {
    size_t count;
    const mpixla_reduction_row *reductions = mpixla_reduction_table(&count, NULL);
    const char *kind = "none";
    for (int i = 0; i < f->attribute_count; i++) {
        if (strcmp(f->attributes[i].name, "op") != 0) continue;
        int64_t op = f->attributes[i].value;
        if (op < 0 || op >= (int64_t)count) wrong("a call with the reduction %lld was made", (long long)op);
        int dtype = 0;
        for (int side = 0; side < 2 && dtype == 0; side++)
            for (int k = 0; k < f->sides[side].count && dtype == 0; k++)
                if (f->sides[side].given[k].dtype != FFI_TOKEN) dtype = f->sides[side].given[k].dtype;
#define MPIXLA_DTYPE(ffi, name, itemsize, mpi_name, kind_, nccl) \
    if (dtype == (ffi)) kind = kind_;
#include "tables/dtypes.def"
#undef MPIXLA_DTYPE
        if (strcmp(reductions[op].kinds, "pair") == 0 ? dtype != FFI_U8 : !strstr(reductions[op].kinds, kind))
            wrong("%s of items of type %d was made", reductions[op].name, dtype);
    }
}

/* Requests that are under way in MPI. */
static int64_t under_way(void) {
    int64_t n = fake->posted < FAKE_MESSAGES ? fake->posted : FAKE_MESSAGES, found = 0;
    for (int64_t i = 0; i < n; i++) found += !fake->messages[i].waited;
    return found;
}

/* Waits for a request that gives no items and no id. Of which type they are depends on how the start was changed, and
 * what is no such request is none: so whichever it may be is waited for. */
static void wait_without_id(const fuzz_comm *comm) {
    static const int dtypes[] = {
        0, /* it gives nothing */
#define MPIXLA_DTYPE(ffi, name_, itemsize, mpi_name, kind, nccl) ffi,
#include "tables/dtypes.def"
#undef MPIXLA_DTYPE
    };
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        const fuzz_request r = {.dtype = dtypes[i], .rank = 1, .nameless_on = comm};
        fuzz_frame_wait(&probe, &world, &r);
        const ffi_error *error = run(&probe);
        if (error) wrong("a request without an id was not waited for: %s", error->message);
        fuzz_frame_drop(&probe, &world);
    }
}

static void remember(const fuzz_frame *f) {
    const fuzz_buffer *id = NULL;
    for (int i = 0; i < f->sides[FUZZ_RESULTS].count && !id; i++)
        if (f->sides[FUZZ_RESULTS].given[i].dtype != FFI_TOKEN) id = &f->sides[FUZZ_RESULTS].given[i];
    if (!id) wrong("a start without an id was made");
    if (id->bytes == 0) {
        wait_without_id(comm_meant(f));
        return;
    }
    if (!id->data || id->bytes < 8) wrong("a start with half an id was made");
    fuzz_request *r = &world.requests[world.request_count++];
    *r = f->gives;
    r->is_sure = f->changes == 0;
    memcpy(r->id, world.reach(id->data), sizeof r->id);
    if (!(r->id[0] >= 1 && r->id[1] >= 1)) wrong("a start gave the id %g, %g", (double)r->id[0], (double)r->id[1]);
}

static void forget(int i) {
    world.requests[i] = world.requests[--world.request_count];
}

/* A start that was changed may give another thing than it was drawn for: the table of the library knows. So its
 * request is waited for in whichever way is not refused; unless it was waited for already, if that `may_be`. */
static void wait_for(int i, int may_be) {
    fuzz_request r = world.requests[i];
    forget(i);
    fuzz_frame_wait(&probe, &world, &r);
    const ffi_error *error = run(&probe);
    if (error && !(may_be && strstr(error->message, "a request was already waited for"))) {
        const char *given = strstr(error->message, "a request that gives ");
        if (!given) wrong("a request was not waited for: %s", error->message);
        fuzz_frame_drop(&probe, &world);
        char type[32] = "";
        long long items = 0;
        if (sscanf(given, "a request that gives %lld items of %31s", &items, type) != 2) wrong("%s", error->message);
        r.dtype = 0;
#define MPIXLA_DTYPE(ffi, name_, itemsize, mpi_name, kind, nccl) \
    if (strcmp(type, #name_) == 0 || strcmp(type, name_) == 0) r.dtype = ffi;
#include "tables/dtypes.def"
#undef MPIXLA_DTYPE
        r.rank = 1;
        r.dims[0] = items;
        fuzz_frame_wait(&probe, &world, &r);
        error = run(&probe);
        if (error) wrong("a request was not waited for: %s", error->message);
    }
    fuzz_frame_drop(&probe, &world);
}

/* A right call is made as if nothing had been before. */
static void works_again(void) {
    static const uint8_t bytes[] = {2, 1, 0, 11};
    fuzz_bytes b = {bytes, sizeof bytes};
    fuzz_frame_make(&probe, &world, &b, 0);
    int before = fake->calls;
    const ffi_error *error = run(&probe);
    if (error) wrong("a right call after it failed: %s", error->message);
    if (fake->calls - before < 1) wrong("a right call after it did not reach MPI");
    fuzz_frame_drop(&probe, &world);
    if (mpixla_calls_in_flight() != 0) wrong("a call is still in flight");
}

/* MPI itself fails where it can. */
static void mpi_fails(fuzz_bytes *b, const fuzz_frame *f) {
    fake->failing[0] = fuzz_rarely(b, 12) ? f->row->shape.mpi_name : NULL;
    fake->failing[1] = fake->failing[0] && fuzz_rarely(b, 3) ? "MPI_Wait" : NULL;
    fake->spared = fuzz_below(b, 3);
    fake->code = 15;
    if (f->row->shape.request == MPIXLA_STARTS) fake->failing[1] = NULL; /* a request that is left must not fail */
}

/* NCCL does not survive a rank that sends itself other messages than it receives, which nobody looks for. */
static int is_never_changed(const frame_shape *s) {
    return world.on_device && ((s->attributes & BACK) != 0 || s->counts == EXCHANGED_ROWS);
}

/* Whether MPI must have a function of its own for more items than an int counts. */
static int is_refused_if_large(const frame_shape *s) {
    int has_rows = s->counts == GATHERED_ROWS || s->counts == SCATTERED_ROWS || s->counts == EXCHANGED_ROWS;
    return !fake->has_large && (has_rows || (s->request == MPIXLA_STARTS && (s->attributes & OP) != 0));
}

void fuzz_one(const uint8_t *data, size_t size) {
    fuzz_bytes b = {data, size};
    int fails = fuzz_below(&b, 256);
    fake->missing = fuzz_rarely(&b, 8) ? 16 * fuzz_below(&b, 4) : 0; /* whole items of any type */
    fake->arrives_whole = !fuzz_rarely(&b, 8);
    fake->arrived = 16 * fuzz_below(&b, 4);
    /* Some calls count as large, and are made as those of more than 2^31 items are. */
    int large = fuzz_rarely(&b, 4) ? 1 + fuzz_below(&b, 5) : 0;
    world.vast = large > 0 ? NULL : vast;
    fuzz_frame_make(&tried, &world, &b, 3);
    const frame_shape *s = &tried.row->shape;
    int64_t limit = large > 0 ? mpixla_count_limit_set(large) : 0;
    int is_skipped = tried.changes > 0 && is_never_changed(s);
    if (is_skipped) {
        fuzz_frame_drop(&tried, &world);
        if (large > 0) (void)mpixla_count_limit_set(limit);
        return;
    }
    fuzz_bytes fail = {(const uint8_t[]){(uint8_t)fails, (uint8_t)(fails / 3), (uint8_t)(fails / 7)}, 3};
    mpi_fails(&fail, &tried);
    int is_pure = tried.changes == 0 && !(large > 0 && is_refused_if_large(s)) && !fake->failing[0] &&
                  fake->missing == 0 && fake->arrives_whole;
    int is_plain = s->mpi_name && s->counts != MANY && (s->attributes & BACK) == 0 && !world.on_device;
    int which = (int)(tried.row - fuzz_rows(&(int){0})), before = fake->calls;
    const ffi_error *error = run(&tried);
    /* A wait that failed in MPI has given its request back, too. */
    int has_waited = s->request == MPIXLA_WAITS && (!error || error->code == FFI_INTERNAL);
    if (!error) {
        tally.made++;
        was_made[which]++;
        if (s->attributes & OP) reduction_is_right(&tried);
        if (s->request == MPIXLA_STARTS) remember(&tried);
    } else {
        if (error->code == FFI_INTERNAL)
            tally.failed++;
        else {
            tally.refused++;
            was_refused[which]++;
        }
        if (!is_sentence(error->message)) wrong("this is no sentence: '%s'", error->message);
        if (is_pure) wrong("a right call failed: %s", error->message);
        /* What MPI has no function for is known when the call is made: types and reductions of pairs are made by then.
         */
        int is_too_large = strstr(error->message, "send the array in pieces") != NULL;
        if (is_plain && !is_too_large && error->code != FFI_INTERNAL && fake->calls != before)
            wrong("a call that was refused reached MPI: %s", error->message);
        if (error->code == FFI_INTERNAL && !fake->failing[0]) wrong("MPI failed, but was not to: %s", error->message);
    }
    fuzz_frame_drop(&tried, &world);
    if (large > 0) (void)mpixla_count_limit_set(limit);
    fake->failing[0] = fake->failing[1] = NULL;
    fake->missing = 0;
    fake->arrives_whole = 1;
    /* One that was changed may have had no id, or another one. */
    for (int i = 0; i < world.request_count && has_waited; i++)
        if (memcmp(world.requests[i].id, tried.id, sizeof tried.id) == 0) wait_for(i, 1);
    while (world.request_count > KEPT) wait_for(0, 0);
    works_again();
    if (under_way() > MOST_UNDER_WAY) wrong("%lld requests of MPI are under way", (long long)under_way());
}

int fuzz_is_thorough(void) {
    int count, lacks = 0;
    const fuzz_row *rows = fuzz_rows(&count);
    for (int i = 0; i < count; i++) {
        /* Some are only given right calls, see fuzz_one. */
        int can_be_refused = strcmp(rows[i].name, "order") != 0 && !is_never_changed(&rows[i].shape);
        if (was_made[i] > 0 && (was_refused[i] > 0 || !can_be_refused)) continue;
        fprintf(stderr, "fuzz: %s was made %d times and refused %d times\n", rows[i].name, was_made[i], was_refused[i]);
        lacks++;
    }
    return lacks == 0;
}

/* The start */

static void *host_get(size_t bytes) {
    return malloc(bytes > 0 ? bytes : 1);
}

static void *host_reach(const void *memory) {
    return (void *)(uintptr_t)memory;
}

static fuzz_comm comm_make(int rank, int size) {
    int number = fake->comm_new(rank, size, 0);
    return (fuzz_comm){
        .id = mpixla_comm_register(fake->handle(number), "fuzz"), .number = number, .rank = rank, .size = size};
}

/* A communicator of its own kind for each number of dimensions: grids with and without walls, and a graph. Who is its
 * own neighbour on one side is so on the other. */
static void topologies_add(void) {
    enum { NOBODY = MPIXLA_PROC_NULL };
    static const struct {
        int rank, dimensions;
        int64_t low[3], high[3];
    } grids[] = {{0, 1, {3}, {1}}, {2, 2, {NOBODY, 3}, {0, NOBODY}}, {1, 3, {1, 0, NOBODY}, {1, 0, NOBODY}}};
    for (size_t i = 0; i < sizeof grids / sizeof grids[0]; i++) {
        fuzz_comm *made = &world.comms[world.alive++];
        *made = comm_make(grids[i].rank, 4);
        call_grid_set(made->id, grids[i].dimensions, grids[i].low, grids[i].high);
        made->topology = comm_find_any(made->id)->topology;
    }
    static const int64_t dests[] = {1, NOBODY, 2, 0}, sources[] = {0, 3, 0}, tags[] = {1, 0, 0, 5},
                         recvtags[] = {2, 2, 5};
    fuzz_comm *graph = &world.comms[world.alive++];
    *graph = comm_make(0, 4);
    call_edges_set(graph->id, 1, 4, dests, tags);
    call_edges_set(graph->id, 0, 3, sources + 0, recvtags);
    graph->topology = comm_find_any(graph->id)->topology;
}

static char directory[] = "/tmp/fuzz-XXXXXX";

static void directory_remove(void) {
    char path[sizeof directory + 256];
    DIR *files = opendir(directory);
    for (struct dirent *file; files && (file = readdir(files)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", directory, file->d_name);
        (void)unlink(path);
    }
    if (files) (void)closedir(files);
    (void)rmdir(directory);
}

void fuzz_watch(void) {
    enum { LIMIT = 1 << 28 };
    const int nowhere = open("/dev/null", O_WRONLY);
    const mpixla_trace_facts facts = {.struct_size = sizeof facts,
                                      .directory = mkdtemp(directory),
                                      .limit = LIMIT,
                                      .ranks = 1,
                                      .job = "fuzz",
                                      .clock = "its own"};
    if (!facts.directory || mpixla_trace_start(&facts) != 0 || mpixla_check_set("first", 0) != 0 || nowhere < 0)
        wrong("the watchers cannot be started: %s", mpixla_last_error());
    atexit(directory_remove);
    complaints = dup(STDERR_FILENO);
    (void)dup2(nowhere, STDERR_FILENO);
    (void)mpixla_logging_set(1);
    is_watched = 1;
}

void fuzz_start(const fuzz_setting *setting) {
    static fake_status status;
    static const int ranks[SIZES] = {0, 2, 1, 0, 4}, sizes[SIZES] = {4, 4, 2, 1, 5};
    if (setting) gpu = *setting;
    world.on_device = setting != NULL;
    world.get = setting ? gpu.get : host_get;
    world.give_back = setting ? gpu.give_back : free;
    world.reach = setting ? gpu.reach : host_reach;
    for (int i = 0; i < SIZES; i++) world.comms[world.alive++] = comm_make(ranks[i], sizes[i]);
    world.comms[world.alive++] = (fuzz_comm){.id = FIXTURE_SELF, .number = FAKE_SELF, .rank = 0, .size = 1};
    world.comms[world.alive++] =
        (fuzz_comm){.id = FIXTURE_RANK0, .number = FIXTURE_RANK0 + 1, .rank = 0, .size = FIXTURE_SIZE};
    world.comms[world.alive++] =
        (fuzz_comm){.id = FIXTURE_RANK2, .number = FIXTURE_RANK2 + 1, .rank = 2, .size = FIXTURE_SIZE};
    topologies_add();
    world.comms[world.alive] = comm_make(1, 3);
    fake->comm_free(world.comms[world.alive].number);
    world.comm_count = world.alive + 1;
    world.status = mpixla_status_register(&status);
    void *memory = mmap(NULL, FUZZ_VAST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    vast = setting || memory == MAP_FAILED ? NULL : memory;
    fake->done = 1;
    fake->during = during;
    fake->touches = touches;
    fake->item_bytes = item_bytes;
    fake->arrives_whole = 1;
}
