/* Messages that are boxes of arrays: what MPI is given, what is left in the array, and what is refused. */
#include <string.h>

#include "base/error.h"
#include "call.h"
#include "call/frame.h"
#include "check.h"
#include "fixture.h"

enum { AXES_MOST = 4, ITEMS_MOST = CALL_BYTES / 4 };

typedef struct box {
    int64_t rank, dims[AXES_MOST], begin[AXES_MOST], size[AXES_MOST];
} box;

static call c;
static int64_t dims[2][2][AXES_MOST]; /* operands, results; by place */

static void shape_set(int side, int place, const box *b) {
    memcpy(dims[side][place], b->dims, sizeof b->dims);
    c.sides[side].buffers[place].rank = b->rank;
    c.sides[side].buffers[place].dims = dims[side][place];
}

static void send_box(const box *b) {
    call_list_insert(&c, ATTRIBUTE_SENDBEGIN, b->begin, (size_t)b->rank);
    call_list_insert(&c, ATTRIBUTE_SENDSIZE, b->size, (size_t)b->rank);
}

static void recv_box(const box *b) {
    call_list_insert(&c, ATTRIBUTE_RECVBEGIN, b->begin, (size_t)b->rank);
    call_list_insert(&c, ATTRIBUTE_RECVSIZE, b->size, (size_t)b->rank);
}

static int64_t product(const int64_t *factors, int64_t n) {
    int64_t all = 1;
    for (int64_t i = 0; i < n; i++) all *= factors[i];
    return all;
}

/* The place in the array of the box's item number `i`. */
static int64_t item_place(const box *b, int64_t i) {
    int64_t place = 0, step = 1;
    for (int64_t k = b->rank; k-- > 0;) {
        place += (b->begin[k] + i % b->size[k]) * step;
        i /= b->size[k];
        step *= b->dims[k];
    }
    return place;
}

/* An array of numbered items. */
static void fill(char *array, int64_t items, int32_t first) {
    for (int32_t i = 0; i < items; i++) {
        const int32_t number = first + i;
        memcpy(array + 4 * (size_t)i, &number, sizeof number);
    }
}

static int32_t item_of(const void *array, int64_t i) {
    int32_t number;
    memcpy(&number, (const char *)array + 4 * i, sizeof number);
    return number;
}

static const box boxes[] = {
    {1, {8}, {2}, {3}},
    {2, {4, 5}, {1, 0}, {1, 5}},
    {2, {4, 5}, {0, 3}, {4, 1}},
    {2, {4, 5}, {1, 1}, {2, 3}},
    {2, {4, 5}, {0, 0}, {4, 5}},
    {2, {4, 5}, {2, 3}, {1, 1}},
    {2, {4, 5}, {4, 0}, {0, 5}},
    {3, {3, 4, 5}, {0, 2, 0}, {3, 1, 5}},
    {3, {3, 4, 5}, {0, 0, 4}, {3, 4, 1}},
    {3, {3, 4, 5}, {1, 1, 1}, {2, 2, 3}},
    {3, {3, 4, 5}, {1, 0, 0}, {1, 4, 5}},
    {4, {2, 3, 2, 4}, {0, 1, 0, 1}, {2, 1, 2, 2}},
    {4, {2, 3, 2, 4}, {1, 0, 1, 0}, {1, 3, 1, 4}},
};
enum { BOXES = sizeof boxes / sizeof *boxes };

static int32_t sent[ITEMS_MOST];
static int64_t sent_bytes;
static const box *arriving; /* a message for this box; NULL: the call receives nothing */

/* While MPI has the call: takes what is sent, and lets 100, 101, ... arrive. */
static void message_pass(void) {
    if (fake->send && sent_bytes > 0) memcpy(sent, fake->send, (size_t)sent_bytes);
    if (arriving) fill(fake->recv, fake->arrived / 4, 100);
}

static void sends_a_box(void) {
    for (int i = 0; i < BOXES; i++) {
        const box *b = &boxes[i];
        const int64_t items = product(b->size, b->rank);
        call_make(&c, "send", FIXTURE_RANK0, 0);
        shape_set(CALL_OPERANDS, 0, b);
        send_box(b);
        fill(c.send, product(b->dims, b->rank), 1);
        sent_bytes = 4 * items;
        CHECK_STR(call_run(&c), "");
        char text[64];
        snprintf(text, sizeof text, "MPI_Send %lld t%d -> 1 tag 7 c2", (long long)items, FFI_F32);
        CHECK_STR(fake->call, text);
        for (int64_t k = 0; k < items; k++) CHECK_INT(sent[k], 1 + item_place(b, k));
    }
}

