/* Arrays that must be the same on all ranks: this process is rank 2, and the test says what the others have. */
#include <stdint.h>
#include <stdlib.h>

#include "call.h"
#include "check.h"
#include "fixture.h"
#include "handler.h"
#include "ops/replicated.h"
#include "scarce.h"

enum { ARRAYS = 3, NAME = 91 };
static const int64_t names[ARRAYS] = {NAME, NAME + 1, NAME + 2};

/* What the others have, who are all alike. */
typedef enum difference { OTHER_ENTRIES, OTHER_NAME, OTHER_KIND } difference;
static struct {
    int arrays;
    unsigned differing; /* bit k: array k is not the same */
    difference what;
    int like_us;           /* the rank that has what this one has; -1: none */
    char entries[64];      /* of the first that differs, as rank 0 has it */
    const char *words;     /* that rank 0 has of it */
    int reduced, gathered; /* so far: times that numbers were compared, and that all have told */
} others;

/* The records that ranks tell each other: numbers of the name, the kind and the data, and words. */
enum { NUMBERS = 3 };

static void bring_record(char *to, int64_t bytes) {
    uint64_t numbers[NUMBERS];
    const size_t words = (size_t)bytes - sizeof numbers;
    memcpy(numbers, to, sizeof numbers);
    numbers[others.what == OTHER_ENTRIES ? 2 : others.what == OTHER_NAME ? 0 : 1] ^= 1;
    memcpy(to, numbers, sizeof numbers);
    if (others.gathered > 1)
        to[sizeof numbers] = '\0'; /* most ranks have what is right */
    else
        snprintf(to + sizeof numbers, words, "%s", others.words);
}

static void bring(void) {
    char *to = fake->recv;
    if (fixture_is("MPI_Allreduce")) {
        uint64_t numbers[2], most = (uint64_t)others.arrays;
        memcpy(numbers, fake->send, sizeof numbers);
        if (others.reduced == 1) { /* how many arrays there are */
            numbers[0] = most > numbers[0] ? most : numbers[0];
            numbers[1] = ~most > numbers[1] ? ~most : numbers[1];
        } else if (others.reduced == 0 ? others.differing : others.differing >> (others.reduced - 2) & 1) {
            numbers[0] = UINT64_MAX;
        }
        others.reduced++;
        memcpy(to, numbers, sizeof numbers);
    } else if (fixture_is("MPI_Allgather")) {
        int64_t bytes = fixture_count();
        others.gathered++;
        for (int i = 0; i < FIXTURE_SIZE; i++) {
            memcpy(to + i * bytes, fake->send, (size_t)bytes);
            if (i != 2 && i != others.like_us) bring_record(to + i * bytes, bytes);
        }
    } else if (fixture_is("MPI_Bcast")) {
        memcpy(to, others.entries, (size_t)fixture_count());
    }
}

static call c;

/* A call with so many arrays of CALL_COUNT items, on a rank's communicator. */
static void make_on(int comm, int arrays) {
    call_make(&c, "assert_replicated", comm, 0);
    for (int i = 1; i < arrays; i++) {
        call_insert(&c, CALL_OPERANDS, i, FFI_F32, CALL_COUNT, c.send);
        call_insert(&c, CALL_RESULTS, i, FFI_F32, CALL_COUNT, c.recv);
    }
    call_array_set(&c, ATTRIBUTE_LEAVES, (size_t)arrays, names);
    memset(&others, 0, sizeof others);
    others.arrays = arrays;
    others.like_us = -1;
    others.words = "leaf 0";
}

static void make(int arrays) {
    make_on(FIXTURE_RANK2, arrays);
}

static void gives_back_what_is_the_same(void) {
    make(ARRAYS);
    memset(c.send, 0x5a, sizeof c.send);
    CHECK_STR(call_run(&c), "");
    CHECK_STR(fake->call, "MPI_Allreduce 2 t9 op 102 c3");
    CHECK(memcmp(c.recv, c.send, CALL_COUNT * sizeof(float)) == 0);
    call_count_set(&c, CALL_OPERANDS, 1, 0);
    call_count_set(&c, CALL_RESULTS, 1, 0);
    c.sides[CALL_RESULTS].buffers[1].data = NULL;
    CHECK_STR(call_run(&c), "");
    call_array_set(&c, ATTRIBUTE_LEAVES, 2, names);
    CHECK_STR(call_run(&c), "assert_replicated of 3 arrays got 2 names");
}

