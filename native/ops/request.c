/* One table of requests, and for each power of two a list of the free ones with that much memory. A lock that is held
 * for a few instructions keeps them together; MPI is called, and data is copied, without it.
 */
#include "ops/request.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/list.h"
#include "mpi/loss.h"
#include "mpi/progress.h"

/* Memory of more than 2 to the KEPT_CLASS bytes is not kept: filling it takes longer than getting it. */
enum { SIZE_CLASSES = 63, KEPT_CLASS = 28, LINE = 64, POLLS = 200, POLL_NANOSECONDS = 5000000 };

static list requests = {.item_size = sizeof(request), .what = "requests"};
static request *unused[SIZE_CLASSES];
static request *left;
static request *nameless; /* started for a batch of no examples, which has no ids */
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t leaving = PTHREAD_MUTEX_INITIALIZER; /* for these two; MPI is called with it, and never waits */

/* Returns whether there are too many to count. */
static int bytes_of(const frame_buffer *b, int64_t *bytes) {
    *bytes = 0;
    return b->dtype && __builtin_mul_overflow(b->count, b->dtype->row->itemsize, bytes);
}

/* Starting */

static void *memory_get(int size_class) {
    void *memory = aligned_alloc(LINE, (size_t)1 << size_class);
    if (!memory) (void)error_set("out of memory for a request of %lld bytes", 1LL << size_class);
    return memory;
}

static request *request_make(int size_class) {
    int64_t number = requests.count;
    if (number >= REQUEST_LIMIT) {
        error_set("%d requests were started and not waited for; wait for each of them", REQUEST_LIMIT);
        return NULL;
    }
    request made = {.size_class = size_class, .number = (int)number, .generation = 0};
    made.memory = memory_get(size_class);
    if (!made.memory) return NULL;
    if (list_append(&requests, &made) < 0) {
        free(made.memory);
        return NULL;
    }
    return list_find(&requests, number);
}

/* A free request with at least this much memory. */
static request *request_open(int64_t bytes) {
    int size_class = 6; /* LINE bytes */
    while (size_class < SIZE_CLASSES - 1 && (INT64_C(1) << size_class) < bytes) size_class++;
    pthread_mutex_lock(&table);
    request *r = unused[size_class];
    if (!r) {
        r = request_make(size_class);
    } else {
        if (!r->memory) r->memory = memory_get(size_class);
        if (r->memory)
            unused[size_class] = r->next;
        else
            r = NULL;
    }
    if (r) {
        r->state = REQUEST_STARTING;
        r->received = r->sent = 0;
        r->generation = r->generation % (REQUEST_GENERATIONS - 1) + 1;
    }
    pthread_mutex_unlock(&table);
    return r;
}

static void request_close(request *r) {
    pthread_mutex_lock(&table);
    r->state = REQUEST_FREE;
    if (r->size_class > KEPT_CLASS) {
        free(r->memory);
        r->memory = NULL;
    }
    r->next = unused[r->size_class];
    unused[r->size_class] = r;
    pthread_mutex_unlock(&table);
}

/* Opens a request with room for what the call sends and receives, and copies the former into it. */
static int take_started(frame *f) {
    int64_t sent, received, ahead, bytes;
    int too_many = bytes_of(&f->send, &sent) || bytes_of(&f->recv, &received) ||
                   __builtin_add_overflow(sent, LINE - 1, &ahead) ||
                   __builtin_add_overflow(ahead -= ahead % LINE, received, &bytes);
    if (too_many) return error_set("%s has more bytes than a 64-bit integer holds", f->shape->mpi_name);
    if (f->on_root) { /* a bcast's root has one buffer for both */
        ahead = 0;
        bytes = sent;
    }
    request *r = request_open(bytes);
    if (!r) return -1;
    r->send = r->memory;
    r->recv = (char *)r->memory + ahead;
    if (sent > 0) memcpy(r->send, f->send.data, (size_t)sent);
    f->request = r;
    return 0;
}

/* Waiting */

static int receives(const request *r) {
    return r->call.recv.dtype != NULL;
}

static int sends(const request *r) {
    return frame_has(&r->call, ATTRIBUTE_DEST);
}

