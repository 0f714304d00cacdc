/* The names that the MPItrampoline in jaxlib looks up in libmpixla_trampoline.so. */
#include "trampoline/calls.h"

/* MPItrampoline takes a library with its own major version, and a minor version from its own on. */
#define VERSION(name, number) MPIXLA_API extern const int name##_##number;
#define VERSIONS(name)   \
    VERSION(name, major) \
    VERSION(name, minor) \
    VERSION(name, patch) \
    const int name##_major = 2, name##_minor = 10, name##_patch = 0;
VERSIONS(mpiabi_version)
VERSIONS(mpiwrapper_version)

/* Fortran's constants, which XLA does not use. */
MPIXLA_API void mpiwrapper_export_fortran_constants_(void); /* NOLINT(misc-use-internal-linkage) */
/* NOLINTNEXTLINE(misc-use-internal-linkage) */
void mpiwrapper_export_fortran_constants_(void) {}

#define COMM trampoline_handle
#define TYPE trampoline_handle
#define OP trampoline_handle
#define REQUEST trampoline_handle
#define MPIXLA_ABI_CALL(name, ours, prototype, arguments) \
    MPIXLA_API int name prototype;                        \
    int name prototype {                                  \
        return ours arguments;                            \
    }
#define MPIXLA_ABI_VALUE(name, value)      \
    MPIXLA_API extern const uint64_t name; \
    const uint64_t name = value;
#define MPIXLA_ABI_UNREAD(name) MPIXLA_ABI_VALUE(name, 0)

#define MPIXLA_ABI_UNCALLED(name) \
    MPIXLA_API void name(void);   \
    void name(void) {             \
        trampoline_refuse(#name); \
    }
#include "trampoline/symbols.def"
