#include "watch/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/feature.h"
#include "mpixla.h"

enum { LINE_BYTES = 512 };

static atomic_uint calls;

int mpixla_logging_set(int wanted) {
    return feature_set(FEATURE_LOG, wanted);
}

/* Of what snprintf has written into LINE_BYTES + 1 bytes, of which it was told LINE_BYTES. */
static void line_write(char *line, int length) {
    if (length >= LINE_BYTES) length = LINE_BYTES - 1;
    line[length++] = '\n';
    /* Nothing can be done about a debug line that cannot be written. */
    if (write(STDERR_FILENO, line, (size_t)length) < 0) return;
}

void log_start(log_call *l, const call_facts *f, const call_facts *started) {
    char line[LINE_BYTES + 1], what[LINE_BYTES];
    /* An odd factor visits all 16-bit numbers and keeps neighbours apart. */
    l->id = (atomic_fetch_add(&calls, 1) + 1) * 40503U & 0xffffU;
    call_describe(f, started, 0, what, sizeof what);
    line_write(line, snprintf(line, LINE_BYTES, "r%d | %04x | %s", mpi_get()->world_rank, l->id, what));
    l->started = clock_now();
}

void log_end(const log_call *l, const call_facts *f, int code) {
    char line[LINE_BYTES + 1];
    double seconds = 1e-9 * (double)(clock_now() - l->started);
    line_write(line, snprintf(line, LINE_BYTES, "r%d | %04x | %s done with code %d (%.1es)", mpi_get()->world_rank,
                              l->id, f->row->mpi_name, code, seconds));
}