/* A send whose result is the array, in its memory or elsewhere. */
static void send_gives_its_array(void) {
    frame f;
    for (int is_elsewhere = 0; is_elsewhere < 2; is_elsewhere++) {
        const box *b = &boxes[3];
        call_make(&c, "send", FIXTURE_RANK0, 0);
        shape_set(CALL_OPERANDS, 0, b);
        call_insert(&c, CALL_RESULTS, 0, FFI_F32, 20, is_elsewhere ? c.recv : c.send);
        shape_set(CALL_RESULTS, 0, b);
        send_box(b);
        fill(c.send, 20, 1);
        sent_bytes = 4 * 6;
        CHECK_STR(call_run(&c), "");
        for (int64_t k = 0; k < 6; k++) CHECK_INT(sent[k], 1 + item_place(b, k));
        const char *array = is_elsewhere ? c.recv : c.send;
        for (int64_t k = 0; k < 20; k++) CHECK_INT(item_of(array, k), 1 + k);
    }
    shape_set(CALL_RESULTS, 0, &boxes[0]);
    CHECK_IN(call_read(&c, "send", &f), "the result of MPI_Send differs in type or shape from the array");
    call_make(&c, "send", FIXTURE_RANK0, 0);
    call_insert(&c, CALL_RESULTS, 0, FFI_F32, 4, c.send);
    CHECK_IN(call_read(&c, "send", &f), "MPI_Send was called with 1 results on this rank, but takes 0");
}

/* Items of the message that come: all, some, none. Returns the number. */
static int64_t arrivals(const box *b, int which) {
    const int64_t items = product(b->size, b->rank);
    return which == 0 ? items : which == 1 ? items / 2 : 0;
}

static void receives_in_place(void) {
    static const int64_t filling[] = {-5, 0};
    for (int i = 0; i < BOXES; i++)
        for (int which = 0; which < 3; which++)
            for (int has_fill = 0; has_fill < 2; has_fill++)
                for (int is_elsewhere = 0; is_elsewhere < 2; is_elsewhere++) {
                    const box *b = &boxes[i];
                    const int64_t all = product(b->dims, b->rank), items = product(b->size, b->rank);
                    call_make(&c, "recv", FIXTURE_RANK0, 0);
                    shape_set(CALL_OPERANDS, 0, b);
                    shape_set(CALL_RESULTS, 0, b);
                    if (!is_elsewhere) c.sides[CALL_RESULTS].buffers[0].data = c.template_;
                    recv_box(b);
                    if (has_fill) call_list_insert(&c, ATTRIBUTE_FILL, filling, 2);
                    fill(c.template_, all, 1);
                    arriving = b;
                    const int64_t come = arrivals(b, which);
                    fake->arrived = 4 * come; /* MPI is told bytes */
                    CHECK_STR(call_run(&c), "");
                    char text[64];
                    snprintf(text, sizeof text, "MPI_Recv %lld t%d", (long long)(4 * items), FFI_U8);
                    CHECK_IN(fake->call, text);
                    int32_t want[ITEMS_MOST];
                    for (int32_t k = 0; k < all; k++) want[k] = 1 + k;
                    for (int32_t k = 0; k < items; k++)
                        if (k < come)
                            want[item_place(b, k)] = 100 + k;
                        else if (has_fill)
                            want[item_place(b, k)] = -5;
                    const char *array = is_elsewhere ? c.recv : c.template_;
                    for (int64_t k = 0; k < all; k++) CHECK_INT(item_of(array, k), want[k]);
                }
    arriving = NULL;
}

/* Both boxes in one array, which may overlap: what is sent is what was there before. */
static void sends_and_receives_in_one_array(void) {
    const int64_t whole[] = {4, 5};
    for (int i = 1; i < 7; i++)
        for (int j = 1; j < 7; j++)
            for (int has_two = 0; has_two < 2; has_two++) {
                const box *from = &boxes[i], *to = &boxes[j];
                const int64_t items = product(from->size, 2), room = product(to->size, 2);
                call_make(&c, "sendrecv", FIXTURE_RANK0, 0);
                if (!has_two) call_remove(&c, CALL_OPERANDS, 0);
                for (int place = 0; place <= has_two; place++) shape_set(CALL_OPERANDS, place, from);
                shape_set(CALL_RESULTS, 0, from);
                c.sides[CALL_RESULTS].buffers[0].data = c.template_;
                send_box(from);
                recv_box(to);
                fill(c.template_, product(whole, 2), 1);
                fill(c.send, product(whole, 2), 1);
                sent_bytes = 4 * items;
                arriving = to;
                fake->arrived = 4 * room;
                CHECK_STR(call_run(&c), "");
                for (int64_t k = 0; k < items; k++) CHECK_INT(sent[k], 1 + item_place(from, k));
                for (int64_t k = 0; k < room; k++) CHECK_INT(item_of(c.template_, item_place(to, k)), 100 + (int32_t)k);
            }
    arriving = NULL;
}

