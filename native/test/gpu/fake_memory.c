#define _GNU_SOURCE /* memfd_create; NOLINT(*-reserved-identifier,cert-*): the C library's name for it */
#include "test/gpu/fake_memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test/gpu/fake_calls.h"

/* A block is a power of two from SMALLEST on. Behind the bytes that were asked for it has GUARD that nobody may write.
 */
enum { SMALLEST = 256, CLASSES = 32, GUARD = 64 };
/* Pages that nobody touches take no memory. */
static const size_t capacity = (size_t)16 << 30;

typedef struct block {
    size_t offset, bytes;
    int class;
    int is_live;
    struct block *next; /* among those of its class that are free, the one that was freed after it */
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char *device, *engine;
static block **blocks; /* in the order of their offsets */
static size_t count, room, used;
static struct {
    block *first, *last;
} unused[CLASSES];
static atomic_llong live;
static int opened;

static void start(void) {
    int file = memfd_create("fake-gpu", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)capacity) != 0) {
        perror("the memory of the fake GPU");
        abort();
    }
    device = mmap(NULL, capacity, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    engine = mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    if (device == MAP_FAILED || engine == MAP_FAILED) {
        perror("the memory of the fake GPU");
        abort();
    }
}

static void lock_it(void) {
    pthread_once(&once, start);
    pthread_mutex_lock(&lock);
}

static void unlock_it(void) {
    pthread_mutex_unlock(&lock);
}

static size_t size_of(int class) {
    return (size_t)SMALLEST << class;
}

static int is_device(const void *memory) {
    uintptr_t p = (uintptr_t)memory, start_ = (uintptr_t)device;
    return p >= start_ && p - start_ < capacity;
}

/* With the lock held: the live block that this is in, or NULL. */
static block *find(const void *memory) {
    if (!is_device(memory)) return NULL;
    size_t offset = (uintptr_t)memory - (uintptr_t)device, low = 0, high = count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (blocks[middle]->offset <= offset)
            low = middle;
        else
            high = middle;
    }
    if (low >= count || offset < blocks[low]->offset) return NULL;
    return blocks[low]->is_live ? blocks[low] : NULL;
}

/* With the lock held: a block from the end of what is in use. */
static block *block_make(int class) {
    if (size_of(class) > capacity - used) return NULL;
    if (count == room) {
        block **more = realloc(blocks, (room ? 2 * room : 64) * sizeof *more);
        if (!more) return NULL;
        blocks = more;
        room = room ? 2 * room : 64;
    }
    block *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->offset = used;
    made->class = class;
    used += size_of(class);
    blocks[count++] = made;
    return made;
}

void *fake_memory_alloc(size_t bytes) {
    int class = 0;
    if (bytes > capacity - GUARD) return NULL;
    while (size_of(class) < bytes + GUARD) class++;
    lock_it();
    block *b = unused[class].first;
    if (b) {
        unused[class].first = b->next;
        if (!b->next) unused[class].last = NULL;
        b->next = NULL;
    } else {
        b = block_make(class);
    }
    if (b) {
        b->bytes = bytes;
        b->is_live = 1;
        live++;
    }
    unlock_it();
    if (!b) return NULL;
    memset(engine + b->offset, FAKE_FRESH, bytes + GUARD);
    return device + b->offset;
}

int fake_memory_free(void *memory) {
    lock_it();
    block *b = find(memory);
    if (b && device + b->offset != memory) b = NULL;
    if (b) {
        b->is_live = 0;
        live--;
    }
    unlock_it();
    if (!b) return -1;
    const char *guard = engine + b->offset + b->bytes;
    for (int i = 0; i < GUARD; i++)
        if ((unsigned char)guard[i] != FAKE_FRESH) {
            fake_complain("device memory of %zu bytes was written %d bytes beyond its end", b->bytes, i + 1);
            break;
        }
    memset(engine + b->offset, FAKE_FREED, b->bytes + GUARD);
    lock_it();
    if (unused[b->class].last)
        unused[b->class].last->next = b;
    else
        unused[b->class].first = b;
    unused[b->class].last = b;
    unlock_it();
    return 0;
}

int64_t fake_memory_live(void) {
    return atomic_load(&live);
}

const char *fake_memory_wrong(const void *memory, size_t bytes) {
    lock_it();
    const block *b = find(memory);
    size_t into = b ? (uintptr_t)memory - (uintptr_t)device - b->offset : 0;
    int is_inside = b && into <= b->bytes && bytes <= b->bytes - into;
    unlock_it();
    if (is_inside) return NULL;
    return is_device(memory) ? "is not within one live allocation" : "is not device memory";
}

void *fake_memory_engine(const void *memory) {
    pthread_once(&once, start);
    return is_device(memory) ? engine + ((uintptr_t)memory - (uintptr_t)device) : (void *)(uintptr_t)memory;
}

static void protect(int protection) {
    if (mprotect(device, capacity, protection) != 0) {
        perror("the memory of the fake GPU");
        abort();
    }
}

void fake_memory_open(void) {
    lock_it();
    if (opened++ == 0) protect(PROT_READ | PROT_WRITE);
    unlock_it();
}

void fake_memory_close(void) {
    lock_it();
    if (--opened == 0) protect(PROT_NONE);
    unlock_it();
}

int fake_memory_is_open(void) {
    lock_it();
    int result = opened > 0;
    unlock_it();
    return result;
}
