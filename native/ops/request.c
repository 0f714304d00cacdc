/* One table of requests, and for each size class a list of the free ones. If the table is full, a free request changes
 * its size class. One lock, held for a few instructions, guards the states and the lists; MPI is called, and data is
 * copied, without it.
 */
#include "ops/request.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/copy.h"
#include "base/error.h"
#include "base/list.h"
#include "base/output.h"
#include "mpi/loss.h"
#include "mpi/progress.h"
#include "ops/self_message.h"

/* Size class n is memory of 2^n bytes. Above KEPT_CLASS a free request keeps no memory: filling the memory takes longer
 * than allocating it. No machine has memory of the last class. */
enum { LINE = 64, SMALLEST_CLASS = 6, SIZE_CLASSES = 63, KEPT_CLASS = 28, POLLS = 200, POLL_MILLISECONDS = 5 };
enum { PRINTED_KINDS = 16 }; /* of unfinished requests; of others only the number is printed */

static list requests = {.item_size = sizeof(request), .items_name = "requests"};
static request *free_requests[SIZE_CLASSES]; /* lists */
static request *unreceived;                  /* the list of those in the state REQUEST_UNRECEIVED */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Sets the state of a request. Takes the lock. */
static void request_state_set(request *r, request_state state) {
    pthread_mutex_lock(&lock);
    r->state = state;
    pthread_mutex_unlock(&lock);
}

/* Starting */

/* Removes the first free request of any size class from its list, frees its memory, and returns it with this size
 * class; NULL with error_set if there is none. The caller holds the lock. */
static request *request_size_class_change(int size_class) {
    for (int i = 0; i < SIZE_CLASSES; i++) {
        request *r = free_requests[i];
        if (!r) continue;
        free_requests[i] = r->next;
        free(r->send);
        r->send = NULL;
        r->size_class = size_class;
        return r;
    }
    return error_null("%d requests were started and not waited for; wait for each of them", REQUEST_LIMIT);
}

/* Appends a new request to the table; in a full table changes the size class of a free one. Returns it, or NULL with
 * error_set. The caller holds the lock. */
static request *request_append(int size_class) {
    int64_t number = requests.count;
    if (number >= REQUEST_LIMIT) return request_size_class_change(size_class);
    request made = {.size_class = size_class, .number = (int)number};
    return list_append(&requests, &made) < 0 ? NULL : list_find(&requests, number);
}

/* Returns a request in the state REQUEST_STARTING for at least `bytes` bytes, which may have no memory yet; NULL with
 * error_set on failure. Takes the lock. */
static request *request_acquire(int64_t bytes) {
    int size_class = SMALLEST_CLASS;
    while (size_class < SIZE_CLASSES - 1 && (INT64_C(1) << size_class) < bytes) size_class++;
    pthread_mutex_lock(&lock);
    request *r = free_requests[size_class];
    if (r)
        free_requests[size_class] = r->next;
    else
        r = request_append(size_class);
    if (r) {
        r->state = REQUEST_STARTING;
        r->generation = r->generation % (REQUEST_GENERATIONS - 1) + 1;
        r->received = r->sent = 0;
    }
    pthread_mutex_unlock(&lock);
    return r;
}

/* Makes a request free for another call, and frees its memory if it is very large. Takes the lock. Call it only when
 * MPI uses neither the request nor its memory. */
static void request_release(request *r) {
    if (r->size_class > KEPT_CLASS) {
        free(r->send);
        r->send = NULL;
    }
    pthread_mutex_lock(&lock);
    r->state = REQUEST_FREE;
    r->next = free_requests[r->size_class];
    free_requests[r->size_class] = r;
    pthread_mutex_unlock(&lock);
}

/* Returns the bytes of the counts and displacements that MPI reads until a call by rows is complete; 0 for others. */
static int64_t request_parts_bytes(const frame *f) {
    return frame_has_rows(f) ? 4 * (int64_t)f->size * (int64_t)sizeof(int64_t) : 0;
}

