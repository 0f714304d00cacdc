/* A file of records of one size. At any time, and however the process ends, a record in the file is whole or absent,
 * because its kind is written last. src/mpixla/trace/layout.py has the same structures, for readers.
 *
 * Calls write records into memory; a thread writes them to the file, many times a second. A process that is killed
 * loses its last records. The file ends early if it cannot be written (a full disk), another process has made it
 * shorter, it has reached its limit, or no numbers are left for texts: the header then has the reason, and later
 * records are left out.
 */
#ifndef MPIXLA_NATIVE_TIMELINE_H
#define MPIXLA_NATIVE_TIMELINE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TIMELINE_VERSION = 4, /* of this layout */
    TIMELINE_CHUNK = 1 << 16,
    TIMELINE_HEADER_BYTES = 1024,
    TIMELINE_RECORD_BYTES = 128
};

/* The beginning of the file. Texts end with a zero. */
typedef struct timeline_header {
    char magic[8]; /* "mpixla" */
    uint32_t version, record_bytes;
    int32_t rank, ranks;
    int64_t process;
    char host[256], job[128], clock[256];
    char stopped[352]; /* why the file ends before the process did; "": it does not */
} timeline_header;

/* Ranks and tags in records: those of MPI_COMM_WORLD, or one of these. A rank of another world is TIMELINE_NOBODY. */
enum { TIMELINE_ANY = -1, TIMELINE_NOBODY = -2, TIMELINE_NONE = -3 /* a call of this kind has none */ };

enum { TIMELINE_COLLECTIVE, TIMELINE_MESSAGE, TIMELINE_START, TIMELINE_WAIT };
/* The ranks that wait for each other in a collective call. In a reverse call the ranks before one are the higher ones.
 */
enum {
    TIMELINE_EACH_FOR_ALL,
    TIMELINE_EACH_FOR_ROOT,
    TIMELINE_ROOT_FOR_ALL,
    TIMELINE_EACH_FOR_THOSE_BEFORE,
    TIMELINE_EACH_FOR_NEIGHBOURS
};
enum { TIMELINE_OPEN, TIMELINE_OVER, TIMELINE_FAILED };

/* A call. Times are in nanoseconds; a text is the number of its TIMELINE_TEXT records, or 0. `took`, `gpu`, `transport`
 * and `state` are written when the call ends, the state last. */
typedef struct timeline_call {
    int64_t sequence;        /* of a collective call: how many there were on its communicator before; else -1 */
    int64_t sends, receives; /* bytes */
    int64_t items;           /* -1: it has no data */
    int64_t began, took;
    int64_t gpu; /* the part of `took` in which it waited for its GPU; -1: its arrays are in the host's memory */
    int32_t thread, root, to, sendtag, from, recvtag;
    int32_t request, generation; /* request: -1 for none */
    uint16_t op, mpi, site, dtype, reduction, waits_for, started_at, transport;
    uint8_t category, meeting, is_reverse;
    uint8_t neighbours; /* the kind of its list of sources; 0: it is no call between neighbours */
    _Atomic uint8_t state;
    uint8_t windows;  /* bits: 1: it sends a box of an array, 2: it receives one in place */
    uint8_t zeros[2]; /* padding with a name: unnamed bytes would be written uninitialized */
} timeline_call;

/* A communicator: its number in this process, and the rank of this process in it. */
typedef struct timeline_communicator {
    int64_t in_process;
    int32_t rank, size;
    char name[64];
} timeline_communicator;

/* The number that all members of a communicator have agreed on for it. */
typedef struct timeline_agreed {
    int64_t in_process, agreed;
} timeline_agreed;

/* A text or a list of int32_t, which goes on in the next record of the same kind and number. */
typedef struct timeline_part {
    uint32_t used;
    char bytes[TIMELINE_RECORD_BYTES - 12];
} timeline_part;

/* The arguments of mpixla_trace_clock. */
typedef struct timeline_clock {
    int64_t when, ahead, round_trip;
} timeline_clock;

enum {
    TIMELINE_NOTHING,
    TIMELINE_CALL,         /* `number` is its communicator's */
    TIMELINE_TEXT,         /* `number` is what other records call it, here and below */
    TIMELINE_COMMUNICATOR, /* then the lists that belong to it, under its number: */
    TIMELINE_MEMBERS,      /* its ranks in their order, three numbers for several: the first, how many, the distance */
    TIMELINE_SOURCES,      /* neighbours of this rank */
    TIMELINE_DESTS,
    TIMELINE_CLOCK,
    TIMELINE_AGREED
};

typedef struct timeline_record {
    _Atomic uint32_t kind;
    uint32_t number;
    union {
        timeline_call call;
        timeline_communicator communicator;
        timeline_part part;
        timeline_clock clock;
        timeline_agreed agreed;
    } of;
} timeline_record;

_Static_assert(sizeof(timeline_header) == TIMELINE_HEADER_BYTES, "files have this layout");
_Static_assert(sizeof(timeline_record) == TIMELINE_RECORD_BYTES, "files have this layout");

/* One file. Several threads may use it at once, and after it was closed. */
typedef struct timeline timeline;

/* Makes a file of records, of at most `limit` bytes, with this header, and starts the thread that writes it; NULL with
 * error_set on failure. Until timeline_file_rename the file is hidden, as `path` with the job's name and ".new" behind,
 * so that a process without calls does not replace an earlier file. The timeline is never freed, as late calls may
 * write to it. */
timeline *timeline_open(const char *path, size_t limit, const timeline_header *header);

/* Returns memory for a record, all zeros; NULL once the file has reached its limit or is closed: at the limit the trace
 * ends, which is printed. The caller fills and publishes the record, and may still write to it until it is final: a
 * call does so at its end. It reaches the file some time later. */
timeline_record *timeline_add(timeline *t);
static inline void timeline_publish(timeline_record *r, uint32_t kind) {
    atomic_store_explicit(&r->kind, kind, memory_order_release);
}

/* Adds the records that describe the object at `key`, with its number. */
typedef void timeline_definition(timeline *t, uint32_t number, const void *key);

/* Returns the number that records use for the object at `key`, which must never move or change; 0 without numbers: the
 * trace ends, which is printed. At the first use `define` adds the records that describe the object; that takes a lock.
 */
uint16_t timeline_number_of(timeline *t, const void *key, timeline_definition *define);

/* Adds the `size` bytes of a text or a list to the file, in as many records as they take, each with this kind and
 * number. Once the file is full, the trace ends, and the rest of the bytes is left out. */
void timeline_add_parts(timeline *t, uint32_t kind, uint32_t number, const void *bytes, size_t size);

/* Writes the new records of all timelines to their files, and returns when that is done. Takes their locks. */
void timelines_flush(void);

/* Gives the file its own name, if it is still hidden; prints a line if that fails. Takes the lock the first time. */
void timeline_file_rename(timeline *t);

/* Writes all records and closes the file, or removes it if it is hidden; takes no more records. Returns 0, or REFUSED
 * if the file is not complete. */
int timeline_close(timeline *t);

#endif
