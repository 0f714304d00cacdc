/* A file of records of one size. However the process ends, and whenever somebody reads the file, each record is whole
 * or is not there, because its kind is written last. src/mpixla/trace/layout.py has the same structures for those who
 * read.
 *
 * Calls write records into memory; a thread writes them to the file, many times a second. A process that is killed
 * loses those of that moment. Where the file cannot be written, as on a full disk, or was made shorter by another
 * process, at its limit, and without numbers for more texts, the header says why the file ends, and later records are
 * left out.
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

/* What stands at the beginning of the file. Texts end with a zero. */
typedef struct timeline_header {
    char magic[8]; /* "mpixla" */
    uint32_t version, record_bytes;
    int32_t rank, ranks;
    int64_t process;
    char host[256], job[128], clock[256];
    char stopped[352]; /* why the file ends before the process did; "": it does not */
} timeline_header;

/* Ranks and tags in records: those of MPI_COMM_WORLD, or one of these. A rank of another world is nobody, too. */
enum { TIMELINE_ANY = -1, TIMELINE_NOBODY = -2, TIMELINE_NONE = -3 /* a call of this kind has none */ };

enum { TIMELINE_COLLECTIVE, TIMELINE_MESSAGE, TIMELINE_START, TIMELINE_WAIT };
/* Of a collective call: who waits for whom. Ranks before one are those after it where the call is in reverse. */
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
    uint8_t neighbours; /* the kind of the list of those that it receives from; 0: it is no call between neighbours */
    _Atomic uint8_t state;
    uint8_t zeros[3]; /* without a name they would be bytes of whatever was there before, in a file */
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

/* What mpixla_trace_clock was told. */
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

/* Makes the file, with this header, of at most `limit` bytes. It is hidden until it is shown, so that a process that
 * has nothing to tell leaves what was there: as `path` with the job's name and ".new" behind, which no other job uses.
 * The timeline and its memory stay for good, as calls may end after everything else. On failure NULL, with
 * error_set.
 */
timeline *timeline_open(const char *path, size_t limit, const timeline_header *header);

/* The place for a record, all zeros, which must be published, and may be written to until it changes no more: as a call
 * does when it is over; NULL where there is no room. Whoever reads the file sees it some time later. */
timeline_record *timeline_add(timeline *t);
static inline void timeline_publish(timeline_record *r, uint32_t kind) {
    atomic_store_explicit(&r->kind, kind, memory_order_release);
}

/* The number by which records of this file call what lies at `key`, which stays where and as it is: at its first use
 * `define` adds the records that say what it is. 0 where there are no more numbers: the file ends. */
typedef void timeline_definition(timeline *t, uint32_t number, const void *key);
uint16_t timeline_number(timeline *t, const void *key, timeline_definition *define);

/* Adds a text or a list, of so many bytes, in as many parts as it takes. */
void timeline_add_parts(timeline *t, uint32_t kind, uint32_t number, const void *bytes, size_t size);

/* Writes to all files what they lack, at once. */
void timelines_flush(void);

/* The file gets its name, if it has not got it yet. */
void timeline_show(timeline *t);

/* Writes all that there is, or takes the file away if it is hidden; nothing can be added any more. Returns 0, or
 * REFUSED if the file lacks something. */
int timeline_close(timeline *t);

#endif
