/* A file with an array of JSON, an event a line, that is whole at every moment, however the process ends.
 *
 * The file is mapped into memory. Behind the events it has blanks, and then the closing bracket; an event takes the
 * place of blanks. It grows by blanks that are written, so that a full disk is an error and no signal. Then, and at its
 * limit, it ends with a last event that says why, and what comes later is left out.
 *
 * Only who is killed in the few nanoseconds in which it copies an event leaves a line that is none.
 */
#ifndef MPIXLA_NATIVE_TIMELINE_H
#define MPIXLA_NATIVE_TIMELINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { TIMELINE_PATH_BYTES = 4096, TIMELINE_CHUNK = 1 << 17, TIMELINE_RESERVE = 1024, TIMELINE_WHY_BYTES = 512 };

/* One file. Zeros are one that is not open. */
typedef struct timeline {
    atomic_size_t used; /* bytes of events, including those that are being copied */
    atomic_size_t room; /* events may be there */
    char *data;         /* the file from its beginning; as many bytes as `limit` are mapped */
    size_t length;      /* of the file; this and the following with the lock, once it is open */
    size_t limit;
    size_t end; /* where the closing bracket is to come when it is closed, once it has stopped */
    int file;
    char path[TIMELINE_PATH_BYTES];
    char why[TIMELINE_WHY_BYTES]; /* it stopped; "": it did not */
    int pid;                      /* of its events: the rank */
    atomic_int named;             /* it has got its name */
    pthread_mutex_t lock;
} timeline;

/* Makes the file; its first event, of so many bytes, is given without a comma. It is hidden, as `path` with ".new"
 * behind, until it is shown: so a process that has nothing to tell leaves what was there. `limit` is in bytes. The
 * memory of a file stays mapped for good. 0, or -1 with error_set. */
int timeline_open(timeline *t, const char *path, size_t limit, int pid, const char *first, size_t bytes);

/* Adds an event, which begins with a comma and the end of a line. Returns where it lies, where its bytes may be
 * overwritten as long as the process lives, or NULL if there is no room. Any thread may call it. */
char *timeline_add(timeline *t, const char *event, size_t bytes);

/* The file gets its name, if it has not got it yet. */
void timeline_show(timeline *t);

/* Takes the blanks away, or the file if it is hidden. 0, or -1 with error_set if it had stopped before. */
int timeline_close(timeline *t);

#endif
