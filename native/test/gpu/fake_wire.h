/* What the fake NCCL's communicators travel on: memory that the processes of a machine share, or the threads of one.
 * From each rank to each other there are pipes of bytes. It shares nothing with MPI, so it works under each.
 */
#ifndef MPIXLA_TEST_FAKE_WIRE_H
#define MPIXLA_TEST_FAKE_WIRE_H

#include "test/gpu/gpu_types.h"

enum { WIRE_RANKS = 32, WIRE_LANES = 2, WIRE_SENTENCE = 512 };

typedef struct wire wire; /* one rank's end */

/* Joins as this rank, and waits until all have. On failure, also if that takes too long, returns NULL and puts a
 * sentence into `text`. The shared memory has no name any more when all have joined. */
wire *wire_join(const char *name, int size, int rank, const driver_uuid *uuid, char *text, size_t bytes);
/* The others see at once that this rank has left; whoever still waits in here may go on. */
void wire_leave(wire *w);
void wire_free(wire *w);

/* The GPU of a rank. */
driver_uuid wire_uuid(const wire *w, int rank);

/* Each moves as many bytes as it can without waiting, and returns how many. */
size_t wire_write(wire *w, int to, int lane, const void *data, size_t bytes);
size_t wire_read(wire *w, int from, int lane, void *data, size_t bytes);

/* Whether the other rank has read all that was written. */
int wire_is_read(const wire *w, int to, int lane);

/* Whether a rank has left. */
int wire_has_left(const wire *w, int rank);

/* Tells all ranks what went wrong; the first sentence stays. */
void wire_fail(wire *w, const char *sentence);
/* The sentence, or NULL. */
const char *wire_failure(const wire *w);

/* A moment, for who waits. Waiting starts with `*since` 0; returns whether it lasts too long already:
 * MPIXLA_FAKE_DEVICE_TIMEOUT seconds, by default 60. */
int wire_pause(double *since);

#endif
