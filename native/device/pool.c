/* For each power of two a queue of free blocks, and one of all larger ones. The block that was given back first is in
 * front: if the stream is not done with that block, it is not done with the others either.
 */
#include "device/pool.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

/* Size classes: 2^n bytes for n from SMALLEST to LARGE - 1; and LARGE for all above, in multiples of LARGE_UNIT bytes.
 */
enum { SMALLEST = 12, LARGE = 29, SIZE_CLASSES = LARGE + 1, LARGE_UNIT = 1 << 26 };
/* LARGE_KEPT large blocks are kept, of pinned memory only: pinning takes longer than filling. MOST_WAITING limits the
 * run-ahead: at most so many blocks of one size class, and one large block, may wait for streams; then a call waits,
 * too. */
enum { LARGE_KEPT = 2, MOST_WAITING = 16 };

typedef struct pool_queue {
    pool_block *first, **last;
    int length;
} pool_queue;

static pool_queue free_blocks[POOL_KINDS][SIZE_CLASSES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const char *const kind_names[POOL_KINDS] = {
    [POOL_PINNED] = "pinned memory of the host", [POOL_DEVICE] = "memory of the GPU", [POOL_HOST] = "memory"};

/* Returns the size class of so many bytes: the exponent of the next power of two; LARGE for all above. */
static int pool_size_class(int64_t bytes) {
    int size_class = SMALLEST;
    while (size_class < LARGE && (INT64_C(1) << size_class) < bytes) size_class++;
    return size_class;
}

/* Rounds a size up to that of its class. */
static int64_t pool_size_round_up(int64_t bytes) {
    int size_class = pool_size_class(bytes);
    return size_class < LARGE ? INT64_C(1) << size_class : (bytes + LARGE_UNIT - 1) / LARGE_UNIT * LARGE_UNIT;
}

/* Returns the number of a device; 0 for POOL_HOST. */
static int pool_device_number(const device *d) {
    return d ? d->number : 0;
}

/* Removes the oldest block of this device from its queue, if its stream is done with it or the run-ahead limit is
 * reached. Returns NULL if a new block is to be made. Sets `*waits` to whether the stream is not done. */
static pool_block *pool_block_take(const device *d, pool_kind kind, int64_t bytes, int *waits) {
    int size_class = pool_size_class(bytes), most = size_class == LARGE ? 1 : MOST_WAITING;
    pool_queue *q = &free_blocks[kind][size_class];
    pool_block *b = NULL, **at = &q->first;
    pthread_mutex_lock(&lock);
    while (*at && (*at)->device != pool_device_number(d)) at = &(*at)->next;
    *waits = d && *at && d->driver->event_query((*at)->released) != 0;
    if (*at && (!*waits || q->length >= most)) {
        b = *at;
        *at = b->next;
        if (q->last == &b->next) q->last = at;
        q->length--;
    }
    pthread_mutex_unlock(&lock);
    return b;
}

/* Frees a block with its memory and its event; the device is NULL for POOL_HOST. */
static void pool_block_free(const device *d, pool_block *b) {
    if (d && b->released) (void)d->driver->event_destroy(b->released);
    if (!d)
        free(b->data);
    else if (b->data)
        (void)(b->kind == POOL_PINNED ? d->driver->host_free(b->data) : d->driver->device_free(b->data));
    free(b);
}

/* Sets `*data` to new memory of the host, pinned or not, or of the GPU, as `kind` says. Returns 0 or REFUSED. */
static int pool_memory_allocate(const device *d, pool_kind kind, size_t bytes, void **data) {
    if (kind == POOL_PINNED) return DRIVER_CALL(d->driver, host_alloc, data, bytes, DRIVER_HOST_PORTABLE);
    if (kind == POOL_DEVICE) return DRIVER_CALL(d->driver, device_alloc, data, bytes);
    *data = malloc(bytes);
    return *data ? 0 : error_set("malloc returned NULL");
}

/* Returns a new block with memory, and with an event if it has a device; NULL with error_set on failure. */
static pool_block *pool_block_make(const device *d, pool_kind kind, int64_t bytes) {
    pool_block *b = malloc(sizeof *b);
    void *data = NULL;
    if (!b) return error_null("out of memory for a block of memory for a call");
    *b = (pool_block){.kind = kind, .bytes = bytes, .device = pool_device_number(d)};
    int failed = pool_memory_allocate(d, kind, (size_t)bytes, &data);
    if (failed) {
        char why[ERROR_BYTES / 2];
        snprintf(why, sizeof why, "%s", error_get());
        (void)error_set("there are no %lld bytes of %s for a call: %s", (long long)bytes, kind_names[kind], why);
    }
    b->data = data;
    if (failed || (d && DRIVER_CALL(d->driver, event_create, &b->released, DRIVER_EVENT_NO_TIMING))) {
        pool_block_free(d, b);
        return NULL;
    }
    return b;
}

pool_block *pool_get(const device *d, pool_kind kind, int64_t bytes) {
    int waits = 0;
    pool_block *b = pool_block_take(d, kind, bytes, &waits);
    int failed = b && waits && device_wait_for(d, b->released);
    if (b && !failed && b->bytes >= bytes) return b;
    if (b) pool_block_free(d, b);
    return failed ? NULL : pool_block_make(d, kind, pool_size_round_up(bytes));
}

/* Puts a block into the queue of its size class. Returns whether the block is kept; else the caller frees it. */
static int pool_block_keep(pool_block *b) {
    int size_class = pool_size_class(b->bytes);
    pool_queue *q = &free_blocks[b->kind][size_class];
    b->next = NULL;
    pthread_mutex_lock(&lock);
    int is_kept = size_class < LARGE || (b->kind == POOL_PINNED && q->length < LARGE_KEPT);
    if (is_kept) {
        if (!q->first) q->last = &q->first;
        *q->last = b;
        q->last = &b->next;
        q->length++;
    }
    pthread_mutex_unlock(&lock);
    return is_kept;
}

void pool_give_back(const device *d, pool_block *b) {
    if (!b) return;
    int is_recorded = !d || d->driver->event_record(b->released, d->stream) == 0;
    if (is_recorded && pool_block_keep(b)) return;
    if (d) (void)d->driver->stream_synchronize(d->stream);
    pool_block_free(d, b);
}