/* Indices at run time are moved into the array, as XLA does. */
static void clamps_indices_at_run_time(void) {
    static const box b = {2, {4, 5}, {0, 0}, {2, 3}}, want = {2, {4, 5}, {2, 0}, {2, 3}};
    int64_t numbers[] = {7, -3};
    for (int run = 0; run < 2; run++) {
        call_make(&c, "send", FIXTURE_RANK0, 0);
        shape_set(CALL_OPERANDS, 0, &b);
        send_box(&b);
        call_put_off(&c, "sendbegin");
        call_insert(&c, CALL_OPERANDS, 1, FFI_S64, 2, numbers);
        fill(c.send, 20, 1);
        sent_bytes = 4 * 6;
        CHECK_STR(call_run(&c), "");
        for (int64_t k = 0; k < 6; k++) CHECK_INT(sent[k], 1 + item_place(&want, k));
    }
}

/* The facts are those of the message. */
static void describes_the_message(void) {
    frame f;
    call_make(&c, "sendrecv", FIXTURE_RANK0, 0);
    call_remove(&c, CALL_OPERANDS, 0);
    shape_set(CALL_OPERANDS, 0, &boxes[2]);
    shape_set(CALL_RESULTS, 0, &boxes[2]);
    send_box(&boxes[2]);
    recv_box(&boxes[3]);
    CHECK_STR(call_read(&c, "sendrecv", &f), "");
    CHECK_INT(f.facts.sent, 4);
    CHECK_INT(f.facts.received, 6);
    CHECK_INT(f.facts.windows, FACTS_SENDS_WINDOW | FACTS_RECEIVES_WINDOW);
    CHECK_INT(f.send.axes, 2);
    CHECK_INT(f.send.dims[0], 4);
    CHECK_INT(f.send.dims[1], 1);
    call_make(&c, "sendrecv", FIXTURE_RANK0, 0);
    CHECK_STR(call_read(&c, "sendrecv", &f), "");
    CHECK_INT(f.facts.windows, 0);
}

static void refuses(void) {
    static const box outside = {2, {4, 5}, {3, 0}, {2, 5}}, negative = {2, {4, 5}, {0, 0}, {-1, 5}},
                     before = {2, {4, 5}, {-1, 0}, {1, 5}}, less = {1, {4, 5}, {1}, {1}};
    static const int64_t filling[] = {1, 0};
    frame f, *g = &f;
    const struct {
        const char *op;
        const box *b;
        const char *sentence;
    } rows[] = {
        {"send", &outside, "MPI_Send got a window to send of 2 items from item 3 on, in an axis of 4 items"},
        {"send", &negative, "MPI_Send got a window to send of -1 items from item 0 on, in an axis of 4 items"},
        {"send", &before, "MPI_Send got a window to send of 1 items from item -1 on, in an axis of 4 items"},
        {"send", &less, "MPI_Send got a window to send with 1 beginnings and 1 sizes of an array of 2 axes"},
        {"recv", &outside, "MPI_Recv got a window to receive of 2 items from item 3 on, in an axis of 4 items"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int sends = strcmp(rows[i].op, "send") == 0;
        call_make(&c, rows[i].op, FIXTURE_RANK0, 0);
        box array = *rows[i].b;
        array.rank = 2;
        shape_set(CALL_OPERANDS, 0, &array);
        if (!sends) shape_set(CALL_RESULTS, 0, &array);
        (sends ? send_box : recv_box)(rows[i].b);
        CHECK_IN(call_read(&c, rows[i].op, g), rows[i].sentence);
    }
    call_make(&c, "recv", FIXTURE_RANK0, 0);
    call_list_insert(&c, ATTRIBUTE_FILL, filling, 2);
    CHECK_IN(call_read(&c, "recv", g), "MPI_Recv got items to fill a window with, but no window to receive");
    call_make(&c, "recv", FIXTURE_RANK0, 0);
    shape_set(CALL_OPERANDS, 0, &boxes[1]);
    shape_set(CALL_RESULTS, 0, &boxes[7]);
    recv_box(&boxes[7]);
    CHECK_IN(call_read(&c, "recv", g), "the array of MPI_Recv that a window is received in differs from its result");
    call_make(&c, "send", FIXTURE_RANK0, 0);
    shape_set(CALL_OPERANDS, 0, &boxes[1]);
    send_box(&boxes[1]);
    frame_gpu gpu = {.has_arrays = 1};
    CHECK_INT(frame_read(g, call_shape("send"), &c.frame, &gpu), REFUSED);
    CHECK_IN(mpixla_last_error(), "takes one in the host's memory only");
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    fake->during = message_pass;
    sends_a_box();
    send_gives_its_array();
    receives_in_place();
    sends_and_receives_in_one_array();
    clamps_indices_at_run_time();
    describes_the_message();
    refuses();
    return check_failures();
}
