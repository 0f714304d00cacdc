/* One call, read from XLA's call frame and checked: what an operation's row (ops.def) works with. */
#ifndef MPIXLA_NATIVE_FRAME_H
#define MPIXLA_NATIVE_FRAME_H

#include "comm.h"
#include "dtype.h"
#include "mpi.h"
#include "xla_ffi.h"

enum {
#define MPIXLA_ATTRIBUTE(NAME, name) ATTRIBUTE_##NAME,
#include "attributes.def"
#undef MPIXLA_ATTRIBUTE
    ATTRIBUTES
};

/* Sets of attributes, as ops.def writes them. */
enum {
#define MPIXLA_ATTRIBUTE(NAME, name) NAME = 1 << ATTRIBUTE_##NAME,
#include "attributes.def"
#undef MPIXLA_ATTRIBUTE
};

/* How the number of elements in the send and the receive buffer go together. */
typedef enum frame_counts {
    FREE,     /* not at all */
    SAME,     /* equal, and of one type */
    DIVIDED,  /* SAME, in as many equal parts as there are ranks; MPI is told the part's count */
    GATHERED, /* one type; recv = size * send; MPI is told send's count */
    SCATTERED /* one type; send = size * recv; MPI is told recv's count */
} frame_counts;

/* Whether a call completes, or starts or waits for a request (request.h). */
typedef enum frame_request { FRAME_COMPLETES, FRAME_STARTS, FRAME_WAITS } frame_request;

/* What a frame is checked against. */
typedef struct frame_shape {
    const char *mpi_name;
    mpixla_where send, template_, recv;
    frame_counts counts;
    uint32_t attributes;
    frame_request request;
} frame_shape;

typedef struct frame_buffer {
    void *data;               /* NULL where the rank does not have the buffer */
    int64_t count;            /* elements */
    const dtype_entry *dtype; /* NULL as data */
} frame_buffer;

typedef struct frame {
    const frame_shape *shape;
    const mpi_counted *mpi; /* the calls for these counts */
    frame_buffer send, template_, recv;
    frame_buffer id; /* of a request, where the call starts or waits for one; `recv` is then what it gives */
    struct request *request;
    int64_t n;          /* the count that MPI is told */
    mpixla_handle type; /* of the receive buffer, or of the send buffer where there is no other */

    comm_entry *communicator;
    mpixla_handle comm;
    int size;
    int on_root;
    int reverse; /* the ranks count from the last one */
    mpixla_handle op;
    int root, source, dest, sendtag, recvtag; /* as this MPI numbers them */
    void *status;                             /* the user's, or `scratch` */
    int64_t attributes[ATTRIBUTES];           /* as the program has them */
    _Alignas(16) char scratch[MPI_STATUS_BYTES];
} frame;

/* Reads and checks a call. `*frame` is filled on success; on failure -1, with error_set. */
int frame_read(frame *f, const frame_shape *shape, const ffi_call_frame *call);

/* Says what the call is, in one line: "MPI_Send -> 1 with tag 0 and 3 items". With `details` also the data
 * type, the reduction and the communicator. */
void frame_describe(const frame *f, int details, char *text, size_t bytes);

#endif
