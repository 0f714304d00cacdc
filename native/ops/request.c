/* One table of requests, and for each power of two a list of the free ones with that much memory. Where the table is
 * full, a free one of another size gives its place. One lock, which is held for a few instructions, guards who has
 * which; MPI is called, and data is copied, without it.
 */
#include "ops/request.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/list.h"
#include "base/output.h"
#include "mpi/loss.h"
#include "mpi/progress.h"
#include "ops/itself.h"

/* Memory of more than 2 to the KEPT_CLASS bytes is not kept: filling it takes longer than getting it. No machine has
 * memory of the last class. */
enum { LINE = 64, SMALLEST_CLASS = 6, SIZE_CLASSES = 63, KEPT_CLASS = 28, POLLS = 200, POLL_MILLISECONDS = 5 };
enum { KINDS = 16 }; /* that are told at the end */

static list requests = {.item_size = sizeof(request), .what = "requests"};
static request *unused[SIZE_CLASSES];
static request *left; /* those in the state REQUEST_LEFT */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void state_set(request *r, request_state state) {
    pthread_mutex_lock(&lock);
    r->state = state;
    pthread_mutex_unlock(&lock);
}

/* Starting */

/* A free request of another size, without its memory. */
static request *request_convert(int size_class) {
    for (int i = 0; i < SIZE_CLASSES; i++) {
        request *r = unused[i];
        if (!r) continue;
        unused[i] = r->next;
        free(r->send);
        r->send = NULL;
        r->size_class = size_class;
        return r;
    }
    return error_null("%d requests were started and not waited for; wait for each of them", REQUEST_LIMIT);
}

static request *request_make(int size_class) {
    int64_t number = requests.count;
    if (number >= REQUEST_LIMIT) return request_convert(size_class);
    request made = {.size_class = size_class, .number = (int)number};
    return list_append(&requests, &made) < 0 ? NULL : list_find(&requests, number);
}

/* A free request with room for at least `bytes`, but maybe without memory yet. */
static request *request_open(int64_t bytes) {
    int size_class = SMALLEST_CLASS;
    while (size_class < SIZE_CLASSES - 1 && (INT64_C(1) << size_class) < bytes) size_class++;
    pthread_mutex_lock(&lock);
    request *r = unused[size_class];
    if (r)
        unused[size_class] = r->next;
    else
        r = request_make(size_class);
    if (r) {
        r->state = REQUEST_STARTING;
        r->generation = r->generation % (REQUEST_GENERATIONS - 1) + 1;
        r->received = r->sent = 0;
    }
    pthread_mutex_unlock(&lock);
    return r;
}

/* MPI has nothing to do with the request any more. */
static void request_close(request *r) {
    if (r->size_class > KEPT_CLASS) {
        free(r->send);
        r->send = NULL;
    }
    pthread_mutex_lock(&lock);
    r->state = REQUEST_FREE;
    r->next = unused[r->size_class];
    unused[r->size_class] = r;
    pthread_mutex_unlock(&lock);
}

/* Opens a request with room for what the call sends and receives, and copies the former into it. */
static int take_started(frame *f) {
    const int64_t sent = frame_buffer_bytes(&f->send), received = frame_buffer_bytes(&f->recv);
    int64_t ahead = sent > INT64_MAX - LINE ? INT64_MAX : (sent + LINE - 1) / LINE * LINE, bytes;
    if (__builtin_add_overflow(ahead, received, &bytes)) bytes = INT64_MAX;
    if (f->on_root) { /* of a broadcast, which has one buffer for both */
        ahead = 0;
        bytes = sent;
    }
    request *r = request_open(bytes);
    /* That too many were started is the program's error, which the other ranks have as well. */
    if (!r) return requests.count < REQUEST_LIMIT ? call_fail(&f->facts) : REFUSED;
    if (!r->send) r->send = aligned_alloc(LINE, (size_t)1 << r->size_class);
    if (!r->send) {
        (void)error_set("out of memory for a request of %lld bytes", 1LL << r->size_class);
        request_close(r);
        return call_fail(&f->facts);
    }
    r->recv = (char *)r->send + ahead;
    if (sent > 0) memcpy(r->send, f->send.data, (size_t)sent);
    f->request = r;
    return 0;
}

/* Waiting */

static int receives(const request *r) {
    return r->facts.received_type != NULL;
}

static int sends(const request *r) {
    return facts_have(&r->facts, ATTRIBUTE_DEST);
}

static int goes_to_itself(const call_facts *f) {
    return facts_have(f, ATTRIBUTE_DEST) && f->dest == f->communicator->rank;
}