static int goes_to_itself(const frame *call) {
    return frame_has(call, ATTRIBUTE_DEST) && call->attributes[ATTRIBUTE_DEST] == call->communicator->rank;
}

/* Whether it is complete, as far as MPI can say; MPI is not asked again for what it has said. */
static int is_complete(request *r) {
    _Alignas(16) char unread[MPI_STATUS_BYTES];
    const mpi_library *mpi = mpi_get();
    int code = 0;
    if (receives(r) && !r->received) code = mpi->test(&r->receiving, &r->received, r->call.scratch);
    if (sends(r) && !r->sent && !goes_to_itself(&r->call)) code |= mpi->test(&r->sending, &r->sent, unread);
    return code != 0 || ((r->received || !receives(r)) && (r->sent || !sends(r) || goes_to_itself(&r->call)));
}

static int id_read(const frame_buffer *id, int *number, int *generation) {
    const float *values = id->data;
    for (int i = 0; i < 2; i++)
        if (!(values[i] >= 0 && values[i] < (float)REQUEST_GENERATIONS)) return -1;
    *number = (int)values[0] - 1;
    *generation = (int)values[1];
    return (float)(*number + 1) == values[0] && (float)*generation == values[1] ? 0 : -1;
}

/* The request becomes the caller's, if it was started and not waited for. */
static int request_claim(int number, int generation, request **claimed) {
    request *r = list_find(&requests, number);
    int code = 0;
    if (!r) return error_set("a request was waited for that was never started in this process");
    pthread_mutex_lock(&table);
    if (generation == r->generation && r->state == REQUEST_STARTED && r->call.id.count > 0)
        r->state = REQUEST_WAITING;
    else if (generation == 0 || generation > r->generation ||
             (generation == r->generation && r->state == REQUEST_STARTING))
        code = error_set("a request was waited for that was never started in this process");
    else
        code = error_set(
            "a request was already waited for: each is waited for once. Keep its result, or start another request");
    pthread_mutex_unlock(&table);
    *claimed = r;
    return code;
}

static int gives_as_wanted(const frame *f, const request *r) {
    return r->call.recv.dtype == f->recv.dtype && r->call.recv.count == f->recv.count;
}

/* What the program expects must be what the request gives: an id that strayed must not overwrite memory. */
static int request_check(const frame *f, const request *r) {
    const frame_buffer *given = &r->call.recv, *wanted = &f->recv;
    if (gives_as_wanted(f, r)) return 0;
    return error_set("a request that gives %lld items of %s was waited for as one that gives %lld of %s",
                     (long long)given->count, given->dtype ? given->dtype->row->name : "nothing",
                     (long long)wanted->count, wanted->dtype ? wanted->dtype->row->name : "nothing");
}

/* Requests without an id give nothing, so a wait is for whichever is complete: there are as many waits as requests, and
 * none then waits for what its program would not have waited for by now. */
static request *nameless_claim(const frame *f) {
    for (;;) {
        int found = 0;
        pthread_mutex_lock(&leaving);
        for (request **at = &nameless; *at; at = &(*at)->next) {
            request *r = *at;
            if (r->call.communicator != f->communicator || !gives_as_wanted(f, r)) continue;
            found = 1;
            if (!is_complete(r)) continue;
            *at = r->next;
            r->state = REQUEST_WAITING;
            pthread_mutex_unlock(&leaving);
            return r;
        }
        pthread_mutex_unlock(&leaving);
        if (!found) return NULL;
        (void)sched_yield();
    }
}

static int take_named(const frame *f, request **claimed) {
    int number, generation;
    if (id_read(&f->id, &number, &generation))
        return error_set("what was waited for is no request: its id has other numbers than those of a request");
    if (number < 0 && generation == 0) return 0; /* no request */
    if (request_claim(number, generation, claimed)) return -1;
    if (request_check(f, *claimed) == 0) return 0;
    pthread_mutex_lock(&table);
    (*claimed)->state = REQUEST_STARTED;
    pthread_mutex_unlock(&table);
    return -1;
}

static int take_waited(frame *f) {
    request *r = NULL;
    f->request = NULL;
    if (f->id.count == 0)
        r = nameless_claim(f);
    else if (take_named(f, &r))
        return -1;
    if (!r) return 0;
    progress_less();
    f->request = r;
    f->started = &r->call;
    return 0;
}

