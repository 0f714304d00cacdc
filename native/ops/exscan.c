#include "ops/exscan.h"

#include <string.h>

void exscan_fill(const frame *f) {
    const frame_array *fill = &f->arrays[ATTRIBUTE_FILL];
    int64_t item = f->recv.dtype->row->itemsize, items = f->n;
    if (f->facts.communicator->rank != (f->facts.reverse ? f->size - 1 : 0)) return;
    if (frame_pair_bytes(f) > 0) items *= frame_pair_bytes(f);
    char *to = f->recv.data;
    for (int64_t i = 0; i < items; i++, to += item) memcpy(to, fill->items, (size_t)item);
}

int exscan(const frame *f) {
    int code = f->mpi->exscan(f->from, f->recv.data, f->n, f->type, f->op, f->comm);
    if (code == 0) exscan_fill(f);
    return code;
}
