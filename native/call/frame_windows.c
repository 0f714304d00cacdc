/* Reads the windows of a frame: messages that are boxes of arrays. */
#include "base/error.h"
#include "call/frame.h"

/* Sets `*w` to the window of a buffer from two attributes, and makes the buffer that of the box; does nothing if both
 * are empty. `what` names the window in errors. Returns 0 or REFUSED. */
static int frame_window_read(const frame *f, frame_window *w, frame_buffer *b, int begin, int size, const char *what) {
    const frame_array *from = &f->arrays[begin], *of = &f->arrays[size];
    const char *op = f->facts.row->mpi_name;
    if (from->size == 0 && of->size == 0) return 0;
    if (f->gpu)
        return error_set("%s got a window of an array in a GPU's memory, but takes one in the host's memory only", op);
    if (from->size != of->size || of->size != b->axes)
        return error_set(
            "%s got a window %s with %lld beginnings and %lld sizes of an array of %lld axes, which do not "
            "go together",
            op, what, (long long)from->size, (long long)of->size, (long long)b->axes);
    const int is_at_run_time = (int)(f->at_run_time >> begin & 1U);
    int64_t count = 1;
    for (int64_t i = 0; i < b->axes; i++) {
        const int64_t items = of->items[i], all = b->dims[i], first = is_at_run_time ? 0 : from->items[i];
        if (items < 0 || items > all || first < 0 || first > all - items)
            return error_set("%s got a window %s of %lld items from item %lld on, in an axis of %lld items", op, what,
                             (long long)items, (long long)first, (long long)all);
        count *= items;
    }
    *w = (frame_window){.array = b->data, .dims = b->dims};
    b->count = count;
    b->dims = of->items;
    return 0;
}

int frame_windows_read(frame *f) {
    frame_buffer *kept = &f->template_;
    if (frame_has(f, ATTRIBUTE_SENDSIZE) &&
        frame_window_read(f, &f->sent_window, &f->send, ATTRIBUTE_SENDBEGIN, ATTRIBUTE_SENDSIZE, "to send"))
        return REFUSED;
    if (!frame_has(f, ATTRIBUTE_RECVSIZE)) return 0;
    const int64_t whole = f->recv.count;
    if (frame_window_read(f, &f->received_window, &f->recv, ATTRIBUTE_RECVBEGIN, ATTRIBUTE_RECVSIZE, "to receive"))
        return REFUSED;
    if (!f->received_window.dims)
        return f->arrays[ATTRIBUTE_FILL].size == 0
                   ? 0
                   : error_set("%s got items to fill a window with, but no window to receive", f->facts.row->mpi_name);
    if (kept->dtype != f->recv.dtype || kept->count != whole)
        return error_set("the array of %s that a window is received in differs from its result in type or size",
                         f->facts.row->mpi_name);
    kept->count = f->recv.count;
    return 0;
}

void frame_windows_read_again(frame *f) {
    if (f->sent_window.dims) {
        f->sent_window = (frame_window){.array = f->send.data, .dims = f->send.dims};
        f->send.dims = f->arrays[ATTRIBUTE_SENDSIZE].items;
    }
    if (f->received_window.dims) {
        f->received_window = (frame_window){.array = f->recv.data, .dims = f->recv.dims};
        f->recv.dims = f->arrays[ATTRIBUTE_RECVSIZE].items;
    }
}