/* Copies counts or displacements of the call into the request's memory at `*to`, and moves `*to` behind them. */
static const void *request_parts_copy(const frame *f, const void *from, char **to) {
    const int64_t bytes = f->size * (int64_t)(f->mpi == mpi_get()->large ? sizeof(int64_t) : sizeof(int));
    char *copy = *to;
    copy_bytes(copy, from, bytes);
    *to += bytes;
    return copy;
}

/* Replaces the counts and displacements of the call by copies in the request's memory. */
static void request_parts_keep(frame *f, char *to) {
    parts *both[] = {&f->sent, &f->received};
    for (int i = 0; i < 2; i++) {
        both[i]->counts = request_parts_copy(f, both[i]->counts, &to);
        both[i]->displs = request_parts_copy(f, both[i]->displs, &to);
    }
}

/* Sets f->request to a new request with memory for the data that the call sends and receives, and copies the data to
 * send into it. Returns 0 or REFUSED; without memory it ends the job if the call is collective, else it returns REFUSED
 * (facts_fail). */
static int request_start_prepare(frame *f) {
    const int64_t sent = frame_buffer_bytes(&f->send), received = frame_buffer_bytes(&f->recv);
    const int64_t parts_bytes = request_parts_bytes(f);
    int64_t ahead = sent > INT64_MAX - LINE ? INT64_MAX : (sent + LINE - 1) / LINE * LINE, bytes;
    if (parts_bytes > 0 && ahead == 0) ahead = LINE; /* MPICH refuses one address for both */
    if (__builtin_add_overflow(ahead, received, &bytes)) bytes = INT64_MAX;
    if (parts_bytes > 0 && __builtin_add_overflow(bytes, LINE + parts_bytes, &bytes)) bytes = INT64_MAX;
    /* The root of a broadcast, and the other ranks of a call to a root, give back what they send. */
    if (f->facts.row->pattern == TO_ROOT ? !f->on_root : f->on_root && f->facts.row->counts == SAME) {
        ahead = 0;
        bytes = sent;
    }
    request *r = request_acquire(bytes);
    /* Too many requests are an error of the program, which all ranks have: no facts_fail. */
    if (!r) return requests.count < REQUEST_LIMIT ? facts_fail(&f->facts) : REFUSED;
    if (!r->send) r->send = aligned_alloc(LINE, (size_t)1 << r->size_class);
    if (!r->send) {
        (void)error_set("out of memory for a request of %lld bytes", 1LL << r->size_class);
        request_release(r);
        return facts_fail(&f->facts);
    }
    r->recv = (char *)r->send + ahead;
    copy_bytes(r->send, f->send.data, sent);
    if (parts_bytes > 0) request_parts_keep(f, (char *)r->recv + (received + LINE - 1) / LINE * LINE);
    f->request = r;
    return 0;
}

/* Waiting */

/* Returns whether MPI completes r->receiving: of a receive or a collective call. */
static int request_receives(const request *r) {
    return r->facts.received_type != NULL || facts_are_collective(&r->facts);
}

/* Returns whether the request sends a message. */
static int request_sends(const request *r) {
    return facts_have(&r->facts, ATTRIBUTE_DEST);
}

/* Returns whether the call sends a message to this rank itself. */
static int request_dest_is_self(const call_facts *f) {
    return facts_have(f, ATTRIBUTE_DEST) && f->dest == f->communicator->rank;
}

/* Returns whether the request only sends a message to this rank itself. Nothing may wait for it: MPI may complete it
 * only when this rank receives the message. */
static int request_is_to_self(const request *r) {
    return !request_receives(r) && request_dest_is_self(&r->facts);
}

/* Returns whether MPI has completed the receive and the send, as far as is known without asking MPI. */
static int request_is_done(const request *r) {
    return (r->received || !request_receives(r)) && (r->sent || !request_sends(r));
}

/* Calls MPI_Test, and sets `*done`. Returns 0, or MPI's error code with 0 in `*done`. */
static int request_handle_test(mpi_request *handle, int *done, void *status) {
    int flag = 0, code = mpi_get()->test(handle, &flag, status);
    *done = code == 0 && flag;
    return code;
}

/* Asks MPI whether the request is complete. Returns whether it is, or has failed, so that a wait for it does not block.
 */
