#include "base/error.h"
#include "check.h"
#include "fixture.h"
#include "mpi/reduction.h"

enum { PREDEFINED = 12 };

static void has_a_table(void) {
    /* The place is the number in programs, so the order is part of the contract. */
    static const char *const names[PREDEFINED] = {"MPI_SUM",  "MPI_PROD", "MPI_MAX",    "MPI_MIN",
                                                  "MPI_LAND", "MPI_LOR",  "MPI_LXOR",   "MPI_BAND",
                                                  "MPI_BOR",  "MPI_BXOR", "MPI_MAXLOC", "MPI_MINLOC"};
    size_t count = 0, row_size = 0;
    const mpixla_reduction_row *rows = mpixla_reduction_table(&count, &row_size);
    CHECK_INT(row_size, sizeof *rows);
    CHECK_INT(count, PREDEFINED);
    for (size_t i = 0; i < PREDEFINED && i < count; i++) {
        CHECK_STR(rows[i].name, names[i]);
        CHECK_STR(reduction_name((int64_t)i), names[i]);
    }
    CHECK_STR(rows[0].kinds, "integer float complex");
    CHECK_STR(rows[2].kinds, "integer float");
    CHECK_STR(rows[4].kinds, "bool integer");
    CHECK_STR(rows[9].kinds, "integer");
    for (int64_t i = -1; i <= PREDEFINED; i++) CHECK_INT(reduction_is_of_pairs(i), i == 10 || i == 11);
}

static void binds_by_name(void) {
    CHECK(reduction_find(2) == NULL);
    CHECK_STR(error_get(),
              "reduction number 2 is not registered in this process; a program that was exported needs its user-made "
              "reductions passed to an operation here first, in the same order, as docs/other_tools.md says");
    CHECK_INT(mpixla_reduction_bind("MPI_MAX", 77), 0);
    CHECK(reduction_find(2) && *reduction_find(2) == 77);
    CHECK(reduction_find(1) == NULL);
    CHECK_INT(mpixla_reduction_bind("MPI_REPLACE", 1), -1);
    CHECK_IN(error_get(), "MPI_REPLACE");
}

static void numbers_user_made_ones(void) {
    CHECK(reduction_find(PREDEFINED) == NULL);
    int64_t first = mpixla_reduction_register(500), second = mpixla_reduction_register(UINT64_C(0x7f55000000ff));
    CHECK_INT(first, PREDEFINED);
    CHECK_INT(second, PREDEFINED + 1);
    CHECK_INT(mpixla_reduction_register(500), first);
    CHECK(reduction_find(first) && *reduction_find(first) == 500);
    CHECK(reduction_find(second) && *reduction_find(second) == UINT64_C(0x7f55000000ff));
    CHECK_STR(reduction_name(first), "a user-made reduction");
    CHECK(reduction_find(PREDEFINED + 2) == NULL);
    CHECK(reduction_find(-1) == NULL);
    CHECK_IN(error_get(), "reduction number -1 is not registered");
    CHECK_INT(mpixla_reduction_is_alive(first), 1);
    CHECK_INT(mpixla_reduction_is_alive(2), 1);
    CHECK_INT(mpixla_reduction_is_alive(1), 0); /* not bound */
    CHECK_INT(mpixla_reduction_is_alive(PREDEFINED + 2), 0);
}

/* MPI's variables, as a front end has them: they are cleared when the reduction is freed. */
static void notices_a_freed_one(void) {
    union {
        int number;
        void *pointer;
    } kept[REDUCTION_KEPT + 1];
    uint64_t handle = fake->handle(300);
    for (int i = 0; i <= REDUCTION_KEPT; i++) {
        if (fake->handle_size == sizeof(int))
            kept[i].number = (int)handle;
        else
            kept[i].pointer = (void *)(intptr_t)handle;
    }
    int64_t id = mpixla_reduction_register(handle);
    for (int i = 0; i < REDUCTION_KEPT; i++) {
        CHECK_INT(mpixla_reduction_keep(id, &kept[i]), 1);
        CHECK_INT(mpixla_reduction_keep(id, &kept[i]), 1); /* again */
    }
    CHECK_INT(mpixla_reduction_keep(id, &kept[REDUCTION_KEPT]), 0);
    CHECK_INT(mpixla_reduction_keep(2, &kept[0]), -1);
    CHECK_STR(error_get(), "reduction number 2 is not user-made");
    CHECK(reduction_find(id) && *reduction_find(id) == handle);
    CHECK_INT(mpixla_reduction_register(handle), id);

    memset(&kept[2], 0, sizeof kept[2]); /* freed through any of them */
    CHECK(reduction_find(id) == NULL);
    CHECK_IN(error_get(), "the user-made reduction was freed after this program was traced");
    CHECK_INT(mpixla_reduction_is_alive(id), 0);
    int64_t successor = mpixla_reduction_register(handle); /* MPI uses the handle again */
    CHECK_INT(successor, id + 1);
    CHECK(reduction_find(successor) && *reduction_find(successor) == handle);
    CHECK(reduction_find(id) == NULL);
    CHECK_INT(mpixla_reduction_register(handle), successor);
}

/* The library's own take counts as the MPI has them: one of these is negative, but 2 for who reads an int. */
static void takes_large_counts(void) {
    typedef void combine(void *in, void *inout, const void *length, void *type);
    const int64_t counts[] = {2, 2 - (INT64_C(1) << 32)};
    CHECK(fake->ops > 0 && fake->ops <= FAKE_OPS);
    CHECK_INT(fake->large_ops, fake->has_large ? fake->ops : 0);
    for (int i = 0; i < fake->ops && i < FAKE_OPS; i++)
        for (int is_negative = 0; is_negative < 2; is_negative++) {
            combine *function = (combine *)(intptr_t)fake->combine[i]; /* NOLINT(performance-no-int-to-ptr) */
            char in[2][32], inout[32], before[32]; /* numbers of every type: above those that are there, and below */
            memset(in[0], 0x41, sizeof in[0]);
            memset(in[1], 0x21, sizeof in[1]);
            memset(inout, 0x31, sizeof inout);
            memcpy(before, inout, sizeof inout);
            int changed = 0;
            for (int j = 0; j < 2; j++) {
                function(in[j], inout, &counts[is_negative], NULL);
                changed |= memcmp(inout, before, sizeof inout) != 0;
            }
            CHECK_INT(changed, !(is_negative && fake->has_large));
        }
}

int main(int argc, char **argv) {
    has_a_table();
    binds_by_name();
    numbers_user_made_ones();
    fixture_start(argc, argv);
    notices_a_freed_one();
    takes_large_counts();
    return check_failures();
}
