#include "mpi/agreed.h"

#include "mpi/dtype.h"
#include "mpi/mpi.h"
#include "mpi/reduction.h"
#include "xla/xla_ffi.h"

void agreed_fill(uint64_t words[AGREED_WORDS], uint64_t number) {
    words[0] = number;
    words[1] = ~number;
}

agreed agreed_read(const uint64_t words[AGREED_WORDS]) {
    return (agreed){.least = ~words[1], .greatest = words[0]};
}

int agreed_find(mpixla_handle comm, uint64_t number, agreed *found) {
    uint64_t mine[AGREED_WORDS], most[AGREED_WORDS];
    agreed_fill(mine, number);
    agreed_fill(most, number);
    const int code = mpi_get()->small->allreduce(mine, most, AGREED_WORDS, dtype_find(FFI_U64)->handle,
                                                 *reduction_named("MPI_MAX"), comm);
    *found = agreed_read(most);
    return code;
}
