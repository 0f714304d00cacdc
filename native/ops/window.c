#include "ops/window.h"

#include <string.h>

#include "base/copy.h"
#include "base/error.h"
#include "device/pool.h"
#include "ops/pieces.h"

enum { WINDOW_LOOPS = 32 }; /* at least the axes of an array that XLA makes */

/* A box as contiguous blocks of `size` bytes, which loops enumerate, the innermost first. */
typedef struct window {
    char *first;
    int64_t size;
    int loops;
    int64_t counts[WINDOW_LOOPS], steps[WINDOW_LOOPS]; /* steps in bytes */
} window;

/* Sets `*v` to the box in the array of a window; to the whole buffer if there is no window. Beginnings are clamped, as
 * XLA does for those known at run time only. Loops beyond those of the box stay unset, as clearing all would take
 * longer than a short message. */
static void window_set(window *v, const frame_window *w, const frame_buffer *box, const frame_array *begins) {
    int64_t step = box->dtype ? box->dtype->row->itemsize : 1;
    v->first = w->dims ? w->array : box->data;
    v->size = step;
    v->loops = 0;
    for (int64_t i = w->dims ? box->axes : 0; i-- > 0 && box->count > 0;) {
        const int64_t items = box->dims[i], last = w->dims[i] - items, begin = begins->items[i];
        v->first += (begin < 0 ? 0 : begin > last ? last : begin) * step;
        if (v->loops == 0 && v->size == step) {
            v->size *= items;
        } else if (v->loops > 0 && v->counts[v->loops - 1] * v->steps[v->loops - 1] == step) {
            v->counts[v->loops - 1] *= items;
        } else if (items > 1) {
            v->counts[v->loops] = items;
            v->steps[v->loops++] = step;
        }
        step *= w->dims[i];
    }
}

/* Sets `*v` to the box, or the buffer, that the call sends. */
static void window_sent_set(window *v, const frame *f) {
    window_set(v, &f->sent_window, &f->send, &f->arrays[ATTRIBUTE_SENDBEGIN]);
}

/* Sets `*v` to the box, or the buffer, that the call receives. */
static void window_received_set(window *v, const frame *f) {
    window_set(v, &f->received_window, &f->recv, &f->arrays[ATTRIBUTE_RECVBEGIN]);
}

static void window_places_clear(const window *w, int64_t places[WINDOW_LOOPS]) {
    for (int i = 1; i < w->loops; i++) places[i] = 0;
}

/* Moves `w` on to the next blocks of the innermost loop, whose indices in the outer loops are `places`. Returns 0 after
 * the last ones. */
static int window_next(window *w, int64_t places[WINDOW_LOOPS]) {
    for (int i = 1; i < w->loops; i++) {
        w->first += w->steps[i];
        if (++places[i] < w->counts[i]) return 1;
        w->first -= w->counts[i] * w->steps[i];
        places[i] = 0;
    }
    return 0;
}

/* Returns the blocks of the innermost loop, at most so many bytes; a last block that is cut is left out. */
static pieces window_pieces(const window *w, int64_t bytes) {
    const int64_t blocks = w->loops > 0 ? w->counts[0] : 1, whole = bytes / w->size;
    return (pieces){.first = w->first,
                    .number = blocks < whole ? blocks : whole,
                    .size = w->size,
                    .distance = w->loops > 0 ? w->steps[0] : w->size};
}

/* Packs or unpacks (`action`) the first so many bytes of the box, a piece of the message at a time. Uses `w` up. */
static void window_apply(window *w, pieces_action *action, char *message, int64_t bytes) {
    static const pieces_place host = {.device = NULL};
    int64_t places[WINDOW_LOOPS];
    window_places_clear(w, places);
    while (bytes > 0) {
        pieces p = window_pieces(w, bytes);
        (void)action(&host, p, message); /* cannot fail in the host's memory */
        message += p.number * p.size;
        bytes -= p.number * p.size;
        if (bytes > 0 && bytes < p.size && p.number < (w->loops > 0 ? w->counts[0] : 1)) { /* a block that is cut */
            p = (pieces){.first = p.first + p.number * p.distance, .number = 1, .size = bytes, .distance = bytes};
            (void)action(&host, p, message);
            return;
        }
        if (!window_next(w, places)) return;
    }
}