static int request_test(request *r) {
    _Alignas(16) char unread[MPI_STATUS_BYTES];
    int code = 0;
    if (request_receives(r) && !r->received) code = request_handle_test(&r->receiving, &r->received, r->status);
    if (request_sends(r) && !r->sent) code |= request_handle_test(&r->sending, &r->sent, unread);
    return code != 0 || request_is_done(r);
}

/* Reads the id of a request from the program's array: sets `*number` to its place, -1 for no request, and
 * `*generation`. Returns whether its numbers can be those of a request. */
static int request_id_read(const frame_buffer *id, int *number, int *generation) {
    const float *values = id->data;
    for (int i = 0; i < 2; i++)
        if (!(values[i] >= 0 && values[i] < (float)REQUEST_GENERATIONS)) return 0;
    *number = (int)values[0] - 1;
    *generation = (int)values[1];
    return (float)(*number + 1) == values[0] && (float)*generation == values[1];
}

/* Returns whether each example of a batch has the same id. */
static int request_id_is_uniform(const frame_buffer *id) {
    const float *values = id->data;
    for (int64_t i = 2; i < id->count; i++)
        if (values[i] != values[i - 2]) return 0;
    return 1;
}

/* Returns whether the request receives as many items, and of the same type, as the call that waits for it. */
static int request_fits_buffer(const frame *f, const request *r) {
    return r->facts.received_type == f->recv.dtype && r->facts.received == f->recv.count;
}

/* Checks that a call may wait for the request with this generation. The receive buffer must fit the request: a wrong id
 * must not overwrite memory. Returns 0 or REFUSED. The caller holds the lock. */
static int request_claim_check(const frame *f, const request *r, int generation) {
    int is_of_now = generation == r->generation;
    if (generation == 0 || generation > r->generation || (is_of_now && r->state == REQUEST_STARTING))
        return error_set("a request was waited for that was never started in this process");
    if (!is_of_now || r->state != REQUEST_STARTED || !r->has_id)
        return error_set(
            "a request was already waited for: each is waited for once. Keep its result, or start another request");
    const dtype_entry *given = r->facts.received_type, *wanted = f->recv.dtype;
    /* A message may be waited for on a freed communicator (frame_comm_resolve); Open MPI 5 crashes in other waits. */
    if (facts_are_collective(&r->facts) && !comm_find(f->attributes[ATTRIBUTE_COMM])) return REFUSED;
    if (request_fits_buffer(f, r)) return 0;
    return error_set("a request that gives %lld items of %s was waited for as one that gives %lld of %s",
                     (long long)r->facts.received, given ? given->row->name : "nothing", (long long)f->recv.count,
                     wanted ? wanted->row->name : "nothing");
}

/* Sets `*claimed` to the request with the call's id, now in the state REQUEST_WAITING, and returns 0; for the id of no
 * request returns 0 and leaves `*claimed`. Returns REFUSED for an id that is invalid or differs between the examples of
 * a vmap, or whose request cannot be waited for (request_claim_check). Takes the lock. */
static int request_claim_by_id(const frame *f, request **claimed) {
    int number, generation;
    if (!request_id_read(&f->id, &number, &generation))
        return error_set("the value that was waited for is no request: its id has numbers that no request has");
    if (!request_id_is_uniform(&f->id))
        return error_set(
            "the examples of a vmap have different requests here, and there is one wait for all: wait for a request in "
            "the branch of a cond, and in the turn of a while_loop, that started it");
    if (number < 0 && generation == 0) return 0;
    request *r = list_find(&requests, number);
    if (!r) return error_set("a request was waited for that was never started in this process");
    pthread_mutex_lock(&lock);
    int code = request_claim_check(f, r, generation);
    if (code == 0) r->state = REQUEST_WAITING;
    pthread_mutex_unlock(&lock);
    if (code == 0) *claimed = r;
    return code;
}

/* Returns the first request without an id that fits the call, from place `from` on and round the table, now in the
 * state REQUEST_WAITING; NULL if there is none. Takes the lock. */
