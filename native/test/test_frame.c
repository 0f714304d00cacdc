#include <limits.h>

#include "base/error.h"
#include "call.h"
#include "call/frame.h"
#include "check.h"
#include "fixture.h"

enum { LEFT = FIXTURE_RANK0, ON = 0, OFF = 1 }; /* on rank 0: a root that is us, and one that is not */

static const char *const ops[] = {
#define MPIXLA_OP(name, ...) #name,
#include "tables/ops.def"
#undef MPIXLA_OP
};
enum { OPS = sizeof ops / sizeof ops[0] };

static call c;
static frame f;

static void needs_the_start(void) {
    call_make(&c, "send", 0, 0);
    CHECK_STR(call_read(&c, "send", &f), "MPI_Send was called before mpixla_start");
}

/* Attributes */

/* A shift becomes the rank that it leads to, for MPI and for reports. */
static void reads_shifts(void) {
    static const int sizes[] = {4}, walls[] = {0}, place[] = {0};
    char text[128];
    call_make(&c, "sendrecv", LEFT, ON);
    call_shift_set(&c, "dest", 0, 1);
    call_shift_set(&c, "source", 0, -1);
    CHECK_STR(call_read(&c, "sendrecv", &f), "");
    CHECK_INT(f.dest, 1);
    CHECK_INT(f.source, 3);
    facts_describe(&f.facts, NULL, 0, text, sizeof text);
    CHECK_STR(text, "MPI_Sendrecv -> 1 with tag 7 and 3 items <- 3 with tag 8 and 3 items");
    call_make(&c, "sendrecv", LEFT, ON);
    CHECK_STR(call_read(&c, "sendrecv", &f), ""); /* a number again */
    CHECK_INT(f.dest, 1);
    CHECK_INT(f.source, 2);
    int number = fake->comm_new(0, 4, 0);
    fake->cart_set(number, 1, sizes, walls, place);
    call_make(&c, "sendrecv", mpixla_comm_register(fake->handle(number), "line"), ON);
    call_shift_set(&c, "dest", 0, 1);
    call_shift_set(&c, "source", 0, -1);
    CHECK_STR(call_read(&c, "sendrecv", &f), "");
    CHECK_INT(f.dest, 1);
    CHECK_INT(f.source, FAKE_PROC_NULL);
    CHECK_INT(f.attributes[ATTRIBUTE_SOURCE], MPIXLA_PROC_NULL);
    facts_describe(&f.facts, NULL, 0, text, sizeof text);
    CHECK_STR(text, "MPI_Sendrecv -> 1 with tag 7 and 3 items <- MPI_PROC_NULL with tag 8 and 3 items");
    call_shift_set(&c, "dest", 1, 1);
    CHECK_IN(call_read(&c, "sendrecv", &f), "a shift has direction 1, but communicator 'line' has 1 dimensions");
    call_make(&c, "sendrecv", LEFT, ON);
    call_shift_set(&c, "dest", 0, 1);
    call_array_set(&c, ATTRIBUTE_DEST, 3, (const int64_t[]){0, 1, 2});
    CHECK_STR(call_read(&c, "sendrecv", &f),
              "attribute 'dest' of MPI_Sendrecv must be a 64-bit integer, or pairs of them: a direction and by how "
              "many ranks");
    call_array_set(&c, ATTRIBUTE_DEST, 0, (const int64_t[]){0});
    CHECK_IN(call_read(&c, "sendrecv", &f),
             "attribute 'dest' of MPI_Sendrecv must be a 64-bit integer, or pairs of them");
    c.attributes.arrays[ATTRIBUTE_DEST].dtype = FFI_S32;
    CHECK_IN(call_read(&c, "sendrecv", &f),
             "attribute 'dest' of MPI_Sendrecv must be a 64-bit integer, or pairs of them");
}

