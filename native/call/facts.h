/* The facts of a call, for reports, traces and checks: a plain value, complete when the call has been read and never
 * changed afterwards, so that other threads may read or copy it while the call runs.
 *
 * Ranks and tags are as programs number them: MPIXLA_ANY_SOURCE, MPIXLA_PROC_NULL and MPIXLA_ANY_TAG are among them.
 */
#ifndef MPIXLA_NATIVE_FACTS_H
#define MPIXLA_NATIVE_FACTS_H

#include "mpi/comm.h"
#include "mpi/dtype.h"
#include "mpi/job.h"

enum {
#define MPIXLA_ATTRIBUTE(NAME, name, kind) ATTRIBUTE_##NAME,
#include "tables/attributes.def"
#undef MPIXLA_ATTRIBUTE
    ATTRIBUTES
};

/* Sets of attributes, as ops.def writes them, and flags of a row. */
enum {
#define MPIXLA_ATTRIBUTE(NAME, name, kind) NAME = 1 << ATTRIBUTE_##NAME,
#include "tables/attributes.def"
#undef MPIXLA_ATTRIBUTE
    LOCAL = 1 << 28,   /* ranks of one host may make it through memory that they share (local/local.h) */
    SPLITS = 1 << 29,  /* each item of the result depends on the items at its place only: so it may be made in pieces */
    IN_PLACE = 1 << 30 /* the result may be in the first operand's memory (mpixla.h) */
};

enum {
    OPTIONAL = PACKED | SITE,           /* attributes that every row takes, and that a program may leave out */
    SEND_WINDOW = SENDBEGIN | SENDSIZE, /* of a message that is a box of an array (frame_window, frame.h) */
    RECV_WINDOW = FILL | RECVBEGIN | RECVSIZE
};

/* The pattern in which ranks wait for each other in a call. */
typedef enum frame_pattern {
    NO_PATTERN, /* of a row that waits for a request: the call that started it has one */
    ALL,        /* each rank for all others */
    FROM_ROOT,  /* each rank for the root */
    TO_ROOT,    /* the root for all others */
    PREFIX,     /* each rank for those before it */
    NEIGHBOURS, /* each rank for its neighbours in the communicator's topology */
    PAIR        /* a message: one rank, or two, make the call, and not all of the communicator */
} frame_pattern;

/* How the number of elements in the send and the receive buffer go together. */
typedef enum frame_counts {
    FREE,      /* not at all */
    SAME,      /* equal, and of one type */
    DIVIDED,   /* SAME, in as many equal parts as there are ranks; MPI is told the part's count */
    GATHERED,  /* one type; recv = size * send; MPI is told send's count */
    SCATTERED, /* one type; send = size * recv; MPI is told recv's count */
    /* One type, and rows (of the first axis) as array attributes say; MPI is told the parts. Buffers may have more rows
     * than attributes say that are given at run time. */
    GATHERED_ROWS,  /* send has COUNTS[rank] rows, recv all of COUNTS */
    SCATTERED_ROWS, /* send has all of COUNTS, recv COUNTS[rank] */
    EXCHANGED_ROWS, /* send has all of SENDCOUNTS, recv all of RECVCOUNTS */
    MANY /* any number of operands and as many results, in pairs of one type and shape: see frame_buffer_next */
} frame_counts;

/* The row of ops.def that a frame is checked against. */
typedef struct frame_shape {
    int number;          /* the row's, in ops.def */
    const char *op_name; /* "allreduce" */
    const char *mpi_name;
    mpixla_request request;
    frame_pattern pattern;
    mpixla_where send, template_, recv;
    frame_counts counts;
    uint32_t attributes; /* beside OPTIONAL */
    uint32_t optional;   /* those of them that a program may leave out */
} frame_shape;

enum { FACTS_SENDS_WINDOW = 1, FACTS_RECEIVES_WINDOW = 2 };

typedef struct call_facts {
    const frame_shape *row;       /* which operation it is */
    comm_entry *communicator;     /* it lives as long as the library */
    const dtype_entry *sent_type; /* NULL: this rank has no such buffer, here and below */
    const dtype_entry *received_type;
    int64_t sent, received; /* items of the buffers; of an exchange between neighbours, those that go to neighbours or
                             * come from them */
    int64_t items;          /* that must be as many on every rank; -1: none must */
    int64_t border_bytes;   /* of a halo exchange: that go to neighbours, and as many come from them */
    int64_t reduction;      /* its number (reduction.h), where the row has one */
    int64_t site;           /* the line of the user's source (site.h) */
    int64_t sequence;       /* of a collective call: how many there were on the communicator before */
    int32_t root;           /* this and the next four where the row has them */
    int32_t dest, sendtag, source, recvtag;
    uint8_t reverse; /* the ranks count from the last one */
    uint8_t back;    /* an exchange sends to its sources, and receives from its destinations */
    uint8_t windows; /* bits: FACTS_SENDS_WINDOW, FACTS_RECEIVES_WINDOW */
} call_facts;

/* Returns whether the call's row takes this attribute. */
static inline int facts_have(const call_facts *f, int attribute) {
    return (int)((f->row->attributes | OPTIONAL) >> attribute & 1U);
}

/* Returns whether the call is a message: one that not all ranks of the communicator make. */
static inline int facts_are_message(const call_facts *f) {
    return f->row->pattern == PAIR;
}

/* Returns whether all ranks of the communicator make the call. */
static inline int facts_are_collective(const call_facts *f) {
    return !facts_are_message(f) && f->row->request != MPIXLA_WAITS;
}

/* Returns whether it is a call between neighbours on a communicator with a topology. */
static inline int facts_have_neighbours(const call_facts *f) {
    return f->row->pattern == NEIGHBOURS;
}

/* Returns the neighbours that the call sends to, or receives from. */
static inline const topology_slots *facts_neighbours(const call_facts *f, int sending) {
    const topology *t = f->communicator->topology;
    return sending != f->back ? &t->dests : &t->sources;
}

/* Handles a failure of this rank alone (memory, a GPU's driver), with its text in error_get, before the rank has done
 * its part of the call: ends the job if the call is collective, as the other ranks wait for this one (mpi/job.h); else
 * returns REFUSED. */
static inline int facts_fail(const call_facts *f) {
    if (facts_are_collective(f)) (void)job_fail(f->communicator);
    return REFUSED;
}

/* Returns the element type that describes the call: of the sent buffer, or else of the received one; NULL if it has
 * none. */
static inline const dtype_entry *facts_type(const call_facts *f) {
    return f->sent_type ? f->sent_type : f->received_type;
}
static inline int64_t facts_count(const call_facts *f) {
    return f->sent_type ? f->sent : f->received;
}

/* Describes the call in one line: "MPI_Send -> 1 with tag 0 and 3 items". With `details` also the data type, the
 * reduction, the communicator and the line of the user's source. `started`: of a wait, the call that started its
 * request, or NULL for no request. Returns the length as text_add does. */
size_t facts_describe(const call_facts *f, const call_facts *started, int details, char *text, size_t bytes);

#endif
