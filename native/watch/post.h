/* Exchanges messages ("letters") between the processes of a job, for deadline.c, on a communicator of their own. No
 * function blocks, since the other process may be stopped or gone. One thread uses these functions.
 */
#ifndef MPIXLA_NATIVE_POST_H
#define MPIXLA_NATIVE_POST_H

#include <stddef.h>

#include "mpixla.h"

typedef enum post_kind {
    POST_ASK,       /* what do you do? */
    POST_ANSWER,    /* the answer: what state_write writes */
    POST_CLAIM,     /* the sender is about to report */
    POST_DROP,      /* it is not, as there is nothing to report */
    POST_REPORTED,  /* it has reported, and the job goes on */
    POST_LEFT,      /* to rank 0: the sender has left */
    POST_WHO_LEFT,  /* to rank 0: which ranks have left? */
    POST_THESE_LEFT /* the answer: their numbers */
} post_kind;

/* A letter that has come. `data` lies in `memory`, at a multiple of eight bytes. */
typedef struct post_letter {
    post_kind kind;
    int from;
    int64_t number; /* of the question, which an answer has as well */
    char *memory;   /* the receiver's to free */
    const char *data;
    size_t bytes;
} post_letter;

/* Sets the communicator for letters, which has so many ranks and no other use. */
void post_channel_set(mpixla_handle comm, int ranks);

/* Sends a letter with a copy of the data. Without memory, or if MPI fails, the letter is lost. */
void post_send(int to, post_kind kind, int64_t number, const void *data, size_t bytes);

/* Sets `*letter` to the next letter that has arrived. Returns whether there was one; the caller frees its `memory`.
 * Also starts to receive all that have arrived, and frees those that were sent. */
int post_receive(post_letter *letter);

/* Returns whether MPI still sends some letters. */
int post_is_sending(void);

/* Starts a barrier, by which this rank tells that it has no more questions. */
void post_barrier_start(void);

/* Returns whether all ranks have started the barrier, or this one has not. */
int post_barrier_is_done(void);

#endif