/* Each attribute of each operation in turn is left out, misspelt or of another type, and each place gets one more. */
static void refuses_wrong_attributes(void) {
    for (int i = 0; i < OPS; i++) {
        call_make(&c, ops[i], LEFT, ON);
        for (int64_t n = c.frame.attrs.size, a = 0; a <= n; a++) {
            call_make(&c, ops[i], LEFT, ON);
            call_attribute_insert(&c, (int)a, "bogus", 0);
            CHECK_IN(call_read(&c, ops[i], &f), "does not take");
            if (a == n) continue;

            char name[32], part[128];
            call_make(&c, ops[i], LEFT, ON);
            snprintf(name, sizeof name, "%s", c.attributes.names[a].ptr);
            call_attribute_remove(&c, (int)a);
            snprintf(part, sizeof part, "%s was called without its attribute '%s'", call_shape(ops[i])->mpi_name, name);
            CHECK_IN(call_read(&c, ops[i], &f), part);

            call_make(&c, ops[i], LEFT, ON);
            c.attributes.names[a].len--;
            CHECK_IN(call_read(&c, ops[i], &f), part);
            name[0] ^= 1;
            c.attributes.names[a] = (ffi_bytes){.ptr = name, .len = strlen(name)};
            CHECK_IN(call_read(&c, ops[i], &f), part);
            name[0] ^= 1;

            call_make(&c, ops[i], LEFT, ON);
            int array = c.attributes.types[a] == FFI_ATTRIBUTE_ARRAY;
            int *dtype = array ? &((ffi_array *)c.attributes.value_pointers[a])->dtype : &c.attributes.scalars[a].dtype;
            *dtype = FFI_S32;
            snprintf(part, sizeof part, "attribute '%s' of %s must be %s", name, call_shape(ops[i])->mpi_name,
                     array ? "an array of 64-bit integers" : "a 64-bit integer");
            CHECK_IN(call_read(&c, ops[i], &f), part);
            *dtype = FFI_S64;
            c.attributes.types[a] = array ? FFI_ATTRIBUTE_SCALAR : FFI_ATTRIBUTE_ARRAY;
            CHECK_IN(call_read(&c, ops[i], &f), part);
        }
    }
}

