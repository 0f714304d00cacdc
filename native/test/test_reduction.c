#include "base/error.h"
#include "check.h"
#include "mpi/reduction.h"

enum { PREDEFINED = 12 };

static void has_a_table(void) {
    /* The place is the number in programs, so the order is part of the contract. */
    static const char *const names[PREDEFINED] = {"MPI_SUM",  "MPI_PROD", "MPI_MAX",    "MPI_MIN",
                                                  "MPI_LAND", "MPI_LOR",  "MPI_LXOR",   "MPI_BAND",
                                                  "MPI_BOR",  "MPI_BXOR", "MPI_MAXLOC", "MPI_MINLOC"};
    size_t count = 0;
    const mpixla_reduction_row *rows = mpixla_reduction_table(&count);
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
    CHECK_STR(error_get(), "reduction number 2 is not registered in this process");
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
    CHECK_STR(error_get(), "reduction number -1 is not registered in this process");
}

int main(void) {
    has_a_table();
    binds_by_name();
    numbers_user_made_ones();
    return check_failures();
}
