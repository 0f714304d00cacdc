/* An MPI that moves nothing: it writes down how it was called. A test sets what it pretends and reads what it
 * recorded through the one variable `fake` of the shared library.
 *
 * Communicators, data types and reductions are numbers; `handle` turns one into this MPI's handle, widened.
 * MPI_COMM_WORLD is number 0 and MPI_COMM_SELF number 1. As in MPICH, a freed communicator's handle is used again.
 */
#ifndef MPIXLA_TEST_FAKE_MPI_H
#define MPIXLA_TEST_FAKE_MPI_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Unlike those of any MPI, and unlike what programs carry. */
enum {
    FAKE_ANY_SOURCE = -11,
    FAKE_ANY_TAG = -12,
    FAKE_PROC_NULL = -13,
    FAKE_UNDEFINED = -14,
    FAKE_IN_PLACE = -15,
    FAKE_TAG_UB = 1 << 30
};
enum { FAKE_CART = 21, FAKE_GRAPH = 22, FAKE_DIST_GRAPH = 23 }; /* kinds of topologies */
enum {
    FAKE_WORLD = 0,
    FAKE_SELF = 1,
    FAKE_ERROR_STRING = 64,
    FAKE_ERR_TRUNCATE = 14,
    FAKE_ITEM = 4 /* bytes of every type */
};

typedef struct fake_status {
    int source, tag, error;
    int item; /* bytes of an element, where the fake knows them; else 0 */
    int64_t elements;
} fake_status;

/* A message that was posted, and whether it was waited for. */
typedef struct fake_message {
    const char *function;
    const void *buffer;
    int64_t n;
    int type, peer, tag, comm;
    int64_t items;
    void *to; /* where what arrives goes */
    int waited;
    int64_t bytes; /* that are sent or received */
} fake_message;

enum { FAKE_MESSAGES = 64, FAKE_OPS = 64 };

typedef struct fake_mpi {
    size_t handle_size;
    int has_large; /* whether there are large-count functions */

    /* What it pretends. */
    int world_rank;
    const char *failing[2]; /* these functions return `code`; NULL: none */
    int spared;             /* but so many calls of them succeed first */
    int code;               /* an error code; its low byte is the error class */
    int64_t arrived;        /* elements of the next message that is received */
    size_t arrived_bytes;   /* as many bytes of the receive buffer are overwritten */
    int64_t missing;        /* items, or bytes, that messages lack which MPI_Wait completes */
    void (*during)(void);   /* runs inside each call that moves data */
    void (*aborting)(void); /* runs inside MPI_Abort */
    /* Whether MPI_Iprobe finds a message, of `arrived` elements; NULL: it finds none. */
    int (*is_there)(int source, int tag, int comm);
    int sender;        /* the source of what is received from any */
    atomic_int done;   /* whether MPI_Test finds a request completed, */
    const void *never; /* but for one that receives into this buffer */
    int arrives_whole; /* messages that are received have as many elements as there is room for, not `arrived` */
    /* If not NULL, is given all memory that a call may read or write, and again when a request is waited for.
     */
    void (*touches)(void *memory, int64_t bytes, int is_received);
    int64_t (*item_bytes)(int type); /* bytes of each data type; NULL: FAKE_ITEM */

    /* What it recorded. */
    int types;        /* derived types made and not freed */
    atomic_int calls; /* how many calls of functions that move data, MPI_Barrier among them */
    char call[512];   /* the last: "MPI_Send 3 t11 -> 1 tag 7 c2" */
    const void *send;
    void *recv, *status;         /* its buffers and status */
    atomic_int probes;           /* calls of MPI_Iprobe */
    atomic_int cancelled, freed; /* requests, by MPI_Cancel and MPI_Request_free */
    int revoked;                 /* communicators, by MPIX_Comm_revoke */

    int ops, large_ops;      /* reductions that were made, and those of them by MPI_Op_create_c */
    void *combine[FAKE_OPS]; /* their functions */

    int posted; /* non-blocking messages since all before them were waited for */
    fake_message messages[FAKE_MESSAGES];

    uint64_t (*handle)(int number);
    int (*comm_new)(int rank, int size, int inter); /* returns the number */
    /* Gives the communicator a topology, of which nothing is copied. */
    void (*cart_set)(int number, int dimensions, const int *sizes, const int *periods, const int *place);
    void (*graph_set)(int number, int kind, int sources, const int *from, int dests, const int *to);
    int (*comm_dup)(int number);  /* MPI_Comm_dup; returns the new number */
    int (*comm_free)(int number); /* MPI_Comm_free; returns MPI's code */
    void (*finalize)(void);       /* the part of MPI_Finalize that frees MPI_COMM_SELF */
} fake_mpi;

/* What a function of the fake returns: `code` if it is to fail. Within the shared library only. */
int fake_result(const char *function);

#endif