int request_take(frame *f) {
    return f->shape->request == FRAME_STARTS ? take_started(f) : take_waited(f);
}

static void id_write(const frame_buffer *id, const request *r) {
    float *values = id->data;
    for (int64_t i = 0; i < id->count; i += 2) { /* one for each part of a batch, all of them the same */
        values[i] = (float)(r->number + 1);
        values[i + 1] = (float)r->generation;
    }
}

/* Without the scratch status, which nobody wrote. */
static void call_keep(request *r, const frame *f) {
    memcpy(&r->call, f, offsetof(frame, scratch));
}

void request_settle(frame *f, int code) {
    request *r = f->request;
    if (!r) return;
    if (f->shape->request == FRAME_WAITS || code != 0) {
        request_close(r);
        return;
    }
    call_keep(r, f);
    id_write(&f->id, r);
    pthread_mutex_lock(&table);
    r->state = REQUEST_STARTED;
    pthread_mutex_unlock(&table);
    if (f->id.count == 0) {
        pthread_mutex_lock(&leaving);
        r->next = nameless;
        nameless = r;
        pthread_mutex_unlock(&leaving);
    }
    progress_more();
}

void request_abandon(frame *f) {
    pthread_mutex_lock(&table);
    f->request->state = REQUEST_ABANDONED;
    pthread_mutex_unlock(&table);
    f->request = NULL;
}

/* Calls */

int request_exchange(const frame *f) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    request *r = f->request;
    int code = f->mpi->irecv(r->recv, f->recv.count, f->type, f->source, f->recvtag, f->comm, &r->receiving);
    if (code != 0) return code;
    code = f->mpi->isend(r->send, f->send.count, f->send.dtype->handle, f->dest, f->sendtag, f->comm, &r->sending);
    /* The memory is free after a failure, so nothing may arrive in it any more. */
    if (code != 0 && mpi_get()->cancel(&r->receiving) == 0) (void)mpi_get()->wait(&r->receiving, status);
    return code;
}

static void copy_out(const frame *f, const void *data, int64_t arrived) {
    char *to = f->recv.data;
    int64_t item = f->recv.dtype->row->itemsize, rest = f->recv.count - arrived;
    if (arrived > 0) memcpy(to, data, (size_t)(arrived * item));
    if (rest <= 0) return;
    to += arrived * item;
    if (f->template_.dtype)
        memcpy(to, (const char *)f->template_.data + arrived * item, (size_t)(rest * item));
    else
        memset(to, 0, (size_t)(rest * item));
}

/* MPI completes it when it is received; those for which that has come are closed. */
static void leave(request *added) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    request *done = NULL;
    pthread_mutex_lock(&leaving);
    added->state = REQUEST_LEFT;
    added->next = left;
    left = added;
    for (request **r = &left; *r;) {
        request *this = *r;
        int completed = 0;
        if (mpi_get()->test(&this->sending, &completed, status) == 0 && !completed) {
            r = &this->next;
            continue;
        }
        *r = this->next;
        this->next = done;
        done = this;
    }
    pthread_mutex_unlock(&leaving);
    while (done) {
        request *this = done;
        done = this->next;
        request_close(this);
    }
}

int request_send(frame *f) {
    if (!goes_to_itself(f)) return f->mpi->send(f->send.data, f->n, f->type, f->dest, f->sendtag, f->comm);
    if (take_started(f)) return MPI_REFUSED;
    request *r = f->request;
    f->request = NULL;
    int code = f->mpi->isend(r->send, f->n, f->type, f->dest, f->sendtag, f->comm, &r->sending);
    if (code != 0) {
        request_close(r);
        return code;
    }
    call_keep(r, f);
    leave(r);
    return 0;
}

/* Nobody may write into the request's memory after it, so what still is under way after a failure is cancelled. */
static int receive_end(const mpi_library *mpi, mpi_request *receiving, void *status) {
    int code = mpi->wait(receiving, status);
    if (loss_is_pending(mpi_error_class(code)) && mpi->cancel(receiving) == 0) (void)mpi->wait(receiving, status);
    return code;
}

