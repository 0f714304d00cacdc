/* Fills the facts of a frame, and describes it with details that only the thread that makes the call has. */
#include <stdio.h>

#include "base/text.h"
#include "call/frame.h"

/* Returns the bytes that a halo exchange sends in all: the border lines of its arrays, to the neighbours in each
 * dimension. */
static int64_t frame_borders_bytes(const frame *f) {
    const topology_slots *dests = facts_neighbours(&f->facts, 1);
    int64_t bytes = 0;
    for (int64_t i = 0; i < dests->number; i++)
        if (dests->ranks[i] != MPIXLA_PROC_NULL) bytes += frame_border_bytes(f, i / 2);
    return bytes;
}

/* Returns the items that this rank sends to all its neighbours, or receives from them. */
static int64_t frame_neighbours_items(const frame *f, int sending) {
    const topology_slots *slots = facts_neighbours(&f->facts, sending);
    const int attribute = sending ? ATTRIBUTE_SENDCOUNTS : ATTRIBUTE_RECVCOUNTS;
    int64_t items = 0;
    for (int64_t i = 0; i < slots->number; i++)
        if (slots->ranks[i] != MPIXLA_PROC_NULL) items += f->arrays[attribute].items[i] * f->row_items;
    return items;
}

/* Returns the count of items that must be equal on all ranks; -1 if there is none. The counts of EXCHANGED_ROWS and of
 * neighbours are compared in pairs (check/tally.h), and the sizes of blocks may differ. */
static int64_t frame_items_common(const frame *f) {
    if (frame_has_rows(f)) return f->row_items;
    if (f->facts.row->counts == MANY || frame_has(f, ATTRIBUTE_BACK)) return -1;
    return f->send.dtype || f->recv.dtype ? f->n : -1;
}

void facts_fill(frame *f) {
    const int64_t *a = f->attributes;
    call_facts *facts = &f->facts;
    const int is_message = facts_are_message(facts);
    facts->sent_type = f->send.dtype;
    facts->received_type = f->recv.dtype;
    facts->sent = f->send.count;
    facts->received = f->recv.count;
    facts->windows = (uint8_t)((f->sent_window.dims ? FACTS_SENDS_WINDOW : 0) |
                               (f->received_window.dims ? FACTS_RECEIVES_WINDOW : 0));
    facts->items = is_message ? -1 : frame_items_common(f);
    if (is_message) {
        if (frame_has(f, ATTRIBUTE_DEST)) {
            facts->dest = (int32_t)a[ATTRIBUTE_DEST];
            facts->sendtag = (int32_t)a[ATTRIBUTE_SENDTAG];
        }
        if (frame_has(f, ATTRIBUTE_SOURCE)) {
            facts->source = (int32_t)a[ATTRIBUTE_SOURCE];
            facts->recvtag = (int32_t)a[ATTRIBUTE_RECVTAG];
        }
        return;
    }
    if (frame_has(f, ATTRIBUTE_ROOT)) facts->root = f->root;
    facts->border_bytes = frame_has(f, ATTRIBUTE_WIDTH) ? frame_borders_bytes(f) : 0;
    if (frame_has(f, ATTRIBUTE_OP)) facts->reduction = a[ATTRIBUTE_OP];
    if (!frame_has(f, ATTRIBUTE_BACK)) return;
    facts->sent = frame_neighbours_items(f, 1);
    facts->received = frame_neighbours_items(f, 0);
}

/* Text: each function appends to it, and returns the bytes that are used */

/* Appends the message that failed: its slot, peer, tag and length. Returns the new length. */
static size_t frame_text_add_fault(const frame_fault *fault, char *text, size_t bytes, size_t used) {
    return text_add(text, bytes, used, ", in %s slot %lld %s %lld with tag %lld and %lld items",
                    fault->is_sent ? "destination" : "source", (long long)fault->slot, fault->is_sent ? "->" : "<-",
                    (long long)fault->peer, (long long)fault->tag, (long long)fault->items);
}

/* Appends the numbers of rows of the first `n` ranks, behind the words `label`. Returns the new length. */
static size_t frame_text_add_rows(char *text, size_t bytes, size_t used, const char *label, const int64_t *rows,
                                  int n) {
    used = text_add(text, bytes, used, "%s %lld", label, (long long)rows[0]);
    for (int i = 1; i < n; i++) used = text_add(text, bytes, used, ", %lld", (long long)rows[i]);
    return text_add(text, bytes, used, " rows");
}

/* Appends the rows of the first ranks, eight at most, and the rule that they must keep, since MPI itself only says that
 * a message is too long. Returns the new length. */
static size_t frame_text_add_parts(const frame *f, char *text, size_t bytes, size_t used) {
    enum { SHOWN = 8 };
    char ranks[64] = "rank 0", others[32] = "";
    int n = f->size < SHOWN ? f->size : SHOWN;
    if (f->size > n) snprintf(others, sizeof others, " (and %d more)", f->size - n);
    if (n > 1) snprintf(ranks, sizeof ranks, "ranks 0 to %d%s", n - 1, others);
    if (f->facts.row->counts != EXCHANGED_ROWS) {
        used = frame_text_add_rows(text, bytes, used, ", with", frame_rows(f, PARTS_SENT), n);
        return text_add(text, bytes, used, " on %s; the counts must be the same on every rank", ranks);
    }
    used = frame_text_add_rows(text, bytes, used, ", sending", frame_rows(f, PARTS_SENT), n);
    used = text_add(text, bytes, used, " to %s", ranks);
    used = frame_text_add_rows(text, bytes, used, " and receiving", frame_rows(f, PARTS_RECEIVED), n);
    return text_add(text, bytes, used, " from there; rank i's sendcounts[j] must be rank j's recvcounts[i]");
}

void frame_describe(const frame *f, char *text, size_t bytes) {
    size_t used = facts_describe(&f->facts, f->started, 1, text, bytes);
    if (f->fault.function && f->fault.slot >= 0) used = frame_text_add_fault(&f->fault, text, bytes, used);
    if (frame_has_rows(f)) (void)frame_text_add_parts(f, text, bytes, used);
}
