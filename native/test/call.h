/* XLA's call frames, built by hand. A test makes a call that is right, changes one thing, and runs it. */
#ifndef MPIXLA_TEST_CALL_H
#define MPIXLA_TEST_CALL_H

#include "call/frame.h"
#include "mpixla.h"
#include "xla/xla_ffi.h"

enum { CALL_SLOTS = 12, CALL_BYTES = 256, CALL_COUNT = 3, CALL_MESSAGE = 4096, CALL_RANKS = 8 };
enum { CALL_OPERANDS = 0, CALL_RESULTS = 1 };

/* Points into itself: not to be copied. */
typedef struct call {
    ffi_call_frame frame;
    ffi_api api;
    struct call_side {
        ffi_buffer buffers[CALL_SLOTS];
        int64_t dims[CALL_SLOTS][1];
        int types[CALL_SLOTS];
        void *pointers[CALL_SLOTS];
    } sides[2]; /* operands, results */
    struct {
        ffi_bytes names[CALL_SLOTS];
        ffi_scalar scalars[CALL_SLOTS];
        int64_t values[CALL_SLOTS];
        int types[CALL_SLOTS];
        ffi_bytes site;               /* where it is a text */
        ffi_bytes operand;            /* of those at run time */
        ffi_array arrays[ATTRIBUTES]; /* by attribute, wherever it stands */
        int64_t elements[ATTRIBUTES][CALL_RANKS];
        ffi_bytes *name_pointers[CALL_SLOTS];
        void *value_pointers[CALL_SLOTS];
    } attributes;
    /* What the buffers of call_make hold. */
    _Alignas(16) char send[CALL_BYTES], template_[CALL_BYTES], recv[CALL_BYTES];
    ffi_handler *handler;
    int code;                   /* of the error that the last run gave; 0: none */
    char message[CALL_MESSAGE]; /* its message; "" */
} call;

/* Of an operation, which a call that was made as another one may have. */
ffi_handler *call_handler(const char *op);

/* Of a helper (helpers/helper.h). */
ffi_handler *call_helper_handler(const char *name);

/* What the operation's row in ops.def says. */
const frame_shape *call_shape(const char *op);

/* A call that is right: `op` on this communicator and with this root, where that is taken, with CALL_COUNT
 * float32 items a rank, or as many rows of one item, dest 1, sendtag 7, source 2, recvtag 8, the reduction 0 and no
 * status object. An exchange sends 1 item to rank 1 and 2 to rank 2 under the tags 3 and 4, and receives 2 from rank 2
 * and 1 from rank 1 under the tags 5 and 6. A halo has width 1 and is between ranks 1 and 2. The communicator gets
 * these neighbours, until another call is made on it. */
void call_make(call *c, const char *op, int64_t comm, int64_t root);

/* Other neighbours on the communicator, until a call is made: the edges of a graph, those to destinations or those from
 * sources; or a grid, with the ranks below and above in each dimension, in which shifts go around the ring of all
 * ranks in the first. */
enum { CALL_EDGES = 64 };
void call_edges_set(int64_t comm, int sending, int64_t number, const int64_t *ranks, const int64_t *tags);
void call_grid_set(int64_t comm, int dimensions, const int64_t *low, const int64_t *high);

/* Puts a buffer, or an attribute, before the one that has this position now. */
void call_insert(call *c, int side, int position, int dtype, int64_t count, void *data);
void call_attribute_insert(call *c, int position, const char *name, int64_t value);
void call_remove(call *c, int side, int position);
void call_attribute_remove(call *c, int position);
/* Puts the optional attribute where it belongs: a number, or with a text what an exported program has. */
void call_site_set(call *c, int64_t site, const char *text);

/* Changes the attribute of this name. */
void call_attribute_set(call *c, const char *name, int64_t value);

/* Makes the attribute of this name, a rank, a shift by these two numbers. */
void call_shift_set(call *c, const char *name, int64_t direction, int64_t disp);

/* The attribute of this name is known only at run time: in an operand that the test inserts. */
void call_put_off(call *c, const char *name);

/* Puts an array attribute where it belongs; the items are not copied. */
void call_list_insert(call *c, int attribute, const int64_t *items, size_t size);

/* Changes the array attribute of this name; the items are not copied. */
void call_list_set(call *c, const char *name, const int64_t *items, size_t size);
/* Changes an attribute that is an array: the elements, of which there are `size`. */
void call_array_set(call *c, int attribute, size_t size, const int64_t *elements);

/* Changes the number of items of a buffer, or its element type. */
void call_count_set(call *c, int side, int position, int64_t count);
void call_dtype_set(call *c, int side, int position, int dtype);

/* Reads the call as this operation. "" if it can be read, else the sentence. */
const char *call_read(const call *c, const char *op, frame *f);

/* Runs the operation's handler. Returns the error's message, or "". */
const char *call_run(call *c);
/* The same, and nobody tells the library that the message was seen. */
const char *call_run_unseen(call *c);
/* Of an error that came another way: until this thread makes the next. */
const char *call_error_message(const ffi_error *error);

#endif
