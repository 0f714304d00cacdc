/* Finds shared libraries at run time, and their functions: MPI, the driver of a GPU, NCCL. */
#ifndef MPIXLA_NATIVE_LOADER_H
#define MPIXLA_NATIVE_LOADER_H

#include <pthread.h>
#include <stddef.h>

#include "base/error.h"

/* The name of a function, and the offset (offsetof) of its pointer in a struct. A row without a name is skipped. */
typedef struct loader_row {
    const char *name;
    size_t place;
} loader_row;

/* Looks up a function in a library of dlopen and in the libraries that it depends on. `place` is the address of the
 * function pointer to set; it becomes NULL if the function is missing. Returns whether it was found. */
int loader_function(void *library, const char *name, void *place);

/* Looks up `count` functions of a struct. Returns the first name that is missing, or NULL. */
const char *loader_functions(void *library, const loader_row *rows, size_t count, void *functions);

/* A library that is looked for once, when it is first needed. Define one as
 * `static loader l = {.lock = PTHREAD_MUTEX_INITIALIZER};`. */
typedef struct loader {
    pthread_mutex_t lock;
    char added[1024];          /* a file that the front end knows of; "": none */
    const void *found;         /* what loader_get returns */
    char why_not[ERROR_BYTES]; /* "" before the first try */
} loader;

/* Adds a file name to try (copied). */
void loader_add(loader *l, const char *file);

/* Returns the library of `l`: the result of `find(number)`, which is called once in a process, with the lock held.
 * Returns NULL with error_set if there is no library. */
const void *loader_get(loader *l, const void *(*find)(int number), int number);

/* Opens the library that the environment variable names, or, where it is not set, the first of `count` files that
 * opens; file names of "" are skipped. With `is_loaded`, only a library that is in the process already is opened. Sets
 * `*file` to the file that was opened or tried last. Returns dlopen's handle, or NULL: then dlerror has the reason. */
void *loader_open(const char *variable, const char *const *files, size_t count, int is_loaded, const char **file);

#endif
