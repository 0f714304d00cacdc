#include "mpi/pair_reduce.h"

#include <pthread.h>
#include <string.h>

#include "base/error.h"

/* Sizes that values of 1, 2, 4 and 8 bytes with places of 1, 2, 4 and 8 bytes have. */
#define PAIR_SIZES(PAIR) PAIR(2) PAIR(3) PAIR(4) PAIR(5) PAIR(6) PAIR(8) PAIR(9) PAIR(10) PAIR(12) PAIR(16)

#define PAIR(bytes)                                                                            \
    static void keep_greatest_##bytes(void *in, void *inout, const void *length, void *type) { \
        const char *a = in;                                                                    \
        const int64_t n = mpi_length(length);                                                  \
        char *b = inout;                                                                       \
        (void)type;                                                                            \
        for (int64_t i = 0; i < n; i++, a += (bytes), b += (bytes))                            \
            if (memcmp(a, b, bytes) > 0) memcpy(b, a, bytes);                                  \
    }
PAIR_SIZES(PAIR)
#undef PAIR

static const struct {
    int bytes;
    mpi_combine *combine;
} rows[] = {
#define PAIR(bytes) {bytes, keep_greatest_##bytes},
    PAIR_SIZES(PAIR)
#undef PAIR
};

enum { ROWS = sizeof rows / sizeof rows[0] };

/* The operations are written by pair_reduce_start, the types when they are first needed, because data types are bound
 * after the start; read-only after. */
static pair_reduction made[ROWS];
static int has_type[ROWS];
static pthread_mutex_t types = PTHREAD_MUTEX_INITIALIZER;

int pair_reduce_start(const mpi_library *mpi) {
    for (int i = 0; i < ROWS; i++)
        if (mpi->op_create(rows[i].combine, &made[i].op) != 0) return error_set("MPI_Op_create failed");
    return 0;
}

const pair_reduction *pair_reduce_find(const mpi_library *mpi, int64_t bytes, mpixla_handle byte) {
    int i = 0, code = 0;
    while (i < ROWS && rows[i].bytes != bytes) i++;
    if (i == ROWS)
        return error_null("a pair of a value and a place has 2 to 16 bytes, but these have %lld", (long long)bytes);
    pthread_mutex_lock(&types);
    if (!has_type[i]) code = mpi->type_repeat((int)bytes, byte, &made[i].type);
    has_type[i] = code == 0;
    pthread_mutex_unlock(&types);
    if (code == 0) return &made[i];
    return error_null("MPI_Type_contiguous failed for pairs of %lld bytes", (long long)bytes);
}
