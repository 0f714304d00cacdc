/* Call frames made of bytes: a call that is right, on which some things are then changed that a program could have
 * wrong. The structs are as XLA makes them (lengths are true), and every buffer has as much memory as its shape says.
 */
#ifndef MPIXLA_TEST_FUZZ_FRAME_H
#define MPIXLA_TEST_FUZZ_FRAME_H

#include "call/frame.h"
#include "mpixla.h"
#include "test/fuzz/fuzz_bytes.h"
#include "xla/xla_ffi.h"

enum { FUZZ_BUFFERS = 12, FUZZ_AXES = 6, FUZZ_ATTRIBUTES = 32, FUZZ_ELEMENTS = 12, FUZZ_TEXT = 320, FUZZ_NUMBERS = 40 };
enum { FUZZ_OPERANDS, FUZZ_RESULTS };

/* Every row of ops.def and the table of helpers. */
typedef struct fuzz_row {
    const char *name;
    frame_shape shape; /* of helpers all zeros */
    ffi_handler *host, *device;
} fuzz_row;

const fuzz_row *fuzz_rows(int *count);
const fuzz_row *fuzz_row_find(const char *name);

/* The communicators that calls use, some of them freed. */
typedef struct fuzz_comm {
    int64_t id; /* as registered */
    int number; /* in the fake MPI */
    int rank, size;
    const topology *topology; /* NULL: none */
} fuzz_comm;

/* A request that was started, and what it gives. */
typedef struct fuzz_request {
    float id[2];
    int dtype;   /* 0: nothing */
    int is_sure; /* that it gives this: the start was right */
    int64_t rank, dims[FUZZ_AXES];
    const fuzz_comm *nameless_on; /* it has no id, and is waited for on this communicator; NULL: it has one */
} fuzz_request;

typedef struct fuzz_world {
    fuzz_comm comms[14];
    int comm_count; /* those that are alive come first */
    int alive;
    fuzz_request requests[8];
    int request_count;
    int64_t status; /* a status object's number */
    int on_device;
    /* Where buffers are; NULL where there is no memory. Content is written through the third: host memory is where it
     * is. */
    void *(*get)(size_t bytes);
    void (*give_back)(void *memory);
    void *(*reach)(const void *memory);
    char *vast; /* memory that is there, and that nobody can copy; NULL: none */
} fuzz_world;

enum { FUZZ_LARGE = 1 << 20 };
#define FUZZ_VAST (INT64_C(1) << 36) /* bytes */

typedef struct fuzz_buffer {
    int dtype, kind;
    int64_t rank, dims[FUZZ_AXES];
    int no_dims, no_data;
    int same_as; /* the operand of this number, from 1, has the memory; 0: none */
    void *data;
    int64_t bytes;
    int is_own;    /* the memory is to be given back */
    int is_values; /* it has the call's numbers at run time */
} fuzz_buffer;

typedef struct fuzz_attribute {
    char name[24];
    int type, dtype;
    int64_t value;
    int64_t size, elements[FUZZ_ELEMENTS];
    char text[FUZZ_TEXT];
    size_t bytes;
} fuzz_attribute;

/* Points into itself: not to be copied. */
typedef struct fuzz_frame {
    ffi_call_frame frame;
    ffi_api api;
    const fuzz_row *row;
    const fuzz_comm *comm;
    int changes; /* 0: the call is right */
    int root, reduction, dtype;
    const fuzz_request *waited;
    fuzz_request gives;            /* what a start's request will give */
    float id[2];                   /* that a wait has */
    int64_t numbers[FUZZ_NUMBERS]; /* at run time */
    int number_count;
    struct fuzz_side {
        fuzz_buffer given[FUZZ_BUFFERS];
        int count;
        ffi_buffer buffers[FUZZ_BUFFERS];
        int types[FUZZ_BUFFERS];
        void *pointers[FUZZ_BUFFERS];
    } sides[2];
    fuzz_attribute attributes[FUZZ_ATTRIBUTES];
    int attribute_count;
    ffi_bytes names[FUZZ_ATTRIBUTES];
    union {
        ffi_scalar scalar;
        ffi_array array;
        ffi_bytes text;
    } values[FUZZ_ATTRIBUTES];
    int types[FUZZ_ATTRIBUTES];
    ffi_bytes *name_pointers[FUZZ_ATTRIBUTES];
    void *value_pointers[FUZZ_ATTRIBUTES];
} fuzz_frame;

/* The bytes of an item; 0 if there is no such type. */
int fuzz_itemsize(int dtype);

/* A call; `changes` is how many things may be wrong with it at most. */
void fuzz_frame_make(fuzz_frame *f, const fuzz_world *w, fuzz_bytes *b, int changes);
/* The right wait for a request. */
void fuzz_frame_wait(fuzz_frame *f, const fuzz_world *w, const fuzz_request *r);
/* Gives the memory back. */
void fuzz_frame_drop(fuzz_frame *f, const fuzz_world *w);
/* Writes the call down. */
void fuzz_frame_print(const fuzz_frame *f);

#endif
