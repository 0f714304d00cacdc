/* One call, read from XLA's call frame and checked: the argument of an operation's row (ops.def). */
#ifndef MPIXLA_NATIVE_FRAME_H
#define MPIXLA_NATIVE_FRAME_H

#include "call/facts.h"
#include "call/parts.h"
#include "device/device.h"
#include "mpi/comm.h"
#include "mpi/dtype.h"
#include "mpi/mpi.h"
#include "xla/xla_ffi.h"

typedef struct frame_buffer {
    void *data;               /* NULL where the rank does not have the buffer */
    int64_t count;            /* elements */
    const dtype_entry *dtype; /* NULL as data */
    int64_t axes;             /* number of dimensions */
    const int64_t *dims;      /* `axes` of them */
    int64_t place;            /* among the call's operands, or its results */
} frame_buffer;

/* Items of an array attribute. */
typedef struct frame_array {
    const int64_t *items;
    int64_t size;
} frame_array;

/* A window: the message is a box of an array. The frame's buffer then describes the box: its dimensions and its items;
 * its data is set where the call is made (ops/window.h). */
typedef struct frame_window {
    char *array;         /* NULL: there is no window, or the array has no items */
    const int64_t *dims; /* the array's; NULL: there is no window */
} frame_window;

/* The message of a call that failed, and the function of MPI in which it failed. */
typedef struct frame_fault {
    const char *function; /* NULL: the call's own, or none failed */
    int is_sent;          /* by this rank; else it was to receive the message */
    int64_t slot;         /* of the message; negative: the call failed before its messages */
    int64_t peer, tag, items;
} frame_fault;

/* The part of a call with a GPU's memory that its operation may use. Each route keeps more (routes/gpu.h). */
typedef struct frame_gpu {
    device device;  /* with the stream that XLA passes */
    int has_arrays; /* the operation finds the call's arrays in the GPU's memory; else the route has them on the host */
} frame_gpu;

/* A collective call as bytes that ranks post, for others to read. Set for calls of rows with LOCAL only. */
typedef struct frame_posts {
    const char *send;
    char *recv;
    int is_posted;        /* other ranks read this rank's post; that of a barrier has no bytes */
    int part_count;       /* a post has one part for each rank, or 1 for all ranks */
    int own_part;         /* the number of the part that this rank reads */
    int64_t part_bytes;   /* length of a part */
    int first_rank;       /* this rank reads the posts of `rank_count` ranks, from this one on, */
    int rank_count;       /* in steps of `rank_step`, */
    int rank_step;        /* which is 1 or -1 */
    int64_t stride_bytes; /* in the result, from one rank's part to the next rank's; 0: one place for all */
    int combines;         /* the parts are combined by the call's reduction */
    int combines_alone;   /* and no other rank combines these parts */
    uint64_t call_hash;   /* identifies the call: equal on all ranks that make the same call; its last bit is 0 */
} frame_posts;

/* `facts` describe the call, for all threads. All else is private to the thread that makes the call. */
typedef struct frame {
    call_facts facts;
    const mpi_counted *mpi; /* the calls for these counts */
    frame_buffer send, template_, recv;
    frame_window sent_window, received_window;
    char *passed; /* the result of a send from a window, which is to be the whole array; NULL: there is none */
    struct pool_block *packed; /* the memory of windows that are not contiguous; NULL: none has been taken */
    frame_buffer id;           /* of a request, if the call starts or waits for one; `recv` is then its result */
    struct request *request;   /* that the call starts or waits for (ops/request.h); or NULL */
    const call_facts *started; /* of a wait: the facts of the call that started the request; or NULL */
    const void *from;          /* MPI's send buffer: `send`, or MPI_IN_PLACE where that is the receive buffer */
    int64_t row_items;         /* of a row, where parts are by rows */
    parts sent, received;      /* of the send and the receive buffer, where they have parts by rows */
    void *rest;             /* of the receive buffer: behind the rows that count, where it may have more; else NULL */
    int64_t rest_bytes;     /* which become zeros */
    int64_t n;              /* the count for MPI; by rows, the greatest that occurs */
    mpixla_handle type;     /* of the receive buffer, or of the send buffer where there is no other */
    dtype_received expects; /* of a call that receives a message */
    int64_t arrived;        /* bytes of the message, if the rest of the result is the template's; else 0 */

    mpixla_handle comm;
    int size;
    int on_root;
    mpixla_handle op;
    int root, source, dest, sendtag, recvtag; /* as this MPI numbers them */
    void *status;                             /* the user's, or `scratch`; of a call that waits the request's */
    const int64_t *attributes;                /* as the program has them; DEST and SOURCE are always ranks */
    const frame_array *arrays;                /* likewise */
    uint32_t at_run_time;                     /* the attributes that are given at run time, as bits */
    int site_is_of_thread;                    /* in each run the site is the calling thread's (site_of_thread) */
    int64_t status_place;                     /* of a status that is a result */
    frame_buffer numbers;                     /* the message's source, tag and length as a result, or empty */
    struct agreement *agreement;              /* of a call that starts: check/agree.h; NULL: it is not compared */
    frame_fault fault;
    const struct route *route; /* call/route.h; NULL: not chosen yet */
    frame_posts posts;
    frame_gpu *gpu;                        /* in whose memory XLA's buffers lie; NULL: the host's */
    const ffi_buffers *operands, *results; /* of MANY, tokens among them */
    struct {
        int64_t attributes[ATTRIBUTES];
        frame_array arrays[ATTRIBUTES];
    } own; /* where `attributes` and `arrays` are, of a frame that was read from the call itself */
    _Alignas(16) char scratch[MPI_STATUS_BYTES];
} frame;

