/* libmpixla_mpi_gate.so: MPI as libmpixla finds it when device pointers are handed to MPI. It has each function of MPI
 * that libmpixla calls, and passes the call on to the real one, with the fake GPU's memory open to MPI where a real
 * GPU's would be ready for it (fake_access.h). Where it is not ready, MPI crashes on it or fails, which is what is
 * wanted.
 *
 * A function here is told nothing of its arguments: it passes on as many words as the longest takes. On x86-64 and on
 * AArch64 under Linux that is right for all functions whose arguments are integers and pointers.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "test/gpu/fake_access.h"
#include "test/gpu/gpu_types.h"

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "the gate is written for x86-64 and AArch64"
#endif

#define PARAMETERS                                                                                          \
    uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f, uintptr_t g, uintptr_t h, \
        uintptr_t i, uintptr_t j, uintptr_t k, uintptr_t l, uintptr_t m, uintptr_t n
#define ARGUMENTS a, b, c, d, e, f, g, h, i, j, k, l, m, n

typedef int function(PARAMETERS);

enum {
#define MPIXLA_MPI_COUNTED(name, plain, large, prototype, arguments) AT_##plain, AT_##large,
#define MPIXLA_MPI_PLAIN(name, plain, prototype, arguments) AT_##plain,
#define MPIXLA_MPI_RAW(plain, prototype) AT_##plain,
#include "tables/mpi_functions.def"
#undef MPIXLA_MPI_COUNTED
#undef MPIXLA_MPI_PLAIN
#undef MPIXLA_MPI_RAW
    FUNCTIONS
};

static const char *const names[FUNCTIONS] = {
#define MPIXLA_MPI_COUNTED(name, plain, large, prototype, arguments) #plain, #large,
#define MPIXLA_MPI_PLAIN(name, plain, prototype, arguments) #plain,
#define MPIXLA_MPI_RAW(plain, prototype) #plain,
#include "tables/mpi_functions.def"
#undef MPIXLA_MPI_COUNTED
#undef MPIXLA_MPI_PLAIN
#undef MPIXLA_MPI_RAW
};

static function *real[FUNCTIONS];
static int (*access_begin)(void);
static void (*access_end)(int begun, int what);

/* Non-blocking calls go on after they have returned; those that look at something leave all as it is. */
static int what_stays_open(const char *name, int is_counted) {
    if (is_counted) return strncmp(name, "MPI_I", 5) == 0 ? FAKE_ACCESS_LEAVE : FAKE_ACCESS_CLOSE;
    if (strcmp(name, "MPI_Wait") == 0) return FAKE_ACCESS_WAITED;
    return strcmp(name, "MPI_Barrier") == 0 ? FAKE_ACCESS_CLOSE : FAKE_ACCESS_AS_BEFORE;
}

#define PASS(name, is_counted)                                 \
    FAKE_API int name(PARAMETERS);                             \
    int name(PARAMETERS) {                                     \
        int begun = access_begin();                            \
        int code = real[AT_##name](ARGUMENTS);                 \
        access_end(begun, what_stays_open(#name, is_counted)); \
        return code;                                           \
    }
#define MPIXLA_MPI_COUNTED(name, plain, large, prototype, arguments) PASS(plain, 1) PASS(large, 1)
#define MPIXLA_MPI_PLAIN(name, plain, prototype, arguments) PASS(plain, 0)
#define MPIXLA_MPI_RAW(plain, prototype) PASS(plain, 0)
#include "tables/mpi_functions.def"
#undef MPIXLA_MPI_COUNTED
#undef MPIXLA_MPI_PLAIN
#undef MPIXLA_MPI_RAW

/* Yes: this MPI takes device pointers, in the ways of Open MPI and of MPICH. */
FAKE_API int MPIX_Query_cuda_support(void);
int MPIX_Query_cuda_support(void) {
    return 1;
}

FAKE_API int MPIX_GPU_query_support(int kind, int *is_supported);
int MPIX_GPU_query_support(int kind, int *is_supported) {
    *is_supported = kind == 0;
    return 0;
}

static void *find(void *library, const char *name, void *into) {
    void *found = dlsym(library, name);
    memcpy(into, &found, sizeof found);
    return found;
}

/* Connects the gate with MPI, through a file that is loaded and depends on it, and with libmpixla_fake_gpu.so, which is
 * loaded. Returns NULL, or a sentence about what is missing. */
FAKE_API const char *mpi_gate_start(const char *mpi, const char *fake_gpu);
const char *mpi_gate_start(const char *mpi, const char *fake_gpu) {
    static char text[512];
    void *real_library = dlopen(mpi, RTLD_LAZY | RTLD_NOLOAD), *fake = dlopen(fake_gpu, RTLD_LAZY | RTLD_NOLOAD);
    if (!real_library || !fake) {
        snprintf(text, sizeof text, "%s is not loaded", real_library ? fake_gpu : mpi);
        return text;
    }
    if (!find(fake, "fake_access_begin", &access_begin) || !find(fake, "fake_access_end", &access_end)) {
        snprintf(text, sizeof text, "%s is not the fake GPU", fake_gpu);
        return text;
    }
    for (int i_ = 0; i_ < FUNCTIONS; i_++)
        if (!find(real_library, names[i_], &real[i_])) {
            snprintf(text, sizeof text, "this MPI has no function %s; the gate needs one with large counts (MPI 4.0)",
                     names[i_]);
            return text;
        }
    return NULL;
}
