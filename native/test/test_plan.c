/* What the ranks of a communicator agree on before a GPU's memory comes; see gpu/ for the rest. */
#include <stdint.h>

#include "call.h"
#include "check.h"
#include "fixture.h"
#include "scarce.h"

static call c;
static int64_t crowd;

static void call_in_a_crowd(void) {
    call_make(&c, "barrier", crowd, 0);
    (void)call_run(&c);
}

/* The other ranks wait for what this one has to say. */
static void ends_the_job_without_memory(void) {
    crowd = mpixla_comm_register(fake->handle(fake->comm_new(0, INT32_MAX, 0)), "crowd");
    mpixla_gpus_expect(1, 0);
    scarce_end end = scarce_run(call_in_a_crowd);
    CHECK_IN(end.told, "mpixla: r0 | out of memory for what the ranks of a communicator agree on\n");
    CHECK_INT(end.status, 1);
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    ends_the_job_without_memory();
    return check_failures();
}