/* Item 1 of three is another one on this rank. */
#define VALUES(type, right, wrong)                                                                          \
    {                                                                                                       \
        .mine = (const char *)(const type[]){right, wrong, right}, .theirs = (const char *)(const type[]) { \
            right, right, right                                                                             \
        }                                                                                                   \
    }

static const struct {
    int dtype;
    const char *name, *words;
    struct {
        const char *mine, *theirs;
    } values;
    size_t bytes;
} rows[] = {
    {FFI_F32, "float32", "0.25, where rank 0 has 0.1", VALUES(float, 0.1F, 0.25F), 4},
    {FFI_F64, "float64", "-0.25, where rank 0 has 0.10000000000000001", VALUES(double, 0.1, -0.25), 8},
    {FFI_F32, "float32", "-0, where rank 0 has 0\n", VALUES(float, 0.0F, -0.0F), 4},
    {FFI_BF16, "bfloat16", "0x3e80, where rank 0 has 0x3f00", VALUES(uint16_t, 0x3f00, 0x3e80), 2},
    {FFI_S8, "int8", "-128, where rank 0 has 127", VALUES(int8_t, 127, -128), 1},
    {FFI_S16, "int16", "-2, where rank 0 has -1", VALUES(int16_t, -1, -2), 2},
    {FFI_S64, "int64", "-9223372036854775807, where rank 0 has 1", VALUES(int64_t, 1, -INT64_MAX), 8},
    {FFI_U8, "uint8", "255, where rank 0 has 254", VALUES(uint8_t, 254, 255), 1},
    {FFI_U64, "uint64", "18446744073709551615, where rank 0 has 1", VALUES(uint64_t, 1, UINT64_MAX), 8},
    {FFI_PRED, "bool", "True, where rank 0 has False", VALUES(uint8_t, 0, 1), 1},
    {FFI_F32, "float32", "nan, where rank 0 has nan of other bits", VALUES(uint32_t, 0x7fc00000, 0x7fc00001), 4},
};

static void says_what_differs(void) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        make(1);
        call_dtype_set(&c, CALL_OPERANDS, 0, rows[i].dtype);
        call_dtype_set(&c, CALL_RESULTS, 0, rows[i].dtype);
        memcpy(c.send, rows[i].values.mine, 3 * rows[i].bytes);
        memcpy(others.entries, rows[i].values.theirs, 3 * rows[i].bytes);
        others.differing = 1;
        CHECK_IN(call_run(&c),
                 "r0 | assert_replicated: leaf 0 is not the same on all ranks of communicator 'rank2':\n");
        CHECK_IN(c.message, "\n  rank 2 differs from rank 0 in 1 of 3 entries, first at [1]: ");
        CHECK_IN(c.message, rows[i].words);
        CHECK(strstr(c.message, "rank 1") == NULL && strstr(c.message, "rank 3") == NULL);
        CHECK((strstr(c.message, "pvary") != NULL) == (strstr(rows[i].name, "float") != NULL));
        CHECK_INT(c.code, FFI_ABORTED);
    }
}

static void compares_with_most_ranks(void) {
    make(1);
    others.differing = 1;
    others.like_us = 0; /* two against two: the first */
    CHECK_IN(call_run(&c), "assert_replicated: the name that we have is not the same");
    CHECK(strstr(c.message, "rank 2") == NULL);
}

static void names_the_first_of_several(void) {
    make(ARRAYS);
    memset(c.send, 1, sizeof c.send);
    others.differing = 6;
    CHECK_IN(call_run(&c), "\n  rank 2 differs from rank 0 in ");
    CHECK_IN(c.message, "\nArrays after it that are not the same either: 1.\n");
    CHECK_INT(others.reduced, 2 + ARRAYS + 1); /* and that there are no more */
    call_site_set(&c, NAME + 3, NULL);
    call_attribute_set(&c, "checked", 1);
    others.reduced = others.gathered = 0;
    CHECK_IN(call_run(&c),
             "r0 | MPIXLA_CHECK: leaf 0 is not the same on all ranks of communicator 'rank2', at model.py:3:");
    CHECK(strstr(c.message, "pvary") == NULL);
}

