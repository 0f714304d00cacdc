/* Device memory: who may touch it, and what becomes of it. */
#define _GNU_SOURCE /* fork; NOLINT(*-reserved-identifier,cert-*): the C library's name for it */
#include <signal.h>
#include <unistd.h>

#include "test/gpu/fake_memory.h"
#include "test/gpu/gpu_check.h"
#include "test/run.h"

/* The signal that ends a process which reads, or writes, this byte; 0: none. */
static int signal_of_touch(volatile char *byte, int writes) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        if (writes)
            *byte = 1;
        else
            (void)*byte;
        _exit(0);
    }
    return -process_end(child);
}

static void the_host_may_not_touch_it(void) {
    char *memory = fake_memory_alloc(100);
    CHECK_INT(signal_of_touch(memory, 0), SIGSEGV);
    CHECK_INT(signal_of_touch(memory + 99, 1), SIGSEGV);
    CHECK_INT(signal_of_touch(fake_memory_engine(memory), 1), 0);
    fake_memory_open();
    CHECK_INT(signal_of_touch(memory, 1), 0);
    fake_memory_open();
    fake_memory_close();
    CHECK(fake_memory_is_open());
    CHECK_INT(signal_of_touch(memory, 0), 0);
    fake_memory_close();
    CHECK(!fake_memory_is_open());
    CHECK_INT(signal_of_touch(memory, 0), SIGSEGV);
    CHECK_INT(fake_memory_free(memory), 0);
}

static void fresh_and_freed_memory_hold_patterns(void) {
    char *memory = fake_memory_alloc(1000);
    unsigned char *engine = fake_memory_engine(memory);
    CHECK_INT(engine[0], FAKE_FRESH);
    CHECK_INT(engine[999], FAKE_FRESH);
    memset(engine, 1, 1000);
    CHECK_INT(fake_memory_free(memory), 0);
    CHECK_INT(engine[0], FAKE_FREED);
    CHECK_INT(engine[999], FAKE_FREED);
    CHECK_STR(complaint(), "");
}

static void what_is_within_live_memory_is_known(void) {
    char host[8], *before = fake_memory_alloc(100), *memory = fake_memory_alloc(100);
    CHECK_INT(fake_memory_live(), 2);
    CHECK(!fake_memory_wrong(memory, 100));
    CHECK(!fake_memory_wrong(memory + 99, 1));
    CHECK_STR(fake_memory_wrong(memory + 99, 2), "is not within one live allocation");
    CHECK_STR(fake_memory_wrong(before + 255, 2), "is not within one live allocation");
    CHECK_STR(fake_memory_wrong(host, 1), "is not device memory");
    CHECK(fake_memory_engine(host) == host);
    CHECK_INT(fake_memory_free(memory + 1), -1);
    CHECK_INT(fake_memory_free(memory), 0);
    CHECK_STR(fake_memory_wrong(memory, 1), "is not within one live allocation");
    CHECK_INT(fake_memory_free(memory), -1);
    CHECK_INT(fake_memory_free(before), 0);
    CHECK_INT(fake_memory_live(), 0);
}

static void writing_beyond_the_end_is_seen(void) {
    char *memory = fake_memory_alloc(10);
    ((char *)fake_memory_engine(memory))[12] = 1;
    CHECK_INT(fake_memory_free(memory), 0);
    CHECK_IN(complaint(), "written 3 bytes beyond its end");
}

static void freed_memory_is_used_again_as_late_as_possible(void) {
    char *one = fake_memory_alloc(5000), *two = fake_memory_alloc(5000);
    fake_memory_free(one);
    fake_memory_free(two);
    CHECK(fake_memory_alloc(5000) == one);
    CHECK(fake_memory_alloc(6000) == two);
    fake_memory_free(one);
    fake_memory_free(two);
}

static void large_memory_takes_none_until_it_is_used(void) {
    CHECK(fake_memory_alloc((size_t)1 << 40) == NULL);
    CHECK(fake_memory_alloc(~(size_t)0) == NULL);
    CHECK_INT(fake_memory_live(), 0);
}

static void *allocate_often(void *unused) {
    (void)unused;
    for (size_t i = 1; i < 2000; i++) {
        char *memory = fake_memory_alloc(i);
        *(char *)fake_memory_engine(memory) = (char)i;
        CHECK(!fake_memory_wrong(memory, i));
        CHECK_INT(fake_memory_free(memory), 0);
    }
    return NULL;
}

static void threads_may_allocate_at_once(void) {
    threads_run(4, allocate_often);
    CHECK_STR(complaint(), "");
    CHECK_INT(fake_memory_live(), 0);
}

int main(void) {
    the_host_may_not_touch_it();
    fresh_and_freed_memory_hold_patterns();
    what_is_within_live_memory_is_known();
    writing_beyond_the_end_is_seen();
    freed_memory_is_used_again_as_late_as_possible();
    large_memory_takes_none_until_it_is_used();
    threads_may_allocate_at_once();
    return check_failures();
}