/* Returns whether the call's row takes this attribute. */
static inline int frame_has(const frame *f, int attribute) {
    return facts_have(&f->facts, attribute);
}

/* Returns whether the status of the call's message is one of its results. */
static inline int frame_gives_status(const frame *f) {
    return frame_has(f, ATTRIBUTE_STATUS) && f->attributes[ATTRIBUTE_STATUS] == MPIXLA_STATUS_RESULT;
}

/* Returns whether the source, tag and length of the call's message are one of its results. */
static inline int frame_gives_numbers(const frame *f) {
    return frame_has(f, ATTRIBUTE_STATUS) && f->attributes[ATTRIBUTE_STATUS] == MPIXLA_STATUS_NUMBERS;
}

/* Returns the call's name in messages: MPI's function, where it is one. */
static inline const char *frame_name(const frame *f) {
    return frame_has(f, ATTRIBUTE_BACK) ? "an exchange with neighbours" : f->facts.row->mpi_name;
}

/* Returns the rows of each rank, or of each slot, in the buffer that is sent or received (parts.h). The call must have
 * rows. */
const int64_t *frame_rows(const frame *f, int slot);

/* Returns whether the buffers have parts, one for each rank, that are counted in rows. */
static inline int frame_has_rows(const frame *f) {
    return f->facts.row->counts == GATHERED_ROWS || f->facts.row->counts == SCATTERED_ROWS ||
           f->facts.row->counts == EXCHANGED_ROWS;
}

/* Reads the windows of a call whose buffers have been read, and makes the buffers those of the boxes. Returns 0 or
 * REFUSED. Called by frame_read. */
int frame_windows_read(frame *f);

/* Sets the arrays of the windows in a later run, and leaves the buffers those of the boxes. */
void frame_windows_read_again(frame *f);

/* Return the GPU in whose memory XLA's buffers lie, and the one in whose memory the operation finds the call's arrays;
 * NULL for the host, as functions of device.h take it. They differ where a route works on copies. */
static inline const device *frame_device(const frame *f) {
    return f->gpu ? &f->gpu->device : NULL;
}
static inline const device *frame_array_device(const frame *f) {
    return f->gpu && f->gpu->has_arrays ? &f->gpu->device : NULL;
}

/* Reads and checks a call, whose buffers are in this GPU's memory, or the host's for NULL. Returns 0; REFUSED on
 * failure, when only the site is set, if it could be read. Numbers given at run time last until the thread reads
 * another call. */
int frame_read(frame *f, const frame_shape *shape, const ffi_call_frame *call, frame_gpu *gpu);

/* Reads a later run of a call from the frame `known` of an earlier run, and checks only the properties that can differ.
 * `known` must outlive the frame. Returns 0 or REFUSED. */
int frame_read_again(frame *f, const frame *known, const ffi_call_frame *call, frame_gpu *gpu);

/* Reads and checks a call that a front end makes outside of XLA (mpixla_call_make), of a row whose attributes `call`
 * has. `call` must outlive the frame. Returns 0 or REFUSED, as frame_read. */
int frame_given_read(frame *f, const frame_shape *shape, const mpixla_call *call);

/* Fills the facts of a call from its frame, all but `sequence`. Called by frame_read. */
void facts_fill(frame *f);

/* Fills f->posts from the columns of the call's row, for a call whose facts are filled. Called by frame_read. */
void frame_posts_fill(frame *f);

/* Returns the place of the first buffer from `i` on that is no token; `given->size` if there is none. */
int64_t frame_buffer_next(const ffi_buffers *given, int64_t i);

/* Returns the bytes of one of XLA's buffers, of a frame that was read. */
int64_t frame_ffi_buffer_bytes(const ffi_buffer *buffer);

/* Returns the bytes that a halo exchange sends to one neighbour in this dimension: lines `width` items wide along the
 * axis, and as long as the array along the others. As many bytes come from it. The bytes of all neighbours can be added
 * up without overflow. */
int64_t frame_border_bytes(const frame *f, int64_t dimension);

/* Returns the bytes of a buffer; INT64_MAX for more than a 64-bit integer holds: no memory has as many. */
static inline int64_t frame_buffer_bytes(const frame_buffer *b) {
    int64_t bytes;
    if (!b->dtype) return 0;
    return __builtin_mul_overflow(b->count, b->dtype->row->itemsize, &bytes) ? INT64_MAX : bytes;
}

/* Sets f->arrived, the bytes of the call's message, from its status. Returns MPI's code. */
static inline int frame_arrived_set(frame *f, const void *status) {
    int code = mpi_bytes_of(status, &f->arrived);
    if (f->arrived < 0) f->arrived = 0;
    return code;
}

/* Returns the bytes of a pair (value, place), if the call reduces such pairs; else 0. */
int64_t frame_pair_bytes(const frame *f);

/* Returns the address of an item; NULL where the buffer has no memory, because it has no items. */
static inline void *frame_item_address(const frame_buffer *b, int64_t item) {
    return b->data ? (char *)b->data + item * b->dtype->row->itemsize : NULL;
}

/* Checks that the counts and offsets of an exchange, or the widths and axes of halos, agree with each other, the
 * communicator and the buffers. From then on they can be added up, and multiplied by the bytes of an item, without
 * overflow. Returns 0 or REFUSED. Called by frame_read. */
int frame_neighbours_check(const frame *f);

/* Describes the call as facts_describe does, with details that only its own thread has: the message that failed, and
 * the rows of each rank. */
void frame_describe(const frame *f, char *text, size_t bytes);

#endif
