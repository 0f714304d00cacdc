/* What a call is, in words: for errors, reports and debug lines. */
#include <stdio.h>

#include "base/text.h"
#include "call/frame.h"
#include "call/site.h"
#include "mpi/reduction.h"

static const char *peer_name(int64_t peer, char number[24]) {
    if (peer == MPIXLA_ANY_SOURCE) return "any";
    if (peer == MPIXLA_PROC_NULL) return "nobody";
    snprintf(number, 24, "%lld", (long long)peer);
    return number;
}

static size_t add_message(char *text, size_t bytes, size_t used, const char *arrow, int64_t peer, int64_t tag,
                          int64_t items) {
    char number[24], tag_text[24];
    snprintf(tag_text, sizeof tag_text, tag == MPIXLA_ANY_TAG ? "any" : "%lld", (long long)tag);
    return text_add(text, bytes, used, " %s %s with tag %s and %lld items", arrow, peer_name(peer, number), tag_text,
                    (long long)items);
}

/* The neighbours on one side of an exchange, and the items that go to them or come from them. */
static size_t add_neighbours(char *text, size_t bytes, size_t used, const call_facts *f, int sending) {
    const topology_slots *slots = facts_neighbours(f, sending);
    int64_t neighbours = 0;
    for (int64_t i = 0; i < slots->number; i++) neighbours += slots->ranks[i] != MPIXLA_PROC_NULL;
    return text_add(text, bytes, used, " %s %lld neighbours with %lld items", sending ? "->" : "<-",
                    (long long)neighbours, (long long)(sending ? f->sent : f->received));
}

static size_t add_site(char *text, size_t bytes, size_t used, const char *what, int64_t site) {
    const char *line = site_text(site);
    return *line ? text_add(text, bytes, used, ", %s %s", what, line) : used;
}

/* A call that is not one that waits. `waits` is the line of that one, where it stands for what it waits for. */
static size_t add_call(const call_facts *f, const call_facts *waits, int details, char *text, size_t bytes,
                       size_t used) {
    const dtype_entry *type = facts_type(f);
    used = text_add(text, bytes, used, "%s", f->row->mpi_name);
    if (facts_have(f, ATTRIBUTE_WIDTH)) used = text_add(text, bytes, used, " of the halos of blocks");
    if (facts_have(f, ATTRIBUTE_LEAVES)) used = text_add(text, bytes, used, " that compares arrays");
    if (facts_have(f, ATTRIBUTE_DEST)) used = add_message(text, bytes, used, "->", f->dest, f->sendtag, f->sent);
    if (facts_have(f, ATTRIBUTE_SOURCE)) {
        used = add_message(text, bytes, used, "<-", f->source, f->recvtag, f->received);
    } else if (facts_have(f, ATTRIBUTE_BACK)) {
        used = add_neighbours(text, bytes, used, f, 1);
        used = add_neighbours(text, bytes, used, f, 0);
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
    if (waits) used = add_site(text, bytes, used, "at", waits->site);
    return add_site(text, bytes, used, waits ? "started at" : "at", f->site);
}

static size_t add_any_call(const call_facts *f, const call_facts *started, int details, char *text, size_t bytes) {
    if (f->row->request != FRAME_WAITS) return add_call(f, NULL, details, text, bytes, 0);
    size_t used = text_add(text, bytes, 0, "%s for %s", f->row->mpi_name, started ? "" : "no request");
    if (started) return add_call(started, f, details, text, bytes, used);
    return details ? add_site(text, bytes, used, "at", f->site) : used;
}

void call_describe(const call_facts *f, const call_facts *started, int details, char *text, size_t bytes) {
    (void)add_any_call(f, started, details, text, bytes);
}

/* What the thread that makes the call knows besides */

static size_t add_fault(const frame *f, char *text, size_t bytes, size_t used) {
    int sending = f->fault.sending;
    const topology_slots *slots = sending ? f->dests : f->sources;
    int64_t i = f->fault.slot;
    char number[24];
    return text_add(text, bytes, used, ", in %s slot %lld %s %s with tag %lld and %lld items",
                    sending ? "destination" : "source", (long long)i, sending ? "->" : "<-",
                    peer_name(slots->ranks[i], number), (long long)slots->tags[i],
                    (long long)f->arrays[sending ? ATTRIBUTE_SENDCOUNTS : ATTRIBUTE_RECVCOUNTS].items[i]);
}

static size_t add_rows(char *text, size_t bytes, size_t used, const char *what, const int64_t *rows, int n) {
    used = text_add(text, bytes, used, "%s %lld", what, (long long)rows[0]);
    for (int i = 1; i < n; i++) used = text_add(text, bytes, used, ", %lld", (long long)rows[i]);
    return text_add(text, bytes, used, " rows");
}

/* The rows of each rank, or of the first ones, and what all ranks must agree on: MPI itself only says that a message is
 * too long. */
static size_t add_parts(const frame *f, char *text, size_t bytes, size_t used) {
    enum { SHOWN = 8 };
    char ranks[64] = "rank 0", others[32] = "";
    int n = f->size < SHOWN ? f->size : SHOWN;
    if (f->size > n) snprintf(others, sizeof others, " (and %d more)", f->size - n);
    if (n > 1) snprintf(ranks, sizeof ranks, "ranks 0 to %d%s", n - 1, others);
    if (f->shape->counts != EXCHANGED_ROWS) {
        used = add_rows(text, bytes, used, ", with", frame_rows(f, PARTS_SENT), n);
        return text_add(text, bytes, used, " on %s; the counts must be the same on every rank", ranks);
    }
    used = add_rows(text, bytes, used, ", sending", frame_rows(f, PARTS_SENT), n);
    used = text_add(text, bytes, used, " to %s", ranks);
    used = add_rows(text, bytes, used, " and receiving", frame_rows(f, PARTS_RECEIVED), n);
    return text_add(text, bytes, used, " from there; rank i's sendcounts[j] must be rank j's recvcounts[i]");
}

void frame_describe(const frame *f, char *text, size_t bytes) {
    size_t used = add_any_call(&f->facts, f->started ? &f->started->facts : NULL, 1, text, bytes);
    if (f->fault.function && f->fault.slot >= 0) used = add_fault(f, text, bytes, used);
    if (frame_has_rows(f)) (void)add_parts(f, text, bytes, used);
}
