/* What the tests of the fake GPU need besides check.h. */
#ifndef MPIXLA_TEST_GPU_CHECK_H
#define MPIXLA_TEST_GPU_CHECK_H

#include "test/check.h"
#include "test/gpu/fake_calls.h"

/* What the fakes complain about, or "". */
static inline const char *complaint(void) {
    static _Thread_local char text[1024];
    if (!fake_complaint_take(text, sizeof text)) text[0] = '\0';
    return text;
}

/* The call is refused with this code, in a sentence with this part. */
#define CHECK_REFUSED(call, code, part) \
    do {                                \
        CHECK_INT(call, code);          \
        CHECK_IN(complaint(), part);    \
    } while (0)

#endif
