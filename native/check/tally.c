/* Each rank counts the messages that it is about to send to each other rank, and those that it expects, with a number
 * made of their tags and sizes. One MPI_Alltoall brings each the other side's count.
 */
#include "check/tally.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/scratch.h"
#include "base/text.h"
#include "call/site.h"
#include "mpi/job.h"

/* Of all messages from one rank to another. */
typedef struct tally {
    int64_t messages, items; /* of a halo bytes */
    uint64_t number;
} tally;

/* What a rank has found, for all ranks to tell. */
typedef struct finding {
    int32_t found, from;
    tally sent, expected;
    char line[SITE_TEXT_BYTES];
} finding;

int tally_is_needed(const frame *f) {
    return f->facts.row->counts == EXCHANGED_ROWS || facts_have_neighbours(&f->facts);
}

/* Messages between two ranks meet by their tags, and those of one tag in their order: so the number tells both, and
 * not in which order messages of different tags are. */
static void count(tally *all, int64_t peer, int64_t tag, int64_t nth, int64_t items) {
    if (peer == MPIXLA_PROC_NULL) return;
    tally *t = &all[peer];
    t->messages++;
    t->items += items; /* without overflow, as frame_read has looked at */
    t->number += hash_combine(hash_combine((uint64_t)tag, (uint64_t)nth), (uint64_t)items);
}

static void count_rows(tally *all, const frame_array *rows) {
    for (int64_t i = 0; i < rows->size; i++) count(all, i, 0, 0, rows->items[i]);
}

static void count_slots(tally *all, const topology_slots *s, const frame_array *rows, int64_t row_items) {
    for (int64_t i = 0; i < s->number; i++) {
        int64_t nth = 0;
        for (int64_t j = 0; j < i; j++) nth += s->ranks[j] == s->ranks[i] && s->tags[j] == s->tags[i];
        count(all, s->ranks[i], s->tags[i], nth, rows->items[i] * row_items);
    }
}

/* The tag says in which direction of which dimension a message goes. */
static void count_borders(const frame *f, tally *sent, tally *expected) {
    const frame_array *width = &f->arrays[ATTRIBUTE_WIDTH];
    const int64_t *neighbours = facts_neighbours(&f->facts, 1)->ranks;
    for (int64_t d = 0; d < width->size; d++) {
        int64_t bytes = frame_border_bytes(f, d), low = neighbours[2 * d], high = neighbours[2 * d + 1];
        if (width->items[d] == 0) continue;
        count(sent, high, 2 * d, 0, bytes);
        count(expected, low, 2 * d, 0, bytes);
        count(sent, low, 2 * d + 1, 0, bytes);
        count(expected, high, 2 * d + 1, 0, bytes);
    }
}

static void count_all(const frame *f, tally *sent, tally *expected) {
    if (f->facts.row->counts == EXCHANGED_ROWS) {
        count_rows(sent, &f->arrays[ATTRIBUTE_SENDCOUNTS]);
        count_rows(expected, &f->arrays[ATTRIBUTE_RECVCOUNTS]);
    } else if (frame_has(f, ATTRIBUTE_BACK)) {
        count_slots(sent, facts_neighbours(&f->facts, 1), &f->arrays[ATTRIBUTE_SENDCOUNTS], f->row_items);
        count_slots(expected, facts_neighbours(&f->facts, 0), &f->arrays[ATTRIBUTE_RECVCOUNTS], f->row_items);
    } else {
        count_borders(f, sent, expected);
    }
}

static void amount(char *text, size_t bytes, const frame *f, const tally *t) {
    const char *unit = f->facts.row->counts == EXCHANGED_ROWS ? "row" : frame_has(f, ATTRIBUTE_WIDTH) ? "byte" : "item";
    const char *plural = t->items == 1 ? "" : "s";
    if (t->messages == 0)
        (void)snprintf(text, bytes, "nothing");
    else if (t->messages == 1)
        (void)snprintf(text, bytes, "%lld %s%s", (long long)t->items, unit, plural);
    else
        (void)snprintf(text, bytes, "%lld %s%s in %lld messages", (long long)t->items, unit, plural,
                       (long long)t->messages);
}

