/* Messages of one call, from any number of ranks and to any number, all under way at once: a list of them, and what
 * makes it: as the route of a GPU's memory makes messages, if it does (call/route.h); else each through memory that the
 * two ranks share, or through MPI.
 *
 *   messages m;
 *   if (messages_begin(&m, f, 2)) return REFUSED;
 *   messages_add(&m, (message){...});
 *   return messages_run(&m, f);
 *
 * All ranks of the communicator make such a call, each with the other end of the others' messages. Two ranks' messages
 * meet by their tags, and those of one tag in the order of the list. Messages of the program are not met.
 */
#ifndef MPIXLA_NATIVE_MESSAGES_H
#define MPIXLA_NATIVE_MESSAGES_H

#include "call/frame.h"

typedef struct message {
    int is_sent; /* by this rank; else it receives the message */
    int64_t peer, tag;
    int64_t slot; /* its number among the messages that are sent, or received: for errors */
    void *data;
    int64_t items;
    const dtype_entry *dtype;
    /* All below is messages_run's own. */
    int is_posted; /* to MPI */
    mpi_request request;
    struct pair *pair; /* of the two ranks (local/pairs.h); NULL: the message goes through MPI */
    int64_t place;     /* among the messages of the pair that go the same way */
    int64_t bytes, moved;
    int is_done; /* with the pair */
    int is_long; /* and goes through MPI all the same */
} message;

typedef struct messages {
    const char *rule; /* what is wrong where a message is shorter than its receiver expects */
    message *all;
    int64_t number;
    int64_t left; /* messages_run's own: that are not done */
} messages;

/* An empty list with room for `most` messages, in memory of the thread that lasts until it begins another list. The
 * other ranks count on this one, so without memory the job ends (job.h). Returns 0, or REFUSED on a rank that is alone.
 */
int messages_begin(messages *m, const frame *f, int64_t most);

/* Adds a message at the end; none if its peer is MPIXLA_PROC_NULL. Those that are received come first, so that MPI
 * knows where they go when they arrive. */
void messages_add(messages *m, message one);

/* Sends and receives all. Returns 0 or an error code; of one that is MPI's f->fault says what failed.
 *
 * Through MPI: whatever fails, all other messages are made, since their other ends wait for them, and none is under way
 * any more when this returns. The first failure is told. A message that is too short is one; one that is too long MPI
 * itself reports, or this in its name.
 *
 * Through memory: a call that fails before all its messages are through breaks the communicator for later calls, as
 * local_run says (local/local.h).
 *
 * By the route: all are given to the stream. NCCL does not compare sizes. */
int messages_run(messages *m, frame *f);

/* For what has no tags, so that two ranks' messages meet in the order in which both give them: puts messages in the
 * order of descending tags, and those of one tag in the order of the list. */
void messages_sort(messages *m);

#endif
