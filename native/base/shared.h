/* Memory that processes of one host share. They find it by a number that one of them tells the others. */
#ifndef MPIXLA_NATIVE_SHARED_H
#define MPIXLA_NATIVE_SHARED_H

#include <stdint.h>

/* Returns a random number to name shared memory by: unique among processes, and not to be guessed if the system has
 * random bytes. */
uint64_t shared_random_number(void);

/* Maps memory of so many bytes, shared by the processes of a host that know its number, and returns it; NULL if there
 * is none. `makes`: this process makes the memory, of zeros; else it opens the memory that another process of the same
 * user on the same host has made by this number. The part of `mine` bytes from byte `from` on, the start of a page, is
 * reserved at once, near the calling processor, since a name can be had for more memory than there is. A quarter of the
 * system's shared memory is left to other programs. If the call fails, the memory that it made has no name any more. */
void *shared_open(uint64_t number, int makes, int64_t bytes, int64_t from, int64_t mine);

/* Unmaps the memory from this process. */
void shared_close(void *memory, int64_t bytes);

/* Removes the memory's name: it cannot be opened any more, and is freed when the last process unmaps it or ends. */
void shared_unlink(uint64_t number);

#endif
