/* Messages that are there when MPI_Finalize begins. */
#include <stdlib.h>

#include "check.h"
#include "fixture.h"

enum { WORLD = FAKE_WORLD, RANK0 = FIXTURE_RANK0 + 1, RANK2 = FIXTURE_RANK2 + 1, COMMS };

/* Who sends the messages that are there, one after the other. */
static const int senders[COMMS][12] = {
    [WORLD] = {1, 3, 1}, [RANK0] = {0, 2}, [RANK2] = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21}};
static int there[COMMS] = {[WORLD] = 3, [RANK0] = 2, [RANK2] = 12}, taken[COMMS];
static int unnoticed = 5; /* so often MPI is called before it sees them */

static int is_there(int source, int tag, int comm) {
    if (unnoticed > 0) return unnoticed--, 0;
    if (comm < 0 || comm >= COMMS || taken[comm] == there[comm]) return 0;
    fake->sender = senders[comm][taken[comm]];
    return source == FAKE_ANY_SOURCE && tag == FAKE_ANY_TAG;
}

static void receive(void) {
    if (strncmp(fake->call, "MPI_Recv ", 9) == 0) taken[strtol(strrchr(fake->call, 'c') + 1, NULL, 10)]++;
}

static void finalize(void) {
    fake->finalize();
}

#define LINE(source)                                                                   \
    "mpixla: rank 2 ends and has not received 1 message of 24 bytes that rank " source \
    " sent with tag -12 on "                                                           \
    "communicator 'rank2': each send needs a recv.\n"

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    fake->is_there = is_there;
    fake->during = receive;
    fake->arrived = 24;
    fixture_fail("MPI_Recv", 17);
    fake->spared = 3 + 2 + 10; /* a message that cannot be received is not tried again and again */
    CHECK_STR(fixture_stderr_of(finalize),
              "mpixla: rank 0 ends and has not received 2 messages of 24 bytes that rank 1 sent with tag -12 on "
              "communicator 'MPI_COMM_WORLD': each send needs a recv.\n"
              "mpixla: rank 0 ends and has not received 1 message of 24 bytes that rank 3 sent with tag -12 on "
              "communicator 'MPI_COMM_WORLD': each send needs a recv.\n"
              "mpixla: rank 0 ends and has not received 1 message of 24 bytes that rank 2 sent with tag -12 on "
              "communicator 'rank0': each send needs a recv.\n" LINE("10") LINE("11") LINE("12") LINE("13") LINE("14")
                  LINE("15") LINE("16") LINE("17") "mpixla: and 2 more like these.\n");
    CHECK_INT(taken[RANK2], 11);
    return check_failures();
}
