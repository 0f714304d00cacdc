/* Stands for XLA, so that the example needs none: it keeps the handlers by name, and calls them as a compiled program
 * does. */
#ifndef XLA_H
#define XLA_H

#include <stddef.h>
#include <stdint.h>
#include <xla/ffi/api/c_api.h>

const XLA_FFI_Api *xla_api(void);

/* Of one axis. */
typedef struct array {
    XLA_FFI_DataType type;
    int64_t size;
    void *data;
} array;

typedef struct attribute {
    const char *name;
    int64_t value;
} attribute;

/* Up to XLA_MOST of each. */
enum { XLA_MOST = 8 };

typedef struct custom_call {
    const char *target;
    array operands[XLA_MOST], results[XLA_MOST]; /* the first without a type ends them */
    attribute attributes[XLA_MOST];              /* sorted by name; the first without a name ends them */
} custom_call;

/* On the CPU. Returns NULL, or the handler's error, which lives until the next call. */
const char *xla_run(const custom_call *call);

#endif
