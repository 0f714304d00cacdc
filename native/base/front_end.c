#include "base/front_end.h"

#include <pthread.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/system.h"
#include "base/thread.h"

enum { STACK_BYTES = 8 << 20 /* the front end's code runs there */ };

typedef struct wish {
    void (*grant)(void);
    int64_t asked;   /* how often: wishes are numbered from 1 */
    int64_t begun;   /* the number of the one that the thread grants, */
    int64_t granted; /* and of the one that it has granted last */
} wish;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int no_condition; /* it could not be made: nothing is asked */
    int is_started;   /* there is a thread, */
    int is_calling;   /* which is in a function */
    wish all[MPIXLA_WISHES];
} front_end = {.lock = PTHREAD_MUTEX_INITIALIZER};

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Makes the condition variable, once in a process. */
static void front_end_prepare(void) {
    front_end.no_condition = system_condition_make(&front_end.changed) != 0;
}

static void front_end_lock(void) {
    pthread_once(&once, front_end_prepare);
    pthread_mutex_lock(&front_end.lock);
}

/* Returns the first wish whose function is to be called; MPIXLA_WISHES if there is none. The caller holds the lock. */
static int front_end_wish_next_find(void) {
    int i = 0;
    while (i < MPIXLA_WISHES && (!front_end.all[i].grant || front_end.all[i].asked == front_end.all[i].begun)) i++;
    return i;
}

/* Runs the thread that calls the front end's functions, one requested wish after another; never returns. */
static void *front_end_thread_run(void *nothing) {
    pthread_mutex_lock(&front_end.lock);
    while (nothing == NULL) {
        const int next = front_end_wish_next_find();
        if (next == MPIXLA_WISHES) {
            (void)pthread_cond_wait(&front_end.changed, &front_end.lock);
            continue;
        }
        wish *w = &front_end.all[next];
        void (*grant)(void) = w->grant;
        w->begun = w->asked;
        front_end.is_calling = 1;
        pthread_mutex_unlock(&front_end.lock);
        if (next != MPIXLA_WISH_STACKS) (void)fflush(stdout);
        grant();
        pthread_mutex_lock(&front_end.lock);
        front_end.is_calling = 0;
        w->granted = w->begun;
        (void)pthread_cond_broadcast(&front_end.changed);
    }
    return NULL;
}

/* Requests one call of a wish's function, and starts the thread if there is none. Returns the request's number, counted
 * from 1 for each wish; 0 if there is no function or no thread. The caller holds the lock. */
static int64_t front_end_wish_enqueue(wish *w) {
    if (!w->grant || front_end.no_condition) return 0;
    if (!front_end.is_started)
        front_end.is_started = thread_start(front_end_thread_run, STACK_BYTES, "that calls the front end") == 0;
    if (!front_end.is_started) return 0;
    (void)pthread_cond_broadcast(&front_end.changed);
    return ++w->asked;
}

int front_end_is_set(mpixla_wish wish) {
    front_end_lock();
    const int has = front_end.all[wish].grant != NULL;
    pthread_mutex_unlock(&front_end.lock);
    return has;
}

void front_end_request(mpixla_wish wish) {
    front_end_lock();
    (void)front_end_wish_enqueue(&front_end.all[wish]);
    pthread_mutex_unlock(&front_end.lock);
}

int front_end_request_and_wait(mpixla_wish wish, int milliseconds) {
    const int64_t until = clock_now() + INT64_C(1000000) * milliseconds;
    front_end_lock();
    struct wish *w = &front_end.all[wish];
    const int64_t mine = front_end_wish_enqueue(w);
    while (mine && w->grant && w->granted < mine &&
           !system_condition_wait(&front_end.changed, &front_end.lock, until)) {
    }
    const int granted = mine && w->granted >= mine;
    pthread_mutex_unlock(&front_end.lock);
    return granted;
}

/* Sets the function of a wish (NULL: none), and wakes the threads that wait for it. The caller holds the lock. */
static void front_end_wish_set(wish *w, void (*grant)(void)) {
    w->grant = grant;
    if (!front_end.no_condition) (void)pthread_cond_broadcast(&front_end.changed);
}

void front_end_unset(mpixla_wish wish) {
    mpixla_front_end_set(wish, NULL);
}

/* Registers the front end's function for a wish; NULL unregisters it. */
void mpixla_front_end_set(mpixla_wish wish, void (*grant)(void)) {
    front_end_lock();
    front_end_wish_set(&front_end.all[wish], grant);
    pthread_mutex_unlock(&front_end.lock);
}

/* Unregisters all functions of the front end, and returns once none of them runs. */
void mpixla_front_end_end(void) {
    front_end_lock();
    for (int i = 0; i < MPIXLA_WISHES; i++) front_end_wish_set(&front_end.all[i], NULL);
    while (front_end.is_calling) (void)pthread_cond_wait(&front_end.changed, &front_end.lock);
    pthread_mutex_unlock(&front_end.lock);
}
