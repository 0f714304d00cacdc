/* A segment: memory that all ranks of a communicator share, if all are on one host. Each rank writes to its own part of
 * the segment alone, and reads the parts of the others.
 *
 * Bytes are exchanged in rounds, which all ranks count alike. In a round a rank may post bytes in one of its slots, and
 * read the posts of other ranks. A rank uses its slots in turn, 64 for posts of few bytes and 4 for longer ones, so it
 * waits for readers only when all slots are full.
 *
 * If a rank fails in a round, it may not have read a post, and the other ranks cannot know. The segment is then broken,
 * for all ranks and for good (memory_break_by_call): the rank makes no further round, so no slot that it has not read
 * is used again, and a call that other ranks complete all the same has right values.
 */
#ifndef MPIXLA_NATIVE_SEGMENT_H
#define MPIXLA_NATIVE_SEGMENT_H

#include <stdint.h>

#include "local/memory.h"
#include "mpi/comm.h"

/* Bytes that a rank can post at once, and with memory for long posts. */
enum { SEGMENT_POST_BYTES = 16384, SEGMENT_LONG_BYTES = 1 << 17 };

typedef struct segment segment; /* one rank's handle of the memory */

/* Makes the segment of a communicator with several ranks: a collective call. `*made` is NULL, on all ranks, if a rank
 * is on another host or has no memory left. Returns 0 or MPI's error code; with a code `*made` is a broken segment, as
 * the other ranks may have made theirs, or NULL without memory. */
int segment_make(const comm_entry *communicator, segment **made);

/* Frees the handle, and unmaps the memory, which exists until the last rank has done so. */
void segment_free(segment *s);

/* Opens the memory for long posts, which all ranks share as well. Rank 0 makes it, with 0 for `number`, and the others
 * open it by the number that rank 0 got. Returns the number, or 0 if this rank has no memory. Then each rank calls
 * segment_long_settle. */
uint64_t segment_long_open(segment *s, uint64_t number);

/* Keeps the memory for long posts if all ranks have opened it; else closes it, and it is not opened again. */
void segment_long_settle(segment *s, int all_have);
int segment_long_is_settled(const segment *s);

/* Returns the most bytes that a rank can post at once. */
int64_t segment_post_bytes_max(const segment *s);

/* Returns the bytes of the shared memory of so many ranks. */
int64_t segment_bytes(int size);

/* Returns a segment over memory that is already shared, of segment_bytes, all zeros, for tests; the calling process is
 * the communicator's rank. NULL with error_set. */
segment *segment_new_over(void *memory, const comm_entry *communicator);

/* Returns the state, which a rank that fails in a round breaks (memory_break_by_call). From then on each wait fails. */
memory_state *segment_state(const segment *s);

/* Returns 0, or as memory_check if the segment is broken. */
int segment_check(const segment *s);

/* Sets `*to` to the place for this rank's post of so many bytes in this round; waits until no rank reads the post that
 * was there before. Returns 0 or an error code. While it waits it drives MPI's progress. It fails if the communicator
 * is freed, the segment is broken, or the process of the rank that it waits for has ended. */
int segment_slot_reserve(segment *s, int64_t bytes, char **to);

/* Publishes this rank's post, whose bytes were written to the place of segment_slot_reserve. `call_hash` identifies the
 * call; readers compare it. */
void segment_slot_publish(segment *s, uint64_t call_hash);

/* Waits for the post of a rank in this round, of so many bytes. Sets `*from` to its address, aligned for any item, and
 * `*call_hash`. Returns and fails as segment_slot_reserve. */
int segment_post_wait(segment *s, int rank, int64_t bytes, const char **from, uint64_t *call_hash);

/* Ends the round on this rank, which reads none of its posts any more. `from_all`: it has read the posts of all ranks.
 */
void segment_round_end(segment *s, int from_all);

#endif
