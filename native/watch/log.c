#include "watch/log.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/feature.h"
#include "base/output.h"
#include "mpixla.h"

enum { LINE_BYTES = 512 };

static atomic_uint call_count;

int mpixla_logging_set(int wanted) {
    return feature_set(FEATURE_LOG, wanted);
}

/* Prints a line. `length` is what snprintf has returned, which may be more than fits. */
static void log_print(const char *line, int length) {
    output_print("%.*s\n", length, line);
}

/* Prints the line of a call that begins, and sets the call's id and begin in `l`. */
void log_start(log_call *l, const call_facts *f, const call_facts *started) {
    char line[LINE_BYTES], description[LINE_BYTES];
    /* An odd factor visits all 16-bit numbers and keeps neighbours apart. */
    l->id = (atomic_fetch_add(&call_count, 1) + 1) * 40503U & 0xffffU;
    facts_describe(f, started, 0, description, sizeof description);
    const int length = snprintf(line, sizeof line, "r%d | %04x | %s", mpi_get()->world_rank, l->id, description);
    log_print(line, length);
    l->started = clock_now();
}

/* Prints the line of a call that has ended, with MPI's error class and the time that it took. */
void log_end(const log_call *l, const call_facts *f, int code) {
    char line[LINE_BYTES];
    double seconds = 1e-9 * (double)(clock_now() - l->started);
    const int length = snprintf(line, sizeof line, "r%d | %04x | %s done with code %d (%.1es)", mpi_get()->world_rank,
                                l->id, f->row->mpi_name, code, seconds);
    log_print(line, length);
}
