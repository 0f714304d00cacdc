/* The library connected to the fake MPI whose file is the test program's first argument. */
#ifndef MPIXLA_TEST_FIXTURE_H
#define MPIXLA_TEST_FIXTURE_H

#include "fake_mpi.h"
#include "mpixla.h"

extern fake_mpi *fake;

/* Handle numbers of the data types (XLA's own numbers, FFI_F32 for MPI_FLOAT) and of the first reduction. */
enum { FIXTURE_REDUCTIONS = 100 };

/* What the tests' communicators are registered as, by fixture_start: MPI_COMM_SELF, and two of four ranks, in
 * which this process is rank 0 and rank 2. Their numbers in the fake MPI are one greater. */
enum { FIXTURE_SELF = 0, FIXTURE_RANK0 = 1, FIXTURE_RANK2 = 2, FIXTURE_SIZE = 4 };

/* Loads the fake MPI, and no more. */
void fixture_load(int argc, char **argv);

/* The facts of the loaded fake MPI. */
mpixla_mpi_facts fixture_facts(void);

/* Loads it, starts the library, binds all handles and registers the communicators "rank0" and "rank2". */
void fixture_start(int argc, char **argv);

/* From now on `function` (or none, NULL) of the fake MPI fails with `code`. */
void fixture_fail(const char *function, int code);

/* Whether the call of the fake MPI that was made last, or is being made, is of this function; and its first count. */
int fixture_is(const char *function);
int64_t fixture_count(void);

/* Runs a function with standard error in a file, and returns what was written: until the next such call. */
const char *fixture_stderr_of(void (*run)(void));

/* For fake->item_bytes, where arrays have items of 4 bytes: so MPI counts bytes of what was received as items. */
int64_t fixture_item_bytes(int type);

#endif
