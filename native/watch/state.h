/* The state of a rank, for reports of other ranks: the calls that it is in, where its script is, and its last calls. */
#ifndef MPIXLA_NATIVE_STATE_H
#define MPIXLA_NATIVE_STATE_H

#include <stdint.h>

#include "base/wire.h"

/* A state has the calls of at most so many threads, and the last calls in a text of at most so many bytes. */
enum { STATE_CALLS = 4, STATE_LINES = 8192 };

/* The other end of a message of a call. */
typedef struct state_peer {
    int64_t rank;     /* in MPI_COMM_WORLD, or MPIXLA_ANY_SOURCE */
    int64_t tag;      /* or MPIXLA_ANY_TAG */
    int64_t receives; /* this rank the message; else it sends it */
} state_peer;

typedef struct state_call {
    int64_t milliseconds; /* for how long it has waited */
    int64_t number;       /* which of the calls of its thread it is: with `thread`, the same for this call alone */
    int64_t thread;
    int64_t is_front_end;    /* the thread is one of the front end's, and waits in the call itself */
    int64_t pauses;          /* it waits for the rank's own GPU, which computes */
    int64_t collective;      /* all members of the communicator make it */
    int64_t comm;            /* the communicator: the same number on all its members */
    int64_t has_members;     /* the members are known; else the ranks below are guesses */
    int64_t is_shared;       /* several threads of the rank use it */
    int64_t sequence;        /* of a collective call: how many there were before on the communicator */
    int64_t bytes;           /* of its buffer on this rank */
    int64_t root, items;     /* which all ranks must agree on; -1: none */
    const char *description; /* as facts_describe has it, with details */
    const char *op;          /* "MPI_Bcast" */
    const char *kind;        /* what all ranks must agree on beside the root: "float32, op MPI_SUM" */
    const char *site;        /* "" if unknown */
    const char *comm_name;
    const int64_t *needed;   /* of a collective call: the others that it takes, by their rank in MPI_COMM_WORLD */
    int64_t needs;           /* how many */
    const state_peer *peers; /* of a call that sends or receives a message */
    int64_t messages;        /* how many */
} state_call;

/* How many collective calls there were on a communicator. */
typedef struct state_comm {
    int64_t comm, calls;
} state_comm;

/* One of the last calls, if it was collective. */
typedef struct state_past {
    int64_t comm, sequence;
    int64_t op;   /* hash_text of the operation's name */
    int64_t line; /* in `last` of the state, from 0: calls that are alike share one */
} state_past;

typedef enum state_presence {
    STATE_HERE,    /* it has answered */
    STATE_SILENT,  /* it has not */
    STATE_STOPPED, /* it has not, since its process is stopped */
    STATE_DEAD,    /* ... or is gone */
    STATE_PRESENCES
} state_presence;

/* The process of another rank on the same host that cannot answer. */
typedef struct state_lost {
    int64_t rank, presence; /* STATE_STOPPED or STATE_DEAD */
} state_lost;

typedef struct state {
    int64_t rank; /* in MPI_COMM_WORLD */
    int64_t presence;
    int64_t ended;      /* it is at the end of its script */
    int64_t left_ms;    /* since it makes no more calls, as in MPI_Finalize; -1: it still may */
    int64_t percent;    /* of a processor that it used lately; -1: unknown */
    int64_t threads;    /* of the front end that may still make a call, or are in one (stack_ask); -1: unknown */
    int64_t requests;   /* that are open: request_count_open */
    const char *where;  /* "process 12 on host node1"; "" */
    const char *python; /* lines of its Python threads, the first of each at the margin; "" */
    const char *last;   /* the calls of the thread that made the newest one, from that one on: a line each, or one for
                         * several that are alike and follow each other */
    int64_t in_newest;  /* the newest has not ended */
    const state_past *past;
    int64_t past_count;
    state_call calls[STATE_CALLS];
    int64_t call_count;
    const state_comm *comms;
    int64_t comm_count;
    int64_t has_all_comms; /* none is left out, and the members of each are known */
    const state_lost *lost;
    int64_t lost_count;
} state;

/* The part of a `state` that is not read from the calls. */
typedef struct state_facts {
    int64_t rank, ended, left_ms, percent, threads;
    const char *where, *python;
    const int64_t *lost; /* the members of each state_lost, one behind the other */
    int64_t lost_count;
} state_facts;

/* Writes this process's state; without memory the writer's `failed` is set. Called by the thread of deadline.c, which
 * measures how long calls wait (flight_clock). */
void state_write(wire_writer *w, const state_facts *facts);

/* Sets `*s` to a state that state_write has written; its texts and lists stay in the reader's memory. Returns whether
 * the bytes are a valid state. */
int state_read(state *s, wire_reader *r);

#endif
