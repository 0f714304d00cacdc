/* Memory that all ranks of a communicator share, if they are on one host: in it they exchange bytes by reading each
 * other's.
 *
 * What is exchanged goes in rounds, which all ranks count alike. In each a rank may post bytes, in a slot of its own,
 * and look at what others have posted. A rank has some slots, which it uses in turn, so that it waits for those who
 * read only when all are full: many for few bytes, and few for many.
 *
 * A rank that cannot end a round has not read what others posted in it, and the others cannot know: the memory is then
 * broken, for all ranks and for good (memory_fail). The rank makes no further round, so no slot that it has not read
 * is used again, and a call that other ranks complete all the same has right values.
 */
#ifndef MPIXLA_NATIVE_SEGMENT_H
#define MPIXLA_NATIVE_SEGMENT_H

#include <stdint.h>

#include "local/memory.h"
#include "mpi/comm.h"

/* Bytes that a rank can post at once, and with memory for long posts. */
enum { SEGMENT_POST_BYTES = 16384, SEGMENT_LONG_BYTES = 1 << 17 };

typedef struct segment segment; /* as one rank has it */

/* Makes one for a communicator of several ranks, all of which must call it. `*made` is NULL, on all of them, if one of
 * them does not share memory with the others, or has none left. Returns 0 or an error code: of MPI, with which `*made`
 * is a broken segment, as the other ranks may have made theirs; NULL where there is no memory for that. */
int segment_make(const comm_entry *communicator, segment **made);

/* Lets go of the memory, which lasts as long as another rank has it. */
void segment_free(segment *s);

/* Memory for long posts, which all ranks make together. Each opens it, by the number that the first one to do so was
 * given for 0: returns that, or 0 if this rank has none. Then all ranks settle alike whether all have opened it. It is
 * not opened again. */
uint64_t segment_long_open(segment *s, uint64_t number);
void segment_long_settle(segment *s, int all_have);
int segment_long_is_settled(const segment *s);

/* Returns the most bytes that a rank can post at once. */
int64_t segment_most(const segment *s);

/* The same over memory that is shared already and all zeros, of segment_bytes, for tests: the calling process is the
 * communicator's rank. NULL with error_set. */
int64_t segment_bytes(int size);
segment *segment_over(void *memory, const comm_entry *communicator);

/* Which a rank that cannot end a round breaks (memory_fail): so does a wait for a rank that has not posted fail from
 * then on. */
memory_state *segment_state(const segment *s);

/* memory_check. */
int segment_check(const segment *s);

/* Where so many bytes of this rank's go in this round: waits until nobody reads those that were there. Then they are
 * posted, with a number that says what they are. Returns 0 or an error code. While it waits it calls MPI. It gives up
 * when the communicator is freed, the memory is broken, or the process of the rank that it waits for has ended. */
int segment_room(segment *s, int64_t bytes, char **to);
void segment_post(segment *s, uint64_t what);

/* Waits until this rank has posted so many bytes, and gives them, aligned for any item. 0 or an error code, as above.
 */
int segment_look(segment *s, int rank, int64_t bytes, const char **from, uint64_t *what);

/* This rank has seen all that it wants of this round; `from_all`: it has looked at what every rank posted. */
void segment_end(segment *s, int from_all);

#endif
