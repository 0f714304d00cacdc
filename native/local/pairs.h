/* Memory by which a rank and its neighbours on this host pass each other messages without MPI: for each ordered pair of
 * them a ring of bytes, which one writes and the other one reads.
 *
 * Each rank makes memory with the rings that it writes, and opens that of its neighbours. Two ranks are a pair if each
 * has opened the other's, which both then know: so the route of a message between them depends on nothing else.
 * Neighbours that are no pair, because they are on different hosts or one of them has no memory left, go through MPI.
 *
 * A message goes in pieces, as many bytes at a time as there is room for. Messages of one pair arrive in the order in
 * which they are sent. A rank that cannot go on in the middle of a message breaks its memory (memory_fail), for good.
 */
#ifndef MPIXLA_NATIVE_PAIRS_H
#define MPIXLA_NATIVE_PAIRS_H

#include "local/hold.h"

typedef struct pairs pairs; /* of one rank, with all its neighbours; what the library holds for a communicator */
typedef struct pair pair;

/* Lets messages between neighbours take this way. */
void pairs_start(void);

/* What is held: pairs_make's argument is a communicator with a topology, and all its ranks make it at the same place of
 * the program. */
extern const hold pairs_held;

/* Whether calls may take pairs at all; the same on all ranks. */
int pairs_are_on(void);

/* The pair with this rank, NULL if the two go through MPI. */
pair *pairs_find(pairs *p, int64_t rank);

/* Of the messages of one call that one of the two sends: how many are through, how many there are in all, and the tag
 * of the last of these. */
typedef struct pair_progress {
    int64_t done, all, tag;
} pair_progress;
pair_progress *pair_progress_of(pair *p, int is_sent);

/* Begins a call: no pair has any messages. */
void pairs_begin(pairs *p);

/* Where the next bytes of a message go of which `*bytes` are left, and how many; NULL: there is no room yet. Then they
 * are posted, with the length of the whole message. */
char *pair_room(pair *p, int64_t *bytes);
void pair_post(pair *p, int64_t bytes, int64_t whole);

/* The next bytes that have come, how many, and the length of the whole message; NULL: none have. Then they were read.
 */
const char *pair_look(const pair *p, int64_t *bytes, int64_t *whole);
void pair_read(pair *p);

/* One wait for messages: zeros but for `looks` at its begin, and again when something has moved. */
typedef struct pairs_wait {
    int looks; /* before the processor is given away; pairs_looks */
    unsigned turn;
} pairs_wait;
int pairs_looks(const pairs *p);

/* Between two looks at all messages of a call that are not done. Returns 0 or an error code. While it waits it calls
 * MPI. It gives up when the communicator is freed, the memory of a rank that it waits for is broken, or its process has
 * ended. */
int pairs_go_on(pairs *p, pairs_wait *w);

#endif