static void refuses_wrong_values(void) {
    static const struct {
        const char *op, *attribute;
        int64_t value;
        const char *sentence;
    } rows[] = {
        {"send", "comm", 99, "communicator number 99 is not registered in this process"},
        {"scan", "op", INT64_MIN, "reduction number -9223372036854775808 is not registered in this process"},
        {"send", "comm", -1, "communicator number -1 is not registered in this process"},
        {"bcast", "root", 4, "MPI_Bcast got root = 4, but the ranks of communicator 'rank0' are 0 to 3"},
        {"gather", "root", -1, "MPI_Gather got root = -1, but the ranks"},
        {"reduce", "root", -2, "MPI_Reduce got root = -2, but the ranks"},
        {"scatter", "root", INT64_C(1) << 32, "MPI_Scatter got root = 4294967296, but the ranks"},
        {"send", "dest", 4, "MPI_Send got dest = 4, but the ranks"},
        {"send", "dest", MPIXLA_ANY_SOURCE, "MPI_Send got dest = -1, but the ranks"},
        {"send", "dest", FAKE_PROC_NULL, "MPI_Send got dest = -13, but the ranks"},
        {"sendrecv", "dest", INT64_MIN, "MPI_Sendrecv got dest = -9223372036854775808, but the ranks"},
        {"recv", "source", 4, "MPI_Recv got source = 4, but the ranks"},
        {"recv", "source", -3, "MPI_Recv got source = -3, but the ranks"},
        {"sendrecv", "source", FAKE_ANY_SOURCE, "MPI_Sendrecv got source = -11, but the ranks"},
        {"send", "sendtag", MPIXLA_ANY_TAG, "MPI_Send got sendtag = -1, but tags"},
        {"send", "sendtag", FAKE_TAG_UB + 1, "MPI_Send got sendtag = 1073741825, but tags are 0 to 1073741824"},
        {"sendrecv", "sendtag", -2, "MPI_Sendrecv got sendtag = -2, but tags"},
        {"recv", "recvtag", -2, "MPI_Recv got recvtag = -2, but tags"},
        {"recv", "recvtag", INT64_C(1) << 32, "MPI_Recv got recvtag = 4294967296, but tags"},
        {"recv", "status", 5, "status object number 5 is not registered in this process"},
        {"recv", "status", -4, "status object number -4 is not registered in this process"},
        {"scan", "op", 99, "reduction number 99 is not registered in this process"},
        {"allreduce", "op", -1, "reduction number -1 is not registered in this process"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        call_make(&c, rows[i].op, LEFT, ON);
        call_attribute_set(&c, rows[i].attribute, rows[i].value);
        CHECK_IN(call_read(&c, rows[i].op, &f), rows[i].sentence);
    }
}

static void turns_values_into_those_of_mpi(void) {
    static const struct {
        const char *attribute;
        int64_t value;
        const int *field;
        int expected;
    } rows[] = {
        {"dest", 0, &f.dest, 0},
        {"dest", 3, &f.dest, 3},
        {"dest", MPIXLA_PROC_NULL, &f.dest, FAKE_PROC_NULL},
        {"source", 0, &f.source, 0},
        {"source", 3, &f.source, 3},
        {"source", MPIXLA_PROC_NULL, &f.source, FAKE_PROC_NULL},
        {"source", MPIXLA_ANY_SOURCE, &f.source, FAKE_ANY_SOURCE},
        {"sendtag", 0, &f.sendtag, 0},
        {"sendtag", FAKE_TAG_UB, &f.sendtag, FAKE_TAG_UB},
        {"recvtag", 0, &f.recvtag, 0},
        {"recvtag", FAKE_TAG_UB, &f.recvtag, FAKE_TAG_UB},
        {"recvtag", MPIXLA_ANY_TAG, &f.recvtag, FAKE_ANY_TAG},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        call_make(&c, "sendrecv", LEFT, ON);
        call_attribute_set(&c, rows[i].attribute, rows[i].value);
        CHECK_STR(call_read(&c, "sendrecv", &f), "");
        CHECK_INT(*rows[i].field, rows[i].expected);
    }
    static char status[sizeof(fake_status)];
    call_attribute_set(&c, "status", mpixla_status_register(status));
    CHECK_STR(call_read(&c, "sendrecv", &f), "");
    CHECK(f.status == status);
    call_attribute_set(&c, "status", MPIXLA_NO_STATUS);
    CHECK_STR(call_read(&c, "sendrecv", &f), "");
    CHECK(f.status == f.scratch);

    /* As a result */
    char given[sizeof(fake_status)];
    call_attribute_set(&c, "status", MPIXLA_STATUS_RESULT);
    CHECK_IN(call_read(&c, "sendrecv", &f), "MPI_Sendrecv was called with 1 results on this rank, but takes 2");
    call_insert(&c, CALL_RESULTS, 1, FFI_U8, sizeof given, given);
    CHECK_STR(call_read(&c, "sendrecv", &f), "");
    CHECK(f.status == given);
    call_count_set(&c, CALL_RESULTS, 1, sizeof given - 1);
    CHECK_IN(call_read(&c, "sendrecv", &f),
             "the status that MPI_Sendrecv gives is uint8 and of 24 bytes, but was to be uint8 and 23");
    call_count_set(&c, CALL_RESULTS, 1, sizeof given);
    call_dtype_set(&c, CALL_RESULTS, 1, FFI_S8);
    CHECK_IN(call_read(&c, "sendrecv", &f), "but was to be int8 and 24");

    /* Its numbers as a result */
    int64_t numbers[3];
    call_make(&c, "sendrecv", LEFT, ON);
    call_attribute_set(&c, "status", MPIXLA_STATUS_NUMBERS);
    CHECK_IN(call_read(&c, "sendrecv", &f), "MPI_Sendrecv was called with 1 results on this rank, but takes 2");
    call_insert(&c, CALL_RESULTS, 1, FFI_S64, 3, numbers);
    CHECK_STR(call_read(&c, "sendrecv", &f), "");
    CHECK(f.status == f.scratch && f.numbers.data == numbers);
    call_dtype_set(&c, CALL_RESULTS, 1, FFI_S32);
    CHECK_STR(call_read(&c, "sendrecv", &f), "");
    call_count_set(&c, CALL_RESULTS, 1, 2);
    CHECK_IN(call_read(&c, "sendrecv", &f),
             "the status that MPI_Sendrecv gives as numbers is 3 of int32 or int64, but was to be 2 of int32");
    call_count_set(&c, CALL_RESULTS, 1, 3);
    call_dtype_set(&c, CALL_RESULTS, 1, FFI_F32);
    CHECK_IN(call_read(&c, "sendrecv", &f), "but was to be 3 of float32");
    int64_t op = mpixla_reduction_register(4321);
    call_make(&c, "allreduce", LEFT, ON);
    call_attribute_set(&c, "op", op);
    CHECK_STR(call_read(&c, "allreduce", &f), "");
    CHECK_INT(f.op, 4321);
}

/* Buffers */

static int64_t side_size(const call *c, int side) {
    return side == CALL_OPERANDS ? c->frame.args.size : c->frame.rets.size;
}

static void passes_tokens_over(void) {
    for (int i = 0; i < OPS; i++)
        for (int root = ON; root <= OFF; root++) {
            call_make(&c, ops[i], LEFT, root);
            for (int side = 0; side < 2; side++)
                for (int64_t place = side_size(&c, side); place >= 0; place--)
                    call_insert(&c, side, (int)place, FFI_TOKEN, 0, NULL);
            CHECK_STR(call_read(&c, ops[i], &f), "");
            int starts = f.facts.row->request == MPIXLA_STARTS, waits = f.facts.row->request == MPIXLA_WAITS;
            CHECK(!f.send.dtype || f.send.data == c.send);
            CHECK(!f.template_.dtype || f.template_.data == c.template_);
            CHECK(!f.recv.dtype || f.recv.data == (starts ? NULL : c.recv)); /* a wait gives what a start receives */
            CHECK(f.id.data == (starts ? c.recv : waits ? c.send : NULL));
        }
}

static void counts_buffers(void) {
    static const char *const what[] = {"operand", "result"};
    for (int i = 0; i < OPS; i++)
        for (int root = ON; root <= OFF; root++)
            for (int side = 0; side < 2 && call_shape(ops[i])->counts != MANY; side++) { /* MANY: see test_halo.c */
                char sentence[128];
                call_make(&c, ops[i], LEFT, root);
                int64_t size = side_size(&c, side);
                for (int64_t wrong = size + 2; wrong >= 0; wrong--) {
                    int may_have_more = side == CALL_OPERANDS && call_shape(ops[i])->request == MPIXLA_WAITS;
                    if (wrong == size || (wrong > size && may_have_more)) continue;
                    call_make(&c, ops[i], LEFT, root);
                    while (side_size(&c, side) < wrong) call_insert(&c, side, 0, FFI_F32, CALL_COUNT, c.send);
                    while (side_size(&c, side) > wrong) call_remove(&c, side, 0);
                    snprintf(sentence, sizeof sentence, "%s was called with %lld %ss on this rank, but takes %lld",
                             call_shape(ops[i])->mpi_name, (long long)wrong, what[side], (long long)size);
                    CHECK_STR(call_read(&c, ops[i], &f), sentence);
                }
                for (int64_t place = 0; place < size; place++) {
                    call_make(&c, ops[i], LEFT, root);
                    c.sides[side].types[place] = 2;
                    snprintf(sentence, sizeof sentence, "%s %lld of %s is not a buffer", what[side], (long long)place,
                             call_shape(ops[i])->mpi_name);
                    CHECK_STR(call_read(&c, ops[i], &f), sentence);
                }
            }
}

static void needs_data_only_for_items(void) {
    for (int i = 0; i < OPS; i++)
        for (int root = ON; root <= OFF; root++) {
            call_make(&c, ops[i], LEFT, root);
            for (int side = 0; side < 2; side++)
                for (int64_t place = 0; place < side_size(&c, side); place++) {
                    void **data = &c.sides[side].buffers[place].data, *before = *data;
                    *data = NULL;
                    CHECK_IN(call_read(&c, ops[i], &f), " is a null pointer, but has ");
                    *data = before;
                }
            for (int side = 0; side < 2; side++)
                for (int64_t place = 0; place < side_size(&c, side); place++) {
                    c.sides[side].buffers[place].data = NULL;
                    call_count_set(&c, side, (int)place, 0);
                }
            memset(c.attributes.elements, 0, sizeof c.attributes.elements); /* counts */
            CHECK_STR(call_read(&c, ops[i], &f), "");
            CHECK_INT(f.n, 0);
        }
}

static void names_the_buffer(void) {
    static const struct {
        int side, place;
        const char *sentence;
    } rows[] = {
        {CALL_OPERANDS, 0, "the send buffer of MPI_Sendrecv has a dimension of -1 items, which is no valid shape"},
        {CALL_OPERANDS, 1, "the template of MPI_Sendrecv has a dimension of -1 items, which is no valid shape"},
        {CALL_RESULTS, 0, "the receive buffer of MPI_Sendrecv has a dimension of -1 items, which is no valid shape"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        call_make(&c, "sendrecv", LEFT, ON);
        call_count_set(&c, rows[i].side, rows[i].place, -1);
        CHECK_STR(call_read(&c, "sendrecv", &f), rows[i].sentence);
        call_make(&c, "sendrecv", LEFT, ON);
        call_dtype_set(&c, rows[i].side, rows[i].place, 0);
        CHECK_STR(call_read(&c, "sendrecv", &f), "XLA's element type number 0 has no MPI datatype bound to it");
    }
    call_make(&c, "recv", LEFT, ON); /* its template is the first operand */
    call_count_set(&c, CALL_OPERANDS, 0, -1);
    CHECK_STR(call_read(&c, "recv", &f),
              "the template of MPI_Recv has a dimension of -1 items, which is no valid shape");
}

static void reads_shapes(void) {
    call_make(&c, "send", LEFT, ON);
    ffi_buffer *buffer = &c.sides[CALL_OPERANDS].buffers[0];
    int64_t dims[] = {2, 3, 4};
    buffer->dims = dims;
    buffer->rank = 3;
    CHECK_STR(call_read(&c, "send", &f), "");
    CHECK_INT(f.n, 24);
    dims[0] = dims[1] = -2; /* a product that looks well */
    CHECK_STR(call_read(&c, "send", &f),
              "the send buffer of MPI_Send has a dimension of -2 items, which is no valid shape");
    dims[0] = dims[1] = dims[2] = INT64_C(1) << 31; /* one that overflows */
    CHECK_STR(call_read(&c, "send", &f),
              "the send buffer of MPI_Send has a dimension of 2147483648 items, which is no valid shape");
    buffer->dims = NULL;
    CHECK_STR(call_read(&c, "send", &f), "the send buffer of MPI_Send has no valid shape");
    buffer->rank = -1;
    CHECK_STR(call_read(&c, "send", &f), "the send buffer of MPI_Send has no valid shape");
    buffer->rank = 0; /* a scalar */
    CHECK_STR(call_read(&c, "send", &f), "");
    CHECK_INT(f.n, 1);
}

/* Counts and types */

static void refuses_counts_that_do_not_go_together(void) {
    static const struct {
        const char *op;
        int64_t operand, result; /* right: as many as ranks times CALL_COUNT, where not CALL_COUNT */
    } rows[] = {
        {"allreduce", 3, 4},  {"allreduce", 4, 3}, {"scan", 3, 2},     {"reduce", 3, 4},   {"allgather", 3, 11},
        {"allgather", 3, 3},  {"gather", 3, 13},   {"gather", 12, 3},  {"scatter", 13, 3}, {"scatter", 3, 12},
        {"alltoall", 12, 16}, {"alltoall", 8, 12}, {"alltoall", 6, 6},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char sentence[160];
        call_make(&c, rows[i].op, LEFT, ON);
        call_count_set(&c, CALL_OPERANDS, 0, rows[i].operand);
        call_count_set(&c, CALL_RESULTS, 0, rows[i].result);
        snprintf(sentence, sizeof sentence,
                 "%s on 4 ranks was called with %lld items to send and %lld to receive, whose numbers do not match",
                 call_shape(rows[i].op)->mpi_name, (long long)rows[i].operand, (long long)rows[i].result);
        CHECK_STR(call_read(&c, rows[i].op, &f), sentence);
    }
}

static void refuses_types_that_do_not_go_together(void) {
    static const char *const same[] = {"allgather", "allreduce", "alltoall", "gather", "reduce", "scan", "scatter"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        call_make(&c, same[i], LEFT, ON);
        call_dtype_set(&c, CALL_RESULTS, 0, FFI_S32); /* of the same size */
        CHECK_IN(call_read(&c, same[i], &f), " was called with float32 to send and int32 to receive");
    }
    static const char *const templated[] = {"recv", "sendrecv"};
    for (size_t i = 0; i < 2; i++) {
        int place = i == 1;
        call_make(&c, templated[i], LEFT, ON);
        call_dtype_set(&c, CALL_OPERANDS, place, FFI_S32);
        CHECK_IN(call_read(&c, templated[i], &f), "differs from its result in type or size");
        call_dtype_set(&c, CALL_OPERANDS, place, FFI_F32);
        call_count_set(&c, CALL_OPERANDS, place, CALL_COUNT - 1);
        CHECK_IN(call_read(&c, templated[i], &f), "differs from its result in type or size");
    }
    /* The two messages of a sendrecv have nothing to do with each other. */
    call_make(&c, "sendrecv", LEFT, ON);
    call_dtype_set(&c, CALL_OPERANDS, 0, FFI_F64);
    call_count_set(&c, CALL_OPERANDS, 0, 5);
    CHECK_STR(call_read(&c, "sendrecv", &f), "");
    CHECK(f.type == fake->handle(FFI_F32));
}

/* MPI moves some floats as integers, and would combine their bits. */
static void refuses_reductions_that_a_type_does_not_have(void) {
    size_t count;
    const mpixla_reduction_row *reductions = mpixla_reduction_table(&count, NULL);
    for (int64_t op = 0; op < (int64_t)count; op++) {
        if (strcmp(reductions[op].kinds, "pair") == 0) continue;
#define MPIXLA_DTYPE(ffi, name, itemsize, mpi_name, kind, nccl) \
    call_make(&c, "allreduce", LEFT, ON);                       \
    call_dtype_set(&c, CALL_OPERANDS, 0, ffi);                  \
    call_dtype_set(&c, CALL_RESULTS, 0, ffi);                   \
    call_attribute_set(&c, "op", op);                           \
    if (strstr(reductions[op].kinds, kind))                     \
        CHECK_STR(call_read(&c, "allreduce", &f), "");          \
    else                                                        \
        CHECK_IN(call_read(&c, "allreduce", &f), "MPI_Allreduce of " name " cannot be made with op MPI_");
#include "tables/dtypes.def"
#undef MPIXLA_DTYPE
    }
}

/* Of an array without items the other dimensions may be any: but no product of some of them, in bytes, is too large. */
static void refuses_shapes_whose_parts_are_too_large(void) {
    int64_t huge[] = {INT64_C(1) << 61, 0, 4};
    call_make(&c, "send", LEFT, ON);
    c.sides[CALL_OPERANDS].buffers[0].dims = huge;
    c.sides[CALL_OPERANDS].buffers[0].rank = 3;
    CHECK_STR(call_read(&c, "send", &f),
              "the send buffer of MPI_Send has a dimension of 2305843009213693952 items, which is no valid shape");
    huge[0] = INT64_C(1) << 57;
    CHECK_STR(call_read(&c, "send", &f), "");
    huge[2] = 16;
    CHECK_STR(call_read(&c, "send", &f),
              "the send buffer of MPI_Send has a dimension of 16 items, which is no valid shape");
}

static const char *read_with_site(const char *op, int64_t site, const char *text) {
    static char line[1024];
    call_make(&c, op, LEFT, ON);
    if (site != 0 || text) call_site_set(&c, site, text);
    static frame_shape shape;
    shape = *call_shape(op);
    shape.attributes |= SITE;
    if (frame_read(&f, &shape, &c.frame, NULL)) return error_get();
    frame_describe(&f, line, sizeof line);
    return line;
}

/* Where the call comes from is optional, and nothing that is written there makes the call fail. */
static void knows_the_line_of_the_user(void) {
    CHECK_INT(mpixla_site_name(77, "model.py:77 in step"), 0);
    static const char *const ops[] = {"allreduce", "alltoallv", "bcast", "exchange", "recv", "send", "sendrecv"};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        CHECK_IN(read_with_site(ops[i], 77, NULL), ", at model.py:77 in step");
        CHECK_INT(f.facts.site, 77);
        CHECK(!strstr(read_with_site(ops[i], 0, NULL), ", at "));
        CHECK_INT(f.facts.site, 0);
    }
    CHECK_IN(read_with_site("send", 0, "00000000000000aa exported.py:3 in f"), ", at exported.py:3 in f");
    CHECK_INT(f.facts.site, 0xaa);
    CHECK_IN(read_with_site("send", 0, "nothing of the kind"), "MPI_Send -> 1");
    CHECK_INT(f.facts.site, 0);
    CHECK_IN(read_with_site("send", 12345, NULL), "MPI_Send -> 1"); /* that nobody has named */
    CHECK_INT(f.facts.site, 12345);
    CHECK(!strstr(read_with_site("send", 12345, NULL), ", at "));
    /* What it is, is not looked at. */
    const frame_shape shape = {.mpi_name = "MPI_Barrier", .attributes = COMM | SITE};
    for (int type = 0; type < 6; type++)
        for (int dtype = 0; dtype < 40; dtype++) {
            call_make(&c, "barrier", LEFT, ON);
            call_site_set(&c, 99, NULL);
            c.attributes.types[1] = type;
            c.attributes.scalars[1].dtype = dtype;
            if (type == FFI_ATTRIBUTE_STRING) continue;
            CHECK_INT(frame_read(&f, &shape, &c.frame, NULL), 0);
            CHECK_INT(f.facts.site, type == FFI_ATTRIBUTE_SCALAR && dtype == FFI_S64 ? 99 : 0);
        }
    /* But it must be where it belongs, and there once. */
    call_make(&c, "barrier", LEFT, ON);
    call_attribute_insert(&c, 0, "site", 1);
    CHECK_INT(frame_read(&f, &shape, &c.frame, NULL), -1);
    call_make(&c, "barrier", LEFT, ON);
    call_site_set(&c, 99, NULL);
    call_site_set(&c, 98, NULL);
    CHECK_INT(frame_read(&f, &shape, &c.frame, NULL), -1);
    CHECK_STR(error_get(), "MPI_Barrier was called with an attribute 'site' that it does not take");
}

/* Copies of the facts are compared and written to files as bytes. */
static void facts_have_nothing_of_an_earlier_call(void) {
    static const char *const ops[] = {"send", "recv", "barrier", "allreduce", "exchange", "halo_exchange"};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        static frame before, after;
        memset(&before, 0, sizeof before);
        memset(&after, 0xa5, sizeof after);
        call_make(&c, ops[i], LEFT, ON);
        (void)call_read(&c, ops[i], &before);
        (void)call_read(&c, ops[i], &after);
        before.facts.sequence = after.facts.sequence;
        CHECK(memcmp(&before.facts, &after.facts, sizeof before.facts) == 0);
    }
}

