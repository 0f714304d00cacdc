/* Pairs: messages between a rank and its neighbours on the same host, without MPI. Each ordered pair of ranks has a
 * ring buffer in shared memory, which one rank writes and the other one reads.
 *
 * Each rank makes memory with the rings that it writes, and opens the memory of its neighbours. Two ranks are a pair if
 * each has opened the other's memory; both then know so, and the route of a message between them depends on nothing
 * else. Neighbours that are no pair, because they are on different hosts or one of them has no memory left, use MPI.
 *
 * A message travels in pieces, as many bytes at a time as the ring has room for. Messages of a pair arrive in the order
 * in which they are sent. A rank that fails in the middle of a message breaks its memory for good
 * (memory_break_by_call).
 */
#ifndef MPIXLA_NATIVE_PAIRS_H
#define MPIXLA_NATIVE_PAIRS_H

#include "local/hold.h"

typedef struct pairs pairs; /* all pairs of one rank on one communicator */
typedef struct pair pair;

/* Switches pairs on in this process: all processes of the job do so, or none. */
void pairs_start(void);

/* How a communicator keeps its pairs (hold.h). All ranks of a communicator with a topology make them together. */
extern const hold pairs_held;

/* Returns whether pairs are on; the same on all ranks. */
int pairs_are_on(void);

/* Returns the pair with this rank; NULL if the two use MPI. */
pair *pairs_find(pairs *p, int64_t rank);

/* The messages of one call in one direction of a pair: how many are done, how many there are, and the last one's tag.
 */
typedef struct pair_progress {
    int64_t done, all, tag;
} pair_progress;
pair_progress *pair_progress_of(pair *p, int is_sent);

/* Clears the progress of all pairs, at the begin of a call. */
void pairs_progress_clear(pairs *p);

/* Returns the address for the next piece of a message, of which `*bytes` are left to send, and sets `*bytes` to the
 * length of the piece; NULL if the ring is full. The cache line behind the piece must be free as well, since
 * pair_piece_publish clears the next record's length there. */
char *pair_piece_reserve(pair *p, int64_t *bytes);
/* Publishes the piece of `bytes` bytes that was written there. `whole`: the length of the message. */
void pair_piece_publish(pair *p, int64_t bytes, int64_t whole);

/* Returns the next piece that has come, and sets `*bytes` to its length and `*whole` to that of the message; NULL if
 * none has. It stays in the ring. */
const char *pair_piece_peek(const pair *p, int64_t *bytes, int64_t *whole);
/* Frees the room of the piece that pair_piece_peek returned. */
void pair_piece_release(pair *p);

/* One wait for messages. Set to zeros, and `spins` to pairs_spins, at its begin and whenever a message has moved. */
typedef struct pairs_wait {
    int spins; /* that are left */
    unsigned turn;
} pairs_wait;

/* Returns the number of spins before a wait yields the processor. */
int pairs_spins(const pairs *p);

/* Waits a moment between two attempts to move the messages of a call: while w->spins are left, only pauses the
 * processor; then yields it, drives MPI's progress now and then, and checks the ranks that it waits for. Returns 0, or
 * an error code if the communicator is freed, or such a rank has broken its memory or has ended. */
int pairs_wait_step(pairs *p, pairs_wait *w);

#endif
