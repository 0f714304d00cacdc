#include "fixture.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "xla/xla_ffi.h"

fake_mpi *fake;
static const char *path;

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "the test cannot start: %s: %s\n", what, mpixla_last_error());
    exit(2);
}

void fixture_load(int argc, char **argv) {
    require(argc > 1, "pass the path of a fake MPI");
    path = argv[1];
    void *loaded = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    require(loaded != NULL, path);
    fake = dlsym(loaded, "fake");
    require(fake != NULL, "the fake MPI has no variable `fake`");
}

mpixla_mpi_facts fixture_facts(void) {
    return (mpixla_mpi_facts){.struct_size = sizeof(mpixla_mpi_facts),
                              .library = path,
                              .handle_size = (int64_t)fake->handle_size,
                              .status_size = sizeof(fake_status),
                              .status_source = offsetof(fake_status, source),
                              .status_tag = offsetof(fake_status, tag),
                              .any_source = FAKE_ANY_SOURCE,
                              .any_tag = FAKE_ANY_TAG,
                              .tag_ub = FAKE_TAG_UB,
                              .proc_null = FAKE_PROC_NULL,
                              .in_place = FAKE_IN_PLACE,
                              .cart = FAKE_CART,
                              .graph = FAKE_GRAPH,
                              .dist_graph = FAKE_DIST_GRAPH,
                              .max_error_string = FAKE_ERROR_STRING,
                              .err_truncate = FAKE_ERR_TRUNCATE,
                              .comm_world = fake->handle(FAKE_WORLD),
                              .comm_self = fake->handle(FAKE_SELF)};
}

void fixture_start(int argc, char **argv) {
    fixture_load(argc, argv);
    mpixla_mpi_facts facts = fixture_facts();
    require(mpixla_start(&facts) == 0, "mpixla_start");
    /* The short floats share the MPI datatype of an integer row: that one's number counts. */
#define MPIXLA_DTYPE(ffi, name, itemsize, mpi_name, kind, nccl) \
    if (strcmp(kind, "float") != 0 || itemsize > 2)             \
        require(mpixla_datatype_bind(mpi_name, fake->handle(ffi)) == 0, mpi_name);
#include "tables/dtypes.def"
#undef MPIXLA_DTYPE
    size_t rows;
    const mpixla_reduction_row *reductions = mpixla_reduction_table(&rows, NULL);
    for (size_t i = 0; i < rows; i++)
        require(mpixla_reduction_bind(reductions[i].name, fake->handle(FIXTURE_REDUCTIONS + (int)i)) == 0,
                reductions[i].name);
    int rank0 = fake->comm_new(0, FIXTURE_SIZE, 0), rank2 = fake->comm_new(2, FIXTURE_SIZE, 0);
    require(mpixla_comm_register(fake->handle(rank0), "rank0") == FIXTURE_RANK0, "rank0");
    require(mpixla_comm_register(fake->handle(rank2), "rank2") == FIXTURE_RANK2, "rank2");
}

void fixture_fail(const char *function, int code) {
    fake->failing[0] = function;
    fake->failing[1] = NULL;
    fake->spared = 0;
    fake->code = code;
}

int fixture_is(const char *function) {
    size_t length = strlen(function);
    return strncmp(fake->call, function, length) == 0 && fake->call[length] == ' ';
}

int64_t fixture_count(void) {
    return strtoll(strchr(fake->call, ' ') + 1, NULL, 10);
}

const char *fixture_stderr_of(void (*run)(void)) {
    static char text[4096];
    FILE *file = tmpfile();
    require(file != NULL, "there is no temporary file");
    fflush(stderr);
    int before = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    run();
    dup2(before, STDERR_FILENO);
    close(before);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

int64_t fixture_item_bytes(int type) {
    return type == FFI_U8 ? 1 : 4;
}
