#include <stdint.h>
#include <string.h>

#include "call.h"
#include "call/frame.h"
#include "check.h"
#include "fixture.h"

static call c;
static frame f;

/* A call with these attributes at run time, and the numbers behind its other operands. */
static void make(const char *op, const char *const *names, int n, int dtype, int64_t count, void *numbers) {
    call_make(&c, op, FIXTURE_RANK0, 0);
    for (int i = 0; i < n; i++) call_put_off(&c, names[i]);
    call_insert(&c, CALL_OPERANDS, (int)c.frame.args.size, dtype, count, numbers);
}

static const char *const message[] = {"dest", "recvtag", "sendtag", "source"};

/* They are in the order of the attributes, of either width, and this MPI's. */
static void reads_ranks_and_tags(void) {
    int32_t narrow[] = {3, FAKE_ANY_TAG, 9, FAKE_ANY_SOURCE};
    int64_t wide[] = {FAKE_PROC_NULL, 5, 0, FAKE_PROC_NULL}, source = 3;
    char text[128];
    make("sendrecv", message, 4, FFI_S32, 4, narrow);
    CHECK_STR(call_read(&c, "sendrecv", &f), "");
    CHECK_INT(f.dest, 3);
    CHECK_INT(f.source, FAKE_ANY_SOURCE);
    CHECK_INT(f.sendtag, 9);
    CHECK_INT(f.recvtag, FAKE_ANY_TAG);
    CHECK_INT(f.attributes[ATTRIBUTE_SOURCE], MPIXLA_ANY_SOURCE);
    CHECK_INT(f.send.count, CALL_COUNT);
    CHECK(f.template_.data == c.template_);
    facts_describe(&f.facts, NULL, 0, text, sizeof text);
    CHECK_STR(text, "MPI_Sendrecv -> 3 with tag 9 and 3 items <- any with tag any and 3 items");
    make("sendrecv", message, 4, FFI_S64, 4, wide);
    CHECK_STR(call_read(&c, "sendrecv", &f), "");
    CHECK_INT(f.dest, FAKE_PROC_NULL);
    CHECK_INT(f.attributes[ATTRIBUTE_DEST], MPIXLA_PROC_NULL);
    CHECK_INT(f.source, FAKE_PROC_NULL);
    make("recv", &message[3], 1, FFI_S64, 1, &source); /* the others are as they were */
    CHECK_STR(call_read(&c, "recv", &f), "");
    CHECK_INT(f.source, 3);
    CHECK_INT(f.recvtag, 8);
}

