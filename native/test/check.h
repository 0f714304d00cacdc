/* The least that a test needs: each CHECK that does not hold prints where and what, and makes main return 1.
 *
 * A test program is a list of static functions that main calls; it ends with `return check_failures();`.
 */
#ifndef MPIXLA_TEST_CHECK_H
#define MPIXLA_TEST_CHECK_H

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static atomic_int check_failed, check_count;

#define CHECK(condition) check_that((condition) != 0, __FILE__, __LINE__, #condition)
#define CHECK_INT(actual, expected) check_int((long long)(actual), (long long)(expected), __FILE__, __LINE__, #actual)
#define CHECK_STR(actual, expected) check_str((actual), (expected), __FILE__, __LINE__, #actual)
/* Somewhere in the text: for sentences of which a test cares about one part. */
#define CHECK_IN(actual, part) check_in((actual), (part), __FILE__, __LINE__, #actual)

static inline void check_that(int holds, const char *file, int line, const char *what) {
    atomic_fetch_add(&check_count, 1);
    if (holds) return;
    atomic_fetch_add(&check_failed, 1);
    printf("%s:%d: does not hold: %s\n", file, line, what);
}

static inline void check_int(long long actual, long long expected, const char *file, int line, const char *what) {
    atomic_fetch_add(&check_count, 1);
    if (actual == expected) return;
    atomic_fetch_add(&check_failed, 1);
    printf("%s:%d: %s\n  is       %lld\n  expected %lld\n", file, line, what, actual, expected);
}

static inline void check_str(const char *actual, const char *expected, const char *file, int line, const char *what) {
    atomic_fetch_add(&check_count, 1);
    if (actual && strcmp(actual, expected) == 0) return;
    atomic_fetch_add(&check_failed, 1);
    printf("%s:%d: %s\n  is       \"%s\"\n  expected \"%s\"\n", file, line, what, actual ? actual : "(null)", expected);
}

static inline void check_in(const char *actual, const char *part, const char *file, int line, const char *what) {
    atomic_fetch_add(&check_count, 1);
    if (actual && strstr(actual, part)) return;
    atomic_fetch_add(&check_failed, 1);
    printf("%s:%d: %s\n  is       \"%s\"\n  lacks    \"%s\"\n", file, line, what, actual ? actual : "(null)", part);
}

static inline int check_failures(void) {
    printf("%d checks, %d failed\n", atomic_load(&check_count), atomic_load(&check_failed));
    return atomic_load(&check_failed) != 0;
}

#endif
