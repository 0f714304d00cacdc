#include "base/stack.h"

#include <pthread.h>
#include <stdio.h>

#include "base/front_end.h"
#include "mpixla.h"

enum { KEPT_BYTES = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char kept[KEPT_BYTES]; /* the front end's last answer */
static int64_t kept_threads;

/* Stores the front end's answer to a request for its stacks, for stack_ask: the text (copied), and the number of
 * threads that may still make a call. */
void mpixla_timeout_stack_give(const char *text, int64_t threads) {
    pthread_mutex_lock(&lock);
    snprintf(kept, sizeof kept, "%s", text);
    kept_threads = threads;
    pthread_mutex_unlock(&lock);
}

int stack_is_available(void) {
    return front_end_is_set(MPIXLA_WISH_STACKS);
}

int stack_ask(char *text, size_t bytes, int64_t *threads, int milliseconds) {
    const int found = front_end_request_and_wait(MPIXLA_WISH_STACKS, milliseconds);
    pthread_mutex_lock(&lock);
    if (bytes > 0) snprintf(text, bytes, "%s", found ? kept : "");
    *threads = found ? kept_threads : -1;
    pthread_mutex_unlock(&lock);
    return found;
}

void stack_close(void) {
    front_end_unset(MPIXLA_WISH_STACKS);
}
