/* What a front end of libmpixla does once: tells it about MPI, and XLA about it. */
#ifndef FRONT_END_H
#define FRONT_END_H

#include <mpi.h>
#include <mpixla.h>
#include <stdint.h>
#include <xla/ffi/api/c_api.h>

/* MPI's handles are ints or pointers. */
#define HANDLE(handle) ((mpixla_handle)(uintptr_t)(handle))

/* Ends the job, with libmpixla's sentence. */
void give_up(const char *what);

/* After MPI_Init_thread. */
void connect_mpi(void);

/* With XLA, for the CPU and for GPUs. */
void register_handlers(const XLA_FFI_Api *api);

/* The number by which programs name a reduction. */
int64_t reduction_number(const char *name);

#endif