/* Collective calls are counted on each communicator, by themselves. */
static void counts_collective_calls(void) {
    static const char *const alike[] = {"allreduce", "barrier", "bcast", "exchange"}, *const apart[] = {"send", "recv"};
    call_make(&c, "barrier", LEFT, ON);
    CHECK_STR(call_read(&c, "barrier", &f), "");
    int64_t first = f.facts.sequence;
    for (size_t i = 0; i < 4; i++) {
        call_make(&c, apart[i % 2], LEFT, ON);
        CHECK_STR(call_read(&c, apart[i % 2], &f), "");
        CHECK_INT(f.facts.sequence, 0);
        CHECK(!facts_are_collective(&f.facts));
        call_make(&c, alike[i], LEFT, ON);
        CHECK_STR(call_read(&c, alike[i], &f), "");
        CHECK_INT(f.facts.sequence, first + 1 + (int64_t)i);
        CHECK(facts_are_collective(&f.facts));
        call_make(&c, "barrier", FIXTURE_SELF, ON);
        CHECK_STR(call_read(&c, "barrier", &f), "");
    }
}

static void picks_the_calls_for_a_count(void) {
    const mpi_library *mpi = mpi_get();
    int64_t before = mpixla_count_limit_set(CALL_COUNT);
    for (int i = 0; i < OPS; i++)
        for (int root = ON; root <= OFF; root++) {
            call_make(&c, ops[i], LEFT, root);
            CHECK_STR(call_read(&c, ops[i], &f), "");
            CHECK(f.size == FIXTURE_SIZE && f.comm == fake->handle(LEFT + 1));
            int by_rows = f.facts.row->counts >= GATHERED_ROWS; /* then those of all ranks count (test_parts.c) */
            CHECK(by_rows || (f.n <= CALL_COUNT && f.mpi == mpi->small));
        }
    for (int side = 0; side < 2; side++) { /* the greater of the two counts decides */
        call_make(&c, "sendrecv", LEFT, ON);
        call_count_set(&c, side, 0, CALL_COUNT + 1);
        if (side == CALL_RESULTS) call_count_set(&c, CALL_OPERANDS, 1, CALL_COUNT + 1);
        CHECK_STR(call_read(&c, "sendrecv", &f), "");
        CHECK(f.mpi == mpi->large);
    }
    mpixla_count_limit_set(before);
    call_make(&c, "send", LEFT, ON);
    call_count_set(&c, CALL_OPERANDS, 0, INT_MAX);
    CHECK_STR(call_read(&c, "send", &f), "");
    CHECK(f.mpi == mpi->small);
    call_count_set(&c, CALL_OPERANDS, 0, (int64_t)INT_MAX + 1);
    CHECK_STR(call_read(&c, "send", &f), "");
    CHECK(f.mpi == mpi->large && f.n == (int64_t)INT_MAX + 1);
}

