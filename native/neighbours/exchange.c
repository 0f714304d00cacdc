#include "neighbours/exchange.h"

#include "device/device.h"
#include "neighbours/messages.h"

/* Fills the received rows of a neighbour MPIXLA_PROC_NULL with zeros. Call it after the messages: on a GPU the stream
 * does it later, and during the messages MPI uses the GPU's memory. Returns 0 or REFUSED. */
static int exchange_zeros_fill(const frame *f, int64_t at, int64_t items) {
    return device_clear(frame_array_device(f), frame_item_address(&f->recv, at), items * f->recv.dtype->row->itemsize);
}

int exchange(frame *f) {
    const topology_slots *sources = facts_neighbours(&f->facts, 0), *dests = facts_neighbours(&f->facts, 1);
    const int64_t *sent = f->arrays[ATTRIBUTE_SENDCOUNTS].items, *offsets = f->arrays[ATTRIBUTE_SENDOFFSETS].items,
                  *received = f->arrays[ATTRIBUTE_RECVCOUNTS].items, row = f->row_items;
    messages m;
    if (messages_begin(&m, f, sources->number + dests->number)) return REFUSED;
    m.rule = "the two ranks disagree on the messages between them";
    for (int64_t i = 0, at = 0; i < sources->number; at += received[i++])
        messages_add(&m, (message){.peer = sources->ranks[i],
                                   .tag = sources->tags[i],
                                   .slot = i,
                                   .data = frame_item_address(&f->recv, at * row),
                                   .items = received[i] * row,
                                   .dtype = f->recv.dtype});
    for (int64_t i = 0; i < dests->number; i++)
        messages_add(&m, (message){.is_sent = 1,
                                   .peer = dests->ranks[i],
                                   .tag = dests->tags[i],
                                   .slot = i,
                                   .data = frame_item_address(&f->send, offsets[i] * row),
                                   .items = sent[i] * row,
                                   .dtype = f->send.dtype});
    int code = messages_run(&m, f);
    for (int64_t i = 0, at = 0; i < sources->number && code == 0; at += received[i++])
        if (sources->ranks[i] == MPIXLA_PROC_NULL) code = exchange_zeros_fill(f, at * row, received[i] * row);
    return code;
}
