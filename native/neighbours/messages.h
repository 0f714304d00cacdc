/* Sends and receives the messages of one call, with any number of ranks, all active at once: by the route of a GPU's
 * memory, if that passes messages (call/route.h); else each through memory that the two ranks share, or through MPI.
 *
 *   messages m;
 *   if (messages_begin(&m, f, 2)) return REFUSED;
 *   messages_add(&m, (message){...});
 *   return messages_run(&m, f);
 *
 * All ranks of the communicator make such a call, each with the other ends of the other ranks' messages. Messages of
 * two ranks match by tag, and those of one tag in the order of the list. They never match messages of the program.
 */
#ifndef MPIXLA_NATIVE_MESSAGES_H
#define MPIXLA_NATIVE_MESSAGES_H

#include "call/frame.h"

typedef struct message {
    int is_sent; /* by this rank; else it receives the message */
    int64_t peer, tag;
    int64_t slot; /* its number among the sent, or the received, messages: for error messages */
    void *data;
    int64_t items;
    const dtype_entry *dtype;
    /* The fields below belong to messages_run. */
    int is_posted; /* `request` is active */
    mpi_request request;
    struct pair *pair;    /* the shared memory of the two ranks (local/pairs.h); NULL: the message goes through MPI */
    int64_t place;        /* among the messages of the pair in this direction */
    int64_t bytes, moved; /* moved: bytes copied so far */
    int is_done;          /* nothing more goes through the pair */
    int is_long;          /* goes through MPI, though there is a pair */
} message;

typedef struct messages {
    const char *rule; /* for the error message about a message of a wrong length: the rule that the program broke */
    message *all;
    int64_t number;
    int64_t pending; /* belongs to messages_run: messages of pairs that are not done */
} messages;

/* Makes an empty list of messages with room for `most`, in scratch memory of the thread: valid until the thread begins
 * another list. Returns 0; without memory it ends the job, or returns REFUSED on one rank (job_fail), since the other
 * ranks wait for this rank's messages. */
int messages_begin(messages *m, const frame *f, int64_t most);

/* Appends a message to the list; ignores one whose peer is MPIXLA_PROC_NULL. Append the receives before the sends, so
 * that receives are posted when messages arrive. */
void messages_add(messages *m, message one);

/* Sends and receives all messages of the list. Returns 0 or an error code; for an error of MPI f->fault has the
 * function and the message. Through MPI: after a failure all other messages are passed all the same, since their other
 * ends wait for them; no request is active when this returns. The first failure is reported. A message that is too
 * short is REFUSED; one that is too long is an error of MPI (MPI_ERR_TRUNCATE), also through memory. Through memory: a
 * call that fails before all its messages are passed breaks the communicator for later calls (local_run,
 * local/local.h). By the route: all messages are put on the stream. NCCL does not compare sizes. */
int messages_run(messages *m, frame *f);

/* Sorts messages by descending tag; stable. For transports without tags, where two ranks' messages match by their
 * order. An insertion sort, since the messages of a halo are few, and mostly in order. */
void messages_sort(messages *m);

#endif
