/* Each rank counts the messages that it will send to each other rank, and the messages that it expects, and hashes
 * their tags and sizes. One MPI_Alltoall exchanges the counts, and each rank compares the senders' counts with its own.
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

/* The count of all messages from one rank to another. */
typedef struct tally {
    int64_t messages, items; /* of a halo bytes */
    uint64_t hash;           /* the sum of the hashes of the messages */
} tally;

/* The first difference that a rank has found, which all ranks report. */
typedef struct tally_finding {
    int32_t found, from; /* found: 0 for none; from: the sender */
    tally sent, expected;
    char line[SITE_TEXT_BYTES];
} tally_finding;

int tally_is_needed(const frame *f) {
    return f->facts.row->counts == EXCHANGED_ROWS || facts_have_neighbours(&f->facts);
}

/* Adds one message to the tally of `peer`: its count, its `items`, and a hash of tag, order and items; nothing for
 * MPIXLA_PROC_NULL. Messages between two ranks match by tag, and those of one tag in order (`nth`). The hash is a sum,
 * so it does not depend on the order of messages of different tags. */
static void tally_message_add(tally *all, int64_t peer, int64_t tag, int64_t nth, int64_t items) {
    if (peer == MPIXLA_PROC_NULL) return;
    tally *t = &all[peer];
    t->messages++;
    t->items += items; /* frame_read has checked for overflow */
    t->hash += hash_combine(hash_combine((uint64_t)tag, (uint64_t)nth), (uint64_t)items);
}

/* Adds the messages of an alltoallv to the tallies, one for each rank, with its rows as items. */
static void tally_rows_add(tally *all, const frame_array *rows) {
    for (int64_t i = 0; i < rows->size; i++) tally_message_add(all, i, 0, 0, rows->items[i]);
}

/* Adds the messages of a neighbour operation in one direction to the tallies of the neighbours' ranks. Slot i of `s`,
 * the sources or the destinations, has a message of rows->items[i] rows, each of `row_items` items; several slots may
 * have one rank and tag, whose messages match in order. */
static void tally_slots_add(tally *all, const topology_slots *s, const frame_array *rows, int64_t row_items) {
    for (int64_t i = 0; i < s->number; i++) {
        int64_t nth = 0;
        for (int64_t j = 0; j < i; j++) nth += s->ranks[j] == s->ranks[i] && s->tags[j] == s->tags[i];
        tally_message_add(all, s->ranks[i], s->tags[i], nth, rows->items[i] * row_items);
    }
}

/* Adds the messages of a halo exchange, with bytes as items, to the tallies of sent and of expected messages. Their
 * tags are made from the dimension and the direction; a dimension of width 0 has none. */
static void tally_borders_add(const frame *f, tally *sent, tally *expected) {
    const frame_array *width = &f->arrays[ATTRIBUTE_WIDTH];
    const int64_t *neighbours = facts_neighbours(&f->facts, 1)->ranks;
    for (int64_t d = 0; d < width->size; d++) {
        int64_t bytes = frame_border_bytes(f, d), low = neighbours[2 * d], high = neighbours[2 * d + 1];
        if (width->items[d] == 0) continue;
        tally_message_add(sent, high, 2 * d, 0, bytes);
        tally_message_add(expected, low, 2 * d, 0, bytes);
        tally_message_add(sent, low, 2 * d + 1, 0, bytes);
        tally_message_add(expected, high, 2 * d + 1, 0, bytes);
    }
}

/* Adds all messages that this rank sends and expects in the call to the tallies, which are by rank and zero before. */
static void tally_call_messages_add(const frame *f, tally *sent, tally *expected) {
    if (f->facts.row->counts == EXCHANGED_ROWS) {
        tally_rows_add(sent, &f->arrays[ATTRIBUTE_SENDCOUNTS]);
        tally_rows_add(expected, &f->arrays[ATTRIBUTE_RECVCOUNTS]);
    } else if (frame_has(f, ATTRIBUTE_BACK)) {
        tally_slots_add(sent, facts_neighbours(&f->facts, 1), &f->arrays[ATTRIBUTE_SENDCOUNTS], f->row_items);
        tally_slots_add(expected, facts_neighbours(&f->facts, 0), &f->arrays[ATTRIBUTE_RECVCOUNTS], f->row_items);
    } else {
        tally_borders_add(f, sent, expected);
    }
}

