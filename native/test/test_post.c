/* Letters between watchers: what this process sends comes back to it, since the fake MPI moves nothing. */
#include <stdlib.h>

#include "check.h"
#include "fixture.h"
#include "watch/post.h"

enum { RANKS = 4, HEAD_BYTES = 24, MOST = 256, ALONE = 3 };

static char sent[MOST];
static int64_t sent_bytes;
static int is_waiting; /* a letter has come that nobody has taken */

static void carry(void) {
    int64_t bytes = fixture_count();
    if (fixture_is("MPI_Isend")) {
        memcpy(sent, fake->send, (size_t)bytes);
        sent_bytes = bytes;
    } else if (fixture_is("MPI_Irecv")) {
        memcpy(fake->recv, sent, (size_t)bytes);
        is_waiting = 0;
    }
}

static int is_there(int source, int tag, int comm) {
    return is_waiting && tag == 1 && comm == FAKE_WORLD && source == FAKE_ANY_SOURCE;
}

/* As if somebody had sent it here: so many bytes of it. */
static void bring(int64_t bytes) {
    fake->arrived = bytes;
    is_waiting = 1;
}

static void carries_what_is_sent(void) {
    post_letter letter;
    fake->done = 0;
    post_send(2, POST_ANSWER, 77, "an answer", 10);
    CHECK_STR(fake->call, "MPI_Isend 34 t6 -> 2 tag 1 c0");
    CHECK_INT(post_is_sending(), 1);
    CHECK(!post_receive(&letter)); /* nothing is there */
    bring(sent_bytes);
    CHECK(!post_receive(&letter)); /* it is on its way */
    fake->done = 1;
    CHECK(post_receive(&letter));
    CHECK_INT(letter.kind, POST_ANSWER);
    CHECK_INT(letter.from, 0);
    CHECK_INT(letter.number, 77);
    CHECK_INT(letter.bytes, 10);
    CHECK_STR(letter.data, "an answer");
    CHECK_INT((uintptr_t)letter.data % 8, 0);
    free(letter.memory);
    CHECK(!post_receive(&letter));
    CHECK_INT(post_is_sending(), 0);
}

static void carries_letters_without_data(void) {
    post_letter letter;
    post_send(1, POST_ASK, -5, NULL, 0);
    CHECK_INT(sent_bytes, HEAD_BYTES);
    bring(HEAD_BYTES);
    CHECK(post_receive(&letter));
    CHECK(letter.kind == POST_ASK && letter.number == -5 && letter.bytes == 0);
    free(letter.memory);
}

/* What is no letter is dropped, and what cannot be sent is lost: nobody waits for either. */
static void goes_on_after_what_fails(void) {
    post_letter letter;
    bring(HEAD_BYTES - 1);
    CHECK(!post_receive(&letter));
    CHECK(!is_waiting);
    fixture_fail("MPI_Isend", 15);
    post_send(1, POST_ASK, 1, NULL, 0);
    CHECK_INT(post_is_sending(), 0);
    fixture_fail("MPI_Irecv", 15);
    bring(HEAD_BYTES);
    CHECK(!post_receive(&letter));
    fixture_fail("MPI_Test", 15); /* as good as done */
    fake->done = 0;
    post_send(1, POST_ASK, 1, NULL, 0);
    CHECK_INT(post_is_sending(), 0);
    fixture_fail(NULL, 0);
    fake->done = 1;
}

/* Once a rank has failed MPI may not say what has come from any, but from one. */
static int fails_for_any(int source, int tag, int comm) {
    (void)tag;
    (void)comm;
    fake->failing[0] = source == FAKE_ANY_SOURCE ? "MPI_Iprobe" : NULL;
    return is_waiting && source == ALONE;
}

static void asks_ranks_one_by_one(void) {
    post_letter letter;
    post_send(0, POST_LEFT, 9, NULL, 0);
    fake->is_there = fails_for_any;
    fake->code = 15;
    fake->spared = 0;
    bring(HEAD_BYTES);
    CHECK(post_receive(&letter));
    CHECK_INT(letter.number, 9);
    free(letter.memory);
    fake->is_there = is_there;
    fixture_fail(NULL, 0);
}

/* A message whose sender died in the middle of it never ends. Those of others do, and its own later ones wait for it.
 */
static void receives_from_others_meanwhile(void) {
    post_letter letter;
    const void *first = NULL;
    post_send(1, POST_ASK, 5, NULL, 0);
    fake->is_there = is_there;
    for (int i = 0; i < 3; i++) { /* from 2, from 2 again, from 3 */
        fake->sender = i < 2 ? 2 : 3;
        bring(HEAD_BYTES);
        fake->done = 0;
        CHECK(!post_receive(&letter));
        CHECK(!is_waiting);
        if (i == 0) first = fake->recv;
    }
    fake->never = first;
    fake->done = 1;
    CHECK(post_receive(&letter));
    free(letter.memory);
    CHECK(!post_receive(&letter));
    fake->never = NULL;
    CHECK(post_receive(&letter));
    free(letter.memory);
    CHECK(post_receive(&letter));
    free(letter.memory);
    fake->sender = 0;
}

static void joins(void) {
    CHECK(post_barrier_is_done()); /* where it has not begun there is nothing to wait for */
    fixture_fail("MPI_Ibarrier", 15);
    post_barrier_start();
    CHECK(post_barrier_is_done());
    fixture_fail(NULL, 0);
    fake->done = 0;
    post_barrier_start();
    CHECK(!post_barrier_is_done());
    fake->done = 1;
    CHECK(post_barrier_is_done());
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    fake->during = carry;
    fake->is_there = is_there;
    post_channel_set(fake->handle(FAKE_WORLD), RANKS);
    carries_what_is_sent();
    carries_letters_without_data();
    goes_on_after_what_fails();
    asks_ranks_one_by_one();
    receives_from_others_meanwhile();
    joins();
    return check_failures();
}