static void run_told(void) {
    for (int i = 0; i < 2; i++) {
        others.reduced = others.gathered = 0;
        CHECK_STR(call_run(&c), "");
    }
}

/* On the first rank, once for each line. */
static void tells_what_is_no_error(void) {
    const int comms[] = {FIXTURE_RANK2, FIXTURE_RANK0};
    for (int i = 0; i < 4; i++) {
        make_on(comms[i % 2], 1);
        others.differing = 1;
        call_site_set(&c, NAME + 3 + i / 2, NULL);
        call_attribute_set(&c, "checked", REPLICATED_PRINTED);
        const char *text = fixture_stderr_of(run_told);
        if (comms[i % 2] == FIXTURE_RANK2) {
            CHECK_STR(text, "");
            continue;
        }
        const char *first = strstr(text, "r0 | MPIXLA_CHECK: leaf 0 is not the same on all ranks of communicator");
        CHECK(first && !strstr(strchr(first, ':'), "MPIXLA_CHECK"));
        CHECK_IN(text, "\nThis is no error while all ranks go on");
    }
}

/* No entries are compared then. */
static void says_who_has_another_array(void) {
    make(1);
    others.differing = 1;
    others.what = OTHER_NAME;
    CHECK_STR(call_run(&c),
              "r0 | assert_replicated: leaf 0 is not the same on all ranks of communicator 'rank2':\n"
              "  rank 2 has the name that we have");
    CHECK(!fixture_is("MPI_Bcast"));
    make(1);
    others.differing = 1;
    others.what = OTHER_KIND;
    CHECK_IN(call_run(&c), "\n  rank 2 has it in another shape or data type");
    make(1);
    others.arrays = 2;
    others.differing = 2;
    others.what = OTHER_NAME;
    CHECK_IN(call_run(&c),
             "leaf 0 is not the same on all ranks of communicator 'rank2':\n  rank 2 has the end of the tree");
    make(2);
    others.arrays = 1;
    others.differing = 2;
    others.what = OTHER_NAME;
    others.words = "the end of the tree";
    CHECK_IN(call_run(&c),
             "the end of the tree is not the same on all ranks of communicator 'rank2':\n  rank 2 has an array");
}

static void passes_errors_of_mpi_on(void) {
    static const char *const functions[] = {"MPI_Allreduce", "MPI_Allgather", "MPI_Bcast"};
    for (int i = 0; i < 3; i++) {
        make(1);
        others.differing = 1;
        fixture_fail(functions[i], 0x10006);
        CHECK_IN(call_run(&c), "r0 | MPI_Allreduce returned error code 6");
        fixture_fail(NULL, 0);
    }
}

static int64_t crowd;

static void compare_in_a_crowd(void) {
    make(1);
    call_attribute_set(&c, "comm", crowd);
    others.differing = 1;
    (void)call_run(&c);
}

/* The others wait for what this rank has to say. */
static void ends_the_job_without_memory(void) {
    crowd = mpixla_comm_register(fake->handle(fake->comm_new(0, INT32_MAX, 0)), "crowd");
    scarce_end end = scarce_run(compare_in_a_crowd);
    CHECK_IN(end.told, "mpixla: r0 | out of memory for the report of an array that differs between ranks\n");
    CHECK_INT(end.status, 1);
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    CHECK_INT(mpixla_site_name(NAME, "the name that we have"), 0);
    CHECK_INT(mpixla_site_name(NAME + 3, "model.py:3"), 0);
    fake->during = bring;
    gives_back_what_is_the_same();
    says_what_differs();
    compares_with_most_ranks();
    names_the_first_of_several();
    tells_what_is_no_error();
    says_who_has_another_array();
    passes_errors_of_mpi_on();
    ends_the_job_without_memory();
    return check_failures();
}