/* Text */

static const char with_rows[] = ", with 3, 3, 3, 3 rows on ranks 0 to 3; the counts must be the same on every rank",
                  exchanged_rows[] =
                      ", sending 3, 3, 3, 3 rows to ranks 0 to 3 and receiving 3, 3, 3, 3 rows from "
                      "there; rank i's sendcounts[j] must be rank j's recvcounts[i]";

static void describes(void) {
    static const struct {
        const char *op;
        int root;
        const char *line, *details, *parts;
    } rows[] = {
        {"allgather", ON, "MPI_Allgather with 3 items", " of float32", ""},
        {"allgatherv", ON, "MPI_Allgatherv with 3 items", " of float32", with_rows},
        {"allreduce", ON, "MPI_Allreduce with 3 items", " of float32, op MPI_SUM", ""},
        {"alltoall", ON, "MPI_Alltoall with 12 items", " of float32", ""},
        {"alltoallv", ON, "MPI_Alltoallv with 12 items", " of float32", exchanged_rows},
        {"barrier", ON, "MPI_Barrier", "", ""},
        {"bcast", ON, "MPI_Bcast with 3 items and root 0", " of float32", ""},
        {"bcast", OFF, "MPI_Bcast with 3 items and root 1", " of float32", ""},
        {"gather", OFF, "MPI_Gather with 3 items and root 1", " of float32", ""},
        {"halo_exchange", ON, "MPI_Isend of the halos of blocks with 3 items", " of float32", ""},
        {"exchange", ON, "MPI_Isend -> 2 neighbours with 3 items <- 2 neighbours with 3 items", " of float32", ""},
        {"gatherv", OFF, "MPI_Gatherv with 3 items and root 1", " of float32", with_rows},
        {"recv", ON, "MPI_Recv <- 2 with tag 8 and 3 items", " of float32", ""},
        {"reduce", ON, "MPI_Reduce with 3 items and root 0", " of float32, op MPI_SUM", ""},
        {"scan", ON, "MPI_Scan with 3 items", " of float32, op MPI_SUM", ""},
        {"scatter", ON, "MPI_Scatter with 12 items and root 0", " of float32", ""},
        {"scatterv", ON, "MPI_Scatterv with 12 items and root 0", " of float32", with_rows},
        {"send", ON, "MPI_Send -> 1 with tag 7 and 3 items", " of float32", ""},
        {"sendrecv", ON, "MPI_Sendrecv -> 1 with tag 7 and 3 items <- 2 with tag 8 and 3 items", " of float32", ""},
    };
    char text[512], expected[512];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        call_make(&c, rows[i].op, LEFT, rows[i].root);
        CHECK_STR(call_read(&c, rows[i].op, &f), "");
        facts_describe(&f.facts, NULL, 0, text, sizeof text);
        CHECK_STR(text, rows[i].line);
        frame_describe(&f, text, sizeof text);
        snprintf(expected, sizeof expected, "%s%s, on rank 0 of 4 of communicator 'rank0'%s", rows[i].line,
                 rows[i].details, rows[i].parts);
        CHECK_STR(text, expected);
        /* A small room holds the beginning. */
        char small[12];
        frame_describe(&f, small, sizeof small);
        expected[sizeof small - 1] = '\0';
        CHECK_STR(small, expected);
    }
    call_make(&c, "sendrecv", LEFT, ON);
    call_attribute_set(&c, "dest", MPIXLA_PROC_NULL);
    call_attribute_set(&c, "source", MPIXLA_ANY_SOURCE);
    call_attribute_set(&c, "recvtag", MPIXLA_ANY_TAG);
    CHECK_STR(call_read(&c, "sendrecv", &f), "");
    facts_describe(&f.facts, NULL, 0, text, sizeof text);
    CHECK_STR(text, "MPI_Sendrecv -> MPI_PROC_NULL with tag 7 and 3 items <- any with tag any and 3 items");
}