static request *request_find_anonymous(const frame *f, int64_t from) {
    request *found = NULL;
    pthread_mutex_lock(&lock);
    for (int64_t i = 0, n = requests.count; i < n && !found; i++) {
        request *r = list_find(&requests, (from + i) % n);
        if (r->state == REQUEST_STARTED && !r->has_id && r->facts.communicator == f->facts.communicator &&
            request_fits_buffer(f, r))
            found = r;
    }
    if (found) found->state = REQUEST_WAITING;
    pthread_mutex_unlock(&lock);
    return found;
}

/* Waits for the first request without an id to complete, and returns it in the state REQUEST_WAITING; NULL if there is
 * none. Such requests have no result, so they are interchangeable. This cannot deadlock: a program waits as often as it
 * starts requests, and each other thread has claimed at most one of them, so that one is left for this thread. */
static request *request_claim_anonymous(const frame *f) {
    request *r = request_find_anonymous(f, 0);
    while (r && !request_is_to_self(r) && !request_test(r)) {
        request_state_set(r, REQUEST_STARTED);
        (void)sched_yield();
        r = request_find_anonymous(f, r->number + 1);
    }
    return r;
}

/* Sets f->request to the request that a wait is for, which no other call can wait for from then on, and f->started,
 * f->agreement and f->status from it. With an id this is the request that has the id; with an empty id any request
 * without one, which is complete by then. f->request is NULL for the id of no request, or if no request fits. Returns
 * 0, or REFUSED for an id that cannot be waited for. */
static int request_claim(frame *f) {
    request *r = NULL;
    if (f->id.count == 0)
        r = request_claim_anonymous(f);
    else if (request_claim_by_id(f, &r))
        return REFUSED;
    f->request = r;
    if (!r) return 0;
    progress_request_ended();
    f->started = &r->facts;
    f->agreement = r->agreement;
    f->status = r->status;
    return 0;
}

int request_attach(frame *f) {
    return f->facts.row->request == MPIXLA_STARTS ? request_start_prepare(f) : request_claim(f);
}

/* Ending */

/* Adds a request to the list of unreceived ones, and sets that state. Takes the lock. */
static void request_unreceived_add(request *r) {
    pthread_mutex_lock(&lock);
    r->state = REQUEST_UNRECEIVED;
    r->next = unreceived;
    unreceived = r;
    pthread_mutex_unlock(&lock);
}

/* Leaves a send to this rank itself (`added`) to MPI, which completes it when it is received, and frees the earlier
 * ones that are complete. Takes the lock. */
static void request_unreceived_keep(request *added) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    pthread_mutex_lock(&lock);
    request *others = unreceived;
    unreceived = NULL;
    pthread_mutex_unlock(&lock);
    request_unreceived_add(added);
    while (others) {
        request *r = others;
        others = r->next;
        int done, code = request_handle_test(&r->sending, &done, status);
        if (code != 0 || done)
            request_release(r);
        else
            request_unreceived_add(r);
    }
}

/* Writes the id of a request, once for each example of a batch. */
static void request_id_write(const frame_buffer *id, const request *r) {
    float *values = id->data;
    for (int64_t i = 0; i < id->count; i += 2) {
        values[i] = (float)(r->number + 1);
        values[i + 1] = (float)r->generation;
    }
}

/* Copies the fields of the frame that are needed after the call (facts, comparison) into its request. */
static void request_call_save(request *r, const frame *f) {
    r->facts = f->facts;
    r->agreement = f->agreement;
    r->has_id = f->id.count > 0;
}

void request_finish(frame *f, int code) {
    const int starts = f->facts.row->request == MPIXLA_STARTS;
    request *r = f->request;
    if (!r) return;
    if (starts && code == 0) {
        request_call_save(r, f);
        request_id_write(&f->id, r);
        request_state_set(r, REQUEST_STARTED);
        progress_request_started();
    } else if (!starts && request_is_to_self(r)) {
        request_unreceived_keep(r);
    } else {
        request_release(r);
    }
}

void request_abandon(frame *f) {
    if (f->request) request_state_set(f->request, REQUEST_ABANDONED);
    f->request = NULL;
}

/* Calls */