/* A message that this rank sends to itself: MPI may wait for ever for who receives it, so nobody waits for it. */
static int is_for_itself(const request *r) {
    return !receives(r) && goes_to_itself(&r->facts);
}

/* Whether MPI has said that all is done. */
static int has_ended(const request *r) {
    return (r->received || !receives(r)) && (r->sent || !sends(r));
}

/* Returns 0, or MPI's error code with 0 in `*done`. */
static int handle_test(mpi_request *handle, int *done, void *status) {
    int flag = 0, code = mpi_get()->test(handle, &flag, status);
    *done = code == 0 && flag;
    return code;
}

/* Whether all is done, or has failed: a wait for it takes no time. MPI is not asked again for what it has said. */
static int is_complete(request *r) {
    _Alignas(16) char unread[MPI_STATUS_BYTES];
    int code = 0;
    if (receives(r) && !r->received) code = handle_test(&r->receiving, &r->received, r->status);
    if (sends(r) && !r->sent) code |= handle_test(&r->sending, &r->sent, unread);
    return code != 0 || has_ended(r);
}

/* Returns whether the numbers of the id can be those of a request. */
static int id_read(const frame_buffer *id, int *number, int *generation) {
    const float *values = id->data;
    for (int i = 0; i < 2; i++)
        if (!(values[i] >= 0 && values[i] < (float)REQUEST_GENERATIONS)) return 0;
    *number = (int)values[0] - 1;
    *generation = (int)values[1];
    return (float)(*number + 1) == values[0] && (float)*generation == values[1];
}

/* Whether each example of a batch has the same id. */
static int id_is_one(const frame_buffer *id) {
    const float *values = id->data;
    for (int64_t i = 2; i < id->count; i++)
        if (values[i] != values[i - 2]) return 0;
    return 1;
}

static int gives_as_wanted(const frame *f, const request *r) {
    return r->facts.received_type == f->recv.dtype && r->facts.received == f->recv.count;
}

/* With the lock. What the program expects must be what the request gives: an id that strayed must not overwrite memory.
 */
static int claim_check(const frame *f, const request *r, int generation) {
    int is_of_now = generation == r->generation;
    if (generation == 0 || generation > r->generation || (is_of_now && r->state == REQUEST_STARTING))
        return error_set("a request was waited for that was never started in this process");
    if (!is_of_now || r->state != REQUEST_STARTED || !r->has_id)
        return error_set(
            "a request was already waited for: each is waited for once. Keep its result, or start another request");
    const dtype_entry *given = r->facts.received_type, *wanted = f->recv.dtype;
    if (gives_as_wanted(f, r)) return 0;
    return error_set("a request that gives %lld items of %s was waited for as one that gives %lld of %s",
                     (long long)r->facts.received, given ? given->row->name : "nothing", (long long)f->recv.count,
                     wanted ? wanted->row->name : "nothing");
}

/* The request with the id becomes the call's; `*claimed` stays NULL for the id of no request. */
static int named_claim(const frame *f, request **claimed) {
    int number, generation;
    if (!id_read(&f->id, &number, &generation))
        return error_set("what was waited for is no request: its id has other numbers than those of a request");
    if (!id_is_one(&f->id))
        return error_set(
            "the examples of a vmap have different requests here, and there is one wait for all: wait for a request in "
            "the branch of a cond, and in the turn of a while_loop, that started it");
    if (number < 0 && generation == 0) return 0;
    request *r = list_find(&requests, number);
    if (!r) return error_set("a request was waited for that was never started in this process");
    pthread_mutex_lock(&lock);
    int code = claim_check(f, r, generation);
    if (code == 0) r->state = REQUEST_WAITING;
    pthread_mutex_unlock(&lock);
    if (code == 0) *claimed = r;
    return code;
}

/* The first request without an id, from place `from` on and round the table, that is as the call wants it. */
static request *nameless_find(const frame *f, int64_t from) {
    request *found = NULL;
    pthread_mutex_lock(&lock);
    for (int64_t i = 0, n = requests.count; i < n && !found; i++) {
        request *r = list_find(&requests, (from + i) % n);
        if (r->state == REQUEST_STARTED && !r->has_id && r->facts.communicator == f->facts.communicator &&
            gives_as_wanted(f, r))
            found = r;
    }
    if (found) found->state = REQUEST_WAITING;
    pthread_mutex_unlock(&lock);
    return found;
}

/* Requests without an id give nothing, so a wait is for whichever is complete: there are as many waits as requests, and
 * none then waits for what its program would not have waited for by now. Other threads have one each at most, so one is
 * left for this one. */