static void report(const frame *f, const finding *all, char *text, size_t bytes) {
    enum { SHOWN = 4 };
    static const char unknown[] = "an unknown line";
    int shown = 0;
    size_t used = text_add(text, bytes, 0,
                           "r%d | MPIXLA_CHECK: the ranks of communicator '%s' do not agree on what goes between them "
                           "in their collective call number %lld:",
                           mpi_get()->world_rank, f->facts.communicator->name, (long long)f->facts.sequence + 1);
    for (int i = 0; i < f->size; i++) {
        const finding *one = &all[i], *sender = &all[one->from];
        char sent[64], expected[64];
        if (!one->found || ++shown > SHOWN) continue;
        const int alike = one->sent.messages == one->expected.messages && one->sent.items == one->expected.items;
        amount(sent, sizeof sent, f, &one->sent);
        amount(expected, sizeof expected, f, &one->expected);
        used = text_add(
            text, bytes, used, "\n  rank %d sends rank %d %s, at %s\n  rank %d expects %s%s from rank %d, at %s",
            one->from, i, sent, sender->line[0] ? sender->line : unknown, i, expected,
            alike ? " of other sizes, or in another order," : "", one->from, one->line[0] ? one->line : unknown);
    }
    (void)text_add(
        text, bytes, used, "%s\nWhat one rank sends to another, the other must expect%s. No rank has made this call.",
        shown > SHOWN ? "\n  and more" : "",
        frame_has(f, ATTRIBUTE_WIDTH) ? ": blocks of neighbours may differ in size only along the axis between them"
                                      : "");
}

static int tell(const frame *f, const finding *mine) {
    finding *all = calloc((size_t)f->size, sizeof *all);
    mpixla_handle byte = dtype_find(FFI_U8)->handle;
    int64_t bytes = (int64_t)sizeof *mine;
    if (!all) {
        (void)error_set("out of memory to say on what the ranks of communicator '%s' disagree",
                        f->facts.communicator->name);
        return job_fail(f->facts.communicator);
    }
    int code = mpi_get()->small->allgather(mine, bytes, byte, all, bytes, byte, f->facts.communicator->handle);
    if (code == 0) {
        char what[ERROR_BYTES];
        report(f, all, what, sizeof what);
        code = error_set("%s", what);
    }
    free(all);
    return code;
}

int tally_compare(const frame *f) {
    const mpi_library *mpi = mpi_get();
    const comm_entry *entry = f->facts.communicator;
    size_t size = (size_t)f->size;
    tally *all = scratch_get(SCRATCH_TALLIES, 3 * size * sizeof *all);
    if (!all) return job_fail(entry);
    memset(all, 0, 3 * size * sizeof *all);
    tally *sent = all, *expected = all + size, *coming = all + 2 * size;
    count_all(f, sent, expected);
    mpixla_handle word = dtype_find(FFI_U64)->handle, byte = dtype_find(FFI_U8)->handle;
    int64_t words = (int64_t)(sizeof *all / sizeof(uint64_t));
    int code = mpi->small->alltoall(sent, words, word, coming, words, word, entry->handle);
    finding mine;
    memset(&mine, 0, sizeof mine); /* all bytes travel */
    for (int i = 0; code == 0 && i < f->size && !mine.found; i++) {
        if (memcmp(&coming[i], &expected[i], sizeof *coming) == 0) continue;
        mine = (finding){.found = 1, .from = i, .sent = coming[i], .expected = expected[i]};
    }
    snprintf(mine.line, sizeof mine.line, "%s", site_text(f->facts.site));
    /* One byte of each rank: whether it has found something. */
    unsigned char found = (unsigned char)mine.found, *others = (unsigned char *)all;
    if (code == 0) code = mpi->small->allgather(&found, 1, byte, others, 1, byte, entry->handle);
    for (size_t i = 0; code == 0 && i < size; i++)
        if (others[i]) return tell(f, &mine);
    return code;
}
