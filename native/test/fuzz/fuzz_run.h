/* One case of the fuzzer: a call made of bytes, and what must hold of it.
 *
 * A call is refused, with a sentence and without a call of MPI, or it makes calls that MPI may be given: ranks, tags,
 * reductions and memory that are right. A right call is not refused. After each the library works as before: the next
 * right call is made, and no call is in flight. What does not hold ends the process.
 */
#ifndef MPIXLA_TEST_FUZZ_RUN_H
#define MPIXLA_TEST_FUZZ_RUN_H

#include "test/fuzz/fuzz_frame.h"

/* After fixture_start, or gpu_start. The functions of the world's memory, or NULL for the host's. `stream_get`: for
 * handlers of a GPU; `settle` runs after each call and says what was used wrongly, or "". */
typedef struct fuzz_setting {
    void *(*get)(size_t bytes);
    void (*give_back)(void *memory);
    void *(*reach)(const void *memory);
    ffi_error *(*stream_get)(ffi_stream_get_args *args);
    const char *(*settle)(void);
} fuzz_setting;

void fuzz_start(const fuzz_setting *gpu);

/* From now on all that watches calls is on: debug lines, which nobody reads, the timeline, and the comparison of each
 * communicator's first calls, in which all ranks want the same. */
void fuzz_watch(void);

/* `data` is what a call is made of. */
void fuzz_one(const uint8_t *data, size_t size);

/* Writes the case down that runs. */
void fuzz_print(void);

/* How many calls were made, refused, and failed in MPI. */
typedef struct fuzz_tally {
    int64_t made, refused, failed;
} fuzz_tally;
fuzz_tally fuzz_tally_get(void);

/* Whether the calls of each row were made at least once, and refused at least once: says which were not. */
int fuzz_is_thorough(void);

#endif
