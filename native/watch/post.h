/* Messages between the watchers of a job's processes, on a communicator of their own. Nothing here waits: the other
 * side may be stopped or gone. One thread uses it.
 */
#ifndef MPIXLA_NATIVE_POST_H
#define MPIXLA_NATIVE_POST_H

#include <stddef.h>

#include "mpixla.h"

typedef enum post_kind {
    POST_ASK,    /* what do you do? */
    POST_ANSWER, /* the answer */
    POST_LOOK,   /* is this process, on your host, there? */
    POST_SEEN,   /* the answer */
    POST_CLAIM,  /* the sender is about to report */
    POST_DROP,   /* it is not: there is nothing to report */
    POST_TOLD,   /* it has, and the job goes on */
    POST_LEFT,   /* the sender has left; to rank 0 */
    POST_WHO_LEFT,
    POST_THESE_LEFT /* the answer: ranks */
} post_kind;

/* A message that came. `data` lies in `memory`, at a multiple of eight bytes. */
typedef struct post_letter {
    post_kind kind;
    int from;
    int64_t number; /* as the sender has it */
    char *memory;   /* the receiver's to free */
    const char *data;
    size_t bytes;
} post_letter;

/* Takes a communicator that nobody else uses, of so many ranks. */
void post_open(mpixla_handle comm, int ranks);

/* Sends a copy of the data. What cannot be sent is lost. */
void post_send(int to, post_kind kind, int64_t number, const void *data, size_t bytes);

/* Whether there was a letter; fills it then. */
int post_take(post_letter *letter);

/* How many letters are still being sent. */
int post_unsent(void);

/* Joins all other ranks in being done; then asks whether all have joined. */
void post_join(void);
int post_all_joined(void);

#endif