/* Cancels a receive, and waits for it. Returns whether MPI no longer writes to its memory. */
static int request_receive_cancel(mpi_request *receiving) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    const mpi_library *mpi = mpi_get();
    return mpi->cancel(receiving) == 0 && mpi->wait(receiving, status) == 0;
}

int request_exchange(frame *f) {
    request *r = f->request;
    int code = f->mpi->irecv(r->recv, f->expects.count, f->expects.type, f->source, f->recvtag, f->comm, &r->receiving);
    if (code != 0) return code;
    code = f->mpi->isend(r->send, f->send.count, f->send.dtype->handle, f->dest, f->sendtag, f->comm, &r->sending);
    if (code != 0 && !request_receive_cancel(&r->receiving)) request_abandon(f);
    return code;
}

/* Fills the receive buffer: `arrived` bytes of `data`, then the rest of the template, or zeros without a template. */
static void request_result_copy(const frame *f, const void *data, int64_t arrived) {
    char *to = f->recv.data;
    int64_t rest = frame_buffer_bytes(&f->recv) - arrived;
    copy_bytes(to, data, arrived);
    if (rest <= 0) return;
    to += arrived;
    if (f->template_.dtype)
        copy_bytes(to, (const char *)f->template_.data + arrived, rest);
    else
        memset(to, 0, (size_t)rest);
}

int request_send(frame *f) {
    if (!request_dest_is_self(&f->facts))
        return f->mpi->send(f->send.data, f->n, f->type, f->dest, f->sendtag, f->comm);
    if (request_start_prepare(f)) return REFUSED;
    request *r = f->request;
    f->request = NULL;
    int code = f->mpi->isend(r->send, f->n, f->type, f->dest, f->sendtag, f->comm, &r->sending);
    if (code != 0) {
        request_release(r);
        return code;
    }
    request_call_save(r, f);
    request_unreceived_keep(r);
    return 0;
}

/* Waits for the receive of the request. Returns 0 or an error code. Cancels a receive that is still active after a
 * failure: one from any source when a process died, or one whose message nothing can send (self_message.h); abandons
 * the request if it cannot be cancelled. */
static int request_receive_wait(frame *f) {
    mpi_request *receiving = &f->request->receiving;
    int code = self_message_request_wait(&f->request->facts, receiving, f->request->status);
    const int is_pending = code == REFUSED || loss_is_pending(mpi_error_class(code));
    if (is_pending && !request_receive_cancel(receiving)) request_abandon(f);
    return code;
}

int request_wait(frame *f) {
    _Alignas(16) char unread[MPI_STATUS_BYTES];
    const mpi_library *mpi = mpi_get();
    request *r = f->request;
    if (r && request_is_to_self(r)) return 0;
    int received = r && request_receives(r) && !r->received ? request_receive_wait(f) : 0;
    if (received == REFUSED) {
        if (request_sends(r) && !r->sent) request_abandon(f); /* MPI reads its memory until the message is received */
        return REFUSED;
    }
    int sent = r && request_sends(r) && !r->sent ? mpi->wait(&r->sending, unread) : 0;
    if (received != 0 || sent != 0) return received != 0 ? received : sent;
    if (!f->recv.dtype) return 0;
    int64_t bytes = r ? frame_buffer_bytes(&f->recv) : 0;
    if (r && facts_have(&r->facts, ATTRIBUTE_SOURCE)) {
        int code = frame_arrived_set(f, r->status);
        if (code != 0) return code;
        if (bytes > f->arrived) bytes = f->arrived;
    }
    request_result_copy(f, r ? r->recv : NULL, bytes);
    return 0;
}

/* The end. MPI_Finalize may hang while a request is active. So requests that the other ranks complete soon are waited
 * for, and then receives are cancelled, and sends freed. MPI allows neither for collective calls. */

/* Returns whether the request was not waited for, or is a send to this rank itself that may not have been received. */
static int request_is_unfinished(const request *r) {
    return r->state == REQUEST_STARTED || r->state == REQUEST_UNRECEIVED;
}