static request *nameless_claim(const frame *f) {
    request *r = nameless_find(f, 0);
    while (r && !is_for_itself(r) && !is_complete(r)) {
        state_set(r, REQUEST_STARTED);
        (void)sched_yield();
        r = nameless_find(f, r->number + 1);
    }
    return r;
}

static int take_waited(frame *f) {
    request *r = NULL;
    if (f->id.count == 0)
        r = nameless_claim(f);
    else if (named_claim(f, &r))
        return REFUSED;
    f->request = r;
    if (!r) return 0;
    progress_less();
    f->started = &r->facts;
    f->agreement = r->agreement;
    f->status = r->status;
    return 0;
}

int request_take(frame *f) {
    return f->facts.row->request == MPIXLA_STARTS ? take_started(f) : take_waited(f);
}

/* Ending */

static void left_add(request *r) {
    pthread_mutex_lock(&lock);
    r->state = REQUEST_LEFT;
    r->next = left;
    left = r;
    pthread_mutex_unlock(&lock);
}

/* MPI completes it when it is received. Those for which that has come are closed. */
static void leave(request *added) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    pthread_mutex_lock(&lock);
    request *others = left;
    left = NULL;
    pthread_mutex_unlock(&lock);
    left_add(added);
    while (others) {
        request *r = others;
        others = r->next;
        int done, code = handle_test(&r->sending, &done, status);
        if (code != 0 || done)
            request_close(r);
        else
            left_add(r);
    }
}

static void id_write(const frame_buffer *id, const request *r) {
    float *values = id->data;
    for (int64_t i = 0; i < id->count; i += 2) { /* one for each part of a batch, all of them the same */
        values[i] = (float)(r->number + 1);
        values[i + 1] = (float)r->generation;
    }
}

/* What is needed when the call is over. */
static void call_keep(request *r, const frame *f) {
    r->facts = f->facts;
    r->agreement = f->agreement;
    r->has_id = f->id.count > 0;
}

void request_settle(frame *f, int code) {
    const int starts = f->facts.row->request == MPIXLA_STARTS;
    request *r = f->request;
    if (!r) return;
    if (starts && code == 0) {
        call_keep(r, f);
        id_write(&f->id, r);
        state_set(r, REQUEST_STARTED);
        progress_more();
    } else if (!starts && is_for_itself(r)) {
        leave(r);
    } else {
        request_close(r);
    }
}

void request_abandon(frame *f) {
    if (f->request) state_set(f->request, REQUEST_ABANDONED);
    f->request = NULL;
}

/* Calls */

/* Cancels a receive. Returns whether MPI writes into its memory no more. */
static int receive_cancel(mpi_request *receiving) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    const mpi_library *mpi = mpi_get();
    return mpi->cancel(receiving) == 0 && mpi->wait(receiving, status) == 0;
}

int request_exchange(frame *f) {
    request *r = f->request;
    int code = f->mpi->irecv(r->recv, f->expects.count, f->expects.type, f->source, f->recvtag, f->comm, &r->receiving);
    if (code != 0) return code;
    code = f->mpi->isend(r->send, f->send.count, f->send.dtype->handle, f->dest, f->sendtag, f->comm, &r->sending);
    if (code != 0 && !receive_cancel(&r->receiving)) request_abandon(f);
    return code;
}

/* What arrived, in bytes, and behind it what the template has. */
static void copy_out(const frame *f, const void *data, int64_t arrived) {
    char *to = f->recv.data;
    int64_t rest = frame_buffer_bytes(&f->recv) - arrived;
    if (arrived > 0) memcpy(to, data, (size_t)arrived);
    if (rest <= 0) return;
    to += arrived;
    if (f->template_.dtype)
        memcpy(to, (const char *)f->template_.data + arrived, (size_t)rest);
    else
        memset(to, 0, (size_t)rest);
}