/* Returns whether two ranges of memory overlap. */
static int window_ranges_overlap(const char *a, int64_t a_bytes, const char *b, int64_t b_bytes) {
    return a < b + b_bytes && b < a + a_bytes;
}

/* Copies the whole array of a window to `to`, unless it is that. */
static void window_array_copy(const frame_window *w, const frame_buffer *box, void *to, const void *from) {
    int64_t bytes = box->dtype->row->itemsize;
    if (to == from) return;
    for (int64_t i = 0; i < box->axes; i++) bytes *= w->dims[i];
    copy_bytes(to, from, bytes);
}

int window_begin(frame *f) {
    const int sends = f->sent_window.dims != NULL, receives = f->received_window.dims != NULL;
    const int64_t bytes_sent = frame_buffer_bytes(&f->send), bytes_received = frame_buffer_bytes(&f->recv);
    if (receives && f->received_window.array)
        window_array_copy(&f->received_window, &f->recv, f->received_window.array, f->template_.data);
    if (sends && f->passed) window_array_copy(&f->sent_window, &f->send, f->passed, f->sent_window.array);
    window out, in;
    window_sent_set(&out, f);
    window_received_set(&in, f);
    /* MPI may not be given memory to read and to write at once. */
    const int is_packed = sends && bytes_sent > 0 &&
                          (out.loops > 0 || (receives && in.loops == 0 &&
                                             window_ranges_overlap(out.first, bytes_sent, in.first, bytes_received)));
    const int is_unpacked = receives && in.loops > 0;
    f->send.data = out.first;
    f->recv.data = in.first;
    if (!is_packed && !is_unpacked) return 0;
    const int64_t ahead = is_packed ? (bytes_sent + 15) / 16 * 16 : 0;
    f->packed = pool_get(NULL, POOL_HOST, ahead + (is_unpacked ? bytes_received : 0));
    if (!f->packed) return facts_fail(&f->facts);
    if (is_packed) {
        f->send.data = f->packed->data;
        window_apply(&out, pieces_pack, f->send.data, bytes_sent);
    }
    if (is_unpacked) f->recv.data = f->packed->data + ahead;
    return 0;
}

/* Fills the box, from this byte of the message on, with copies of an item. Uses `w` up. */
static void window_fill(const frame *f, window *w, int64_t from) {
    const int64_t itemsize = f->recv.dtype->row->itemsize;
    const char *item = (const char *)f->arrays[ATTRIBUTE_FILL].items;
    int64_t places[WINDOW_LOOPS], at = 0;
    window_places_clear(w, places);
    do {
        const pieces p = window_pieces(w, INT64_MAX);
        for (int64_t i = 0; i < p.number; i++)
            for (int64_t j = 0; j < p.size; j += itemsize, at += itemsize)
                if (at >= from) memcpy(p.first + i * p.distance + j, item, (size_t)itemsize);
    } while (window_next(w, places));
}

int window_received(frame *f) {
    const int code = frame_arrived_set(f, f->status);
    if (code != 0) return code;
    const int64_t bytes = frame_buffer_bytes(&f->recv), arrived = f->arrived < bytes ? f->arrived : bytes;
    const int is_filled = arrived < bytes && f->arrays[ATTRIBUTE_FILL].size > 0;
    if (!f->packed && !is_filled) return 0; /* received in place */
    window w;
    window_received_set(&w, f);
    if (w.loops > 0) window_apply(&w, pieces_unpack, f->recv.data, arrived);
    if (is_filled) {
        window_received_set(&w, f);
        window_fill(f, &w, arrived);
    }
    return 0;
}

void window_end(frame *f) {
    pool_give_back(NULL, f->packed);
    f->packed = NULL;
}
