/* Describes calls, for errors, reports and debug lines. Each function with `used` appends to a text, and returns the
 * bytes that are used. */
#include "call/facts.h"

#include <stdio.h>

#include "base/text.h"
#include "call/site.h"
#include "mpi/reduction.h"

/* Returns the name of a rank, or of a special value: "any" or "MPI_PROC_NULL"; a number is written to `number`, which
 * the result then points to. */
static const char *facts_peer_name(int64_t peer, char number[24]) {
    if (peer == MPIXLA_ANY_SOURCE) return "any";
    if (peer == MPIXLA_PROC_NULL) return "MPI_PROC_NULL";
    snprintf(number, 24, "%lld", (long long)peer);
    return number;
}

/* Appends the peer of a message, its tag and its length: " -> 1 with tag 0 and 3 items". Returns the new length. */
static size_t facts_text_add_message(char *text, size_t bytes, size_t used, const char *arrow, int64_t peer,
                                     int64_t tag, int64_t items) {
    char number[24], tag_text[24];
    snprintf(tag_text, sizeof tag_text, tag == MPIXLA_ANY_TAG ? "any" : "%lld", (long long)tag);
    return text_add(text, bytes, used, " %s %s with tag %s and %lld items", arrow, facts_peer_name(peer, number),
                    tag_text, (long long)items);
}

/* Appends the number of neighbours on one side of an exchange, without MPIXLA_PROC_NULL, and the items that go to them
 * (`sending`) or come from them. Returns the new length. */
static size_t facts_text_add_neighbours(char *text, size_t bytes, size_t used, const call_facts *f, int sending) {
    const topology_slots *slots = facts_neighbours(f, sending);
    int64_t neighbours = 0;
    for (int64_t i = 0; i < slots->number; i++) neighbours += slots->ranks[i] != MPIXLA_PROC_NULL;
    return text_add(text, bytes, used, " %s %lld neighbours with %lld items", sending ? "->" : "<-",
                    (long long)neighbours, (long long)(sending ? f->sent : f->received));
}

/* Appends the source line of a site behind the word `label`, as in ", at model.py:42"; nothing if the line is unknown.
 */
static size_t facts_text_add_site(char *text, size_t bytes, size_t used, const char *label, int64_t site) {
    const char *line = site_text(site);
    return *line ? text_add(text, bytes, used, ", %s %s", label, line) : used;
}

/* Appends the description of a call that is no wait; returns the new length. With `details` also the data type, the
 * reduction, the communicator and the source lines: the call's, and that of `waits`, the call that waits for its
 * request, unless it is NULL. */
static size_t facts_text_add_call(const call_facts *f, const call_facts *waits, int details, char *text, size_t bytes,
                                  size_t used) {
    const dtype_entry *type = facts_type(f);
    used = text_add(text, bytes, used, "%s", f->row->mpi_name);
    if (facts_have(f, ATTRIBUTE_WIDTH)) used = text_add(text, bytes, used, " of the halos of blocks");
    if (facts_have(f, ATTRIBUTE_LEAVES)) used = text_add(text, bytes, used, " that compares arrays");
    if (facts_have(f, ATTRIBUTE_DEST))
        used = facts_text_add_message(text, bytes, used, "->", f->dest, f->sendtag, f->sent);
    if (facts_have(f, ATTRIBUTE_SOURCE)) {
        used = facts_text_add_message(text, bytes, used, "<-", f->source, f->recvtag, f->received);
    } else if (facts_have(f, ATTRIBUTE_BACK)) {
        used = facts_text_add_neighbours(text, bytes, used, f, 1);
        used = facts_text_add_neighbours(text, bytes, used, f, 0);
    } else if (!facts_have(f, ATTRIBUTE_DEST) && type) {
        used = text_add(text, bytes, used, " with %lld items", (long long)facts_count(f));
    }
    if (facts_have(f, ATTRIBUTE_ROOT)) used = text_add(text, bytes, used, " and root %d", (int)f->root);
    if (f->reverse) used = text_add(text, bytes, used, " from the last rank");
    if (!details) return used;
    if (type) used = text_add(text, bytes, used, " of %s", type->row->name);
    if (f->received_type && f->received_type != type)
        used = text_add(text, bytes, used, " and %s", f->received_type->row->name);
    if (facts_have(f, ATTRIBUTE_OP)) used = text_add(text, bytes, used, ", op %s", reduction_name(f->reduction));
    used = text_add(text, bytes, used, ", on rank %d of %d of communicator '%s'", f->communicator->rank,
                    f->communicator->size, f->communicator->name);
    if (waits) used = facts_text_add_site(text, bytes, used, "at", waits->site);
    return facts_text_add_site(text, bytes, used, waits ? "started at" : "at", f->site);
}

size_t facts_describe(const call_facts *f, const call_facts *started, int details, char *text, size_t bytes) {
    if (f->row->request != MPIXLA_WAITS) return facts_text_add_call(f, NULL, details, text, bytes, 0);
    size_t used = text_add(text, bytes, 0, "%s for %s", f->row->mpi_name, started ? "" : "no request");
    if (started) return facts_text_add_call(started, f, details, text, bytes, used);
    return details ? facts_text_add_site(text, bytes, used, "at", f->site) : used;
}