int request_wait(frame *f) {
    _Alignas(16) char unread[MPI_STATUS_BYTES];
    const mpi_library *mpi = mpi_get();
    request *r = f->request;
    if (r && sends(r) && !receives(r) && goes_to_itself(&r->call)) {
        leave(r);
        f->request = NULL;
        return 0;
    }
    int received = r && receives(r) && !r->received ? receive_end(mpi, &r->receiving, r->call.scratch) : 0;
    int sent = r && sends(r) && !r->sent ? mpi->wait(&r->sending, unread) : 0;
    if (received != 0 || sent != 0) return received != 0 ? received : sent;
    if (!f->recv.dtype) return 0;
    int64_t arrived = r ? f->recv.count : 0;
    if (r && frame_has(&r->call, ATTRIBUTE_SOURCE)) {
        int code = mpi->get_elements(r->call.scratch, r->call.type, &arrived);
        if (code != 0) return code;
        if (arrived < 0) arrived = 0;
        if (arrived > f->recv.count) arrived = f->recv.count;
    }
    copy_out(f, r ? r->recv : NULL, arrived);
    return 0;
}

/* The end. MPI_Finalize may hang while something is under way: what the other ranks complete in a moment is completed,
 * receives are cancelled, and sends left to MPI. Collective calls can be neither. */

typedef struct unfinished {
    request *request;
    int receiving, sending;
} unfinished;

static int completes(const mpi_library *mpi, mpi_request *handle) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    int done = 0;
    return mpi->test(handle, &done, status) != 0 || done;
}

/* Whether it is finished now. */
static int finishes(const mpi_library *mpi, unfinished *u) {
    if (u->receiving && completes(mpi, &u->request->receiving)) u->receiving = 0;
    if (u->sending && completes(mpi, &u->request->sending)) u->sending = 0;
    return !u->receiving && !u->sending;
}

static void abandon(const mpi_library *mpi, const unfinished *u) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    request *r = u->request;
    if (u->receiving && frame_has(&r->call, ATTRIBUTE_SOURCE) && mpi->cancel(&r->receiving) == 0)
        (void)mpi->wait(&r->receiving, status);
    if (u->sending) (void)mpi->request_free(&r->sending);
}

static void tell(const request *r, const char *what) {
    char call[512];
    call_describe(&r->call.facts, NULL, 1, call, sizeof call);
    fprintf(stderr, "mpixla: r%d | %s %s\n", mpi_get()->world_rank, call, what);
}

/* The requests that a program has, and those that it left and nobody received; each is told. Returns how many. */
static int64_t unfinished_collect(const mpi_library *mpi, unfinished *found) {
    int64_t n = 0;
    left = nameless = NULL;
    for (int64_t i = 0; i < requests.count; i++) {
        request *r = list_find(&requests, i);
        unfinished u = {.request = r, .receiving = receives(r), .sending = sends(r)};
        if (r->state == REQUEST_STARTED) tell(r, "was started, but never waited for");
        if (r->state == REQUEST_LEFT && finishes(mpi, &u)) request_close(r);
        if (r->state == REQUEST_LEFT) tell(r, "went to this rank itself, but was never received");
        if (r->state == REQUEST_STARTED || r->state == REQUEST_LEFT) found[n++] = u;
    }
    fflush(stderr);
    return n;
}

int64_t mpixla_requests_end(void) {
    const mpi_library *mpi = mpi_get();
    const struct timespec pause = {.tv_nsec = POLL_NANOSECONDS};
    unfinished *all = mpi && requests.count > 0 ? calloc((size_t)requests.count, sizeof *all) : NULL;
    progress_end();
    if (!all) return 0;
    int64_t found = unfinished_collect(mpi, all), waiting = found;
    for (int poll = 0; poll < POLLS && waiting > 0; poll++) {
        waiting = 0;
        for (int64_t i = 0; i < found; i++) waiting += !finishes(mpi, &all[i]);
        if (waiting > 0) nanosleep(&pause, NULL);
    }
    for (int64_t i = 0; i < found; i++) {
        abandon(mpi, &all[i]);
        request_close(all[i].request);
    }
    free(all);
    return found;
}
