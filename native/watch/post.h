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

/* Sets the communicator, which has so many ranks and no other use. */
void post_open(mpixla_handle comm, int ranks);

/* Sends a letter with a copy of the data. Without memory, or if MPI fails, the letter is lost. */
void post_send(int to, post_kind kind, int64_t number, const void *data, size_t bytes);

/* Receives the next letter that has arrived. Returns whether there was one. */
int post_take(post_letter *letter);

/* Returns whether letters are still being sent. */
int post_unsent(void);

/* post_join starts a barrier (this rank has no more questions); post_all_joined returns whether all ranks have. */
void post_join(void);
int post_all_joined(void);

#endif