/* Writes a count as text: "3 rows", "2 items in 2 messages". */
static void tally_describe(char *text, size_t bytes, const frame *f, const tally *t) {
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

/* Writes the report to `text`: for each rank that found a difference, of which it shows four, the counts of sender and
 * receiver with their source lines. */
static void tally_report(const frame *f, const tally_finding *all, char *text, size_t bytes) {
    enum { SHOWN = 4 };
    static const char unknown[] = "an unknown line";
    int shown = 0;
    size_t used =
        text_add(text, bytes, 0,
                 "r%d | MPIXLA_CHECK: the ranks of communicator '%s' do not agree on the messages between them "
                 "in their collective call number %lld:",
                 mpi_get()->world_rank, f->facts.communicator->name, (long long)f->facts.sequence + 1);
    for (int i = 0; i < f->size; i++) {
        const tally_finding *one = &all[i], *sender = &all[one->from];
        char sent[64], expected[64];
        if (!one->found || ++shown > SHOWN) continue;
        const int alike = one->sent.messages == one->expected.messages && one->sent.items == one->expected.items;
        tally_describe(sent, sizeof sent, f, &one->sent);
        tally_describe(expected, sizeof expected, f, &one->expected);
        used = text_add(
            text, bytes, used, "\n  rank %d sends rank %d %s, at %s\n  rank %d expects %s%s from rank %d, at %s",
            one->from, i, sent, sender->line[0] ? sender->line : unknown, i, expected,
            alike ? " of other sizes, or in another order," : "", one->from, one->line[0] ? one->line : unknown);
    }
    (void)text_add(text, bytes, used,
                   "%s\nEach rank must expect the messages that the others send to it%s. No rank has made this call.",
                   shown > SHOWN ? "\n  and more" : "",
                   frame_has(f, ATTRIBUTE_WIDTH)
                       ? ": blocks of neighbours may differ in size only along the axis between them"
                       : "");
}

/* Gathers the differences that all ranks have found, and sets the report as the error. Collective. Returns REFUSED or
 * MPI's error code; without memory it ends the job, or returns REFUSED on one rank (job_fail). */
static int tally_refuse(const frame *f, const tally_finding *mine) {
    tally_finding *all = calloc((size_t)f->size, sizeof *all);
    mpixla_handle byte = dtype_find(FFI_U8)->handle;
    int64_t bytes = (int64_t)sizeof *mine;
    if (!all) {
        (void)error_set("out of memory for the report of the differences between the ranks of communicator '%s'",
                        f->facts.communicator->name);
        return job_fail(f->facts.communicator);
    }
    int code = mpi_get()->small->allgather(mine, bytes, byte, all, bytes, byte, f->facts.communicator->handle);
    if (code == 0) {
        char description[ERROR_BYTES];
        tally_report(f, all, description, sizeof description);
        code = error_set("%s", description);
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
    tally_call_messages_add(f, sent, expected);
    mpixla_handle word = dtype_find(FFI_U64)->handle, byte = dtype_find(FFI_U8)->handle;
    int64_t words = (int64_t)(sizeof *all / sizeof(uint64_t));
    int code = mpi->small->alltoall(sent, words, word, coming, words, word, entry->handle);
    tally_finding mine;
    memset(&mine, 0, sizeof mine); /* all bytes travel */
    for (int i = 0; code == 0 && i < f->size && !mine.found; i++) {
        if (memcmp(&coming[i], &expected[i], sizeof *coming) == 0) continue;
        mine = (tally_finding){.found = 1, .from = i, .sent = coming[i], .expected = expected[i]};
    }
    snprintf(mine.line, sizeof mine.line, "%s", site_text(f->facts.site));
    /* Gathers from each rank one byte: whether it has found a difference. */
    unsigned char found = (unsigned char)mine.found, *others = (unsigned char *)all;
    if (code == 0) code = mpi->small->allgather(&found, 1, byte, others, 1, byte, entry->handle);
    for (size_t i = 0; code == 0 && i < size; i++)
        if (others[i]) return tally_refuse(f, &mine);
    return code;
}