int request_send(frame *f) {
    if (!goes_to_itself(&f->facts)) return f->mpi->send(f->send.data, f->n, f->type, f->dest, f->sendtag, f->comm);
    if (take_started(f)) return REFUSED;
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

/* Where a process died, a receive that may be for another goes on after the failure, and is cancelled; so is one for
 * which nothing comes. */
static int receive_end(frame *f) {
    mpi_request *receiving = &f->request->receiving;
    int code = itself_wait(&f->request->facts, receiving, f->request->status);
    const int is_pending = code == REFUSED || loss_is_pending(mpi_error_class(code));
    if (is_pending && !receive_cancel(receiving)) request_abandon(f);
    return code;
}

int request_wait(frame *f) {
    _Alignas(16) char unread[MPI_STATUS_BYTES];
    const mpi_library *mpi = mpi_get();
    request *r = f->request;
    if (r && is_for_itself(r)) return 0;
    int received = r && receives(r) && !r->received ? receive_end(f) : 0;
    if (received == REFUSED) {
        if (sends(r) && !r->sent) request_abandon(f); /* as long as nobody receives what it sends */
        return REFUSED;
    }
    int sent = r && sends(r) && !r->sent ? mpi->wait(&r->sending, unread) : 0;
    if (received != 0 || sent != 0) return received != 0 ? received : sent;
    if (!f->recv.dtype) return 0;
    int64_t bytes = r ? frame_buffer_bytes(&f->recv) : 0;
    if (r && facts_have(&r->facts, ATTRIBUTE_SOURCE)) {
        int code = frame_arrive(f, r->status);
        if (code != 0) return code;
        if (bytes > f->arrived) bytes = f->arrived;
    }
    copy_out(f, r ? r->recv : NULL, bytes);
    return 0;
}

/* The end. MPI_Finalize may hang while something is under way: what the other ranks complete in a moment is completed,
 * receives are cancelled, and sends left to MPI. Collective calls can be neither. */

static int is_unfinished(const request *r) {
    return r->state == REQUEST_STARTED || r->state == REQUEST_LEFT;
}

int64_t request_count_open(void) {
    int64_t open = 0;
    pthread_mutex_lock(&lock);
    for (int64_t i = 0; i < requests.count; i++) open += is_unfinished(list_find(&requests, i));
    pthread_mutex_unlock(&lock);
    return open;
}

/* Requests of which the same is told. */
typedef struct kind {
    char call[512];
    request_state state;
    int64_t count;
} kind;

/* The kind of this request among those that are `told`, or one more; NULL if they are too many. */
static kind *kind_find(kind *kinds, int *told, const request *r) {
    char call[sizeof kinds->call];
    (void)call_describe(&r->facts, NULL, 1, call, sizeof call);
    for (int i = 0; i < *told; i++)
        if (kinds[i].state == r->state && strcmp(kinds[i].call, call) == 0) return &kinds[i];
    if (*told == KINDS) return NULL;
    kind *added = &kinds[(*told)++];
    added->state = r->state;
    memcpy(added->call, call, sizeof call);
    return added;
}

static void kind_tell(const kind *k) {
    char times[32] = "";
    if (k->count > 1) snprintf(times, sizeof times, " (%lld times)", (long long)k->count);
    output_print("mpixla: r%d | %s %s%s\n", mpi_get()->world_rank, k->call,
                 k->state == REQUEST_LEFT ? "went to this rank itself, but was never received"
                                          : "was started, but never waited for",
                 times);
}

/* Tells of the requests that a program has, and of those that it left and nobody received. Returns how many they are.
 */
static int64_t unfinished_tell(void) {
    kind kinds[KINDS] = {{.count = 0}};
    int told = 0;
    int64_t found = 0, others = 0;
    for (int64_t i = 0; i < requests.count; i++) {
        request *r = list_find(&requests, i);
        if (r->state == REQUEST_LEFT && is_complete(r)) request_close(r);
        if (!is_unfinished(r)) continue;
        kind *alike = kind_find(kinds, &told, r);
        if (alike)
            alike->count++;
        else
            others++;
        found++;
    }
    for (int i = 0; i < told; i++) kind_tell(&kinds[i]);
    if (others > 0) output_print("mpixla: and %lld more like these.\n", (long long)others);
    return found;
}

static int64_t unfinished_count(void) {
    int64_t waiting = 0;
    for (int64_t i = 0; i < requests.count; i++) {
        request *r = list_find(&requests, i);
        waiting += is_unfinished(r) && !is_complete(r);
    }
    return waiting;
}

/* What MPI does not give back stays its own: it may still read and write the memory. */
static void unfinished_end(request *r) {
    if (facts_have(&r->facts, ATTRIBUTE_SOURCE) && !r->received) r->received = receive_cancel(&r->receiving);
    if (sends(r) && !r->sent) (void)mpi_get()->request_free(&r->sending);
    if (has_ended(r))
        request_close(r);
    else
        state_set(r, REQUEST_ABANDONED);
}

int64_t mpixla_requests_end(void) {
    progress_end();
    pthread_mutex_lock(&lock);
    left = NULL;
    pthread_mutex_unlock(&lock);
    int64_t found = unfinished_tell();
    for (int poll = 0; poll < POLLS && unfinished_count() > 0; poll++) clock_sleep(POLL_MILLISECONDS);
    for (int64_t i = 0; i < requests.count; i++) {
        request *r = list_find(&requests, i);
        if (is_unfinished(r)) unfinished_end(r);
    }
    return found;
}