/* The details of a call whose counts disagree with another rank's are all that its user can find the mistake by. */
static void describes_parts(void) {
    static const int64_t sent[] = {2, 0, 3, 1}, received[] = {1, 1, 4, 0}, one[] = {5},
                         many[] = {1, 0, 2, 3, 0, 0, 4, 0, 5, 0, 6};
    enum { RANKS = sizeof many / sizeof many[0] };
    char text[512];
    call_make(&c, "alltoallv", LEFT, ON);
    call_list_set(&c, "sendcounts", sent, 4);
    call_list_set(&c, "recvcounts", received, 4);
    call_count_set(&c, CALL_OPERANDS, 0, 6);
    call_count_set(&c, CALL_RESULTS, 0, 6);
    CHECK_STR(call_read(&c, "alltoallv", &f), "");
    frame_describe(&f, text, sizeof text);
    CHECK_IN(text,
             "'rank0', sending 2, 0, 3, 1 rows to ranks 0 to 3 and receiving 1, 1, 4, 0 rows from there; rank i's");

    call_make(&c, "alltoallv", FIXTURE_SELF, ON);
    call_list_set(&c, "sendcounts", one, 1);
    call_list_set(&c, "recvcounts", one, 1);
    call_count_set(&c, CALL_OPERANDS, 0, 5);
    call_count_set(&c, CALL_RESULTS, 0, 5);
    CHECK_STR(call_read(&c, "alltoallv", &f), "");
    frame_describe(&f, text, sizeof text);
    CHECK_IN(text, ", sending 5 rows to rank 0 and receiving 5 rows from there; ");

    /* Of many ranks the first ones. */
    int64_t comm = mpixla_comm_register(fake->handle(fake->comm_new(0, RANKS, 0)), "many");
    call_make(&c, "scatterv", LEFT, ON);
    call_attribute_set(&c, "comm", comm);
    call_list_set(&c, "counts", many, RANKS);
    call_count_set(&c, CALL_OPERANDS, 0, 21);
    call_count_set(&c, CALL_RESULTS, 0, 1);
    CHECK_STR(call_read(&c, "scatterv", &f), "");
    frame_describe(&f, text, sizeof text);
    CHECK_IN(text,
             "'many', with 1, 0, 2, 3, 0, 0, 4, 0 rows on ranks 0 to 7 (and 3 more); the counts must be the same");
}

int main(int argc, char **argv) {
    needs_the_start();
    fixture_start(argc, argv);
    reads_shifts();
    refuses_wrong_attributes();
    refuses_wrong_values();
    turns_values_into_those_of_mpi();
    passes_tokens_over();
    counts_buffers();
    needs_data_only_for_items();
    names_the_buffer();
    reads_shapes();
    refuses_counts_that_do_not_go_together();
    refuses_types_that_do_not_go_together();
    refuses_reductions_that_a_type_does_not_have();
    refuses_shapes_whose_parts_are_too_large();
    knows_the_line_of_the_user();
    facts_have_nothing_of_an_earlier_call();
    counts_collective_calls();
    picks_the_calls_for_a_count();
    describes();
    describes_parts();
    return check_failures();
}
