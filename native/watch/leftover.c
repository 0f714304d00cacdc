#include "watch/leftover.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/output.h"
#include "mpi/comm.h"
#include "mpi/dtype.h"
#include "mpi/mpi.h"
#include "xla/xla_ffi.h"

/* MPI notices a message only while it is called, and not always in the first call: the number of calls, and the pause
 * between two of them. */
enum { PROGRESS_CALLS = 10, PROGRESS_PAUSE_MS = 1 };
enum { KINDS_SHOWN = 8 }; /* of each communicator */

/* Messages that are alike. */
typedef struct message_kind {
    int source, tag, count;
    int64_t bytes;
} message_kind;

/* Returns whether a message has arrived, and sets its status. */
static int leftover_probe(mpixla_handle comm, void *status) {
    const mpi_library *mpi = mpi_get();
    int there = 0;
    return mpi->iprobe((int)mpi->facts.any_source, (int)mpi->facts.any_tag, comm, &there, status) == 0 && there;
}

/* Receives the next message on a communicator, drops its data, and sets `*taken` to its source, tag and size. Returns 0
 * if there is none, or it cannot be received. */
static int leftover_receive(mpixla_handle comm, message_kind *taken) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    const mpi_library *mpi = mpi_get();
    const dtype_entry *byte = dtype_find(FFI_U8);
    if (!byte || !leftover_probe(comm, status)) return 0;
    *taken = (message_kind){.source = mpi_source_of(status), .tag = mpi_tag_of(status), .count = 1};
    if (mpi_bytes_of(status, &taken->bytes) != 0 || taken->bytes < 0) return 0;
    void *memory = malloc((size_t)taken->bytes + 1);
    const mpi_counted *calls = taken->bytes <= mpi->count_limit ? mpi->small : mpi->large;
    int received =
        memory && calls->recv(memory, taken->bytes, byte->handle, taken->source, taken->tag, comm, status) == 0;
    free(memory);
    return received;
}

/* Returns the element of `kinds` with the source, tag and size of `wanted`; NULL if there is none. */
static message_kind *leftover_kind_find(message_kind *kinds, int found, const message_kind *wanted) {
    for (int i = 0; i < found; i++)
        if (kinds[i].source == wanted->source && kinds[i].tag == wanted->tag && kinds[i].bytes == wanted->bytes)
            return &kinds[i];
    return NULL;
}

/* Receives and drops all messages that have arrived on a communicator, and prints a line for each kind, of KINDS_SHOWN
 * kinds at most. */
static void leftover_comm_drain(mpixla_handle comm, const char *name, int rank) {
    message_kind kinds[KINDS_SHOWN], taken;
    int found = 0, others = 0;
    while (leftover_receive(comm, &taken)) {
        if (taken.source == rank) continue; /* ops/request.c prints messages that a rank has sent to itself */
        message_kind *like = leftover_kind_find(kinds, found, &taken);
        if (like)
            like->count++;
        else if (found < KINDS_SHOWN)
            kinds[found++] = taken;
        else
            others++;
    }
    for (int i = 0; i < found; i++)
        output_print(
            "mpixla: rank %d ends and has not received %d message%s of %lld bytes that rank %d sent with tag %d on "
            "communicator '%s': each send needs a recv.\n",
            rank, kinds[i].count, kinds[i].count == 1 ? "" : "s", (long long)kinds[i].bytes, kinds[i].source,
            kinds[i].tag, name);
    if (others > 0) output_print("mpixla: and %d more like these.\n", others);
}

/* Receives and drops the messages that have arrived on all communicators, and prints them, when MPI_Finalize begins. */
static void leftover_drain(void *nothing) {
    const mpi_library *mpi = mpi_get();
    const mpixla_handle world = mpi->facts.comm_world;
    int size = 0;
    (void)nothing;
    if (mpi->comm_size(world, &size) != 0 || size == 1) return;
    for (int i = 0; i < PROGRESS_CALLS; i++) {
        (void)mpi_progress(world);
        clock_sleep(PROGRESS_PAUSE_MS);
    }
    leftover_comm_drain(world, "MPI_COMM_WORLD", mpi->world_rank);
    for (int64_t i = 0; i < comm_count_all(); i++) {
        const comm_entry *entry = comm_find_any(i);
        if (atomic_load(&entry->alive) && entry->size > 1 && entry->handle != world)
            leftover_comm_drain(entry->handle, entry->name, entry->rank);
    }
}

void leftover_start(void) {
    static char anything;
    comm_slot_destructor_set(COMM_SLOT_LEFTOVER, leftover_drain);
    comm_attach(comm_find_any(0), COMM_SLOT_LEFTOVER, &anything);
}
