/* Messages of one call, from any number of ranks and to any number, all under way at once: a list of them, and what
 * makes it, through MPI or through NCCL as the frame says.
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
    int is_posted; /* these two are messages_run's own */
    mpi_request request;
} message;

typedef struct messages {
    const char *rule; /* what is wrong where a message is shorter than its receiver expects */
    message *all;
    int64_t number;
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
 * itself reports.
 *
 * Through NCCL: it is given to the stream, as one group. NCCL does not compare sizes. */
int messages_run(messages *m, frame *f);

#endif
