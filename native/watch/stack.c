#include "watch/stack.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "mpixla.h"

enum { KEPT_BYTES = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int asked;             /* how many questions there were: they are numbered from 1 */
static int being_answered;    /* the number of the question that the front end has heard of, */
static int answered;          /* and of the one that it answered last, */
static char kept[KEPT_BYTES]; /* with this */
static int closed;

int mpixla_timeout_stack_wanted(void) {
    pthread_mutex_lock(&lock);
    while (!closed && asked == being_answered) pthread_cond_wait(&changed, &lock);
    being_answered = asked;
    int wanted = !closed;
    pthread_mutex_unlock(&lock);
    return wanted;
}

void mpixla_timeout_stack_give(const char *text) {
    pthread_mutex_lock(&lock);
    snprintf(kept, sizeof kept, "%s", text);
    answered = being_answered;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

int stack_ask(char *text, size_t bytes, int milliseconds) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += milliseconds % 1000 * 1000000L;
    end.tv_sec += milliseconds / 1000 + end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    pthread_mutex_lock(&lock);
    int mine = ++asked, late = 0;
    pthread_cond_broadcast(&changed);
    while (answered != mine && !late && !closed) late = pthread_cond_timedwait(&changed, &lock, &end) != 0;
    int is_answered = answered == mine;
    snprintf(text, bytes, "%s", is_answered ? kept : "");
    pthread_mutex_unlock(&lock);
    return is_answered;
}

void stack_close(void) {
    pthread_mutex_lock(&lock);
    closed = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
