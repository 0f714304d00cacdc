#include "base/stack.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/system.h"
#include "mpixla.h"

enum { KEPT_BYTES = 4096 };

static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER; /* held by the thread whose question it is */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;   /* for all that follows */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_cond_t changed;
static int no_condition;      /* it could not be made: nobody is asked */
static int asked;             /* how many questions there were: they are numbered from 1 */
static int being_answered;    /* the number of the question that the front end has heard of, */
static int answered;          /* and of the one that it answered last, */
static char kept[KEPT_BYTES]; /* with this, */
static int64_t kept_threads;  /* and this */
static int closed;
static atomic_int is_answered;

static void stack_prepare(void) {
    no_condition = system_condition_make(&changed) != 0;
}

int mpixla_timeout_stack_wanted(void) {
    pthread_once(&once, stack_prepare);
    if (no_condition) return 0;
    pthread_mutex_lock(&lock);
    atomic_store(&is_answered, 1);
    while (!closed && asked == being_answered) pthread_cond_wait(&changed, &lock);
    being_answered = asked;
    int wanted = !closed;
    pthread_mutex_unlock(&lock);
    return wanted;
}

void mpixla_timeout_stack_give(const char *text, int64_t threads) {
    pthread_mutex_lock(&lock);
    snprintf(kept, sizeof kept, "%s", text);
    kept_threads = threads;
    answered = being_answered;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

int stack_is_answered(void) {
    return atomic_load(&is_answered);
}

int stack_ask(char *text, size_t bytes, int64_t *threads, int milliseconds) {
    const int64_t until = clock_now() + INT64_C(1000000) * milliseconds;
    int late = 0, found = 0;
    if (bytes > 0) text[0] = '\0';
    *threads = -1;
    pthread_once(&once, stack_prepare);
    if (no_condition || !system_lock(&asking, milliseconds)) return 0;
    pthread_mutex_lock(&lock);
    int mine = ++asked;
    pthread_cond_broadcast(&changed);
    while (answered != mine && !late && !closed) late = system_condition_wait(&changed, &lock, until);
    found = answered == mine;
    if (found && bytes > 0) snprintf(text, bytes, "%s", kept);
    if (found) *threads = kept_threads;
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&asking);
    return found;
}

void stack_close(void) {
    pthread_once(&once, stack_prepare);
    pthread_mutex_lock(&lock);
    closed = 1;
    if (!no_condition) pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
