/* For each power of two a list of blocks, and one of all that are larger than these. The block that was given back
 * first is in front: if the stream is not done with that one, it is not done with the others either.
 */
#include "device/pool.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

/* Classes of sizes: powers of two from SMALLEST to LARGE - 1, and LARGE, which is all above, in multiples of LARGE_UNIT
 * bytes. */
enum { SMALLEST = 12, LARGE = 29, SIZE_CLASSES = LARGE + 1, LARGE_UNIT = 1 << 26 };
/* So many large blocks are kept, of pinned memory alone: to pin it takes longer than to fill it. A program that is far
 * ahead of its stream gets no more than MOST_WAITING new blocks of a size, and of large ones none, and waits for the
 * stream. */
enum { LARGE_KEPT = 2, MOST_WAITING = 16 };

typedef struct queue {
    pool_block *first, **last;
    int length;
} queue;

static queue unused[POOL_KINDS][SIZE_CLASSES];
static pthread_mutex_t pool = PTHREAD_MUTEX_INITIALIZER;

static const char *const kind_names[POOL_KINDS] = {
    [POOL_PINNED] = "pinned memory of the host", [POOL_DEVICE] = "memory of the GPU", [POOL_HOST] = "memory"};

static int class_of(int64_t bytes) {
    int size_class = SMALLEST;
    while (size_class < LARGE && (INT64_C(1) << size_class) < bytes) size_class++;
    return size_class;
}

static int64_t rounded(int64_t bytes) {
    int size_class = class_of(bytes);
    return size_class < LARGE ? INT64_C(1) << size_class : (bytes + LARGE_UNIT - 1) / LARGE_UNIT * LARGE_UNIT;
}

static int number_of(const device *d) {
    return d ? d->number : 0;
}

/* Takes the oldest block of this device out of its queue, if its stream is done with it, or is to be waited for. */
static pool_block *block_take(const device *d, pool_kind kind, int64_t bytes, int *waits) {
    int size_class = class_of(bytes), most = size_class == LARGE ? 1 : MOST_WAITING;
    queue *q = &unused[kind][size_class];
    pool_block *b = NULL, **at = &q->first;
    pthread_mutex_lock(&pool);
    while (*at && (*at)->device != number_of(d)) at = &(*at)->next;
    *waits = d && *at && d->driver->event_query((*at)->released) != 0;
    if (*at && (!*waits || q->length >= most)) {
        b = *at;
        *at = b->next;
        if (q->last == &b->next) q->last = at;
        q->length--;
    }
    pthread_mutex_unlock(&pool);
    return b;
}

/* Without a device it is one of POOL_HOST. */
static void block_free(const device *d, pool_block *b) {
    if (d && b->released) (void)d->driver->event_destroy(b->released);
    if (!d)
        free(b->data);
    else if (b->data)
        (void)(b->kind == POOL_PINNED ? d->driver->host_free(b->data) : d->driver->device_free(b->data));
    free(b);
}

/* Returns 0 or REFUSED. */
static int memory_get(const device *d, pool_kind kind, size_t bytes, void **data) {
    if (kind == POOL_PINNED) return DRIVER_CALL(d->driver, host_alloc, data, bytes, DRIVER_HOST_PORTABLE);
    if (kind == POOL_DEVICE) return DRIVER_CALL(d->driver, device_alloc, data, bytes);
    *data = malloc(bytes);
    return *data ? 0 : error_set("malloc returned NULL");
}

static pool_block *block_make(const device *d, pool_kind kind, int64_t bytes) {
    pool_block *b = malloc(sizeof *b);
    void *data = NULL;
    if (!b) return error_null("out of memory for a block of memory for a call");
    *b = (pool_block){.kind = kind, .bytes = bytes, .device = number_of(d)};
    int failed = memory_get(d, kind, (size_t)bytes, &data);
    if (failed) {
        char why[ERROR_BYTES / 2];
        snprintf(why, sizeof why, "%s", error_get());
        (void)error_set("there are no %lld bytes of %s for a call: %s", (long long)bytes, kind_names[kind], why);
    }
    b->data = data;
    if (failed || (d && DRIVER_CALL(d->driver, event_create, &b->released, DRIVER_EVENT_NO_TIMING))) {
        block_free(d, b);
        return NULL;
    }
    return b;
}

/* A large block may be too small: then a larger one takes its place. */
pool_block *pool_get(const device *d, pool_kind kind, int64_t bytes) {
    int waits = 0;
    pool_block *b = block_take(d, kind, bytes, &waits);
    int failed = b && waits && device_wait_for(d, b->released);
    if (b && !failed && b->bytes >= bytes) return b;
    if (b) block_free(d, b);
    return failed ? NULL : block_make(d, kind, rounded(bytes));
}

/* Returns whether the block is kept. */
static int block_keep(pool_block *b) {
    int size_class = class_of(b->bytes);
    queue *q = &unused[b->kind][size_class];
    b->next = NULL;
    pthread_mutex_lock(&pool);
    int is_kept = size_class < LARGE || (b->kind == POOL_PINNED && q->length < LARGE_KEPT);
    if (is_kept) {
        if (!q->first) q->last = &q->first;
        *q->last = b;
        q->last = &b->next;
        q->length++;
    }
    pthread_mutex_unlock(&pool);
    return is_kept;
}

/* What cannot be recorded, or is not kept, is waited for, and freed. */
void pool_give_back(const device *d, pool_block *b) {
    if (!b) return;
    int is_recorded = !d || d->driver->event_record(b->released, d->stream) == 0;
    if (is_recorded && block_keep(b)) return;
    if (d) (void)d->driver->stream_synchronize(d->stream);
    block_free(d, b);
}
