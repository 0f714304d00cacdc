/* What the fakes are told and tell: every call of the driver, of dpctl and of NCCL is noted here, and may be made to
 * fail; what was used wrongly is said here in a sentence.
 */
#ifndef MPIXLA_TEST_FAKE_CALLS_H
#define MPIXLA_TEST_FAKE_CALLS_H

#include "test/gpu/gpu_types.h"

typedef enum fake_function {
#define MPIXLA_DRIVER(name, cuda, hip, sycl, prototype) FAKE_##cuda,
#define MPIXLA_DRIVER_CUDA(name, cuda, prototype) FAKE_##cuda,
#define MPIXLA_DRIVER_HIP(name, hip, prototype) FAKE_##hip,
#define MPIXLA_SYCL(name, sycl, result, prototype) FAKE_##sycl,
#define MPIXLA_NCCL(name, nccl, result, prototype) FAKE_##nccl,
#include "tables/driver_functions.def"
#include "tables/nccl_functions.def"
#include "tables/sycl_functions.def"
#undef MPIXLA_DRIVER
#undef MPIXLA_DRIVER_CUDA
#undef MPIXLA_DRIVER_HIP
#undef MPIXLA_SYCL
#undef MPIXLA_NCCL
    FAKE_FUNCTIONS
} fake_function;

/* A call that was made. */
typedef struct fake_noted {
    const char *function; /* the driver's or NCCL's name; CUDA's where HIP has the same function */
    uint64_t bytes;       /* that it was told to move, or to allocate */
    uint64_t thread;      /* a number for each thread */
} fake_noted;

/* Notes a call. Returns the code that it is to return instead of doing anything, or 0. */
int fake_call(fake_function function, uint64_t bytes);

/* How many calls of the function, or with NULL of all functions, were made since fake_calls_forget; -1 if there is no
 * such function. */
FAKE_API int64_t fake_calls_count(const char *function);
/* The call with this number, from 0, counted since fake_calls_forget. Returns 0, or -1 where it is not, or no longer,
 * in the list: the list has the last FAKE_CALLS_KEPT. */
enum { FAKE_CALLS_KEPT = 8192 };
FAKE_API int fake_calls_read(int64_t number, fake_noted *noted);
FAKE_API void fake_calls_forget(void);

/* Makes the nth call of the function from now (1 is the next; 0 is every one) return `code`, or for
 * ncclCommGetAsyncError find it. With FAKE_SKIP a function says that all went well, and has done nothing: it does not
 * wait, an event is there at once, a copy is never made. Returns 0, or -1 if there is no such function or too much is
 * to fail already. MPIXLA_FAKE_DEVICE_FAIL=function:nth:code,... in the environment does the same from the start. */
enum { FAKE_SKIP = -1 };
FAKE_API int fake_fail(const char *function, int64_t nth, int code);
FAKE_API void fake_fail_nothing(void);
/* Whether a handler may get over a failure that was asked for, and succeed. Off at first. Returns the setting before.
 */
FAKE_API int fake_fail_may_pass(int on);

/* Says that something was used wrongly. The first sentence is kept: for this thread between fake_complaints_start and
 * fake_complaints_end, else for whoever asks first. */
FAKE_API void fake_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
void fake_complaints_start(void);
/* Takes the sentence of this thread, or one that no thread has, into `text`. Returns whether there was any. */
FAKE_API int fake_complaint_take(char *text, size_t bytes);
void fake_complaints_end(void);

/* A number in the environment, or `otherwise`. */
int64_t fake_setting(const char *variable, int64_t otherwise);

#endif