int64_t request_count_open(void) {
    int64_t open = 0;
    pthread_mutex_lock(&lock);
    for (int64_t i = 0; i < requests.count; i++) open += request_is_unfinished(list_find(&requests, i));
    pthread_mutex_unlock(&lock);
    return open;
}

/* Unfinished requests of equal description and state, which are printed as one line. */
typedef struct request_kind {
    char call[512];
    request_state state;
    int64_t count;
} request_kind;

/* Returns the element of `kinds` for this request; adds it, and counts it in `*kinds_count`, if there is none; NULL if
 * all PRINTED_KINDS are in use. */
static request_kind *request_kind_find(request_kind *kinds, int *kinds_count, const request *r) {
    char call[sizeof kinds->call];
    (void)facts_describe(&r->facts, NULL, 1, call, sizeof call);
    for (int i = 0; i < *kinds_count; i++)
        if (kinds[i].state == r->state && strcmp(kinds[i].call, call) == 0) return &kinds[i];
    if (*kinds_count == PRINTED_KINDS) return NULL;
    request_kind *added = &kinds[(*kinds_count)++];
    added->state = r->state;
    memcpy(added->call, call, sizeof call);
    return added;
}

/* Prints the line of one kind of unfinished requests. */
static void request_kind_print(const request_kind *k) {
    char times[32] = "";
    if (k->count > 1) snprintf(times, sizeof times, " (%lld times)", (long long)k->count);
    output_print("mpixla: r%d | %s %s%s\n", mpi_get()->world_rank, k->call,
                 k->state == REQUEST_UNRECEIVED ? "went to this rank itself, but was never received"
                                                : "was started, but never waited for",
                 times);
}

/* Prints a line for each kind of unfinished requests, and frees sends to this rank itself that are complete. Returns
 * the number of unfinished requests. */
static int64_t request_print_unfinished(void) {
    request_kind kinds[PRINTED_KINDS] = {{.count = 0}};
    int kinds_count = 0;
    int64_t found = 0, others = 0;
    for (int64_t i = 0; i < requests.count; i++) {
        request *r = list_find(&requests, i);
        if (r->state == REQUEST_UNRECEIVED && request_test(r)) request_release(r);
        if (!request_is_unfinished(r)) continue;
        request_kind *alike = request_kind_find(kinds, &kinds_count, r);
        if (alike)
            alike->count++;
        else
            others++;
        found++;
    }
    for (int i = 0; i < kinds_count; i++) request_kind_print(&kinds[i]);
    if (others > 0) output_print("mpixla: and %lld more like these.\n", (long long)others);
    return found;
}

/* Returns how many unfinished requests MPI has not completed. */
static int64_t request_count_pending(void) {
    int64_t waiting = 0;
    for (int64_t i = 0; i < requests.count; i++) {
        request *r = list_find(&requests, i);
        waiting += request_is_unfinished(r) && !request_test(r);
    }
    return waiting;
}

/* Cancels the receive and frees the send of an unfinished request; abandons the request if MPI may still use its
 * memory. */
static void request_unfinished_cancel(request *r) {
    if (facts_have(&r->facts, ATTRIBUTE_SOURCE) && !r->received) r->received = request_receive_cancel(&r->receiving);
    if (request_sends(r) && !r->sent) (void)mpi_get()->request_free(&r->sending);
    if (request_is_done(r))
        request_release(r);
    else
        request_state_set(r, REQUEST_ABANDONED);
}

/* Prints and ends the requests that were never waited for, before MPI_Finalize: waits about a second for other ranks to
 * complete them, then cancels receives and frees sends. Also ends the progress thread's calls of MPI. Returns their
 * number. */
int64_t mpixla_requests_end(void) {
    progress_end();
    pthread_mutex_lock(&lock);
    unreceived = NULL;
    pthread_mutex_unlock(&lock);
    int64_t found = request_print_unfinished();
    for (int poll = 0; poll < POLLS && request_count_pending() > 0; poll++) clock_sleep(POLL_MILLISECONDS);
    for (int64_t i = 0; i < requests.count; i++) {
        request *r = list_find(&requests, i);
        if (request_is_unfinished(r)) request_unfinished_cancel(r);
    }
    return found;
}
