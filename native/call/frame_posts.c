/* A collective call as bytes that ranks post: all of it follows from the columns of the row. */
#include "call/frame.h"

/* Returns a number that identifies the call: its row, type, reduction, root or direction, and items. */
static uint64_t frame_posts_call_number(const call_facts *c, int64_t pair_bytes) {
    const dtype_entry *type = facts_type(c);
    const int64_t reduction = facts_have(c, ATTRIBUTE_OP) ? c->reduction + 1 : 0;
    const int64_t root = facts_have(c, ATTRIBUTE_ROOT) ? c->root + 1 : c->reverse;
    return (uint64_t)c->row->number | (uint64_t)(type ? type->number + pair_bytes : 0) << 8 |
           (uint64_t)reduction << 16 | (uint64_t)root << 24 | (uint64_t)(c->items + 1) << 32;
}

void frame_posts_fill(frame *f) {
    const frame_counts counts = f->facts.row->counts;
    const frame_pattern pattern = f->facts.row->pattern;
    const int is_barrier = !f->send.dtype && !f->recv.dtype, is_split = counts == DIVIDED || counts == SCATTERED;
    const int me = f->facts.communicator->rank, reverse = f->facts.reverse;
    const frame_buffer *part = counts == SCATTERED || !f->send.dtype ? &f->recv : &f->send;
    frame_posts *p = &f->posts;
    *p = (frame_posts){.send = f->send.data,
                       .recv = f->recv.data,
                       .is_posted = is_barrier || (f->send.dtype && (pattern != TO_ROOT || !f->on_root)),
                       .part_count = is_split ? f->size : 1,
                       .own_part = is_split ? me : 0,
                       .part_bytes = frame_buffer_bytes(part),
                       .rank_count = is_barrier || f->recv.dtype ? f->size : 0,
                       .rank_step = 1,
                       .combines = frame_has(f, ATTRIBUTE_OP),
                       .call_hash = frame_posts_call_number(&f->facts, frame_pair_bytes(f))};
    if (counts == DIVIDED) p->part_bytes /= f->size;
    if (counts == DIVIDED || counts == GATHERED) p->stride_bytes = p->part_bytes;
    if (pattern == FROM_ROOT && p->rank_count > 0) {
        p->first_rank = f->root;
        p->rank_count = 1;
    } else if (pattern == PREFIX) { /* the ranks before this one, and the rank itself if nothing fills in */
        p->rank_count = (reverse ? f->size - 1 - me : me) + !frame_has(f, ATTRIBUTE_FILL);
        p->first_rank = reverse ? f->size - 1 : 0;
        p->rank_step = reverse ? -1 : 1;
    }
}