/* Messages have the number that was given, also where programs have another meaning for it. */
static void refuses_what_is_no_rank_or_tag(void) {
    static const struct {
        const char *name;
        int64_t value;
        const char *part;
    } rows[] = {
        {"dest", 4, "MPI_Sendrecv got dest = 4, but the ranks of communicator"},
        {"dest", MPIXLA_PROC_NULL, "MPI_Sendrecv got dest = -2, but"},
        {"dest", FAKE_ANY_SOURCE, "MPI_Sendrecv got dest = -11, but"},
        {"source", MPIXLA_ANY_SOURCE, "MPI_Sendrecv got source = -1, but"},
        {"source", INT64_MAX, "MPI_Sendrecv got source = 9223372036854775807, but"},
        {"sendtag", FAKE_ANY_TAG, "MPI_Sendrecv got sendtag = -12, but tags are 0 to"},
        {"recvtag", MPIXLA_ANY_TAG, "MPI_Sendrecv got recvtag = -1, but"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t value = rows[i].value;
        make("sendrecv", &rows[i].name, 1, FFI_S64, 1, &value);
        CHECK_IN(call_read(&c, "sendrecv", &f), rows[i].part);
    }
}

static void refuses_other_operands(void) {
    int64_t numbers[] = {1, 2, 3, 0, 0};
    make("sendrecv", message, 4, FFI_S64, 5, numbers);
    CHECK_STR(call_read(&c, "sendrecv", &f),
              "MPI_Sendrecv was given 5 numbers at run time, but its attributes need another number of them");
    make("sendrecv", message, 4, FFI_S64, 3, numbers);
    CHECK_IN(call_read(&c, "sendrecv", &f), "MPI_Sendrecv was given 3 numbers at run time");
    make("sendrecv", message, 4, FFI_F32, 4, numbers);
    CHECK_IN(call_read(&c, "sendrecv", &f),
             "MPI_Sendrecv was called without the operand that its numbers at run time are in");
    make("sendrecv", message, 4, FFI_S64, 4, NULL);
    CHECK_IN(call_read(&c, "sendrecv", &f), "MPI_Sendrecv was called without the operand");
    make("sendrecv", message, 4, FFI_S64, 4, numbers);
    call_remove(&c, CALL_OPERANDS, 1);
    CHECK_IN(call_read(&c, "sendrecv", &f), "MPI_Sendrecv was called with 1 operands on this rank, but takes 2");
    make("sendrecv", message, 4, FFI_S64, 4, numbers);
    c.attributes.operand.len = 3;
    CHECK_IN(call_read(&c, "sendrecv", &f), "attribute 'dest' of MPI_Sendrecv must be a 64-bit integer");
    call_make(&c, "bcast", FIXTURE_RANK0, 0); /* a root never is */
    call_put_off(&c, "root");
    CHECK_IN(call_read(&c, "bcast", &f), "attribute 'root' of MPI_Bcast must be a 64-bit integer");
}

/* Buffers may have more rows than count. Only those that do are sent; those of the result behind them become zeros. */
static void reads_rows(void) {
    static const char *const both[] = {"recvcounts", "sendcounts"}, *const counts[] = {"counts"};
    int32_t exchanged[] = {1, 0, 2, 1, 1, 3, 0, 0}, gathered[] = {2, 1, 0, 3};
    char text[256];
    make("alltoallv", both, 2, FFI_S32, 8, exchanged);
    memset(c.recv, 0x11, sizeof c.recv);
    CHECK_STR(call_read(&c, "alltoallv", &f), "");
    CHECK_INT(f.send.count, 4);
    CHECK_INT(f.recv.count, 4);
    CHECK(f.rest == c.recv + 4 * sizeof(float));
    CHECK_INT(f.rest_bytes, 8 * sizeof(float));
    CHECK_INT(frame_rows(&f, PARTS_SENT)[1], 3);
    frame_describe(&f, text, sizeof text);
    CHECK_IN(text, "sending 1, 3, 0, 0 rows to ranks 0 to 3 and receiving 1, 0, 2, 1 rows from there");
    CHECK_STR(call_run(&c), "");
    for (size_t i = 4 * sizeof(float); i < sizeof c.recv; i++) CHECK_INT(c.recv[i], i < 12 * sizeof(float) ? 0 : 0x11);
    exchanged[2] = 12;
    CHECK_STR(call_read(&c, "alltoallv", &f),
              "the receive buffer of MPI_Alltoallv has 12 rows, but its counts say 14: a larger capacity takes "
              "them");
    make("allgatherv", counts, 1, FFI_S32, 4, gathered);
    CHECK_STR(call_read(&c, "allgatherv", &f), "");
    CHECK_INT(f.send.count, 2);
    CHECK_INT(f.recv.count, 6);
    make("scatterv", counts, 1, FFI_S32, 4, gathered);
    CHECK_STR(call_read(&c, "scatterv", &f), "");
    CHECK_INT(f.send.count, 6);
    CHECK_INT(f.recv.count, 2);
}

/* One row has one item here. */
static void reads_slots(void) {
    static const char *const all[] = {"recvcounts", "sendcounts", "sendoffsets"};
    int64_t numbers[] = {1, 0, 1, 2, 0, 1};
    make("exchange", all, 3, FFI_S64, 6, numbers);
    CHECK_STR(call_read(&c, "exchange", &f), "");
    CHECK_INT(f.recv.count, 1);
    CHECK_INT(f.rest_bytes, 2 * sizeof(float));
    make("exchange", all, 2, FFI_S64, 4, numbers);
    CHECK_IN(call_read(&c, "exchange", &f), "only some of its counts at run time");
    numbers[0] = INT64_MAX;
    make("exchange", all, 3, FFI_S64, 6, numbers);
    CHECK_IN(call_read(&c, "exchange", &f), "the receive buffer of an exchange with neighbours has 3 rows");
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    reads_ranks_and_tags();
    refuses_what_is_no_rank_or_tag();
    refuses_other_operands();
    reads_rows();
    reads_slots();
    return check_failures();
}
